"""The static check refuses a Program when its synchronisation is broken in one place."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from ptxgen.errors import ProgramError
from ptxgen.ir import ops as ir
from ptxgen.ir.checks import check
from ptxgen.ir.declarations import Hex, Register
from ptxgen.ir.ops import scalar
from ptxgen.ir.program import Program
from ptxgen.ir.protocol import registers
from ptxgen.spec import parse_settings
from ptxgen.steps import build, step

Change = Callable[[ir.Op], "ir.Op | Iterable[ir.Op]"]

KERNELS: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "step 4": (4, "sm_100a", ()),
    "step 5": (5, "sm_100a", ()),
    "step 6": (6, "sm_100a", ()),
    "step 6, m 64": (6, "sm_100a", ("tile.m=64",)),
    "step 6, staged slices": (6, "sm_100a", ("epilogue.staging=slices",)),
    "step 6, three slice buffers": (6, "sm_100a", ("epilogue.staging=slices", "epilogue.staging_buffers=3")),
    "step 7": (7, "sm_100a", ()),
    "step 7, two accumulators": (7, "sm_100a", ("accumulators=2",)),
    "step 8": (8, "sm_100a", ()),
    "step 10": (10, "sm_100a", ("tile=256x64x64", "consumers=1", "accumulators=2", "pipe_depth=2")),
    "step 10, claimed": (10, "sm_100a", ("tile=256x32x64", "consumers=1", "pipe_depth=2", "scheduler=clc")),
    "step 4 on sm_90a": (4, "sm_90a", ()),
    "step 5 on sm_90a": (5, "sm_90a", ()),
    "step 6 on sm_90a": (6, "sm_90a", ()),
    "step 7 on sm_90a": (7, "sm_90a", ()),
}


def kernel(name: str) -> Program:
    number, target, settings = KERNELS[name]
    return build(parse_settings(step(number, target=target), settings))


def edit(program: Program, change: Change) -> Program:
    """The Program with every op, inner ones first, replaced by what `change` makes of it."""

    def block(ops: tuple[ir.Op, ...]) -> tuple[ir.Op, ...]:
        out: list[ir.Op] = []
        for op in ops:
            inner: dict[str, Any] = {
                item.name: block(getattr(op, item.name))
                for item in dataclasses.fields(op)
                if item.name in ("head", "body")
            }
            made = change(dataclasses.replace(op, **inner) if inner else op)
            out += [made] if isinstance(made, ir.Op) else made
        return tuple(out)

    roles = (dataclasses.replace(role, body=block(role.body), test=block(role.test)) for role in program.roles)
    return dataclasses.replace(
        program, setup=block(program.setup), roles=tuple(roles), teardown=block(program.teardown)
    )


def ops_of(program: Program, *kinds: type[ir.Op]) -> list[ir.Op]:
    found: list[ir.Op] = []

    def collect(op: ir.Op) -> ir.Op:
        if isinstance(op, kinds):
            found.append(op)
        return op

    edit(program, collect)
    return found


def at(number: int, kind: type[ir.Op], change: Change) -> Change:
    """`change`, for the op that is the `number`-th of its kind only."""
    left = [number]

    def only(op: ir.Op) -> ir.Op | Iterable[ir.Op]:
        if not isinstance(op, kind):
            return op
        left[0] -= 1
        return change(op) if left[0] == -1 else op

    return only


def refusal(program: Program) -> str:
    """What the check says against the Program; "accepted" where it says nothing."""
    try:
        check(program)
    except ProgramError as error:
        return "\n".join(error.violations)
    return "accepted"


# ---- one op left out ------------------------------------------------------------------------

KNOWLEDGE = r"without knowing that|loaded again before it is read|never loaded|no MMA writes"
CURSOR = rf"{KNOWLEDGE}|the next phase it has not seen|deadlock|two phases ahead"

LEFT_OUT: dict[type[ir.Op], str] = {
    ir.InitBarrier: r"barrier (\w+)\[\d\]( of CTA \d)? is used before its init",
    ir.FenceBarrierInit: r"fenced for the async proxy",
    ir.ClusterBarrier: r"no allocation has left one|may end before an arrival of another CTA reaches acc_empty",
    ir.MapAddress: r"register %\w+ is read, by \w+, before it is written",
    ir.CtaBarrier: r"without knowing that it is (allocated|initialised)",
    ir.AllocTmem: r"no allocation has left one|frees \d+ TMEM columns it did not get",
    ir.ReadTmemAddress: r"register %tmem is read, by \w+, before it is written",
    ir.DeallocTmem: r"TMEM columns are never freed",
    ir.ElectOne: r"register %elected is read, by Guard, before it is written",
    ir.StartCursor: r"register %\w+ is read, by \w+, before it is written",
    ir.AdvanceCursor: CURSOR,
    ir.ArriveExpect: r"deadlock: .* waits? on (loaded|answered)\[\d\]( of CTA \d)? for phase \d",
    ir.ClaimCluster: r"deadlock: .* wait on answered\[0\]",
    ir.ReadAnswer: r"register %answer is read, by IsClaimed, before it is written",
    ir.IsClaimed: r"register %more_tiles is read, by \w+, before it is written",
    ir.Arrive: r"deadlock|ends inside a phase",
    ir.TmaLoad: r"deadlock: .*, \d+ bytes expected and not brought",
    ir.WaitBarrier: rf"{KNOWLEDGE}|two phases ahead|may end before an arrival of another CTA reaches released"
    r"|is told to expect",
    ir.CommitMma: r"deadlock|are not committed",
    ir.WgmmaFence: r"begins a wgmma batch with no wgmma.fence",
    ir.WgmmaCommit: r"while MMAs that read it are not committed|without knowing that the MMAs that read it are over",
    ir.WgmmaWait: r"before wgmma.wait_group 0|without knowing that the MMAs that read it are over",
    ir.WaitTmemLoad: r"register %acc\d+ is read, by \w+, before tcgen05.wait::ld",
    ir.FenceAfterSync: r"with no tcgen05.fence::after_thread_sync since it learnt",
    ir.FenceBeforeSync: r"without knowing that the warps that read it have done so and fenced their reads",
    ir.FenceProxyAsync: r"fenced their (writes|reads) for the async proxy",
    ir.SyncNamedBarrier: KNOWLEDGE,
    ir.CommitStores: r"without knowing that the TMA stores that read it are over|ends before its TMA stores",
    ir.WaitStores: r"without knowing that the TMA stores that read it are over|ends before its TMA stores are complete",
    ir.StageAddress: rf"register %\w+ is read, by \w+, before it is written|is not the address of a declared|{CURSOR}",
    ir.StageDescriptor: r"register %\w+ is read, by \w+, before it is written",
}


def is_redundant(op: ir.Op) -> bool:
    """Ops that the ISA wants, though what comes after says it again; leaving one out breaks nothing."""
    if isinstance(op, ir.FenceAfterSync):
        # The address of the accumulator comes through a barrier, and nothing asynchronous has begun.
        return op.comment == "TMEM is used only after its allocation"
    # A pair is scheduled as one, and meets again before either touches the other.
    return isinstance(op, ir.ClusterBarrier) and op.comment == "both CTAs have started"


@pytest.mark.parametrize("name", KERNELS)
def test_every_op_that_synchronises_is_missed(name: str) -> None:
    program = kernel(name)
    for kind, message in LEFT_OUT.items():
        for number, op in enumerate(ops_of(program, kind)):
            if is_redundant(op):
                continue
            said = refusal(edit(program, at(number, kind, lambda op: ())))
            assert re.search(message, said), f"without {type(op).__name__} ({op.comment}): {said}"


def test_kernels_have_every_kind_that_is_left_out() -> None:
    found = {type(op) for name in KERNELS for op in kernel(name).ops()}
    assert set(LEFT_OUT) <= found


# ---- one op changed -------------------------------------------------------------------------


def replaced(program: Program, kind: type[ir.Op], number: int = 0, **changes: Any) -> Program:
    """The Program with some fields of the `number`-th op of a kind changed."""
    return edit(program, at(number, kind, lambda op: dataclasses.replace(op, **changes)))


def starting_at(program: Program, cursor: str, phase: int) -> Program:
    """The Program with another start phase of a cursor."""

    def change(op: ir.Op) -> ir.Op:
        if isinstance(op, (ir.StartCursor, ir.AdvanceCursor)) and op.cursor.name == cursor:
            return dataclasses.replace(op, cursor=dataclasses.replace(op.cursor, start_phase=phase))
        return op

    assert any(isinstance(op, ir.StartCursor) and op.cursor.name == cursor for op in program.ops())
    return edit(program, change)


def declared(program: Program, barrier: str, **changes: Any) -> Program:
    """The Program with another declaration of a barrier, everywhere."""
    new = {item.name: dataclasses.replace(item, **changes) for item in program.barriers if item.name == barrier}

    def change(op: ir.Op) -> ir.Op:
        if isinstance(op, ir.InitBarrier) and op.barrier.name in new:
            return dataclasses.replace(op, barrier=new[op.barrier.name])
        return op

    barriers = tuple(new.get(item.name, item) for item in program.barriers)
    return dataclasses.replace(edit(program, change), barriers=barriers)


def plain_arrive(op: ir.Op) -> ir.Op:
    assert isinstance(op, ir.ArriveExpect)
    return ir.Arrive(address=op.address)


def unguarded(label: str) -> Change:
    """The body of a guard for all lanes."""
    return lambda op: op.body if isinstance(op, ir.Guard) and op.label == label else op


ALONE = r"with 1 K tiles and 0 tiles: "

CHANGED: dict[str, tuple[str, Callable[[Program], Program], str]] = {
    "the bytes, not the arrival, left out": (
        "step 5",
        lambda p: edit(p, at(0, ir.ArriveExpect, plain_arrive)),
        r"barrier loaded\[0\] completes a phase after 0 bytes, 32768 are declared",
    ),
    "half the bytes": (
        "step 5",
        lambda p: replaced(p, ir.ArriveExpect, transaction_bytes=16384),
        r"barrier loaded\[0\] completes a phase after 16384 bytes, 32768 are declared",
    ),
    "twice the bytes": (
        "step 5",
        lambda p: replaced(p, ir.ArriveExpect, transaction_bytes=65536),
        r"barrier loaded\[0\] is told to expect 65536 bytes in a phase, 32768 are declared",
    ),
    "half the bytes, declared so": (
        "step 4",
        lambda p: declared(replaced(p, ir.ArriveExpect, transaction_bytes=16384), "loaded", transaction_bytes=16384),
        r"ring\[0\] is loaded again before it is read",
    ),
    "twice the bytes, declared so": (
        "step 4",
        lambda p: declared(replaced(p, ir.ArriveExpect, transaction_bytes=65536), "loaded", transaction_bytes=65536),
        r"deadlock: warp 0 waits on loaded\[0\] for phase 0 \(1 of 1 arrivals, 32768 bytes expected and not brought\)",
    ),
    "two arrivals declared for loads": (
        "step 5",
        lambda p: declared(p, "loaded", arrivals=2),
        r"deadlock: warp 0 waits on loaded\[0\] for phase 0 \(1 of 2 arrivals",
    ),
    "two arrivals declared for MMAs": (
        "step 6",
        lambda p: declared(p, "mma_done", arrivals=2),
        r"deadlock: warp 0 waits on mma_done\[0\] for phase 0 \(1 of 2 arrivals",
    ),
    "one arrival releases a stage that four warps walk": (
        "step 5 on sm_90a",
        lambda p: declared(p, "mma_done", arrivals=1),
        r"warp 1 arrives on mma_done\[0\] in phase 1 without knowing that phase 0 is over",
    ),
    "three arrivals release a stage that four warps walk": (
        "step 5 on sm_90a",
        lambda p: declared(p, "mma_done", arrivals=3),
        r"warp 3 arrives on mma_done\[0\] in phase 1 without knowing that phase 0 is over",
    ),
    "an arrival too many": (
        "step 5",
        lambda p: edit(p, at(0, ir.ArriveExpect, lambda op: (op, plain_arrive(op)))),
        r"barrier loaded\[0\] gets 1 arrivals but only 0 of 1 are left in its phase",
    ),
    "all lanes arrive": (
        "step 5 on sm_90a",
        lambda p: edit(p, unguarded("stage_released")),
        r"barrier mma_done\[0\] gets 32 arrivals but only 4 of 4 are left",
    ),
    "the wait for loads expects the other parity": (
        "step 5",
        lambda p: starting_at(p, "mma", 1),
        r"warp 0 waits on loaded\[0\] for parity 1, the phase before the first",
    ),
    "the wait for MMAs expects the other parity": (
        "step 5",
        lambda p: starting_at(p, "release", 1),
        r"warp 0 waits on mma_done\[0\] for parity 1, the phase before the first",
    ),
    "the producer starts at phase 0": (
        "step 7",
        lambda p: starting_at(p, "load", 0),
        r"deadlock: .*warp 5 waits on released\[0\] for phase 0",
    ),
    "the multiplier starts at phase 0 of empty accumulators": (
        "step 7",
        lambda p: starting_at(p, "fill", 0),
        r"deadlock: .*warp 4 waits on acc_empty\[0\] for phase 0",
    ),
    "the storers start at phase 1 of full accumulators": (
        "step 7",
        lambda p: starting_at(p, "drain", 1),
        r"which no MMA writes|without knowing that the MMAs that write it are over",
    ),
    "a role that reads answers is not counted": (
        "step 10, claimed",
        lambda p: declared(p, "answer_read", arrivals=384),
        r"arrives on answer_read\[0\] in phase 1 without knowing that phase 0 is over",
    ),
    "a role that reads no answers is counted": (
        "step 10, claimed",
        lambda p: declared(p, "answer_read", arrivals=448),
        r"barrier answer_read\[0\] ends inside a phase: 416 of 448 arrivals",
    ),
    "half an answer": (
        "step 10, claimed",
        lambda p: edit(
            p,
            lambda op: (
                dataclasses.replace(op, transaction_bytes=8)
                if isinstance(op, ir.ArriveExpect) and op.transaction_bytes == 16
                else op
            ),
        ),
        r"barrier answered\[0\] completes a phase after 8 bytes, 16 are declared|deadlock",
    ),
    "the followers claim too": (
        "step 10, claimed",
        lambda p: edit(p, unguarded("scheduler_claimed")),
        r"claims a cluster after an answer that none is left",
    ),
    "two stages share one mbarrier": (
        "step 5",
        lambda p: edit(
            p,
            lambda op: dataclasses.replace(op, stride=0) if isinstance(op, ir.StageAddress) and op.stride == 8 else op,
        ),
        r"stages of loaded lie 8 apart, not 0",
    ),
    "stages closer than they are": (
        "step 5",
        lambda p: replaced(p, ir.StageAddress, stride=16384),
        r"stages of ring lie 32768 apart, not 16384",
    ),
    "descriptors of the wrong stage": (
        "step 5",
        lambda p: replaced(p, ir.StageDescriptor, stride=1024),
        r"stages of ring lie 2048 apart, not 1024",
    ),
    "a stage too many": (
        "step 5",
        lambda p: edit(
            p,
            lambda op: (
                dataclasses.replace(op, value=3)
                if isinstance(op, ir.SetConstant) and op.dst.name == "pipe_depth"
                else op
            ),
        ),
        r"(loaded|ring) has no stage 2",
    ),
    "an mbarrier is initialised twice": (
        "step 5",
        lambda p: edit(p, at(0, ir.InitBarrier, lambda op: (op, op))),
        ALONE + r"barrier loaded\[0\] is initialised twice",
    ),
    "all lanes initialise": (
        "step 5",
        lambda p: edit(p, unguarded("barriers_initialised")),
        ALONE + r"32 lanes initialise barrier loaded\[0\]; one elected lane must",
    ),
    "all lanes load": (
        "step 4",
        lambda p: edit(p, unguarded("load_issued")),
        r"is told to expect 1048576 bytes",
    ),
    "all lanes multiply": ("step 4", lambda p: edit(p, unguarded("mma_issued")), r"32 lanes issue an MMA"),
    "all lanes store": (
        "step 4",
        lambda p: edit(p, unguarded("stores_issued")),
        r"32 lanes issue the store from staging\[0\]",
    ),
    "one lane waits at a barrier of the warps": (
        "step 4",
        lambda p: edit(
            p,
            lambda op: (
                dataclasses.replace(op, body=(*op.body, *ops_of(p, ir.SyncNamedBarrier)[:1]))
                if isinstance(op, ir.Guard) and op.label == "mma_issued"
                else op
            ),
        ),
        r"1 of 32 lanes wait at barrier 1",
    ),
    "a load past the stage": (
        "step 4",
        lambda p: replaced(p, ir.TmaLoad, 1, box_bytes=32768),
        r"bytes 16384 to 49151 are outside a stage of ring \(32768 bytes\)",
    ),
    "stores are only read before the end": (
        "step 4",
        lambda p: replaced(p, ir.WaitStores, read=True),
        r"warp 0 ends before its TMA stores are complete",
    ),
    "staging buffers waited for one too late": (
        "step 6, three slice buffers",
        lambda p: edit(
            p,
            lambda op: dataclasses.replace(op, pending=2) if isinstance(op, ir.WaitStores) and op.pending == 1 else op,
        ),
        r"writes staging\[0\] without knowing that the TMA stores that read it are over",
    ),
    "fewer columns than the accumulator has": (
        "step 4",
        lambda p: edit(
            p,
            lambda op: dataclasses.replace(op, columns=64) if isinstance(op, (ir.AllocTmem, ir.DeallocTmem)) else op,
        ),
        r"an MMA writes TMEM columns 0 to 127, 64 are allocated",
    ),
    "columns that no allocation has": (
        "step 4",
        lambda p: replaced(p, ir.AllocTmem, columns=96),
        ALONE + r"96 TMEM columns: an allocation is a power of two from 32 to 512",
    ),
    "fewer columns freed than allocated": (
        "step 4",
        lambda p: replaced(p, ir.DeallocTmem, columns=64),
        r"warp 0 frees 64 TMEM columns it did not get",
    ),
    "an instruction descriptor with a reserved bit": (
        "step 4",
        lambda p: edit(
            p,
            lambda op: (
                dataclasses.replace(op, value=Hex(value=0x8200050))
                if isinstance(op, ir.SetConstant) and op.dst.name == "idesc"
                else op
            ),
        ),
        r"reserved bit 6 is set",
    ),
    "every warp reads the lanes of warp 0": (
        "step 4",
        lambda p: edit(
            p,
            lambda op: (
                dataclasses.replace(op, opcode="mov.b32", sources=op.sources[2:])
                if isinstance(op, ir.Integer) and op.dst.name == "tmem_row"
                else op
            ),
        ),
        r"warp \d reads TMEM lane 0; its lanes begin at (32|64|96)",
    ),
    "the refill comes before the wait for the MMAs": (
        "step 5",
        lambda p: edit(p, lambda op: _refill_first(op) if isinstance(op, ir.DoWhile) and op.label == "k_loop" else op),
        r"loads into ring\[0\] without knowing that the MMAs that read it are over",
    ),
    "an mbarrier is initialised in another's place": (
        "step 4",
        lambda p: replaced(p, ir.InitBarrier, 1, barrier=p.barriers[0]),
        ALONE + r"init of loaded at the address of mma_done",
    ),
    "an address that is a number": (
        "step 5",
        lambda p: replaced(p, ir.StageAddress, base=Register(name="tile_k")),
        r"%tile_k is not the address of a declared buffer or barrier",
    ),
    "a descriptor that is a number": (
        "step 4",
        lambda p: replaced(p, ir.Mma, a=Register(name="tile_k")),
        r"%tile_k does not describe a declared buffer",
    ),
    "operands that are never loaded": (
        "step 4",
        lambda p: replaced(p, ir.DescriptorBase, address=Register(name="staging")),
        r"an MMA reads staging\[0\], which is never loaded",
    ),
    "a store of what nobody staged": (
        "step 4",
        lambda p: edit(p, lambda op: () if isinstance(op, ir.StoreShared) else op),
        r"warp 0 stores from staging\[0\], where nothing was written for it",
    ),
    "neither commit nor wait": (
        "step 4",
        lambda p: edit(
            p,
            lambda op: (
                ()
                if isinstance(op, ir.CommitMma) or (isinstance(op, ir.WaitBarrier) and op.label == "wait_mma")
                else op
            ),
        ),
        r"reads an accumulator whose MMAs are not committed",
    ),
    "more columns than the chip has": (
        "step 4",
        lambda p: dataclasses.replace(p, tmem_columns=64),
        ALONE + r"128 TMEM columns, the chip has 64",
    ),
    "accumulators that overlap": (
        "step 7, two accumulators",
        lambda p: edit(
            p,
            lambda op: (
                dataclasses.replace(op, sources=(op.sources[0], 64, op.sources[2]))
                if isinstance(op, ir.Integer) and op.sources[1:2] == (128,) and op.dst.name.endswith("_tmem")
                else op
            ),
        ),
        r"MMAs write TMEM columns 64 to 191 and, overlapping, 0 to 127",
    ),
    "columns that no MMA writes": (
        "step 4",
        lambda p: edit(
            p,
            lambda op: (
                dataclasses.replace(op, address=dataclasses.replace(op.address, offset=128))
                if isinstance(op, ir.LoadTmem)
                else op
            ),
        ),
        r"warp \d reads TMEM columns 128 to 159, which no MMA writes",
    ),
    "an MMA of a shape that one CTA has not": (
        "step 4",
        lambda p: edit(
            p,
            lambda op: (
                dataclasses.replace(op, value=Hex(value=0x8200010 - (6 << 24)))
                if isinstance(op, ir.SetConstant) and op.dst.name == "idesc"
                else op
            ),
        ),
        r"m 32 is none of 64, 128",
    ),
    "a commit to a CTA that is not there": (
        "step 8",
        lambda p: replaced(p, ir.CommitMma, mask=4),
        r"a commit to CTAs 0x4 of 2",
    ),
    "an arrival in the other CTA as if it were in this one": (
        "step 8",
        lambda p: replaced(p, ir.Arrive, remote=False),
        r"warp \d arrives on acc_empty\[0\] as if it were in its own CTA 1",
    ),
    "a load of one CTA that signals another": (
        "step 8",
        lambda p: replaced(p, ir.TmaLoad, cta_group=1),
        r"a load by CTA 1 into ring\[0\] of CTA 1 cannot signal loaded\[0\]",
    ),
    "a load that nobody waits for": (
        "step 5",
        lambda p: edit(
            p, lambda op: (op, *one_more_load(p)) if isinstance(op, ir.DoWhile) and op.label == "k_loop" else op
        ),
        r"CTA 0 may end before the bytes of phase 1 of loaded\[0\] are there: none of its warps waits for them",
    ),
    "a loop that never ends": (
        "step 4",
        lambda p: edit(
            p,
            lambda op: () if isinstance(op, ir.Integer) and op.dst.name == "k_tile" and op.opcode[:3] == "add" else op,
        ),
        r"a loop does not end|deadlock",
    ),
}


def one_more_load(program: Program) -> list[ir.Op]:
    """The first of a kernel's loads, under another label."""
    return [
        dataclasses.replace(op, label="one_more_load")
        for op in ops_of(program, ir.Guard)
        if isinstance(op, ir.Guard) and op.label == "fill_issued"
    ]


