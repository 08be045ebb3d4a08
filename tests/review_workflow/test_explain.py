"""Explanations of kernels whose ledger, maps and descriptors are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptxgen.commands import run
from ptxgen.review.explain import Explanation, explain
from ptxgen.review.explain_line import line_lines
from ptxgen.review.explain_text import explanation_lines
from ptxgen.review.sources import Source, read_source


def line_of(found: Explanation, start: str) -> int:
    """The first line whose code begins so."""
    return next(n for n, line in enumerate(found.structure.lines, 1) if line.strip().startswith(start))


def test_ledger_of_step_5() -> None:
    """PIPE_DEPTH 2 and 5 K tiles: stage 0 is loaded three times, stage 1 twice; the MMAs' barrier flips with each."""
    found = explain(read_source("step:5"), problem={"M": 128, "N": 128, "K": 320})
    phases = {account.name: account.phases for account in found.accounts}
    assert phases == {"loaded[0]": (3,), "loaded[1]": (2,), "mma_done": (5,)}
    first = found.accounts[0]
    assert first.count == "1" and first.init.startswith("warp 0, line ")
    prologue, refills = first.entries
    assert (prologue.phases, refills.phases) == ("0", "1..2")
    assert prologue.arrives[0].endswith("32768 bytes expected")
    assert [text.split(",")[0] for text in prologue.bytes] == ["16384 by a_map", "16384 by b_map"]


def test_ledger_of_step_7(step7: Explanation) -> None:
    accounts = {account.name: account for account in step7.accounts}
    assert set(accounts) == {"loaded[0..1]", "released[0..1]", "acc_full", "acc_empty"}
    assert accounts["acc_empty"].count == "128"
    free, later, last = accounts["acc_empty"].entries
    assert (free.phases, free.arrives) == ("before 0", ())
    assert later.arrives[0].startswith("128 by storer") and later.waits[0].startswith("multiplier")
    assert last.waits == ()


def test_maps_of_step_7(step7: Explanation) -> None:
    named = [(region.name, region.start, region.size) for region in step7.smem if region.name in ("A", "B")]
    assert named == [("A", 33792, 16384), ("B", 50176, 16384), ("A", 66560, 16384), ("B", 82944, 16384)]
    assert step7.tmem_columns == 128
    (accumulator,) = (region for region in step7.tmem if region.name == "accumulator")
    assert (accumulator.start, accumulator.stop) == (0, 128)
    assert step7.unknown == ()


def test_maps_without_a_run_agree_with_those_of_a_run(step7: Explanation) -> None:
    still = explain(step7.source, run=False)
    assert still.trace is None
    loads = [(region.start, region.size, region.step) for region in still.smem if region.name.endswith("_map")][-2:]
    assert loads == [(33792, 16384, 32768), (50176, 16384, 32768)]
    assert still.tmem_columns == 128


def test_descriptors(step7: Explanation) -> None:
    texts = {use.decoded.operand: use for use in step7.descriptors}
    assert texts["instruction descriptor"].decoded.meaning.startswith("M 128 x N 128, f16 x f16 -> f32")
    assert texts["first operand"].starts == (33792, 33824, 33856, 33888)
    assert texts["first operand"].decoded.step == 32768
    assert texts["second operand"].decoded.meaning == "swizzle B128, stride 1024 B"


def test_a_compilers_text_is_explained_and_its_unknowns_named(numbered: Source) -> None:
    found = explain(numbered)
    text = "\n".join(explanation_lines(found))
    assert "first operand: 0x4000404000000000, from 0 + 16384 x i, swizzle B128, stride 1024 B" in text
    assert "mbarrier at 65536[0..1] at 65536, 65544: 1 arrival a phase" in text
    assert "bytes   matmul_param_0, line " in text
    unknown = " ".join(found.unknown)
    for word in ("no launch description", "indexed branch", "boxes of the tensor copies"):
        assert word in unknown


def test_what_cannot_run_is_said() -> None:
    """A kernel of one tile is asked for more."""
    found = explain(read_source("step:1"), problem={"M": 256, "N": 128, "K": 64})
    assert found.trace is None
    assert any("one tile" in text for text in found.unknown)


def test_a_barrier_that_the_text_does_not_name(numbered: Source) -> None:
    text = numbered.text.replace("add.s32 \t%r51, %r41, 65552;", "ld.shared.b32 \t%r51, [%r41+65700];")
    found = explain(Source(name="k.ptx", text=text))
    line = next(n for n, one in enumerate(text.split("\n"), 1) if "tcgen05.commit" in one)
    assert f"The mbarrier used in line {line} is not known from the text." in found.unknown
    assert "which mbarrier it uses is not known from the text" in "\n".join(line_lines(found, line))


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ("mbarrier.arrive.expect_tx", ("one lane of warp 5", "announces 32768 bytes on loaded", "loaded[1] phase 0")),
        ("cp.async.bulk.tensor.2d.shared", ("tensor map a_map: A, f16", "A[0], A[1], A[0]", "completes on loaded")),
        ("tcgen05.mma", ("M 128 x N 128", "is complete when the commit in line", "role multiplier")),
        ("mbarrier.try_wait", ("goes on when a phase of released is complete", "released[0] phase before 0")),
        ("tcgen05.commit", ("arrives, when that work is done, at released", "producer, line")),
        ("mbarrier.arrive.shared", ("run by warps 0 to 3, role storer", "multiplier, line")),
        ("cp.async.bulk.tensor.2d.global", ("is waited for in line", "cp.async.bulk.wait_group.read 0")),
        (".reg", ("no instruction",)),
    ],
)
def test_a_line(step7: Explanation, start: str, words: tuple[str, ...]) -> None:
    text = "\n".join(line_lines(step7, line_of(step7, start)))
    for word in words:
        assert word in text


