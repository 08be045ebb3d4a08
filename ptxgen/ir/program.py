"""Program: declarations and one body per role, everything that the text will say."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ptxgen.ir.declarations import (
    Barrier,
    NamedBarrier,
    Parameter,
    Register,
    SmemBuffer,
)
from ptxgen.ir.ops import Op, flatten

WARP_THREADS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What some warps do: warps first_warp ... first_warp + warps - 1 run `body`.

    `skip` is the predicate, computed by `test`, of the warps that do not have the role; None where
    every warp has it that has not ended. `registers` is the budget for setmaxnreg, `cluster_rank` the CTA
    of the cluster that has the role (None: every CTA).
    """

    name: str
    first_warp: int
    warps: int
    body: tuple[Op, ...]
    test: tuple[Op, ...] = ()
    skip: Register | None = None
    registers: int | None = None
    cluster_rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A kernel before it is text."""

    name: str
    target: str
    ptx_version: tuple[int, int]
    command: str
    spec_hash: str
    launch: str
    threads: int
    cluster_ctas: int
    entry_registers: int | None
    """Registers a thread starts with, where roles change them: setmaxnreg needs a known number."""
    smem_bytes: int
    smem_limit_bytes: int
    tmem_columns: int
    parameters: tuple[Parameter, ...]
    buffers: tuple[SmemBuffer, ...]
    barriers: tuple[Barrier, ...]
    named_barriers: tuple[NamedBarrier, ...]
    registers: tuple[Register, ...]
    setup: tuple[Op, ...]
    roles: tuple[Role, ...]
    teardown: tuple[Op, ...]
    resident_ctas: int | None = None
    """CTAs that an SM has room for, where ptxas must know: it does not see dynamic shared memory, and spills
    registers for more of them."""

    @property
    def warps(self) -> int:
        return self.threads // WARP_THREADS

    def ops(self) -> Iterator[Op]:
        """All operations in text order, structure flattened to branches and labels."""
        yield from flatten(self.setup)
        for role in self.roles:
            yield from flatten(role_ops(role))
        yield from flatten(self.teardown)

    def register_lines(self) -> tuple[tuple[str, tuple[Register, ...], str], ...]:
        """(type, registers, group) of each .reg directive: one a group and type."""
        lines: dict[tuple[str, str], list[Register]] = {}
        for register in self.registers:
            lines.setdefault((register.group, register.type), []).append(register)
        return tuple((kind, tuple(items), group) for (group, kind), items in lines.items())

    def to_json(self) -> str:
        """The whole Program as JSON; every op carries its kind."""
        return json.dumps(_plain(self), indent=2)


def role_ops(role: Role) -> tuple[Op, ...]:
    """The role's body behind its test: warps without the role go on after it."""
    from ptxgen.ir.ops import Guard

    if role.skip is None:
        return (*role.test, *role.body)
    guard = Guard(
        label=f"{role.name}_done", predicate=role.skip, negate=True, body=role.body, comment="the other warps go on"
    )
    return (*role.test, guard)


def _plain(value: Any) -> Any:
    if isinstance(value, Register):
        return value.declaration
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