def _refill_first(loop: ir.DoWhile) -> ir.DoWhile:
    """The K loop with the refill moved before the wait for the MMAs that read the stage."""
    wait = next(
        index for index, op in enumerate(loop.body) if isinstance(op, ir.WaitBarrier) and op.label == "wait_mma"
    )
    refill = next(
        index for index, op in enumerate(loop.body) if isinstance(op, ir.Guard) and op.label == "refill_skipped"
    )
    between = loop.body[wait:refill]
    steering = [op for op in between if isinstance(op, ir.Compare)]
    waiting = [op for op in between if not isinstance(op, ir.Compare)]
    body = (*loop.body[:wait], *steering, loop.body[refill], *waiting, *loop.body[refill + 1 :])
    return dataclasses.replace(loop, body=body)


@pytest.mark.parametrize("fault", CHANGED)
def test_a_changed_op_is_refused(fault: str) -> None:
    name, change, message = CHANGED[fault]
    said = refusal(change(kernel(name)))
    assert re.search(message, said), said


def test_a_stage_that_four_warps_walk_is_released_by_four_arrivals() -> None:
    """The counterpart of the faults above: every warp of the walker waits, and each arrives once."""
    program = kernel("step 5 on sm_90a")
    (released,) = (barrier for barrier in program.barriers if barrier.name == "mma_done")
    assert (program.warps, released.arrivals) == (4, 4)
    assert refusal(program) == "accepted"


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_accepted_unedited(name: str) -> None:
    """`edit` itself changes nothing, so what the other tests meet is the fault that they make."""
    program = kernel(name)
    assert edit(program, lambda op: op) == program


def test_every_integer_opcode_can_steer() -> None:
    assert registers._INTEGER.keys() == scalar.INTEGER_OPCODES
    assert registers._COMPARE.keys() == scalar.COMPARE_OPCODES
    assert registers._INTEGER["max.s32"](0xFFFFFFFF, 0) == 0
    assert registers._INTEGER["min.s32"](0x80000000, 5) == 0x80000000
