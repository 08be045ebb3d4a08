"""docs/mutations.md: every generated kernel x each of its synchronising instructions, deleted or weakened.

    python -m ptxgen.review.mutation_table [--check] [--jobs N] [KERNEL …]

writes the table, or with --check runs everything again and only compares. Kernels (paths below generated/)
restrict what is run; the rest of the table stays. A kernel whose code is that of its table is not run again: only
its lines are numbered anew, for comments that came or went.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import re
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

from ptxgen.checker import RULES
from ptxgen.files import write_file
from ptxgen.review.mutants import Mutant, mutants
from ptxgen.review.mutations import DAMAGE, Examination, Outcome

ROOT = Path(__file__).resolve().parents[2]
_TEXT_LIMIT = 90
_ROW_LINE = re.compile(r"(?m)^\| \d+ \|")

_WAITS: tuple[tuple[str, Sequence[str]], ...] = (
    (r"A and B have landed", ("read-before-complete",)),
    (r"the accumulator is complete|the MMAs are complete", ("read-before-complete",)),
    (r"the accumulator may be overwritten", ("tmem-race", "read-before-complete")),
    (
        r"the stage is free",
        (
            "smem-race",
            "stage-released-early",
            "arrive-count-exceeded",
            "exit-with-pending-async",
            "commit-after-exit",
        ),
    ),
    (r"the other's K loop has ended", ("stage-released-early",)),
    (r"the answer is there", ("read-before-complete", "uninitialised-read")),
    (r"every role of both CTAs has read the slot", ("smem-race",)),
)
"""What a wait for an mbarrier is for (a pattern of its comment), and the rules of which one is found without it.

A loader that does not wait for its stage overwrites it, or arrives twice in one phase; where it waits at its end, for
what others still do to its CTA, that has not ended. Which of two accesses comes second is up to the schedule: an
accumulator that is overwritten too early is read while that is under way, or the other way round. An answer that has
not come is a read of memory that was never written."""

_BARRIERS: tuple[tuple[str, Sequence[str]], ...] = (
    (r"the accumulator is complete", ("read-before-complete",)),
    (r"all rows are staged|staging is free", ("smem-race", "source-overwritten-in-flight")),
    (r"the accumulator has been read", ("tmem-use-after-dealloc",)),
    (r"A and B are there|the mbarriers and the TMEM address are there", ("smem-race",)),
    (r"the mbarriers are there", ("barrier-init-not-visible",)),
)
"""The same for the barriers of a CTA."""

_EXPECTED: tuple[tuple[str, str, Sequence[str]], ...] = (
    (r"mbarrier\.init", r"deleted", ("barrier-not-initialised",)),
    (r"mbarrier\.init", r"one arrival more", ("deadlock",)),
    (r"mbarrier\.init.*turn\[", r"one arrival fewer", ("phase-left-open",)),
    (r"mbarrier\.init.*(acc_empty|answer_read)", r"one arrival fewer", ("arrive-in-two-phases",)),
    (
        r"mbarrier\.init",
        r"one arrival fewer",
        ("arrive-in-two-phases", "phase-overrun", "stage-released-early", "exit-with-pending-async"),
    ),
    (r"griddepcontrol\.wait", r"", ("missing-grid-wait",)),
    (r"mbarrier\.arrive\.expect_tx", r"16 bytes more", ("tx-count-mismatch",)),
    (r"mbarrier\.arrive\.expect_tx.*the answer", r"bytes", ("uninitialised-read",)),
    (r"mbarrier\.arrive\.expect_tx", r"16 bytes fewer", ("tx-count-mismatch",)),
    (r"mbarrier\.arrive\.expect_tx", r"without the bytes", ("read-before-complete",)),
    (r"mbarrier\.arrive|tcgen05\.commit", r"deleted", ("deadlock",)),
    (r"mbarrier\.arrive|tcgen05\.commit|mbarrier\.try_wait", r"next stage", ("barrier-not-initialised", "deadlock")),
    (r"tcgen05\.commit", r"plain arrive", ("stage-released-early", "read-before-complete")),
    *((rf"mbarrier\.try_wait.*({purpose})", r"deleted", rules) for purpose, rules in _WAITS),
    *((rf"mbarrier\.try_wait.*({purpose})", r"flipped", ("deadlock", *rules)) for purpose, rules in _WAITS),
    (r"tcgen05\.alloc", r"", ("uninitialised-read",)),
    (r"tcgen05\.dealloc", r"", ("tmem-leak",)),
    (r"tcgen05\.fence", r"", ("missing-tcgen05-fence",)),
    (r"tcgen05\.wait::ld", r"", ("missing-wait-ld",)),
    (r"fence\.proxy\.async::generic", r"deleted", ("smem-race",)),
    (r"fence\.proxy\.async", r"", ("missing-proxy-fence",)),
    (r"fence\.mbarrier_init", r"", ("missing-mbarrier-init-fence",)),
    (r"cp\.async\.bulk\.wait_group\.read", r"", ("source-overwritten-in-flight",)),
    (r"cp\.async\.bulk\.wait_group", r"", ("exit-with-pending-async",)),
    (r"cp\.async\.bulk\.commit_group", r"", ("source-overwritten-in-flight", "exit-with-pending-async")),
    (r"wgmma\.", r"", ("wgmma-register-hazard", "stage-released-early")),
    *((rf"bar\.sync.*({purpose})", r"", rules) for purpose, rules in _BARRIERS),
    (r"st\.release", r"deleted", ("deadlock",)),
    (r"st\.release|ld\.acquire|bar\.warp\.sync", r"", ("global-race",)),
    (r"st\.relaxed", r"", (DAMAGE,)),
    (r"barrier\.cluster\.arrive.*both CTAs have started", r"deleted", ("peer-not-started",)),
    (r"barrier\.cluster\.arrive.*the mbarriers", r"relaxed", ("smem-race",)),
    (r"barrier\.cluster\.arrive", r"relaxed", ("relaxed-barrier-before-exit",)),
    (
        r"barrier\.cluster\.arrive.*the mbarriers",
        r"deleted",
        ("barrier-not-initialised", "barrier-init-not-visible"),
    ),
    (r"barrier\.cluster\.arrive", r"deleted", ("exit-with-pending-async", "tmem-use-after-dealloc")),
    (
        r"barrier\.cluster\.wait",
        r"",
        (
            "barrier-not-initialised",
            "barrier-init-not-visible",
            "named-barrier-mismatch",
            "exit-with-pending-async",
            "tmem-use-after-dealloc",
        ),
    ),
)
"""Instruction with its comment and mutation (patterns; the first that fits counts) and the rules of which one has to
be found. An mbarrier that counts one arrival fewer lets its waiters go on early; a turn orders the products of two
warpgroups and no memory, so its last arrivals are only left over. A wait for a cluster's barrier is followed by what
the barrier guards: the first use of the other CTA's mbarriers, the next arrive, or the end."""