def test_each_kind_of_work_has_its_own_wait() -> None:
    """Not the next wait of any kind: that of a wgmma, or of loads from tensor memory, is no wait for a store."""
    store = "cp.async.bulk.tensor.2d.global"
    for name in ("step:7@sm_90a", "step:10@sm_90a", "step:8"):
        found = explain(read_source(name), run=False)
        waits = [text for text in line_lines(found, line_of(found, store)) if "is waited for" in text]
        assert len(waits) == 1 and "cp.async.bulk.wait_group" in waits[0], name
    load = [text for text in line_lines(found, line_of(found, "tcgen05.ld")) if "is waited for" in text]
    assert len(load) == 1 and "tcgen05.wait::ld" in load[0]


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "--step", "4", "--set", "tile.k=32", "--no-run"]) == 0
    assert "nothing was run" in capsys.readouterr().out
    assert run(["explain", "step:4:130", "--no-run"]) == 0
    assert capsys.readouterr().out.startswith("step:4:130: ")
    assert run(["explain", "step:4:9999", "--no-run"]) == 2
    assert "there is no line 9999" in capsys.readouterr().err
    assert run(["explain", "step:4", "--step", "4"]) == 2
    assert run(["explain", "step:4", "-m", "128"]) == 2


def test_a_cluster() -> None:
    found = explain(read_source("step:8"))
    names = [account.name for account in found.accounts]
    assert "loaded[0..3] of CTA 0" in names
    empty = next(account for account in found.accounts if account.name == "acc_empty of CTA 0")
    assert any("128 by storer of CTA 1" in text for entry in empty.entries for text in entry.arrives)


def test_each_warpgroup_reads_its_own_rows_of_a() -> None:
    """Descriptors that a warp computes from its index are those of the warps that multiply, not of warp 0."""
    for name, starts in (("step:7@sm_90a", (66560, 74752)), ("step:9", (33792, 50176))):
        found = explain(read_source(name), run=False)
        (a,) = (use for use in found.descriptors if use.decoded.operand == "first operand")
        assert a.starts[:2] == starts and len(a.starts) == 8
        assert a.decoded.meaning == "swizzle B128, stride 1024 B"
        line = line_of(found, "wgmma.mma_async" if "sm_90a" in name else "tcgen05.mma")
        assert f"from {starts[0]} or {starts[1]} + 49152 x i" in "\n".join(line_lines(found, line))


GENERATED = Path(__file__).parents[2] / "generated"


@pytest.mark.parametrize("name", ["step:8", "step:9", str(GENERATED / "sm_90a" / "step10_along_m.ptx")])
def test_mbarriers_in_another_cta_are_known_by_their_names(name: str) -> None:
    found = explain(read_source(name), run=False)
    assert all(use.barriers is not None for use in found.uses)
    assert not any("mbarrier" in text for text in found.unknown)
    texts = [item.text for role in found.roles for item in role.items]
    assert any(text.startswith("mbarrier.arrive") and "of a CTA of the cluster" in text for text in texts)


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        (
            "step:6",
            (
                "issuer (warp 0): TMA loads, MMAs, TMEM loads, SMEM stores, TMA stores",
                "epilogue (warps 1 to 3): TMEM loads, SMEM stores",
            ),
        ),
        (
            "step:9",
            (
                "storer (warps 0 to 7): TMEM loads, SMEM stores, TMA stores (warps 0, 4)",
                "multiplier (warps 8, 9): MMAs",
                "producer (warp 10): TMA loads",
            ),
        ),
        (
            str(GENERATED / "sm_100a" / "step10_clc.ptx"),
            (
                "storer (warps 0 to 7): TMEM loads, SMEM stores, TMA stores (warps 0, 4)",
                "multiplier (warps 8, 9): MMAs",
                "producer (warp 10): TMA loads",
                "scheduler (warp 11): cluster claims",
            ),
        ),
        (
            "step:7@sm_90a",
            (
                "producer (warp 0): TMA loads",
                "idle (warps 1 to 3)",
                "consumer (warps 4 to 11): MMAs, SMEM stores, TMA stores (warps 4, 8)",
            ),
        ),
    ],
)
def test_roles_and_what_they_do(name: str, roles: tuple[str, ...]) -> None:
    lines = list(explanation_lines(explain(read_source(name), run=False)))
    first = lines.index("Roles") + 1
    assert tuple(line.strip() for line in lines[first : first + len(roles) + 1]) == (*roles, "")


def test_the_outline_says_who_where_not_the_whole_role_does_it(step7: Explanation) -> None:
    (storer,) = (role for role in step7.roles if role.title.startswith("storer"))
    texts = [item.text for item in storer.items]
    assert "tcgen05.alloc.sync.aligned.b32 (warp 0)" in texts
    assert "TMA store d_map (one lane of warp 0)" in texts
    assert "tcgen05.wait::ld.sync.aligned" in texts


def test_operands_read_in_parts_and_widths_of_tensor_memory() -> None:
    found = explain(read_source("step:7@sm_90a"))
    assert not any(region.name == "operand" for region in found.smem)
    assert sum("MMA operand in 2 parts" in region.uses for region in found.smem) == 3
    still = explain(read_source("step:7"), run=False)
    assert all(region.stop is not None for region in still.tmem)
