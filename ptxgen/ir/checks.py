"""Static checks on a Program: memory layout, names, and the synchronisation protocol.

`check` raises ProgramError listing what it found. The protocol is played through
(ptxgen.ir.protocol) for K tile counts of 1, depth, depth + 1 and 2 depth + 1 and for none, one and
several tiles a CTA: stages and phases repeat after 2 depth K tiles, so these reach every state in
which a cursor can meet a loop's beginning or end. Where roles run ahead of each other, five tiles
take a pair of accumulators through all its phases. Where CTAs divide the K of tiles among them, each of
three is played through; what it waits for of the others is taken to come.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from ptxgen.errors import ProgramError, SpecError
from ptxgen.hardware.mbarrier import MAX_COUNT, MAX_TX
from ptxgen.hardware.smem_descriptor import decode
from ptxgen.ir import ops as ir
from ptxgen.ir.effects import effects
from ptxgen.ir.program import WARP_THREADS, Program, role_ops
from ptxgen.ir.protocol.knowledge import ProtocolError
from ptxgen.ir.protocol.simulation import Simulation
from ptxgen.ir.protocol.steering import parts_of

SPECIAL_REGISTERS = frozenset(
    "tid ntid ctaid nctaid laneid warpid nwarpid smid nsmid gridid clock clock64 clusterid nclusterid"
    " cluster_ctaid cluster_nctaid cluster_ctarank cluster_nctarank lanemask_eq lanemask_le"
    " lanemask_lt lanemask_ge lanemask_gt globaltimer dynamic_smem_size total_smem_size".split()
)


def check(program: Program) -> None:
    """Raise ProgramError with every broken rule of layout and names, else the first of protocol."""
    found = [*_layout(program), *_names(program)] or protocol_violations(program)
    if found:
        raise ProgramError(program.name, found)


def protocol_violations(program: Program) -> list[str]:
    """The first broken rule of the synchronisation protocol, with the counts that show it."""
    depth = max((barrier.stages for barrier in program.barriers), default=1)
    parts = parts_of(program)
    many = 2 if len(program.roles) == 1 else 5
    cases = [(1, 0), (1, many), (depth, 2), (depth + 1, 2), (2 * depth + 1, 2)]
    if any(isinstance(op, ir.ClaimCluster) for op in program.ops()):
        cases = [(k_tiles, max(tiles, 1)) for k_tiles, tiles in cases]  # the grid has a cluster for each tile
    workers = [(0, 1)]
    if any(isinstance(op, ir.WaitFlag) for op in program.ops()):
        cases = [(k_tiles, max(tiles, 1)) for k_tiles, tiles in cases]  # counts of waves begin with one
        workers += [(worker, 3) for worker in range(3)]
    for (k_tiles, tiles), (worker, grid) in itertools.product(dict.fromkeys(cases), workers):
        parameters = {"k_tiles": k_tiles, "m_tiles": 1, "n_tiles": tiles}
        try:
            Simulation(program, parts, parameters, worker=worker, grid=grid).run()
        except ProtocolError as error:
            which = f", CTA or cluster {worker} of {grid}" if grid > 1 else ""
            return [f"with {k_tiles} K tiles and {tiles} tiles{which}: {error}"]
    return []


def _layout(program: Program) -> Iterator[str]:
    regions = sorted(
        [(b.offset, b.end, b.name, b.align) for b in program.buffers]
        + [(b.offset, b.offset + b.nbytes, b.name, 8) for b in program.barriers]
    )
    for offset, end, name, align in regions:
        if offset % align:
            yield f"{name} at offset {offset} is not aligned to {align} bytes"
        if end > program.smem_bytes:
            yield f"{name} ends at {end}, past the {program.smem_bytes} bytes of shared memory"
    for buffer in program.buffers:
        if buffer.stages > 1 and buffer.stage_bytes % buffer.align:
            yield f"stages of {buffer.name} lie {buffer.stage_bytes} apart, not x {buffer.align}"
        if buffer.stages > 1 and buffer.stage_bytes < buffer.nbytes:
            yield f"stages of {buffer.name} overlap: {buffer.nbytes} bytes, {buffer.stage_bytes} apart"
    for (_, end, name, _), (offset, _, other, _) in itertools.pairwise(regions):
        if end > offset:
            yield f"{name} (to {end}) overlaps {other} (from {offset})"
    if program.smem_bytes > program.smem_limit_bytes:
        yield f"{program.smem_bytes} bytes of shared memory, the limit is {program.smem_limit_bytes}"
    for barrier in program.barriers:
        if not 1 <= barrier.arrivals <= MAX_COUNT:
            yield f"barrier {barrier.name}: {barrier.arrivals} arrivals, legal are 1 to {MAX_COUNT}"
        if barrier.transaction_bytes > MAX_TX:
            yield f"barrier {barrier.name}: {barrier.transaction_bytes} bytes, at most {MAX_TX}"
    for named in program.named_barriers:
        if not 1 <= named.id <= 15:
            yield f"named barrier {named.name}: id {named.id}, legal are 1 to 15"
        if named.threads % WARP_THREADS or not 0 < named.threads <= program.threads:
            yield f"named barrier {named.name}: {named.threads} threads of {program.threads}"
    yield from _registers(program)
    for role in program.roles:
        if role.registers is not None and (role.registers % 8 or not 24 <= role.registers <= 256):
            yield f"role {role.name}: {role.registers} registers; setmaxnreg takes 24 to 256 by 8"
        if role.registers is not None and (role.first_warp % 4 or role.warps % 4):
            last = role.first_warp + role.warps - 1
            yield f"role {role.name}: warps {role.first_warp} to {last}; setmaxnreg takes whole warpgroups"


def _registers(program: Program) -> Iterator[str]:
    """What the roles take must be what others have given up."""
    budgets = [(role, role.registers) for role in program.roles if role.registers is not None]
    if not budgets:
        return
    if program.entry_registers is None:
        yield "roles change their registers, but the number at entry is not given: ptxas ignores setmaxnreg"
        return
    warps = sum(role.warps * registers for role, registers in budgets)
    has = sum(role.warps for role, _ in budgets) * program.entry_registers
    if warps > has:
        wants = " + ".join(f"{role.warps} x {registers}" for role, registers in budgets)
        yield f"roles want {wants} = {warps} registers a lane, but start with {has}: setmaxnreg.inc never returns"


def _names(program: Program) -> Iterator[str]:
    declared: set[str] = set()
    for register in program.registers:
        if register.name in declared:
            yield f"register %{register.name} is declared twice"
        if register.name in SPECIAL_REGISTERS:
            yield f"%{register.name} is a special register"
        declared.add(register.name)
    labels: set[str] = set()
    targets: set[str] = set()
    for op in program.ops():
        if isinstance(op, ir.Branch):
            targets.add(op.target)
        elif isinstance(op, (ir.Label, ir.WaitBarrier, ir.WaitFlag)):
            name = op.name if isinstance(op, ir.Label) else op.label
            if name in labels:
                yield f"label {name} is defined twice"
            labels.add(name)
        elif isinstance(op, ir.DescriptorBase):
            yield from _descriptor(program, op)
    for target in sorted(targets - labels):
        yield f"label {target} is not defined"
    roles = (op for role in program.roles for op in role_ops(role))
    yield from Registers(declared).use((*program.setup, *roles, *program.teardown))


def _descriptor(program: Program, op: ir.DescriptorBase) -> Iterator[str]:
    try:
        start = decode(op.fields.value, program.target).start_address
    except SpecError as error:
        yield f"{op.dst}: {error}"
        return
    if start:
        yield f"{op.dst}: the constant fields of a descriptor have no start address, these have {start}"


_LOAD_WAIT = "tcgen05.wait::ld"
_WGMMA_WAIT = "wgmma.wait_group 0"


class Registers:
    """Follows the text: a register is declared, and written on every way to where it is read.

    What a guard or a loop tested at the top writes is not written after it, since they may not run;
    what tcgen05.ld loads is written at tcgen05.wait::ld, an accumulator of wgmma at its wait for all.
    """

    def __init__(self, declared: set[str]) -> None:
        self._declared = declared
        self._written: set[str] = set()
        self._pending: dict[str, str] = {}
        self._reported: set[str] = set()

    def use(self, ops: Iterable[ir.Op]) -> Iterator[str]:
        """What is wrong with the registers of these ops, one after the other."""
        for op in ops:
            if isinstance(op, (ir.Guard, ir.While)):
                if isinstance(op, ir.While):
                    yield from self.use(op.head)
                yield from self._use(op)
                before = self._written.copy()
                yield from self.use(op.body)
                self._written = before
            elif isinstance(op, ir.DoWhile):
                yield from self.use(op.body)
                yield from self._use(op)
            else:
                yield from self._use(op)

    def _use(self, op: ir.Op) -> Iterator[str]:
        reads, writes = effects(op)
        for register in (*reads, *writes):
            if register.declared_name not in self._declared:
                yield from self._report(register.declared_name, "is not declared")
        for register in reads:
            if register.name not in self._written:
                until = self._pending.get(register.name, "it is written")
                yield from self._report(register.name, f"is read, by {type(op).__name__}, before {until}")
        names = {register.name for register in writes}
        if isinstance(op, (ir.LoadTmem, ir.Wgmma)):
            until = _LOAD_WAIT if isinstance(op, ir.LoadTmem) else _WGMMA_WAIT
            self._pending.update(dict.fromkeys(names, until))
            self._written -= names
        elif isinstance(op, ir.WaitTmemLoad):
            self._deliver(_LOAD_WAIT)
        elif isinstance(op, ir.WgmmaWait) and op.pending == 0:
            self._deliver(_WGMMA_WAIT)
        else:
            self._written |= names

    def _deliver(self, wait: str) -> None:
        delivered = {name for name, until in self._pending.items() if until == wait}
        self._written |= delivered
        for name in delivered:
            del self._pending[name]

    def _report(self, name: str, fault: str) -> Iterator[str]:
        if name not in self._reported:
            self._reported.add(name)
            yield f"register %{name} {fault}"