_HARMLESS: tuple[tuple[str, str, str, str], ...] = (
    (
        "",
        r"tcgen05\.relinquish",
        r"deleted",
        "stands in the tutorial's listings, ahead of tcgen05.dealloc; it gives up a right and orders nothing",
    ),
    (
        "",
        r"tcgen05\.fence::after_thread_sync.*used only after its allocation",
        r"deleted",
        "another after_thread_sync comes before each warp's first asynchronous access; the ISA wants one between the"
        " barrier after tcgen05.alloc and that access (PTX ISA 9.1 §9.7.16.6.3)",
    ),
    (
        "",
        r"tcgen05\.fence::after_thread_sync.*deallocation: not before the accumulator is free",
        r"deleted",
        "only tcgen05.dealloc follows, which is synchronous; every hand-over of tensor memory is written as"
        " before_thread_sync, barrier, after_thread_sync (PTX ISA 9.1 §9.7.16.6.4)",
    ),
    (
        r"sm_100a/step[123]",
        r"fence\.mbarrier_init",
        r"deleted",
        "the thread's fence.proxy.async, after the copies into shared memory, comes before its first commit; the ISA"
        " wants a fence between mbarrier.init and other proxies' use (PTX ISA 9.1 §9.7.13.4)",
    ),
    (
        r"sm_100a/step(8|9|10)",
        r"barrier\.cluster\.arrive.*both CTAs have started",
        r"relaxed",
        "nothing has been written yet; relaxed, it still shows that both CTAs run, which is what"
        " tcgen05.alloc.cta_group::2 asks for (PTX ISA 9.1 §9.7.16.7)",
    ),
    (
        "",
        r"cp\.async\.bulk\.wait_group 0.*D is written",
        r"\.read added",
        "the end of the grid completes the stores; without .read a thread also waits for what they write to be visible"
        " to it (PTX ISA 9.1 §9.7.9.25.4), and a kernel waits so for its own before it ends",
    ),
    (
        "",
        r"griddepcontrol\.launch_dependents",
        r"deleted",
        "a hint: the end of every CTA says the same, later; what a dependent may rely on is told by its own"
        " griddepcontrol.wait (PTX ISA 9.1 §9.7.13.13)",
    ),
    (
        r"sm_90a/step[456]",
        r"mbarrier\.try_wait.*\[%mma_done\]",
        r"deleted",
        "the warp that loads multiplies, too, and a wgmma-group is the warpgroup's, so its own wait covers what all"
        " four warps read; the arrivals serve the other reading, by which wgmma.wait_group speaks for the executing"
        " threads alone (PTX ISA 9.1 §9.7.15.7)",
    ),
)
"""Kernel, instruction with its comment, and mutation (patterns), and why nothing has to object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One mutant of a kernel and what became of it."""

    line: int
    instruction: str
    mutation: str
    result: str
    wrong: str = ""

    def __str__(self) -> str:
        text = self.instruction.partition("  //")[0]
        text = text if len(text) <= _TEXT_LIMIT else text[: _TEXT_LIMIT - 1] + "…"
        return f"| {self.line} | `{text}` | {self.mutation} | {self.result} |"


