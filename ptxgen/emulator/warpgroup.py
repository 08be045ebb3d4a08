"""A warpgroup: four warps that run wgmma together, and the operations on their way.

The four warps issue a wgmma.mma_async one by one; the warpgroup's tensor work starts when the last
of them has. Instructions between two fences or commits form a Batch, one asynchronous operation.
A batch reads shared memory and writes the accumulator when it completes; then the first instruction
of a warp that touches the accumulator's registers finds the result in them. Until wait_group has
covered the batch, touching them is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.emulator import events
from ptxgen.emulator.accumulators import WARPS, Accumulator, Form, Operands, RegisterBlock, Run, a_rows
from ptxgen.emulator.asynchrony import AsyncOp
from ptxgen.emulator.smem_layout import check_reach
from ptxgen.emulator.values import ALL_LANES, Value
from ptxgen.emulator.warp import Fragment, Wait, Warp
from ptxgen.errors import MachineError
from ptxgen.hardware.element_types import element_type

if TYPE_CHECKING:
    from ptxgen.emulator.cta import Cta

RULE = "wgmma-register-hazard"


class Instruction:
    """A wgmma.mma_async in the text. `bits` are the slots of D and of A where that is in registers."""

    __slots__ = ("bits", "block", "form", "line")

    def __init__(self, form: Form, block: RegisterBlock, bits: int, line: int) -> None:
        self.form, self.block, self.bits, self.line = form, block, bits, line


Issued = tuple[Instruction, int, int, bool]
"""An instruction with its descriptors of A (0: in registers) and B, and its scale-d."""


class Holding:
    """One warp's registers of an accumulator.

    `batch` is the newest batch that writes them, of the warp's `fences`-th fence. `fresh`: they were
    written since, so that the next batch takes D from them. `delivered`: they hold the result.
    """

    __slots__ = ("batch", "block", "delivered", "fences", "fresh", "line")

    def __init__(self, block: RegisterBlock) -> None:
        self.block = block
        self.batch = -1
        self.fences = self.line = 0
        self.fresh = self.delivered = True


class Share:
    """What one warp brings to a batch: its instructions, the registers of D that its first
    instruction on a block takes, and A in registers by instruction."""

    __slots__ = ("a", "d", "issued")

    def __init__(self) -> None:
        self.issued: list[Issued] = []
        self.d: dict[RegisterBlock, list[Value]] = {}
        self.a: dict[int, list[Value]] = {}


class Batch:
    """Instructions that the four warps issue between two fences or commits: `shares` by warp."""

    __slots__ = ("async_id", "number", "shares", "waiting")

    def __init__(self, number: int, async_id: int) -> None:
        self.number, self.async_id = number, async_id
        self.shares: dict[int, Share] = {}
        self.waiting: list[Fragment] = []

    def __str__(self) -> str:
        here = ", ".join(map(str, sorted(self.shares)))
        return f"warps {here} of the four have issued it"


class Warpgroup:
    """`completed` counts the batches that are done; they complete in order."""

    def __init__(self, cta: Cta, index: int) -> None:
        self.cta, self.index = cta, index
        self.batches: dict[int, Batch] = {}
        self.completed = 0
        self.accumulators: dict[RegisterBlock, Accumulator] = {}

    def batch(self, number: int) -> Batch:
        """The batch of that number, not complete yet."""
        found = self.batches.get(number)
        if found is None:
            engine = self.cta.unit.engine
            found = self.batches[number] = Batch(number, engine.reserve())
        return found

    def target(self, number: int) -> tuple[int, int]:
        """What waits for a batch name as their target, as (CTA rank, offset) of mbarriers are."""
        return self.cta.rank, -1 - (number << 8 | self.index)

    def start(self, batch: Batch, warp: Warp) -> None:
        """All four warps have issued the batch."""
        shares = [batch.shares[rank] for rank in range(WARPS)]
        _check_agreement(shares, self.index)
        first = shares[0].issued[0][0]
        op = AsyncOp(
            "wgmma", warp, 0, first.line, partial(self._complete, batch, shares),
            barrier=self.target(batch.number), pipe=(self.cta.rank, self.index, -2),
        )  # fmt: skip
        op.id = batch.async_id
        self.cta.unit.engine.issue(op)

    def _complete(self, batch: Batch, shares: list[Share], op: AsyncOp) -> None:
        operands = Operands(self.cta.smem.data)
        for block, accumulate, run, line in _runs(shares):
            op.line = line
            if self.cta.unit.observed:
                self._report(run, op)
            accumulator = self.accumulators.get(block)
            if accumulator is None:
                accumulator = self.accumulators[block] = Accumulator(block)
            if accumulate:
                for rank, share in enumerate(shares):
                    if block in share.d:
                        accumulator.insert(rank, share.d[block])
            run.add_to(accumulator, accumulate, operands)
        self.completed = batch.number + 1
        del self.batches[batch.number]
        for fragment in batch.waiting:
            fragment.wait = None

    def _report(self, run: Run, op: AsyncOp) -> None:
        unit = self.cta.unit
        for ranges in run.ranges():
            check_reach(ranges, self.cta.smem.size)
            if ranges:
                spans = tuple((start, start + size) for start, size in ranges)
                unit.emit(
                    events.Access(
                        *unit.place(op), space="shared", kind="read", proxy="async", ranges=spans,
                        owner=self.cta.rank, async_id=op.id,
                    )
                )  # fmt: skip


def _check_agreement(shares: list[Share], index: int) -> None:
    first = shares[0].issued
    for rank, share in enumerate(shares):
        if share.issued == first:
            continue
        for mine, theirs in zip(first, share.issued, strict=False):
            if mine == theirs:
                continue
            warps = f"warps {WARPS * index} and {WARPS * index + rank}"
            if mine[0] is not theirs[0] or mine[3] != theirs[3]:
                break
            for name, x, y in (("A", mine[1], theirs[1]), ("B", mine[2], theirs[2])):
                if x != y:
                    raise MachineError(
                        "illegal-descriptor",
                        f"the wgmma of line {mine[0].line} has {name} at {x:#018x} in one warp of its warpgroup and at"
                        f" {y:#018x} in another ({warps}); matrix descriptors are the same in all four",
                    )
        raise MachineError(
            "divergent-aligned-instruction",
            f"the warps of warpgroup {index} do not run the same wgmma.mma_async with the same scale-d: "
            f"warp {WARPS * index} those of lines {_lines(first)}, warp {WARPS * index + rank} {_lines(share.issued)}",
        )


def _lines(issued: list[Issued]) -> str:
    return ", ".join(f"{one[0].line} (scale-d {int(one[3])})" for one in issued)


def _runs(shares: list[Share]) -> Iterator[tuple[RegisterBlock, bool, Run, int]]:
    """The batch as runs of instructions on one block of registers, with their first scale-d and
    line. Different blocks do not depend on each other."""
    open_runs: dict[RegisterBlock, tuple[bool, Form, list[Any], list[int], int]] = {}
    for place, (instruction, a, b, accumulate) in enumerate(shares[0].issued):
        block, form = instruction.block, instruction.form
        run = open_runs.get(block)
        if run is None or not accumulate or run[1] is not form:
            if run is not None:
                yield block, run[0], Run(form=run[1], a=tuple(run[2]), b=tuple(run[3])), run[4]
            run = open_runs[block] = accumulate, form, [], [], instruction.line
        if form.a_in_registers:
            bits = element_type(form.a_type).bits
            run[2].append(np.concatenate([a_rows(share.a[place], bits) for share in shares]))
        else:
            run[2].append(a)
        run[3].append(b)
    for block, run in open_runs.items():
        yield block, run[0], Run(form=run[1], a=tuple(run[2]), b=tuple(run[3])), run[4]


class Member:
    """One warp's side of its warpgroup.

    `batch` numbers the batch that it issues now, `waited` counts those that its wait_groups have
    covered, `groups` holds for each committed group the number after its last batch, and the async
    ids of its batches when observed. `unfenced` are the slots touched since the last wgmma.fence.
    """

    def __init__(self, warp: Warp, group: Warpgroup) -> None:
        self.warp, self.group = warp, group
        self.rank = warp.index % WARPS
        self.share = Share()
        self.batch = self.waited = self.fences = 0
        self.groups: list[tuple[int, tuple[int, ...]]] = []
        self._uncommitted: list[int] = []
        self.holdings: dict[RegisterBlock, Holding] = {}
        self.sources: list[tuple[int, int, int]] = []  # (slots, batch, line) of A in registers
        self.unfenced = -1

    # -- instructions ---------------------------------------------------------------------------

    def issue(self, instruction: Instruction, a: int, b: int, accumulate: bool, a_slots: list[int]) -> None:
        """A wgmma.mma_async of this warp."""
        share, block = self.share, instruction.block
        if not share.issued:
            self._begin(instruction.line)
        holding = self.holdings.get(block)
        if holding is None or a_slots or self.sources:
            holding = self._claim(instruction, a_slots)
        if self.unfenced & instruction.bits:
            self._report_unfenced(instruction)
        if holding.fresh:
            if accumulate:
                share.d[block] = block.read(self.warp.r)
            holding.fresh = False
        holding.batch, holding.fences, holding.line = self.batch, self.fences, instruction.line
        holding.delivered = False
        share.issued.append((instruction, a, b, accumulate))

    def _begin(self, line: int) -> None:
        unit = self.warp.cta.unit
        if unit.observed:
            batch = self.group.batch(self.batch)
            self._uncommitted.append(batch.async_id)
            unit.emit(
                events.AsyncIssue(
                    *unit.where(self.warp, self.warp.bits, line), kind="wgmma", async_id=batch.async_id,
                    mechanism="wgmma-group",
                )
            )  # fmt: skip

    def _claim(self, instruction: Instruction, a_slots: list[int]) -> Holding:
        """Other accumulators give up the registers that this instruction takes."""
        block = instruction.block
        for other in list(self.holdings.values()):
            if other.block is block or not other.block.bits & instruction.bits:
                continue
            self._require_waited(other, "an mma of another shape or with these registers as A", instruction.line)
            self.settle(other.block.bits)
            if other.block.bits & block.bits:
                del self.holdings[other.block]
            if other.fences == self.fences:  # only accumulators of one shape need no fence between them
                self.unfenced |= other.block.bits
        for bits, batch, line in self.sources:
            if bits & block.bits and batch >= self.waited:
                raise _hazard(f"the mma writes registers that the mma of line {line} reads as A")
        if a_slots:
            bits = instruction.bits & ~block.bits
            self.share.a[len(self.share.issued)] = [self.warp.r[slot] for slot in a_slots]
            self.sources = [source for source in self.sources if source[1] >= self.waited]
            self.sources.append((bits, self.batch, instruction.line))
        return self.holdings.setdefault(block, Holding(block))

    def _report_unfenced(self, instruction: Instruction) -> None:
        self.unfenced &= ~instruction.bits  # once is enough
        self.warp.cta.unit.note(
            RULE,
            "no wgmma.fence stands between this mma and what touched its registers before"
            if self.fences
            else "no wgmma.fence stands before the warp's first mma",
            self.warp,
            instruction.line,
        )

    def fence(self) -> None:
        """wgmma.fence: registers touched so far may be given to the tensor core."""
        self.close()
        self.unfenced = 0
        self.fences += 1

    def close(self) -> None:
        """Ends the warp's share of the batch; the last of the four starts it."""
        if not self.share.issued:
            return
        batch = self.group.batch(self.batch)
        batch.shares[self.rank] = self.share
        self.share = Share()
        self.batch += 1
        if len(batch.shares) == WARPS:
            self.group.start(batch, self.warp)

    def commit(self) -> tuple[int, ...]:
        """wgmma.commit_group; returns the async ids of the group's batches when observed."""
        self.close()
        ids = tuple(self._uncommitted)
        self._uncommitted.clear()
        self.groups.append((self.batch, ids))
        return ids

    def wait(self, pending: int, line: int) -> tuple[int, ...] | None:
        """wgmma.wait_group: the async ids that it covers, or None when the warp has to sleep first."""
        count = len(self.groups) - pending
        if count <= 0:
            return ()
        end = self.groups[count - 1][0]
        if end > self.group.completed:
            batch = self.group.batches[end - 1]
            batch.waiting.append(self.warp.current)
            self.warp.wait(Wait("wgmma", line, target=self.group.target(end - 1), detail=batch))
            return None
        ids = tuple(one for _, covered in self.groups[:count] for one in covered)
        del self.groups[:count]
        self.waited = end
        return ids

    # -- registers ------------------------------------------------------------------------------

    def settle(self, bits: int) -> None:
        """Puts finished accumulators into those of their registers that are in `bits`."""
        for holding in self.holdings.values():
            if not holding.delivered and holding.block.bits & bits and holding.batch < self.waited:
                block = holding.block
                block.write(self.warp.r, self.group.accumulators[block].registers(self.rank))
                holding.delivered = True

    def touch(self, reads: int, writes: int, line: int) -> None:
        """Another instruction touches registers that some wgmma uses."""
        bits = reads | writes
        for holding in self.holdings.values():
            if holding.block.bits & bits:
                self._require_waited(holding, "this instruction", line)
                if holding.block.bits & writes:
                    holding.fresh = True
        for source, batch, issued in self.sources:
            if source & bits and batch >= self.waited:
                message = f"the mma of line {issued} reads these registers as A, and no wgmma.wait_group covers it yet"
                if source & writes:
                    raise _hazard(message)
                self.warp.cta.unit.note(RULE, message, self.warp, line, severity="warning")
        self.unfenced |= bits

    def _require_waited(self, holding: Holding, what: str, line: int) -> None:
        if holding.batch >= self.waited:
            raise _hazard(
                f"{what} touches the accumulator of the mma of line {holding.line} before a wgmma.wait_group covers it"
            )

    def unwaited(self) -> list[int]:
        """Lines of the mma whose result the warp never waited for."""
        return [holding.line for holding in self.holdings.values() if holding.batch >= self.waited]


def _hazard(message: str) -> MachineError:
    return MachineError(RULE, message)


def member_of(warp: Warp) -> Member:
    """The warp's place in its warpgroup, made at its first wgmma instruction."""
    member: Member | None = warp.wgmma
    if member is not None:
        return member
    cta, index = warp.cta, warp.index // WARPS
    if WARPS * index + WARPS > len(cta.warps):
        raise MachineError(
            "divergent-aligned-instruction",
            f"warp {warp.index} runs wgmma, but its warpgroup has only {len(cta.warps) - WARPS * index} of 4 warps",
        )
    group = cta.collectives.get(index)
    if group is None:
        group = cta.collectives[index] = Warpgroup(cta, index)
    member = warp.wgmma = Member(warp, group)
    return member


def require_whole(warp: Warp, what: str) -> None:
    """For instructions that all 128 threads of a warpgroup run together."""
    if warp.bits != ALL_LANES:
        raise MachineError(
            "divergent-aligned-instruction", f"{what} is run by lanes {warp.bits:#010x}; it needs all 32 of the warp"
        )
