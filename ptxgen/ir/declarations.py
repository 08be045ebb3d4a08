"""What a Program declares: registers, shared memory, barriers, parameters.

All values are frozen; their text form (`str`) is how a template names them.
"""

from __future__ import annotations

from dataclasses import dataclass

REGISTER_BITS = {"pred": 1, "b16": 16, "b32": 32, "b64": 64, "b128": 128}


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """A register, or with `count` a family %name0, %name1, ...; `group` names its noun."""

    name: str
    type: str = "b32"
    group: str = ""
    count: int | None = None
    family: str | None = None

    def __str__(self) -> str:
        return f"%{self.name}"

    @property
    def declared_name(self) -> str:
        """The name that a .reg directive declares: the family of an element, else its own."""
        return self.family or self.name

    @property
    def declaration(self) -> str:
        return f"%{self.name}" if self.count is None else f"%{self.name}<{self.count}>"

    def __getitem__(self, index: int) -> Register:
        if self.count is None or not 0 <= index < self.count:
            raise IndexError(f"{self.declaration} has no element {index}")
        return Register(name=f"{self.name}{index}", type=self.type, family=self.name)

    def slice(self, start: int, count: int) -> tuple[Register, ...]:
        return tuple(self[start + index] for index in range(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hex:
    """A constant that reads better in hexadecimal."""

    value: int

    def __str__(self) -> str:
        return f"0x{self.value:x}"


Operand = Register | Hex | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A base register and a constant byte offset."""

    base: Register
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.base}+{self.offset}" if self.offset else str(self.base)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmemBuffer:
    """Bytes of shared memory. `stages` > 1: a ring of buffers `stage_bytes` apart."""

    name: str
    offset: int
    nbytes: int
    align: int
    stages: int = 1
    stage_bytes: int = 0

    @property
    def end(self) -> int:
        return self.offset + (self.stages - 1) * self.stage_bytes + self.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """`stages` mbarriers, 8 bytes apart: arrivals and bytes that complete one phase of each."""

    name: str
    offset: int
    arrivals: int
    transaction_bytes: int = 0
    stages: int = 1

    @property
    def nbytes(self) -> int:
        return 8 * self.stages


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBarrier:
    """A hardware barrier of the CTA (id 1 to 15; 0 is the barrier of all threads)."""

    name: str
    id: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """An entry parameter: a 32-bit count, or a 128-byte tensor map passed by value."""

    name: str
    kind: str
    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A role's walker over a ring or a barrier.

    It owns its registers and is started before the tile loop, so stage and phase carry over from
    tile to tile. `stage` is None for a walker over a single barrier, `phase` for one that never
    waits. Producers that wait for free stages start at phase 1, everyone else at 0.
    """

    name: str
    stage_count: Register | None = None
    stage: Register | None = None
    phase: Register | None = None
    wrapped: Register | None = None
    start_phase: int = 0