def judge(mutant: Mutant, outcome: Outcome, kernel: str) -> Row:
    """The row of a mutant of a kernel (sm_100a/step6.ptx); `wrong` says what is wrong with its outcome, if anything."""
    opcode = re.sub(r"^@!?%\w+\s+", "", mutant.instruction)
    result, wrong = str(outcome), ""
    if outcome.harmless:
        reason = next(
            (
                why
                for where, what, how, why in _HARMLESS
                if re.match(where, kernel) and re.match(what, opcode) and re.match(how, mutant.mutation)
            ),
            "",
        )
        result = f"harmless: {reason}"
        wrong = "" if reason else "nothing objects, and no reason is known why that is right"
    else:
        matching = (w for what, how, w in _EXPECTED if re.match(what, opcode) and re.search(how, mutant.mutation))
        wanted = next(matching, ())
        found = {*outcome.errors, *outcome.warnings, *([DAMAGE] if outcome.damage else [])}
        if not wanted:
            wrong = "nothing is known of what the instruction is for, nor so which rule has to be found"
        elif found.isdisjoint(wanted):
            wrong = f"expected one of {', '.join(wanted)}"
        elif not outcome.errors and not all(RULES[rule].severity == "warning" for rule in outcome.warnings):
            wrong = "a warning for a rule that is an error"
    return Row(line=mutant.line, instruction=mutant.instruction, mutation=mutant.mutation, result=result, wrong=wrong)


def examine(place: tuple[Path, int]) -> Row:
    """One mutant of one kernel, by its number: it runs until one of the rules that it should break is found."""
    path, number = place
    examination, kernel = _examination(path), f"{path.parent.name}/{path.name}"
    mutant = next(islice(examination.mutants(), number, None))
    outcome = examination.examine(
        mutant, enough=lambda found: not found.harmless and not judge(mutant, found, kernel).wrong
    )
    return judge(mutant, outcome, kernel)


@lru_cache(maxsize=1)
def _examination(path: Path) -> Examination:
    return Examination(path.read_text(encoding="utf-8"), str(path))


# -- the document -------------------------------------------------------------------------------

_HEADER = """\
# Mutations

Each synchronising instruction of every generated kernel, deleted or weakened, one at a time, and what
`ptxgen verify` then finds, run after run (sizes x schedules) until one of the rules that have to be broken is
found: rules of [checker.md](checker.md). A rule marked "(warning)" is defined as one. Generated by
`python -m ptxgen.review.mutation_table`; `--check` runs it all again.

"deleted" takes the instruction away (of a wait: the test and the branch back); "parity flipped" asks for the
other phase; "one arrival fewer" is left out where an mbarrier counts one; "barrier of the next stage" is eight
bytes further; "of the warp only" puts `bar.warp.sync` in its place; "plain arrive instead" puts `mbarrier.arrive`
where `tcgen05.commit` was; "relaxed" takes the order away; "of the CTA only" narrows the scope.
"""


