"""What a parsed PTX module consists of. Everything here is plain data; names are resolved."""

from __future__ import annotations

from dataclasses import dataclass, field

TYPE_BITS = {
    "pred": 1, "b8": 8, "u8": 8, "s8": 8, "b16": 16, "u16": 16, "s16": 16, "f16": 16, "bf16": 16,
    "b32": 32, "u32": 32, "s32": 32, "f32": 32, "tf32": 32, "f16x2": 32, "bf16x2": 32, "b64": 64,
    "u64": 64, "s64": 64, "f64": 64, "f32x2": 64, "b128": 128,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Register:
    """A virtual register; `index` is unique within its function."""

    name: str
    index: int
    type: str

    @property
    def bits(self) -> int:
        return TYPE_BITS[self.type]


@dataclass(frozen=True, slots=True)
class SpecialRegister:
    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal. kind: "int" (value is a Python int, maybe negative), "f32"/"f64" (raw bits from
    0f…/0d…), "float" (a decimal literal)."""

    kind: str
    value: int | float


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """A variable in a state space; `size_bytes` is 0 for an unsized `.extern .shared` array.
    Its address is settled when an entry is decoded (see layout.py)."""

    name: str
    space: str
    type: str
    size_bytes: int
    align: int
    initial: bytes | None = None


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable (or of an entry parameter), plus a constant."""

    variable: Variable
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Label:
    """A code label; the function's `labels` maps `index` to an instruction index."""

    name: str
    index: int


@dataclass(frozen=True, slots=True)
class FunctionName:
    name: str


@dataclass(frozen=True, slots=True)
class Sink:
    """The bit bucket `_`."""


@dataclass(frozen=True, slots=True)
class Negated:
    """A predicate operand with `!`."""

    register: Register


@dataclass(frozen=True, slots=True)
class Vector:
    elements: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two destinations, `d|p`."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`, or `[base, {coordinates}]` of a tensor copy."""

    base: Register | Symbol | Immediate
    offset: int = 0
    coordinates: tuple[Operand, ...] | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A parenthesised operand list of `call`."""

    elements: tuple[Operand, ...]


Operand = (
    Register | SpecialRegister | Immediate | Symbol | Label | FunctionName | Sink | Negated
    | Vector | Pair | Address | Group
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Guard:
    register: Register
    negated: bool


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """One instruction. `name` is the dotted opcode with all modifiers, `line` is 1-based."""

    name: str
    operands: tuple[Operand, ...]
    guard: Guard | None
    line: int


@dataclass(frozen=True, slots=True)
class Parameter:
    """An entry parameter; `offset` is its place in parameter space."""

    name: str
    type: str
    size_bytes: int
    align: int
    offset: int
    variable: Variable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Function:
    """An `.entry` or `.func`. `labels[i]` is the instruction index of label i;
    `branch_targets[name]` the label indices of a `.branchtargets` table."""

    name: str
    is_entry: bool
    parameters: tuple[Parameter, ...] = ()
    formals: tuple[Variable, ...] = ()
    results: tuple[Variable, ...] = ()
    registers: tuple[Register, ...] = ()
    instructions: tuple[Instruction, ...] = ()
    labels: tuple[int, ...] = ()
    branch_targets: dict[str, tuple[int, ...]] = field(default_factory=dict)
    reqntid: tuple[int, int, int] | None = None
    maxntid: tuple[int, int, int] | None = None
    cluster: tuple[int, int, int] | None = None
    maxnreg: int | None = None
    minnctapersm: int | None = None
    directives: tuple[str, ...] = ()
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ParsedModule:
    """A module as parsed, before its instructions are decoded."""

    file: str
    lines: tuple[str, ...]
    version: tuple[int, int]
    target: str
    functions: dict[str, Function]
