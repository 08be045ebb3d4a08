"""The static check of layout and names: each rule, broken alone, is named with its numbers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest

from ptxgen.errors import ProgramError
from ptxgen.ir import ops as ir
from ptxgen.ir.checks import SPECIAL_REGISTERS, check
from ptxgen.ir.declarations import Hex, Register
from ptxgen.ir.program import Program
from ptxgen.steps import build, step


def violations(program: Program) -> tuple[str, ...]:
    with pytest.raises(ProgramError) as error:
        check(program)
    return error.value.violations


def with_buffer(program: Program, name: str, **changes: Any) -> Program:
    buffers = (dataclasses.replace(b, **changes) if b.name == name else b for b in program.buffers)
    return dataclasses.replace(program, buffers=tuple(buffers))


def with_barrier(program: Program, name: str, **changes: Any) -> Program:
    barriers = (dataclasses.replace(b, **changes) if b.name == name else b for b in program.barriers)
    return dataclasses.replace(program, barriers=tuple(barriers))


def with_named(program: Program, **changes: Any) -> Program:
    (named,) = program.named_barriers
    return dataclasses.replace(program, named_barriers=(dataclasses.replace(named, **changes),))


def with_setup(program: Program, *ops: ir.Op) -> Program:
    return dataclasses.replace(program, setup=(*program.setup, *ops))


def with_register(program: Program, register: Register) -> Program:
    return dataclasses.replace(program, registers=(*program.registers, register))


def with_role(program: Program, registers: int) -> Program:
    (role,) = program.roles
    return dataclasses.replace(program, roles=(dataclasses.replace(role, registers=registers),))


def without_register(program: Program, name: str) -> Program:
    return dataclasses.replace(program, registers=tuple(r for r in program.registers if r.name != name))


UNKNOWN = Register(name="nowhere")
SPARE = Register(name="spare", count=4)

FAULTS: dict[str, tuple[Callable[[Program], Program], str]] = {
    "buffer alignment": (
        lambda p: dataclasses.replace(with_buffer(p, "ring", offset=33792 + 512), smem_bytes=99840),
        "ring at offset 34304 is not aligned to 1024 bytes",
    ),
    "barrier alignment": (
        lambda p: with_barrier(p, "loaded", offset=68),
        "loaded at offset 68 is not aligned to 8 bytes",
    ),
    "buffer past the end": (
        lambda p: dataclasses.replace(p, smem_bytes=99327),
        "ring ends at 99328, past the 99327 bytes of shared memory",
    ),
    "buffers overlap": (
        lambda p: with_buffer(p, "staging", nbytes=32769),
        "staging (to 33793) overlaps ring (from 33792)",
    ),
    "barriers overlap": (
        lambda p: with_barrier(p, "mma_done", offset=72),
        "loaded (to 80) overlaps mma_done (from 72)",
    ),
    "stages overlap": (
        lambda p: with_buffer(p, "ring", stage_bytes=31744),
        "stages of ring overlap: 32768 bytes, 31744 apart",
    ),
    "stages unaligned": (
        lambda p: dataclasses.replace(with_buffer(p, "ring", stage_bytes=32784), smem_bytes=99344),
        "stages of ring lie 32784 apart, not x 1024",
    ),
    "more than a CTA has": (
        lambda p: dataclasses.replace(p, smem_limit_bytes=99327),
        "99328 bytes of shared memory, the limit is 99327",
    ),
    "no arrivals": (
        lambda p: with_barrier(p, "loaded", arrivals=0),
        "barrier loaded: 0 arrivals, legal are 1 to 1048575",
    ),
    "too many arrivals": (
        lambda p: with_barrier(p, "loaded", arrivals=1 << 20),
        "barrier loaded: 1048576 arrivals, legal are 1 to 1048575",
    ),
    "too many bytes": (
        lambda p: with_barrier(p, "loaded", transaction_bytes=1 << 20),
        "barrier loaded: 1048576 bytes, at most 1048575",
    ),
    "named barrier 0": (lambda p: with_named(p, id=0), "named barrier epilogue: id 0, legal are 1 to 15"),
    "named barrier 16": (lambda p: with_named(p, id=16), "named barrier epilogue: id 16, legal are 1 to 15"),
    "half a warp": (lambda p: with_named(p, threads=112), "named barrier epilogue: 112 threads of 128"),
    "more threads than there are": (
        lambda p: with_named(p, threads=160),
        "named barrier epilogue: 160 threads of 128",
    ),
    "a register budget that setmaxnreg refuses": (
        lambda p: dataclasses.replace(with_role(p, 100), entry_registers=168),
        "role all: 100 registers; setmaxnreg takes 24 to 256 by 8",
    ),
    "a register budget with no number to start from": (
        lambda p: with_role(p, 96),
        "roles change their registers, but the number at entry is not given: ptxas ignores setmaxnreg",
    ),
    "more registers than others have given up": (
        lambda p: dataclasses.replace(with_role(p, 240), entry_registers=168),
        "roles want 4 x 240 = 960 registers a lane, but start with 672: setmaxnreg.inc never returns",
    ),
    "a register declared twice": (
        lambda p: with_register(p, p.registers[0]),
        "register %thread is declared twice",
    ),
    "a special register": (lambda p: with_register(p, Register(name="laneid")), "%laneid is a special register"),
    "a register not declared": (
        lambda p: without_register(p, "k_tile"),
        "register %k_tile is not declared",
    ),
    "a family not declared": (lambda p: without_register(p, "acc"), "register %acc is not declared"),
    "a register read before it is written": (
        lambda p: with_setup(
            with_register(with_register(p, UNKNOWN), SPARE),
            ir.Integer(opcode="mov.b32", dst=SPARE[0], sources=(UNKNOWN,), comment="x"),
        ),
        "register %nowhere is read, by Integer, before it is written",
    ),
    "a register written in a guard only": (
        lambda p: with_setup(
            with_register(p, SPARE),
            ir.Guard(
                label="maybe",
                predicate=p_register(p, "elected"),
                body=(ir.SetConstant(dst=SPARE[1], value=7),),
            ),
            ir.Integer(opcode="mov.b32", dst=SPARE[2], sources=(SPARE[1],), comment="x"),
        ),
        "register %spare1 is read, by Integer, before it is written",
    ),
    "another element of the family": (
        lambda p: with_setup(
            with_register(p, SPARE),
            ir.SetConstant(dst=SPARE[1], value=7),
            ir.Integer(opcode="mov.b32", dst=SPARE[2], sources=(SPARE[3],), comment="x"),
        ),
        "register %spare3 is read, by Integer, before it is written",
    ),
    "a label defined twice": (lambda p: with_setup(p, ir.Label(name="k_loop")), "label k_loop is defined twice"),
    "a wait's label taken": (
        lambda p: with_setup(p, ir.Label(name="wait_loaded")),
        "label wait_loaded is defined twice",
    ),
    "a label not defined": (
        lambda p: with_setup(p, ir.Branch(target="somewhere")),
        "label somewhere is not defined",
    ),
    "a descriptor with a start address": (
        lambda p: with_setup(p, descriptor(p, 0x4000404000010001)),
        "%ring_a_desc: the constant fields of a descriptor have no start address, these have 16",
    ),
    "an illegal descriptor": (
        lambda p: with_setup(p, descriptor(p, 0x6000404000010000)),
        "%ring_a_desc: matrix descriptor 0x6000404000010000 on sm_100a is not possible:",
    ),
}


def p_register(program: Program, name: str) -> Register:
    return next(register for register in program.registers if register.name == name)


def descriptor(program: Program, fields: int) -> ir.DescriptorBase:
    return ir.DescriptorBase(
        dst=p_register(program, "ring_a_desc"),
        address=p_register(program, "ring"),
        offset=0,
        fields=Hex(value=fields),
        fields_comment="",
        low=p_register(program, "desc_low"),
    )


@pytest.fixture(scope="module")
def program() -> Program:
    """Step 6 with its set-up in `setup`, where the faults can be added behind it."""
    built = build(step(6))
    (role,) = built.roles
    index = next(index for index, op in enumerate(role.body) if isinstance(op, ir.CtaBarrier))
    moved = dataclasses.replace(role, body=role.body[index:])
    return dataclasses.replace(built, setup=(*built.setup, *role.body[:index]), roles=(moved,))


@pytest.mark.parametrize("fault", FAULTS)
def test_each_rule_is_named_alone(program: Program, fault: str) -> None:
    change, message = FAULTS[fault]
    found = violations(change(program))
    assert len(found) == 1
    assert found[0].startswith(message)


def with_budgets(first_warp: int, *registers: int) -> Program:
    """Step 7 of sm_90a, three warpgroups in two roles, with other register budgets."""
    built = build(step(7, target="sm_90a"))
    roles = (dataclasses.replace(r, registers=n) for r, n in zip(built.roles, registers, strict=True))
    first, second = roles
    return dataclasses.replace(built, roles=(first, dataclasses.replace(second, first_warp=first_warp)))


def test_register_budgets_are_of_whole_warpgroups_and_add_up() -> None:
    check(with_budgets(4, 24, 240))
    assert violations(with_budgets(4, 40, 240)) == (
        "roles want 4 x 40 + 8 x 240 = 2080 registers a lane, but start with 2016: setmaxnreg.inc never returns",
    )
    assert violations(with_budgets(2, 24, 240)) == ("role consumer: warps 2 to 9; setmaxnreg takes whole warpgroups",)


def test_all_broken_rules_are_listed_at_once(program: Program) -> None:
    broken = with_named(with_barrier(with_buffer(program, "ring", offset=33808), "loaded", arrivals=0), id=16)
    assert len(violations(broken)) == 3 + 1  # the ring also ends 16 bytes past the end


def test_every_special_register_of_the_text_is_known() -> None:
    """A register may not be named as one that the kernels themselves read."""
    read = {op.special for number in (4, 5, 6) for op in build(step(number)).ops() if isinstance(op, ir.ReadSpecial)}
    assert {re.sub(r"^%|\.[xyz]$", "", name) for name in read} <= SPECIAL_REGISTERS


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ir.Integer(opcode="popc.b32", dst=UNKNOWN, sources=(1,), comment="x"),
            "integer opcode 'popc.b32' is not in the fixed set",
        ),
        (
            lambda: ir.Integer(opcode="add.u32", dst=UNKNOWN, sources=(1, 2)),
            "add.u32 into %nowhere needs a comment",
        ),
        (
            lambda: ir.Compare(opcode="eq.s32", dst=UNKNOWN, left=1, right=2),
            "comparison 'eq.s32' is not in the fixed set",
        ),
    ],
)
def test_integer_ops_have_a_fixed_set_and_a_comment(make: Callable[[], ir.Op], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_an_element_outside_a_family_does_not_exist() -> None:
    with pytest.raises(IndexError, match=re.escape("%spare<4> has no element 4")):
        SPARE[4]
    with pytest.raises(IndexError, match="%nowhere has no element 0"):
        UNKNOWN[0]
