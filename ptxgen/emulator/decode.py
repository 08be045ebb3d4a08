"""The decoder's context: one instruction's modifiers and operands, turned into register slots.

A family of instructions registers a decoder with `@instruction(...)`. The decoder takes every
modifier and operand from its `Decode` and returns an Op; what it leaves over is an error. Operands
become slots of the warp's value list: registers, immediates, special registers and addresses of
variables alike, so an Op only ever indexes that list.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from ptxgen.emulator.layout import Layout, Slots
from ptxgen.emulator.module import (
    TYPE_BITS,
    Address,
    Immediate,
    Instruction,
    Label,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    SpecialRegister,
    Symbol,
    Vector,
)
from ptxgen.emulator.values import MASK, Registers
from ptxgen.errors import PtxError

if TYPE_CHECKING:
    from ptxgen.emulator.module import Function, ParsedModule

Op = Callable[[Registers], None]
Blocking = Callable[[Registers], bool]
Decoder = Callable[["Decode"], "Op | Ends"]

_TABLE: dict[str, Decoder] = {}

_TENSOR_TARGETS = frozenset(f"sm_{chip}{suffix}" for chip in (100, 101, 103, 110) for suffix in "af")
_ONLY_ON = {
    "tcgen05": _TENSOR_TARGETS,
    "wgmma": frozenset({"sm_90a"}),
    "setmaxnreg": _TENSOR_TARGETS | {"sm_90a"},
}
"""The `.target`s that have an instruction, by its first word, where not all from sm_90 on do."""

DYNAMIC_SPECIALS = frozenset({"%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"})
SPECIALS: dict[str, int] = {
    "%laneid": 32, "%warpid": 32, "%nwarpid": 32, "%smid": 32, "%nsmid": 32, "%gridid": 64,
    "%lanemask_eq": 32, "%lanemask_le": 32, "%lanemask_lt": 32, "%lanemask_ge": 32,
    "%lanemask_gt": 32, "%is_explicit_cluster": 1, "%cluster_ctarank": 32,
    "%cluster_nctarank": 32, "%dynamic_smem_size": 32, "%total_smem_size": 32,
    "%aggr_smem_size": 32, "%reserved_smem_offset_begin": 32, "%reserved_smem_offset_end": 32,
    "%reserved_smem_offset_cap": 32,
    **{
        f"%{name}{axis}": 32
        for name in ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid",
                     "cluster_ctaid", "cluster_nctaid")
        for axis in (".x", ".y", ".z")
    },
}  # fmt: skip


def instruction(*names: str) -> Callable[[Decoder], Decoder]:
    """Registers the decoder of the opcodes that start with one of `names` (the longest wins)."""

    def register(decoder: Decoder) -> Decoder:
        for name in names:
            if name in _TABLE:
                raise ValueError(f"{name} has two decoders")
            _TABLE[name] = decoder
        return decoder

    return register


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """An instruction that ends a segment of straight-line code.

    kind "branch" (to targets[0], when guarded only for lanes that satisfy the guard), "indexed"
    (targets chosen by the value in slot `index`), "exit", or "blocking": `op` returns False when
    the warp has to stop until something wakes it; it then goes on after the instruction, or with
    `repeats` runs it again.
    """

    kind: str
    targets: tuple[int, ...] = ()
    index: int = 0
    op: Blocking | None = None
    repeats: bool = False


class Fuse(NamedTuple):
    """Lets neighbouring instructions of one `key` run as one op, which `build` makes from their
    `parts`; the code builder has checked that none reads what another writes."""

    key: tuple[Any, ...]
    part: tuple[int, ...]
    build: Callable[[list[tuple[int, ...]]], Op]


class Decode:
    """One instruction on its way to an Op. `hooks`: the Op is to make events for observers."""

    def __init__(
        self,
        module: ParsedModule,
        function: Function,
        item: Instruction,
        slots: Slots,
        layout: Layout,
        hooks: bool,
    ) -> None:
        self.module, self.function, self.item, self.hooks = module, function, item, hooks
        self.slots, self.layout = slots, layout
        self.line = item.line
        self.operands = list(item.operands)
        self.reads = 0
        self.writes: list[int] = []
        self.fuse: Fuse | None = None
        self.tensor = False  # queues work on the tensor core's pipe
        self.tmem_load = False  # its destinations are not defined before a tcgen05.wait::ld
        self.tmem_wait = False
        self.accumulators = 0  # registers that an asynchronous wgmma works on, as a bit set
        self.shares_global = False  # may synchronise clusters through global memory
        self.cancels_clusters = False
        self.cta_group = 0  # of a tcgen05 instruction that names one
        self.opcode = ""
        self._modifiers: list[str] = []
        parts = item.name.split(".")
        for cut in range(len(parts), 0, -1):
            decoder = _TABLE.get(".".join(parts[:cut]))
            if decoder is not None:
                self.opcode = ".".join(parts[:cut])
                self._modifiers = parts[cut:]
                self._decoder = decoder
                return
        self.fail(f"unknown instruction {item.name!r}")

    def run(self) -> Op | Ends:
        word, target = self.opcode.partition(".")[0], self.module.target
        if word in _ONLY_ON and target not in _ONLY_ON[word]:
            self.fail(f".target {target} has no {word}; it needs {', '.join(sorted(_ONLY_ON[word]))}")
        op = self._decoder(self)
        if self._modifiers:
            self.fail(f"unknown modifier .{self._modifiers[0]} of {self.opcode}")
        if self.operands:
            self.fail(f"{self.item.name} has {len(self.operands)} operand(s) too many")
        return op

    def fail(self, reason: str) -> NoReturn:
        raise PtxError(self.module.file, self.line, self.module.lines[self.line - 1], reason)

    # -- modifiers ------------------------------------------------------------------------------

    def flag(self, name: str) -> bool:
        """Whether the modifier stands there; takes it."""
        if name in self._modifiers:
            self._modifiers.remove(name)
            return True
        return False

    def has(self, name: str) -> bool:
        """Whether the modifier stands there; leaves it."""
        return name in self._modifiers

    def require(self, *names: str) -> None:
        for name in names:
            if not self.flag(name):
                self.fail(f"{self.opcode} needs the modifier .{name}")

    def choice(self, *options: str, default: str | None = None) -> str:
        """The first modifier that is one of `options`; without a default one must be there."""
        for modifier in self._modifiers:
            if modifier in options:
                self._modifiers.remove(modifier)
                return modifier
        if default is None:
            shown = ", ".join(f".{option}" for option in options[:24])
            self.fail(f"{self.opcode} needs one of {shown}")
        return default

    def optional(self, *options: str) -> str:
        return self.choice(*options, default="")

    def type(self, allowed: Iterable[str] = TYPE_BITS) -> str:
        """The last modifier, which must be one of the allowed types."""
        kinds = tuple(allowed)
        if not self._modifiers or self._modifiers[-1] not in kinds:
            found = f".{self._modifiers[-1]}" if self._modifiers else "no type"
            self.fail(f"{self.item.name}: {found} is not a type of {self.opcode}")
        return self._modifiers.pop()

    # -- operands -------------------------------------------------------------------------------

    def operand(self) -> Operand:
        if not self.operands:
            self.fail(f"{self.item.name} needs more operands")
        return self.operands.pop(0)

    def count(self, *allowed: int) -> int:
        if len(self.operands) not in allowed:
            wanted = " or ".join(str(number) for number in allowed)
            self.fail(f"{self.item.name} takes {wanted} operands, not {len(self.operands)}")
        return len(self.operands)

    def _register(self, register: Register, kind: str, wider: bool) -> int:
        bits = TYPE_BITS[kind]
        if register.bits != bits and not (wider and register.bits > max(bits, 8)):
            self.fail(
                f"{register.name} is .{register.type} ({register.bits} bits), {self.item.name} needs .{kind} here"
            )
        return 1 + register.index

    def dst(self, kind: str, wider: bool = False, operand: Operand | None = None) -> int:
        """The slot of the next destination. `wider`: a register wider than the type is legal."""
        operand = self.operand() if operand is None else operand
        if isinstance(operand, Sink):
            return self.slots.sink
        if not isinstance(operand, Register):
            self.fail(f"{self.item.name}: a destination must be a register")
        slot = self._register(operand, kind, wider)
        self.writes.append(slot)
        return slot

    def dst_pair(self, first: str, second: str) -> tuple[int, int | None]:
        """A destination that may be `d|p`."""
        operand = self.operand()
        if isinstance(operand, Pair):
            return (
                self.dst(first, operand=operand.first),
                self.dst(second, operand=operand.second),
            )
        return self.dst(first, operand=operand), None

    def src(self, kind: str, wider: bool = False, operand: Operand | None = None) -> int:
        """The slot of the next source, read as `kind`."""
        operand = self.operand() if operand is None else operand
        if isinstance(operand, Register):
            slot = self._register(operand, kind, wider)
            self.reads |= 1 << slot
            return slot
        if isinstance(operand, Immediate):
            return self.slots.constant(self.constant(operand, kind), TYPE_BITS[kind])
        if isinstance(operand, SpecialRegister):
            return self.special(operand, kind)
        if isinstance(operand, Symbol) and TYPE_BITS[kind] in (32, 64):
            return self.symbol(operand)
        self.fail(f"{self.item.name}: this operand cannot be read as .{kind}")

    def predicate(self, operand: Operand | None = None) -> tuple[int, bool]:
        """A predicate source: its slot and whether it is negated."""
        operand = self.operand() if operand is None else operand
        if isinstance(operand, Negated):
            return self.src("pred", operand=operand.register), True
        return self.src("pred", operand=operand), False

    def special(self, register: SpecialRegister, kind: str) -> int:
        bits = SPECIALS.get(register.name)
        if bits is None:
            self.fail(f"{register.name} is neither declared nor a known special register")
        if bits == 1 and kind != "pred":
            self.fail(f"{register.name} is a predicate")
        return self.slots.at_start(bits, register.name, "special", register.name)

    def symbol(self, symbol: Symbol) -> int:
        variable = symbol.variable
        if variable.space == "global":
            return self.slots.at_start(64, variable.name, "global", variable, symbol.offset)
        place = self.layout.place(variable) + symbol.offset
        if variable.space == "shared":
            return self.slots.at_start(64, variable.name, "shared", place)
        return self.slots.constant(place & MASK[64], 64)

    def vector(self, kind: str, write: bool, wider: bool = False) -> list[int]:
        """The slots of a `{…}` operand, or of a single one."""
        operand = self.operand()
        elements = operand.elements if isinstance(operand, Vector) else (operand,)
        take = self.dst if write else self.src
        return [take(kind, wider, element) for element in elements]

    def address(self) -> tuple[int, int, Address]:
        """The next operand `[base+offset]`: the base's slot, the offset, and the operand."""
        operand = self.operand()
        if not isinstance(operand, Address):
            self.fail(f"{self.item.name}: expected an address in brackets")
        base = operand.base
        if isinstance(base, Register):
            if base.bits not in (32, 64):
                self.fail(f"{base.name} is .{base.type}; an address has 32 or 64 bits")
            slot = 1 + base.index
            self.reads |= 1 << slot
            return slot, operand.offset, operand
        if isinstance(base, Symbol):
            return self.symbol(base), operand.offset, operand
        value = int(base.value) + operand.offset
        return self.slots.constant(value & MASK[64], 64), 0, operand

    def table(self, name: str) -> tuple[int, ...]:
        """The labels of a `.branchtargets` table of this function."""
        return self.function.branch_targets.get(name, ())

    def label(self) -> int:
        operand = self.operand()
        if not isinstance(operand, Label):
            self.fail(f"{self.item.name}: expected a label")
        return operand.index

    def integer(self, what: str) -> int:
        """The next operand, which must be an integer literal."""
        operand = self.operand()
        if not isinstance(operand, Immediate) or operand.kind != "int":
            self.fail(f"{self.item.name}: {what} must be an integer constant")
        return int(operand.value)

    def constant(self, literal: Immediate, kind: str) -> int | bool:
        """A literal as raw bits of the type."""
        bits = TYPE_BITS[kind]
        if kind == "pred":
            return literal.value != 0
        if literal.kind == "int":
            if kind in ("f32", "f64", "f16", "bf16"):
                self.fail(f"{literal.value} is an integer, {self.item.name} needs .{kind}")
            return int(literal.value) & MASK[bits]
        if literal.kind in ("f32", "f64"):
            raw = int(literal.value)
            if kind[0] in "bus" and bits == (32 if literal.kind == "f32" else 64):
                return raw
            size, form = (4, "<f") if literal.kind == "f32" else (8, "<d")
            value = struct.unpack(form, raw.to_bytes(size, "little"))[0]
        else:
            value = float(literal.value)
        if kind == "f64" or (kind == "b64" and literal.kind != "f32"):
            return int(struct.unpack("<Q", struct.pack("<d", value))[0])
        if kind in ("f32", "b32"):
            with np.errstate(over="ignore"):
                return int(np.float32(value).view(np.uint32))
        if kind == "f16":
            return int(np.float16(value).view(np.uint16))
        self.fail(f"a floating-point constant cannot be read as .{kind}")
