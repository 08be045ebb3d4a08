"""Static checks on a Program: memory layout, names, and the synchronisation protocol.

`check` raises ProgramError listing what it found. The protocol is played through
(ptxgen.ir.protocol) for K tile counts of 1, depth, depth + 1 and 2 depth + 1 and for none, one and
several tiles a CTA: stages and phases repeat after 2 depth K tiles, so these reach every state in
which a cursor can meet a loop's beginning or end.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from ptxgen.errors import ProgramError
from ptxgen.hardware.mbarrier import MAX_COUNT, MAX_TX
from ptxgen.ir.declarations import Address, Cursor, Register
from ptxgen.ir.ops import Branch, Label, Op, WaitBarrier
from ptxgen.ir.program import WARP_THREADS, Program
from ptxgen.ir.protocol import ProtocolError, Simulation, parts_of

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
    cases = [(1, 0), (1, 2), (depth, 2), (depth + 1, 2), (2 * depth + 1, 2)]
    for k_tiles, tiles in dict.fromkeys(cases):
        parameters = {"k_tiles": k_tiles, "m_tiles": 1, "n_tiles": tiles}
        slow: list[int | None] = [None]
        for index in slow:
            simulation = Simulation(program, parts, parameters, index)
            try:
                simulation.run()
            except ProtocolError as error:
                return [f"with {k_tiles} K tiles and {tiles} tiles: {error}"]
            if index is None and len(simulation.waiting_warps) > 1:
                slow += sorted(simulation.waiting_warps)
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
    for role in program.roles:
        if role.registers is not None and (role.registers % 8 or not 24 <= role.registers <= 256):
            yield f"role {role.name}: {role.registers} registers; setmaxnreg takes 24 to 256 by 8"


def _names(program: Program) -> Iterator[str]:
    declared: dict[str, Register] = {}
    for register in program.registers:
        if register.name in declared:
            yield f"register %{register.name} is declared twice"
        if register.name in SPECIAL_REGISTERS:
            yield f"%{register.name} is a special register"
        declared[register.name] = register
    labels: set[str] = set()
    targets: set[str] = set()
    for op in program.ops():
        for register in _registers(op):
            if register.declared_name not in declared:
                yield f"register {register} is not declared"
        if isinstance(op, Branch):
            targets.add(op.target)
        if isinstance(op, (Label, WaitBarrier)):
            name = op.name if isinstance(op, Label) else op.label
            if name in labels:
                yield f"label {name} is defined twice"
            labels.add(name)
    for target in sorted(targets - labels):
        yield f"label {target} is not defined"


def _registers(value: object) -> Iterator[Register]:
    if isinstance(value, Register):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _registers(item)
    elif isinstance(value, (Op, Address, Cursor)):
        for item in dataclasses.fields(value):
            yield from _registers(getattr(value, item.name))
