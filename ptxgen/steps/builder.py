"""Builder: collects declarations and nested operations while a step is being written down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ptxgen.ir.declarations import Address, Barrier, Operand, Register, SmemBuffer
from ptxgen.ir.ops import (
    Compare,
    DoWhile,
    Guard,
    Integer,
    Op,
    SetConstant,
    SmemAddress,
    StageAddress,
    WaitBarrier,
    While,
)

ONE_LANE = "one lane; the warp meets again at the label"
"""Comment of a branch around what one thread does: `.aligned` instructions and barriers may follow the label."""


class Builder:
    """Registers by name, and a stack of open blocks that `emit` appends to.

    `scope` goes before every label, so that two roles may use the same words.
    """

    def __init__(self) -> None:
        self.registers: dict[str, Register] = {}
        self.scope = ""
        self._blocks: list[list[Op]] = [[]]

    def register(self, name: str, group: str, type: str = "b32", count: int | None = None) -> Register:
        """Declare a register once; asking again for the same one returns it."""
        register = Register(name=name, group=group, type=type, count=count)
        known = self.registers.setdefault(name, register)
        if known != register:
            raise ValueError(f"register %{name} is declared twice, differently")
        return known

    def emit(self, *ops: Op) -> None:
        self._blocks[-1].extend(ops)

    @contextmanager
    def block(self) -> Iterator[list[Op]]:
        """Collect the ops emitted inside; the caller places them."""
        ops: list[Op] = []
        self._blocks.append(ops)
        yield ops
        self._blocks.pop()

    def take(self) -> tuple[Op, ...]:
        """Hand over what was emitted so far outside any open block, and start anew."""
        ops, self._blocks[-1] = tuple(self._blocks[-1]), []
        return ops

    def label(self, name: str) -> str:
        """A label's name in the present scope."""
        return self.scope + name

    @contextmanager
    def guard(self, label: str, predicate: Register, comment: str, negate: bool = False) -> Iterator[None]:
        """Run the body only where the predicate is true (negate: false)."""
        with self.block() as body:
            yield
        self.emit(Guard(label=self.label(label), predicate=predicate, negate=negate, body=tuple(body), comment=comment))

    @contextmanager
    def do_while(self, label: str, again: Register) -> Iterator[None]:
        """Loop tested at the bottom: the body computes `again`."""
        with self.block() as body:
            yield
        self.emit(DoWhile(label=self.label(label), again=again, body=tuple(body)))

    @contextmanager
    def while_not(
        self,
        label: str,
        done: str,
        leave: Register,
        head: tuple[Op, ...],
        *,
        rolled: bool = False,
    ) -> Iterator[None]:
        """Loop tested at the top: `head` computes `leave`, which ends the loop."""
        with self.block() as body:
            yield
        self.emit(
            While(
                label=self.label(label), done=self.label(done), leave=leave, head=head, body=tuple(body), rolled=rolled
            )
        )

    def constant(self, name: str, group: str, value: int, comment: str) -> Register:
        """Name a constant of the spec."""
        register = self.register(name, group)
        self.emit(SetConstant(dst=register, value=value, comment=comment))
        return register

    def integer(self, opcode: str, dst: Register, *sources: Operand, comment: str) -> Register:
        self.emit(Integer(opcode=opcode, dst=dst, sources=sources, comment=comment))
        return dst

    def compare(self, opcode: str, dst: Register, left: Operand, right: Operand, comment: str) -> Register:
        self.emit(Compare(opcode=opcode, dst=dst, left=left, right=right, comment=comment))
        return dst

    def wait(
        self, label: str, barrier: Register, phase: Register | None, comment: str, *, relaxed: bool = False
    ) -> None:
        """Wait for a phase of an mbarrier, a cursor's or another, with the spec's time hint where it has one."""
        assert phase is not None
        self.emit(
            WaitBarrier(
                label=self.label(label),
                done=self.register("phase_done", "mma", "pred"),
                address=at(barrier),
                parity=phase,
                relaxed=relaxed,
                suspend_ns=self.registers.get("suspend_ns"),
                comment=comment,
            )
        )

    def stage_address(
        self, dst: Register, base: Register, stage: Register | None, stride: Register | int, comment: str
    ) -> None:
        """The address of a stage, a cursor's or another, of what begins at `base`."""
        assert stage is not None
        self.emit(StageAddress(dst=dst, base=base, stage=stage, stride=stride, comment=comment))

    def smem_address(self, name: str, base: Register, place: SmemBuffer | Barrier, comment: str) -> Register:
        """Name the address of a declared buffer or barrier."""
        register = self.register(name, "shared memory")
        self.emit(SmemAddress(dst=register, base=base, place=place, comment=comment))
        return register


def at(base: Register, offset: int = 0) -> Address:
    """The address `offset` bytes after a base register."""
    return Address(base=base, offset=offset)
