"""Each summary names what changed and nothing else; equality is the strongest that holds."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from random import Random

import pytest

from ptxgen.commands import run
from ptxgen.review import writing
from ptxgen.review.alignment import align
from ptxgen.review.comparison import Comparison, compare, compare_words
from ptxgen.review.equality import cubin_code
from ptxgen.review.sources import Source, read_source

GOLDEN = Path(__file__).parent / "golden"
PAIRS = {
    "step5_to_step6": ("step:5", "step:6"),
    "pipe_depth_2_to_4": ("step:5", "step:5,pipe_depth=4"),
    "row_major_to_grouped": ("step:6,scheduler.order=row_major", "step:6"),
    "f16_to_bf16": ("step:6", "step:6,operand_type=bf16,output_type=bf16"),
}


def source(text: str, name: str = "edited.ptx") -> Source:
    return Source(name=name, text=text)


def level(old: Source, new: Source, *, run: bool = False) -> str:
    return compare(old, new, run=run).equality.level


@pytest.mark.parametrize("name", PAIRS)
def test_golden_summaries(name: str) -> None:
    """Renew with: ptxgen diff --summary OLD NEW > tests/review_workflow/golden/NAME.txt"""
    found = compare_words(*PAIRS[name])
    assert isinstance(found, Comparison)
    assert "\n".join(writing.summary_lines(found)) + "\n" == (GOLDEN / f"{name}.txt").read_text()


@pytest.fixture(scope="module")
def step5() -> Source:
    return read_source("step:5")


def test_comments_and_names_leave_the_cubin_alone(step5: Source) -> None:
    commented = step5.text.replace("// A and B have landed", "// here they are")
    renamed = re.sub(r"%load_stage\b", "%where", re.sub(r"\bk_loop\b", "around", step5.text))
    for text in (commented, renamed):
        assert text != step5.text
        found = compare(step5, source(text), run=False)
        assert found.equality.level == "names"
        assert ".text of the cubins is identical (ptxas 13.0.88, sm_100a)" in found.equality.notes
    assert not compare(step5, source(commented), run=False).changes


def test_another_way_to_the_same_machine_code(step5: Source) -> None:
    text = step5.text.replace(
        "add.u32 %staging, %smem, 1024;", "add.u32 %staging, %smem, 1000;\n    add.u32 %staging, %staging, 24;"
    )
    assert text != step5.text
    assert level(step5, source(text)) == "cubin"


def test_swapped_registers_are_not_a_renaming(step5: Source) -> None:
    text = step5.text.replace("%mma_wrapped, %mma_stage, %pipe_depth;", "%mma_wrapped, %load_stage, %pipe_depth;")
    assert text != step5.text
    assert level(step5, source(text)) == "none"


def test_a_pragma_is_more_than_a_name(step5: Source) -> None:
    text = re.sub(r"\n    \.pragma [^\n]*", "", step5.text)
    assert text != step5.text
    assert level(step5, source(text)) != "names"


def test_a_wrong_byte_count_shows_as_a_constant_and_as_findings(step5: Source) -> None:
    text = step5.text.replace("mov.b32 %load_bytes, 32768;", "mov.b32 %load_bytes, 16384;")
    found = compare(step5, source(text))
    assert found.new.edited and not found.old.edited
    assert ("mov.b32 %load_bytes, …", "32768", "16384") in [(c.name, c.old, c.new) for c in found.changes]
    assert found.behaviour is not None
    assert found.behaviour.old.status == "clean"
    assert "errors" in found.behaviour.new.status


def test_a_wait_for_the_kernel_before_is_synchronisation() -> None:
    """Twice it is as right as once, and not the same."""
    kernel = read_source("step:10@sm_90a")
    line = next(line for line in kernel.text.splitlines() if "griddepcontrol.wait;" in line)
    assert level(kernel, source(kernel.text.replace(line, f"{line}\n{line}")), run=True) == "results"


def test_an_instruction_that_moved_is_told_with_what_it_passed() -> None:
    """Nothing came or went, and yet the kernel may be wrong now."""
    text = read_source("step:7").text
    fence, arrive = re.search(r"( +tcgen05\.fence::before[^\n]*\n)( +mbarrier\.arrive[^\n]*\n)", text).groups()  # type: ignore[union-attr]
    found = compare(source(text), source(text.replace(fence + arrive, arrive + fence)), ptxas=False, run=False)
    assert [str(change) for change in found.changes] == [
        "storer > storer_tile_loop: tcgen05.fence::before_thread_sync moved down past mbarrier.arrive"
    ]
    back = compare(source(text.replace(fence + arrive, arrive + fence)), source(text), ptxas=False, run=False)
    assert [str(change) for change in back.changes] == [
        "storer > storer_tile_loop: mbarrier.arrive moved down past tcgen05.fence::before_thread_sync"
    ]


def test_others_that_stand_elsewhere_are_counted() -> None:
    text = read_source("step:7").text
    lines = text.split("\n")
    (first,) = [number for number, line in enumerate(lines) if "add.u32 %slice_tmem, %slice_tmem" in line]
    lines[first - 3 : first + 1] = [lines[first], *lines[first - 3 : first]]
    found = compare(source(text), source("\n".join(lines)), ptxas=False, run=False)
    assert [str(change) for change in found.changes] == [
        "storer > storer_tile_loop > storer_slice_loop: in other places or replaced: add.u32"
    ]


def test_opcodes_that_differ_in_a_modifier_are_written_out() -> None:
    found = compare(read_source("step:7"), read_source("step:8"), ptxas=False, run=False)
    assert any(
        "+4 tcgen05.mma.cta_group::2.kind::f16, -4 tcgen05.mma.cta_group::1.kind::f16" in str(change)
        for change in found.changes
    )


def test_renumbered_registers_are_followed(numbered: Source) -> None:
    lines = numbered.text.split("\n")
    renumbered = re.sub(r"%r(\d+)", lambda match: f"%r{int(match[1]) + 7}", numbered.text).replace("<60>", "<80>")
    pairs = align(lines, renumbered.split("\n"))
    assert {pair.state for pair in pairs} == {"same", "renamed"}
    assert level(numbered, source(renumbered)) == "names"


def test_one_register_too_many_is_a_change_among_renamings(numbered: Source) -> None:
    lines = numbered.text.split("\n")
    text = re.sub(r"%r2(\d)\b", r"%r8\1", numbered.text).replace("and.b32 \t%r11, %r88", "and.b32 \t%r12, %r88")
    changed = [pair for pair in align(lines, text.split("\n")) if pair.state == "changed" and pair.old]
    assert [lines[pair.old - 1].split()[0] for pair in changed if pair.old] == ["and.b32"]


def test_nameless_barriers_that_moved_are_the_same(numbered: Source) -> None:
    text = re.sub(r", 655(36|44|52|60);", lambda match: f", {65500 + int(match[1]) + 1024};", numbered.text)
    found = compare(numbered, source(text), ptxas=False, run=False)
    barriers = [str(change) for change in found.changes if change.group == "barriers"]
    assert barriers == [
        "mbarrier 1: 2 barriers, 1 arrival a phase, at 65536 -> 2 barriers, 1 arrival a phase, at 66560",
        "mbarrier 2: 2 barriers, 1 arrival a phase, at 65552 -> 2 barriers, 1 arrival a phase, at 66576",
    ]


def test_hunks_are_grouped_by_role_and_named_after_their_ops() -> None:
    found = compare(read_source("step:7"), read_source("step:7,pipe_depth=4"), ptxas=False, run=False)
    roles = [role for role, _ in found.hunks.by_role]
    assert roles == ["header", "all warps", "storer"]
    storer = dict(found.hunks.by_role)["storer"]
    assert [hunk.heading for hunk in storer] == ["set-up: mbarrier init"]
    # Every line of both texts is in a pair, once.
    for side, lines in (("old", found.old.structure.lines), ("new", found.new.structure.lines)):
        numbers = [getattr(pair, side) for pair in found.hunks.pairs if getattr(pair, side) is not None]
        assert numbers == list(range(1, len(lines) + 1))


def test_code_sections_of_a_cubin() -> None:
    found = compare(read_source("step:4"), read_source("step:4"), run=False)
    assert found.old.assembly is not None
    (name,) = cubin_code(found.old.assembly.cubin)
    assert name == ".text.gemm_step4"
    assert cubin_code(b"not a cubin") == {}


def test_folders(tmp_path: Path) -> None:
    for folder, files in {"a": {"one": 4, "two": 5, "gone": 4}, "b": {"one": 4, "two": 6, "new": 4}}.items():
        (tmp_path / folder).mkdir()
        for name, step in files.items():
            (tmp_path / folder / f"{name}.ptx").write_text(read_source(f"step:{step}").text)
    found = compare_words(str(tmp_path / "a"), str(tmp_path / "b"), ptxas=False, run=False)
    assert not isinstance(found, Comparison)
    assert (found.removed, found.added, found.same) == (("gone.ptx",), ("new.ptx",), 1)
    assert [path for path, _ in found.changed] == ["two.ptx"]


@pytest.mark.parametrize(("new", "code"), [("step:4", 0), ("step:5", 1)])
def test_exit_code(new: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diff", "step:4", new, "--exit-code", "--no-run", "--no-ptxas", "--summary"]) == code


def test_json_and_markdown_and_html(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "diff.html"
    options = ["--no-run", "--no-ptxas"]
    assert run(["diff", "step:5", "step:6", "--json", "--html", str(page), *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"group": "spec", "name": "scheduler.kind", "old": "grid", "new": "persistent"} in found["changes"]
    assert found["hunks"][0]["role"] == "header"
    html = page.read_text()
    assert "scheduler.kind" in html
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//|url\(""", html)
    assert run(["diff", "step:5", "step:6", "--format", "md", *options]) == 0
    comment = capsys.readouterr().out
    assert "| spec | step | 5 | 6 |" in comment
    assert comment.count("<details>") == comment.count("</details>") == len({hunk["role"] for hunk in found["hunks"]})
    assert len(comment) < 65536