def digest(text: str) -> str:
    """Of the code: comments, empty lines, what labels are called and how integers are written aside."""
    code = "\n".join(filter(None, (line.partition("//")[0].rstrip() for line in text.splitlines())))
    labels = {name: f"L{number}" for number, name in enumerate(re.findall(r"(?m)^(\w+):$", code))}
    code = re.sub(r"(?m)^(\w+)(?=:$)", lambda match: labels[match[1]], code)
    code = re.sub(r"(?<=\bbra )(\w+)(?=;)", lambda match: labels[match[1]], code)
    code = re.sub(r"\b0x[0-9a-f]+\b", lambda match: str(int(match[0], 16)), code)
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def renumbered(part: str, text: str) -> str | None:
    """A kernel's part with the lines that its mutants have now; None where its code is not that of the part."""
    lines = [str(mutant.line) for mutant in mutants(text)]
    if f"code: sha256 {digest(text)}\n" not in part or len(lines) != len(re.findall(_ROW_LINE, part)):
        return None
    numbers = iter(lines)
    return re.sub(_ROW_LINE, lambda match: f"| {next(numbers)} |", part)


def section(name: str, text: str, rows: Iterable[Row]) -> str:
    """A kernel's part of the document."""
    lines = [f"\n## {name}\n", f"code: sha256 {digest(text)}\n", "| line | instruction | mutation | found |"]
    lines += ["|---|---|---|---|", *map(str, rows), ""]
    return "\n".join(lines)


def compose(parts: Iterable[str]) -> str:
    return _HEADER + "".join(parts)


def sections(document: str) -> dict[str, str]:
    """The parts of a document by kernel."""
    parts = re.split(r"(?m)^(?=\n## )|(?=\n## )", document)
    found = {}
    for part in parts:
        match = re.match(r"\n## (\S+)\n", part)
        if match is not None:
            found[match[1]] = part
    return found


def kernels(root: Path) -> dict[str, Path]:
    """The generated kernels by their path below generated/."""
    folder = root / "generated"
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.glob("*/*.ptx"))}


def stale(document: str, root: Path) -> list[str]:
    """The kernels whose part of the document is not that of their text, found without running them: their
    digest or their list of mutants differs."""
    known, wanted = sections(document), kernels(root)
    wrong = known.keys() ^ wanted.keys()
    for name in known.keys() & wanted.keys():
        text = wanted[name].read_text(encoding="utf-8")
        rows = [(str(mutant.line), mutant.mutation) for mutant in mutants(text)]
        told = re.findall(r"(?m)^\| (\d+) \| `.*` \| ([^|]*) \| .* \|$", known[name])
        if f"code: sha256 {digest(text)}\n" not in known[name] or rows != told:
            wrong.add(name)
    return sorted(wrong)


def _count(path: Path) -> int:
    return sum(1 for _ in mutants(path.read_text(encoding="utf-8")))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ptxgen.review.mutation_table", description=__doc__)
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help="e.g. sm_100a/step6.ptx; default: all")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the table would change")
    parser.add_argument("--jobs", type=int, default=1, help="mutants examined at a time")
    options = parser.parse_args(arguments)
    file = ROOT / "docs" / "mutations.md"
    old = file.read_text(encoding="utf-8") if file.is_file() else ""
    every = kernels(ROOT)
    chosen = options.kernels or list(every)
    parts, wrong = sections(old), []
    if not options.check:
        same = {
            name: renumbered(parts[name], every[name].read_text(encoding="utf-8")) for name in chosen if name in parts
        }
        parts |= {name: part for name, part in same.items() if part is not None}
        chosen = [name for name in chosen if same.get(name) is None]
        write_file(file, compose(parts[name] for name in every if name in parts))
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        places = {name: [(every[name], number) for number in range(_count(every[name]))] for name in chosen}
        found = pool.map(examine, (place for name in chosen for place in places[name]), chunksize=2)
        for name in chosen:
            rows = list(islice(found, len(places[name])))
            parts[name] = section(name, every[name].read_text(encoding="utf-8"), rows)
            wrong += [f"{name}:{row.line}: {row.mutation}: {row.result}: {row.wrong}" for row in rows if row.wrong]
            print(f"{name}: {len(rows)} mutants", file=sys.stderr, flush=True)
            if not options.check:
                write_file(file, compose(parts[one] for one in every if one in parts))
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong or (options.check and compose(parts[name] for name in every if name in parts) != old) else 0


if __name__ == "__main__":
    sys.exit(main())
