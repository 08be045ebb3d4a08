"""A kernel of three roles written from the ops alone: what the IR can say beyond the ladder's steps.

A TMA warp fills a ring of stages, an MMA warp multiplies them into tensor memory, and a warpgroup
stores the tiles. Stages and the accumulator go to and fro through full and empty mbarriers; CTAs walk
several output tiles, so every cursor carries its phase from tile to tile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from ptxgen.device.description import parse_launch
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.device.kernel import Kernel
from ptxgen.hardware.instruction_descriptor import InstructionDescriptor
from ptxgen.hardware.smem_descriptor import SmemDescriptor
from ptxgen.hardware.swizzle import Swizzle
from ptxgen.ir import ops as ir
from ptxgen.ir.checks import check
from ptxgen.ir.declarations import Barrier, Cursor, Hex, NamedBarrier, Parameter, Register, SmemBuffer
from ptxgen.ir.program import Program, Role
from ptxgen.render import render
from ptxgen.steps.builder import Builder, at
from ptxgen.toolchain import assemble

M, N, K = 128, 64, 64
DEPTH = 3
SLICE = 32
A_BYTES, B_BYTES = M * K * 2, N * K * 2

STORER_WARPS, MULTIPLIER_WARP, PRODUCER_WARP = 4, 4, 5

TMEM_SLOT = SmemBuffer(name="tmem_address", offset=0, nbytes=4, align=4)
STAGING = SmemBuffer(name="staging", offset=1024, nbytes=M * N * 2, align=1024)
RING = SmemBuffer(
    name="ring",
    offset=STAGING.end,
    nbytes=A_BYTES + B_BYTES,
    align=1024,
    stages=DEPTH,
    stage_bytes=A_BYTES + B_BYTES,
)
FULL = Barrier(name="full", offset=64, arrivals=1, transaction_bytes=RING.nbytes, stages=DEPTH)
EMPTY = Barrier(name="empty", offset=128, arrivals=1, stages=DEPTH)
ACC_FULL = Barrier(name="acc_full", offset=192, arrivals=1)
ACC_EMPTY = Barrier(name="acc_empty", offset=256, arrivals=128)
BARRIERS = (FULL, EMPTY, ACC_FULL, ACC_EMPTY)
STORERS = NamedBarrier(name="storers", id=1, threads=128)

MAPS = tuple(Parameter(name=name, kind="tensor_map", comment=name[0].upper()) for name in ("a_map", "b_map", "d_map"))
COUNTS = tuple(Parameter(name=name, kind="u32", comment=name) for name in ("k_tiles", "m_tiles", "n_tiles"))


class ThreeRoles:
    """The kernel, role by role."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.roles: list[Role] = []

    def reg(self, name: str, type: str = "b32", count: int | None = None) -> Register:
        known = self.builder.registers.get(name)
        return known or self.builder.register(name, "registers", type, count)

    def program(self) -> Program:
        self.set_up()
        setup = self.builder.take()
        self.produce()
        self.multiply()
        self.store()
        self.builder.emit(ir.Section(comment="end"), ir.CtaBarrier(comment="all roles are done"))
        with self.only_warp(0, "freed"):
            self.builder.emit(
                ir.FenceAfterSync(comment="after the last loads"), ir.DeallocTmem(tmem=self.reg("tmem"), columns=64)
            )
        self.builder.emit(ir.Return())
        return Program(
            name="three_roles",
            target="sm_100a",
            ptx_version=(8, 6),
            command="written by hand",
            spec_hash="none",
            launch=json.dumps(LAUNCH),
            cluster_ctas=1,
            entry_registers=None,
            threads=192,
            smem_bytes=RING.end,
            smem_limit_bytes=232448,
            tmem_columns=512,
            parameters=(*MAPS, *COUNTS),
            buffers=(TMEM_SLOT, STAGING, RING),
            barriers=BARRIERS,
            named_barriers=(STORERS,),
            registers=tuple(self.builder.registers.values()),
            setup=setup,
            roles=tuple(self.roles),
            teardown=self.builder.take(),
        )

    # ---- set-up -----------------------------------------------------------------------------

    def set_up(self) -> None:
        builder, reg = self.builder, self.reg
        thread, warp, smem = reg("thread"), reg("warp"), reg("smem")
        builder.emit(ir.ReadSpecial(dst=thread, special="%tid.x", comment="thread of the CTA"))
        builder.integer("shr.u32", warp, thread, 5, comment="warp of the CTA")
        builder.emit(ir.ElectOne(dst=reg("elected", "pred"), comment="one lane a warp issues"))
        builder.emit(ir.SharedBase(dst=smem, comment="control, staging, ring"))
        for place in (*BARRIERS, STAGING, RING):
            builder.smem_address(place.name, smem, place, place.name)
        builder.constant("depth", "registers", DEPTH, "stages")
        for count in COUNTS:
            builder.emit(ir.LoadParameter(dst=reg(count.name), parameter=count, comment=count.comment))
        builder.integer("mul.lo.u32", reg("tiles"), reg("m_tiles"), reg("n_tiles"), comment="tiles of the problem")
        for tensor_map in MAPS:
            builder.emit(ir.TensorMapAddress(dst=reg(tensor_map.name, "b64"), parameter=tensor_map, comment="map"))
        shape = InstructionDescriptor(m=M, n=N, d_type="f32", a_type="f16", b_type="f16")
        builder.emit(ir.SetConstant(dst=reg("idesc"), value=Hex(value=shape.encode()), comment="128 x 64, f16"))
        operand = SmemDescriptor(start_address=0, leading_byte_offset=16, stride_byte_offset=1024, swizzle=Swizzle.B128)
        for name, offset in (("a_base", 0), ("b_base", A_BYTES)):
            builder.emit(
                ir.DescriptorBase(
                    dst=reg(name, "b64"),
                    address=reg("ring"),
                    offset=offset,
                    fields=Hex(value=operand.encode("sm_100a")),
                    fields_comment=operand.fields_text("sm_100a"),
                    low=reg("low"),
                    comment=f"{name} of stage 0",
                )
            )
        with self.only_warp(0, "set_up"):
            builder.emit(
                ir.AllocTmem(address=at(smem), columns=64, comment="one accumulator"),
                ir.RelinquishTmem(comment="a co-resident CTA may allocate"),
            )
            with builder.guard("initialised", reg("elected", "pred"), comment="one thread initialises"):
                for barrier in BARRIERS:
                    for stage in range(barrier.stages):
                        builder.emit(
                            ir.InitBarrier(address=at(reg(barrier.name), 8 * stage), barrier=barrier, comment="init")
                        )
                builder.emit(ir.FenceBarrierInit(comment="before TMA and tcgen05 arrive"))
        builder.emit(
            ir.CtaBarrier(comment="barriers and TMEM address are there"),
            ir.FenceAfterSync(comment="TMEM is allocated"),
            ir.ReadTmemAddress(dst=reg("tmem"), address=at(smem), comment="accumulator"),
        )

    @contextmanager
    def only_warp(self, warp: int, label: str) -> Iterator[None]:
        builder = self.builder
        other = self.reg(f"not_warp_{warp}", "pred")
        builder.compare("ne.u32", other, self.reg("warp"), warp, comment=f"not warp {warp}")
        with builder.guard(label, other, comment=f"warp {warp}", negate=True):
            yield

    @contextmanager
    def role(self, name: str, first_warp: int, warps: int) -> Iterator[None]:
        """The ops emitted inside are the role's body; labels get its name."""
        builder = self.builder
        skip = self.reg(f"not_{name}", "pred")
        opcode, bound = ("ge.u32", warps) if first_warp == 0 else ("ne.u32", first_warp)
        test = ir.Compare(opcode=opcode, dst=skip, left=self.reg("warp"), right=bound, comment=f"not the {name}")
        builder.scope = f"{name}_"
        with builder.block() as body:
            yield
        builder.scope = ""
        self.roles.append(
            Role(name=name, first_warp=first_warp, warps=warps, body=tuple(body), test=(test,), skip=skip)
        )

    @contextmanager
    def tiles(self) -> Iterator[None]:
        """Every role walks the CTA's tiles on its own."""
        builder, reg = self.builder, self.reg
        tile, step, leave = reg("tile"), reg("grid_size"), reg("no_tile_left", "pred")
        builder.emit(
            ir.ReadSpecial(dst=tile, special="%ctaid.x", comment="first tile"),
            ir.ReadSpecial(dst=step, special="%nctaid.x", comment="CTAs"),
        )
        head = ir.Compare(opcode="ge.u32", dst=leave, left=tile, right=reg("tiles"), comment="none left")
        with builder.while_not("tile_loop", "tiles_done", leave, (head,)):
            builder.emit(
                ir.RowMajorTile(
                    tile=tile, m_tile=reg("m_tile"), n_tile=reg("n_tile"), n_tiles=reg("n_tiles"), comment="tile"
                )
            )
            builder.integer("mul.lo.u32", reg("m_coord"), reg("m_tile"), M, comment="first row")
            builder.integer("mul.lo.u32", reg("n_coord"), reg("n_tile"), N, comment="first column")
            yield
            builder.integer("add.u32", tile, tile, step, comment="next tile")

    @contextmanager
    def k_loop(self) -> Iterator[None]:
        builder, k_tile, again = self.builder, self.reg("k_tile"), self.reg("more_k_tiles", "pred")
        builder.integer("mov.b32", k_tile, 0, comment="first K tile")
        with builder.do_while("k_loop", again):
            yield
            builder.integer("add.u32", k_tile, k_tile, 1, comment="next K tile")
            builder.compare("lt.u32", again, k_tile, self.reg("k_tiles"), comment="K tiles remain")

    def ring_cursor(self, name: str, start_phase: int) -> Cursor:
        cursor = Cursor(
            name=name,
            stage_count=self.reg("depth"),
            stage=self.reg(f"{name}_stage"),
            phase=self.reg(f"{name}_phase"),
            wrapped=self.reg(f"{name}_wrapped", "pred"),
            start_phase=start_phase,
        )
        self.builder.emit(ir.StartCursor(cursor=cursor, comment=name))
        return cursor

    def barrier_cursor(self, name: str, start_phase: int) -> Cursor:
        cursor = Cursor(name=name, phase=self.reg(f"{name}_phase"), start_phase=start_phase)
        self.builder.emit(ir.StartCursor(cursor=cursor, comment=name))
        return cursor

    def stage_of(self, cursor: Cursor, base: str, stride: int) -> Register:
        assert cursor.stage is not None
        dst = self.reg(f"{cursor.name}_{base}")
        self.builder.emit(
            ir.StageAddress(dst=dst, base=self.reg(base), stage=cursor.stage, stride=stride, comment=f"its {base}")
        )
        return dst

    def wait(self, label: str, barrier: Register, cursor: Cursor) -> None:
        assert cursor.phase is not None
        self.builder.emit(
            ir.WaitBarrier(
                label=self.builder.label(label),
                done=self.reg("done", "pred"),
                address=at(barrier),
                parity=cursor.phase,
                comment=label,
            )
        )

    # ---- the roles --------------------------------------------------------------------------

    def produce(self) -> None:
        builder, reg = self.builder, self.reg
        with self.role("producer", PRODUCER_WARP, 1):
            load = self.ring_cursor("load", start_phase=1)
            with self.tiles(), self.k_loop():
                self.wait("wait_empty", self.stage_of(load, "empty", 8), load)
                full, stage = self.stage_of(load, "full", 8), self.stage_of(load, "ring", RING.stage_bytes)
                k = builder.integer("mul.lo.u32", reg("k_coord"), reg("k_tile"), K, comment="first k")
                with builder.guard("loaded", reg("elected", "pred"), comment="one thread issues"):
                    builder.emit(
                        ir.ArriveExpect(address=at(full), transaction_bytes=RING.nbytes, comment="A and B"),
                        ir.TmaLoad(
                            box_bytes=A_BYTES,
                            dst=at(stage),
                            tensor_map=reg("a_map", "b64"),
                            coordinates=(k, reg("m_coord")),
                            barrier=at(full),
                        ),
                        ir.TmaLoad(
                            box_bytes=B_BYTES,
                            dst=at(stage, A_BYTES),
                            tensor_map=reg("b_map", "b64"),
                            coordinates=(k, reg("n_coord")),
                            barrier=at(full),
                        ),
                    )
                builder.emit(ir.AdvanceCursor(cursor=load, comment="next stage"))

    def multiply(self) -> None:
        builder, reg = self.builder, self.reg
        elected, accumulate = reg("elected", "pred"), reg("accumulate", "pred")
        with self.role("multiplier", MULTIPLIER_WARP, 1):
            mma = self.ring_cursor("mma", start_phase=0)
            assert mma.stage is not None
            fill = self.barrier_cursor("fill", start_phase=1)
            with self.tiles():
                self.wait("wait_read", reg("acc_empty"), fill)
                builder.emit(ir.FenceAfterSync(comment="the accumulator has been read"))
                with self.k_loop():
                    self.wait("wait_full", self.stage_of(mma, "full", 8), mma)
                    empty = self.stage_of(mma, "empty", 8)
                    for name in ("a", "b"):
                        builder.emit(
                            ir.StageDescriptor(
                                dst=reg(name, "b64"),
                                base=reg(f"{name}_base", "b64"),
                                stage=mma.stage,
                                stride=RING.stage_bytes >> 4,
                                comment=f"{name} of the stage",
                            )
                        )
                    builder.compare("ne.u32", accumulate, reg("k_tile"), 0, comment="the first one overwrites")
                    with builder.guard("multiplied", elected, comment="one thread issues"):
                        for index in range(K // 16):
                            a, b = reg("a", "b64"), reg("b", "b64")
                            if index:
                                a = builder.integer("add.s64", reg("a_k", "b64"), a, 2 * index, comment="32 bytes on")
                                b = builder.integer("add.s64", reg("b_k", "b64"), b, 2 * index, comment="32 bytes on")
                            builder.emit(
                                ir.Mma(
                                    tmem=reg("tmem"),
                                    a=a,
                                    b=b,
                                    instruction=reg("idesc"),
                                    accumulate=1 if index else accumulate,
                                )
                            )
                        builder.emit(ir.CommitMma(address=at(empty), comment="the stage is free"))
                    builder.emit(ir.AdvanceCursor(cursor=mma, comment="next stage"))
                with builder.guard("reported", elected, comment="one thread issues"):
                    builder.emit(ir.CommitMma(address=at(reg("acc_full")), comment="the tile is complete"))
                builder.emit(ir.AdvanceCursor(cursor=fill, comment="next tile"))

    def store(self) -> None:
        builder, reg = self.builder, self.reg
        with self.role("storers", 0, STORER_WARPS):
            drain = self.barrier_cursor("drain", start_phase=0)
            lanes, row, chunk = reg("tmem_row"), reg("row"), reg("chunk")
            builder.integer("mad.lo.u32", lanes, reg("warp"), 32 << 16, reg("tmem"), comment="32 lanes of the warp")
            builder.integer("mad.lo.u32", row, reg("thread"), 2 * N, reg("staging"), comment="row in staging")
            builder.integer("shr.u32", chunk, row, 3, comment="128B swizzle:")
            builder.integer("and.b32", chunk, chunk, Hex(value=0x70), comment="bits of the row")
            builder.integer("xor.b32", row, row, chunk, comment="move its chunks")
            with self.tiles():
                self.wait("wait_complete", reg("acc_full"), drain)
                builder.emit(
                    ir.FenceAfterSync(comment="the accumulator is complete"),
                    ir.WaitStores(pending=0, read=True, comment="staging has been read"),
                    ir.SyncNamedBarrier(barrier=STORERS, id=STORERS.id, comment="for everyone"),
                )
                acc, out = reg("acc", count=SLICE), reg("out", count=SLICE // 2)
                for start in range(0, N, SLICE):
                    builder.emit(
                        ir.LoadTmem(registers=acc.slice(0, SLICE), address=at(lanes, start), comment="a slice"),
                        ir.WaitTmemLoad(comment="in registers"),
                    )
                    if start + SLICE == N:
                        builder.emit(
                            ir.FenceBeforeSync(comment="TMEM has been read"),
                            ir.Arrive(address=at(reg("acc_empty")), comment="by this thread"),
                        )
                    for pair in range(SLICE // 2):
                        builder.emit(
                            ir.ConvertPair(dst=out[pair], low=acc[2 * pair], high=acc[2 * pair + 1], type="f16")
                        )
                    for part in range(SLICE * 2 // 16):
                        offset = 2 * start + 16 * part
                        address = builder.integer("xor.b32", reg("place"), row, offset, comment="its chunk")
                        builder.emit(ir.StoreShared(address=at(address), values=out.slice(4 * part, 4)))
                builder.emit(
                    ir.FenceProxyAsync(comment="before the store reads"),
                    ir.SyncNamedBarrier(barrier=STORERS, id=STORERS.id, comment="all rows are staged"),
                )
                with self.only_warp(0, builder.label("stored")), builder.guard("issued", reg("elected", "pred"), "x"):
                    builder.emit(
                        ir.TmaStore(
                            box_bytes=STAGING.nbytes,
                            tensor_map=reg("d_map", "b64"),
                            coordinates=(reg("n_coord"), reg("m_coord")),
                            src=at(reg("staging")),
                        ),
                        ir.CommitStores(comment="one group a tile"),
                    )
                builder.emit(ir.AdvanceCursor(cursor=drain, comment="next tile"))
            builder.emit(ir.WaitStores(pending=0, read=False, comment="D is written"))


def tensor_map(name: str, buffer: str, columns: str, rows: str, box: list[int]) -> dict[str, object]:
    return {
        "name": name,
        "kind": "tensor_map",
        "buffer": buffer,
        "dims": [columns, rows],
        "strides_bytes": [["round_up", ["product", columns, 2], 16]],
        "box": box,
        "swizzle": 128,
    }


def matrix(name: str, rows: str, columns: str, fill: str) -> dict[str, object]:
    pitch = ["round_up", ["product", columns, 2], 16]
    return {"name": name, "type": "f16", "shape": [rows, columns], "pitch_bytes": pitch, "fill": fill}


LAUNCH = {
    "version": 1,
    "entry": "three_roles",
    "grid": ["SM_COUNT", 1, 1],
    "block": [192, 1, 1],
    "cluster": [1, 1, 1],
    "dynamic_smem_bytes": RING.end,
    "buffers": [matrix("A", "M", "K", "input"), matrix("B", "N", "K", "input"), matrix("D", "M", "N", "nan")],
    "arguments": [
        tensor_map("a_map", "A", "K", "M", [K, M]),
        tensor_map("b_map", "B", "K", "N", [K, N]),
        tensor_map("d_map", "D", "N", "M", [N, M]),
        {"name": "k_tiles", "kind": "u32", "value": ["ceil_div", "K", K]},
        {"name": "m_tiles", "kind": "u32", "value": ["ceil_div", "M", M]},
        {"name": "n_tiles", "kind": "u32", "value": ["ceil_div", "N", N]},
    ],
    "defaults": {"M": 512, "N": 512, "K": 512},
    "verify": [[M, N, K]],
    "expect": {"kind": "gemm", "a": "A", "b": "B", "d": "D"},
}


@pytest.fixture(scope="module")
def program() -> Program:
    return ThreeRoles().program()


@pytest.fixture(scope="module")
def text(program: Program) -> str:
    check(program)
    return render(program)


def test_it_assembles_without_remarks(text: str) -> None:
    assembly = assemble(text)
    assert (assembly.warnings, assembly.advisories, assembly.spill_bytes) == ((), (), 0)


@pytest.mark.parametrize("policy", ["eager", "late", "random"])
@pytest.mark.parametrize(("ctas", "shape"), [(1, (300, 130, 200)), (2, (384, 192, 64)), (5, (200, 72, 500))])
def test_it_multiplies_exactly(text: str, policy: str, ctas: int, shape: tuple[int, int, int]) -> None:
    """Several tiles a CTA, more and fewer K tiles than stages, edges on every side, an idle CTA."""
    m, n, k = shape
    generator = np.random.default_rng(7)
    a = generator.integers(-4, 5, (m, k)).astype(np.float16)
    b = generator.integers(-4, 5, (n, k)).astype(np.float16)
    device = EmulatedDevice(policy=policy, seed=3, workers=1)
    kernel = Kernel(text, parse_launch(json.dumps(LAUNCH), "the test"), device, name="three roles")
    d = kernel(a, b, grid=(ctas, 1, 1))
    np.testing.assert_array_equal(d, (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float16))