def test_sass_of_two_texts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diff", "step:7", "step:7,pipe_depth=4", "--sass", "--no-run", "--no-ptxas", "--summary"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"SASS: step:7 \(ptxas 13\.0\.\d+\) -> step:7,pipe_depth=4", out)
    assert re.search(r"SYNCS\S*: \d+ -> \d+", out)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("step:99", "unknown step '99'"),
        ("nothing.ptx", "there is no file 'nothing.ptx'"),
        ("git:HEAD", "git:REVISION:PATH"),
        ("git:no-such-revision:a.ptx", "no-such-revision"),
    ],
)
def test_sources_that_are_not_there(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diff", word, "step:4"]) == 2
    assert said in capsys.readouterr().err


def test_long_texts_take_no_time() -> None:
    """Two texts of over 2,000 lines take less than a second of processor time, without assembler and emulator; it is
    a third of one where nothing else runs."""
    text = read_source("step:7,epilogue.unroll=true,tile=128x256x64").text
    head, body = text.split("\n    // set-up\n")
    work, end = body.split("\n    // producer")
    long = f"{head}\n    // set-up\n{work}\n" + "    add.u32 %smem, %smem, 0;\n" * 1500 + f"\n    // producer{end}"
    other = long.replace("mov.b32 %pipe_depth, 2;", "mov.b32 %pipe_depth, 3;")
    assert len(long.splitlines()) > 2000
    best = 10.0
    for _ in range(2):
        begun = time.process_time()
        found = compare(source(long), source(other), ptxas=False, run=False)
        best = min(best, time.process_time() - begun)
    assert [change.name for change in found.changes if change.group == "constants"] == ["mov.b32 %pipe_depth, …"]
    assert best < 1.0


@pytest.mark.parametrize("seed", range(20))
def test_every_line_of_both_sides_is_paired_once_and_in_order(seed: int) -> None:
    """Whatever the texts: few sorts of lines, so that many are alike."""
    random = Random(seed)
    sides = [
        [f"    op{random.randrange(6)}.b32 %r{random.randrange(3)};" for _ in range(length)] for length in (60, 80)
    ]
    middle = random.randrange(20, 60)
    sides[1][middle:middle] = sides[0][10:50]
    pairs = align(*sides)
    for side, lines in (("old", sides[0]), ("new", sides[1])):
        numbers = [getattr(pair, side) for pair in pairs if getattr(pair, side) is not None]
        assert numbers == list(range(1, len(lines) + 1))
    assert sum(pair.state in ("same", "renamed") for pair in pairs) >= 30


def test_alike_lines_with_different_ends_take_no_time() -> None:
    alike = ["    add.u32 %smem, %smem, 0;"] * 3000
    begun = time.process_time()
    pairs = align(["    ret;", *alike, "    trap;"], ["    exit;", *alike[:2990], "    trap;"])
    assert time.process_time() - begun < 2.0
    assert sum(pair.state == "same" for pair in pairs) == 2991
