"""GemmSpec: what is wanted, as a frozen value.

A spec holds choices that do not depend on a problem size: D[M, N] = A[M, K] . B[N, K]^T is
computed by the same text for every M, N and K. Every axis of the ladder has a field from the
start; a value that no step can build yet is refused with "not built yet", never ignored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ptxgen.errors import PtxgenError, SpecError, UnknownNameError
from ptxgen.plan import Plan, epilogue_slices

MAX_PIPE_DEPTH = 8
DEFAULT_GROUP = 8
MAX_ACCUMULATORS = 128
"""f32 accumulators of a thread on sm_90a, of 255 registers."""

_CHOICES: dict[str, tuple[Any, ...]] = {
    "target": ("sm_100a", "sm_90a", "sm_100f", "sm_103a", "sm_110a"),
    "operand_type": ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8"),
    "output_type": ("f16", "bf16", "f32"),
    "accumulate_type": ("f32", "f16", "s32"),
    "a_major": ("K", "MN"),
    "b_major": ("K", "MN"),
    "load": ("tma", "threads"),
    "roles": ("unified", "specialized"),
    "cta_group": (1, 2),
    "operand_swizzle": (None, 128, 64, 32, 16),
    "scheduler.kind": ("grid", "persistent", "single", "clc"),
    "scheduler.order": ("row_major", "grouped", "hilbert"),
    "epilogue.store": ("tma", "direct"),
    "epilogue.staging": ("tile", "slices"),
}
_BUILT: dict[str, tuple[Any, ...]] = {
    "target": ("sm_100a", "sm_90a"),
    "operand_type": ("f16", "bf16"),
    "accumulate_type": ("f32",),
    "a_major": ("K",),
    "b_major": ("K",),
    "cta_group": (1,),
    "scheduler.kind": ("grid", "persistent", "single"),
    "scheduler.order": ("row_major", "grouped"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """The output tile m x n of one CTA and the K extent k of one stage, in elements."""

    m: int = 128
    n: int = 128
    k: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """How output tiles reach CTAs.

    kind: "single" (one tile, one CTA), "grid" (a CTA per tile) or "persistent" (CTAs walk tile ids
    c, c + grid, ...).
    order: "row_major", or "grouped": bands of `group` tile rows, walked column by column.
    """

    kind: str = "grid"
    order: str = "row_major"
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Epilogue:
    """The way of the accumulator from tensor memory to D.

    slice_n: columns read from tensor memory at a time (None: 32, or 16 where 32 does not divide n).
    staging: "tile" (the whole output tile waits in shared memory) or "slices".
    staging_buffers: buffers of one slice each, with staging "slices"; 1 with staging "tile".
    unroll: repeat the slice's instructions instead of looping over them.
    ops: elementwise operations on the accumulator, in order.
    """

    store: str = "tma"
    slice_n: int | None = None
    staging: str = "tile"
    staging_buffers: int = 1
    unroll: bool = False
    ops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmSpec:
    """A GEMM pipeline: D[M, N] = A[M, K] . B[N, K]^T.

    Raises SpecError, listing every violated rule with its numbers.
    """

    step: int
    target: str = "sm_100a"
    operand_type: str = "f16"
    accumulate_type: str = "f32"
    output_type: str = "f16"
    a_major: str = "K"
    b_major: str = "K"
    tile: Tile = field(default_factory=Tile)
    load: str = "tma"
    pipe_depth: int = 1
    operand_swizzle: int | None = None
    cluster: tuple[int, int, int] = (1, 1, 1)
    cta_group: int = 1
    roles: str = "unified"
    consumers: int = 1
    accumulators: int = 1
    scheduler: Scheduler = field(default_factory=Scheduler)
    epilogue: Epilogue = field(default_factory=Epilogue)

    def __post_init__(self) -> None:
        violations = _type_violations(self) or _violations(self)
        if violations:
            raise SpecError(f"step {self.step} with these choices", violations)

    @property
    def plan(self) -> Plan:
        """The geometry that follows from the choices (panels, stages, offsets, bytes)."""
        return Plan.of(self)

    @property
    def threads(self) -> int:
        """Threads of a CTA: one warpgroup, and with specialized roles the warps that they add."""
        if self.roles == "unified":
            return 128
        return 128 * (1 + self.consumers) if self.target == "sm_90a" else 192

    @property
    def consumer_warp(self) -> int:
        """The first warp that multiplies."""
        return 4 if self.roles == "specialized" and self.target == "sm_90a" else 0

    @property
    def hash(self) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of the canonical JSON form."""
        return hashlib.sha256(self.to_json().encode("ascii")).hexdigest()[:16]

    def replace(self, **changes: Any) -> GemmSpec:
        """Return a spec with some fields changed; a part may be given as a mapping of its fields.

        `spec.replace(pipe_depth=4, tile={"n": 256})` keeps the tile's m and k.
        """
        known = {item.name for item in dataclasses.fields(self)}
        for name, value in changes.items():
            if name not in known:
                raise UnknownNameError("spec field", name, sorted(known))
            part = getattr(self, name)
            if isinstance(value, Mapping) and dataclasses.is_dataclass(part):
                changes[name] = _replace_part(name, part, value)
        return dataclasses.replace(self, **changes)

    def settings(self) -> dict[str, Any]:
        """Every field by its dotted name, in declaration order."""
        flat: dict[str, Any] = {}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if dataclasses.is_dataclass(value):
                for sub in dataclasses.fields(value):
                    flat[f"{item.name}.{sub.name}"] = getattr(value, sub.name)
            else:
                flat[item.name] = value
        return flat

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces, ASCII."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> GemmSpec:
        """Inverse of to_json. Raises SpecError for unknown fields and wrong types."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise PtxgenError(f"the spec is not JSON: {error}") from error
        if not isinstance(data, dict) or not isinstance(data.get("step"), int):
            raise PtxgenError('a spec is a JSON object with at least "step": <number>')
        known = {item.name for item in dataclasses.fields(cls)}
        parts: dict[str, type[Any]] = {"tile": Tile, "scheduler": Scheduler, "epilogue": Epilogue}
        values: dict[str, Any] = {}
        for name, value in data.items():
            if name not in known:
                raise UnknownNameError("spec field", name, sorted(known))
            if name in parts:
                if not isinstance(value, dict):
                    raise PtxgenError(f"spec field {name} must be an object, got {value!r}")
                values[name] = _replace_part(name, parts[name](), value)
            else:
                values[name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)


def _replace_part(name: str, part: Any, changes: Mapping[str, Any]) -> Any:
    known = {item.name for item in dataclasses.fields(part)}
    for key in changes:
        if key not in known:
            raise UnknownNameError(f"field of {name}", key, sorted(known))
    tidy = {key: tuple(v) if isinstance(v, list) else v for key, v in changes.items()}
    return dataclasses.replace(part, **tidy)


def parse_setting(spec: GemmSpec, text: str) -> GemmSpec:
    """Apply one `key=value` of the command line.

    Keys are dotted field names; `tile=128x256x64`, `scheduler=persistent` and
    `cluster=2x1x1` are short forms. Setting `scheduler.order` also sets that order's default
    group, since a group means nothing in row-major order.
    """
    return parse_settings(spec, (text,))


def parse_settings(spec: GemmSpec, texts: tuple[str, ...]) -> GemmSpec:
    """Apply several `key=value` texts at once, so that only their sum must be possible."""
    changes: dict[str, Any] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise PtxgenError(f"a setting is written key=value, got {text!r}")
        for name, parsed in _parse_value(spec, key.strip(), value.strip()).items():
            head, _, tail = name.partition(".")
            if tail:
                changes.setdefault(head, {})[tail] = parsed
            else:
                changes[head] = parsed
    return spec.replace(**changes)


def setting_text(name: str, value: object) -> str:
    """The command-line form of one dotted field, inverse of parse_setting."""
    if isinstance(value, tuple):
        return f"{name}={'x'.join(str(item) for item in value)}"
    if isinstance(value, bool):
        return f"{name}={'true' if value else 'false'}"
    return f"{name}={'auto' if value is None else value}"


def _parse_value(spec: GemmSpec, key: str, value: str) -> dict[str, Any]:
    short_forms = {"tile": ("tile.m", "tile.n", "tile.k"), "scheduler": ("scheduler.kind",)}
    if key == "tile":
        return dict(zip(short_forms[key], _parse_extents(key, value), strict=True))
    if key == "cluster":
        return {key: _parse_extents(key, value)}
    if key == "scheduler":
        key = "scheduler.kind"
    settings = spec.settings()
    if key not in settings or key == "step":
        raise UnknownNameError("setting", key, [*settings, *short_forms])
    if key == "scheduler.order":
        return {key: value, "scheduler.group": DEFAULT_GROUP if value == "grouped" else None}
    if key == "epilogue.ops":
        return {key: tuple(item for item in value.split(",") if item)}
    if key == "epilogue.unroll":
        if value not in ("true", "false"):
            raise PtxgenError(f"{key} is true or false, got {value!r}")
        return {key: value == "true"}
    if key in ("operand_swizzle", "epilogue.slice_n", "scheduler.group") and value == "auto":
        return {key: None}
    if isinstance(settings[key], str):
        return {key: value}
    try:
        return {key: int(value)}
    except ValueError:
        raise PtxgenError(f"{key} is a whole number, got {value!r}") from None


def _parse_extents(key: str, value: str) -> tuple[int, ...]:
    parts = value.split("x")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise PtxgenError(f"{key} is three numbers joined by x, as in 128x128x64; got {value!r}")
    return tuple(int(part) for part in parts)


def _type_violations(spec: GemmSpec) -> list[str]:
    found = []
    integers = ("step", "pipe_depth", "cta_group", "consumers", "accumulators", "tile.m", "tile.n", "tile.k")
    for name, value in spec.settings().items():
        optional = name in ("operand_swizzle", "epilogue.slice_n", "scheduler.group")
        wanted: type = str
        if name in integers or name == "epilogue.staging_buffers" or optional:
            wanted = int
        elif name == "epilogue.unroll":
            wanted = bool
        elif name in ("cluster", "epilogue.ops"):
            wanted = tuple
        if optional and value is None:
            continue
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            found.append(f"{name} must be of type {wanted.__name__}, got {value!r}")
    return found


def _violations(spec: GemmSpec) -> list[str]:
    found = []
    for name, value in spec.settings().items():
        known = _CHOICES.get(name)
        if known is None:
            continue
        if value not in known:
            choices = ", ".join("auto" if item is None else str(item) for item in known)
            found.append(str(UnknownNameError(name, value, choices.split(", "))))
        elif name in _BUILT and value not in _BUILT[name]:
            built = ", ".join(str(item) for item in _BUILT[name])
            found.append(f"{name}={value} is not built yet (built: {built})")
    if spec.cluster != (1, 1, 1):
        found.append(f"cluster={spec.cluster} is not built yet (built: (1, 1, 1))")
    if spec.epilogue.ops:
        found.append(f"epilogue.ops={list(spec.epilogue.ops)} is not built yet (built: none)")
    found += _tile_violations(spec)
    found += _pipeline_violations(spec)
    found += _scheduler_violations(spec)
    return found + (_plan_violations(spec) if not found else [])


def _tile_violations(spec: GemmSpec) -> list[str]:
    found = _wgmma_violations(spec) if spec.target == "sm_90a" else _tcgen05_violations(spec)
    if spec.tile.k not in (32, 64, 128):
        found.append(f"tile.k={spec.tile.k}: a stage holds K 32, 64 or 128")
    return found


def _tcgen05_violations(spec: GemmSpec) -> list[str]:
    found = []
    if spec.tile.m not in (64, 128):
        found.append(f"tile.m={spec.tile.m}: one CTA's tcgen05.mma has M 64 or 128")
    if spec.tile.n not in range(16, 257, 16):
        found.append(f"tile.n={spec.tile.n}: tcgen05.mma takes N 16 to 256 in steps of 16")
    if spec.consumers != 1:
        found.append(f"consumers={spec.consumers}: more than one is not built yet for {spec.target}")
    if spec.accumulators not in (1, 2):
        found.append(f"accumulators={spec.accumulators}: one, or two that alternate from tile to tile")
    elif spec.accumulators == 2 and spec.roles != "specialized":
        found.append("accumulators=2: only specialized roles can fill one while the other is stored")
    return found


def _wgmma_violations(spec: GemmSpec) -> list[str]:
    found = []
    if spec.accumulators != 1:
        found.append(f"accumulators={spec.accumulators}: wgmma has one accumulator, in registers")
    consumers, m, n = spec.consumers, spec.tile.m, spec.tile.n
    if consumers not in (1, 2):
        return [f"consumers={consumers}: one or two warpgroups multiply"]
    if consumers != 1 and spec.roles != "specialized":
        found.append(f"consumers={consumers}: needs roles=specialized (step 7)")
    if m not in (64 * consumers, 128 * consumers):
        found.append(
            f"tile.m={m}: each of {consumers} consumer warpgroups multiplies 64 or 128 rows, so"
            f" tile.m is {64 * consumers} or {128 * consumers}"
        )
    if n not in range(8, 257, 8):
        found.append(f"tile.n={n}: wgmma takes N 8 to 256 in steps of 8")
    registers = m // 64 // consumers * n // 2
    if not found and registers > MAX_ACCUMULATORS:
        found.append(
            f"tile {m} x {n} on {consumers} warpgroups: {registers} accumulator registers a thread,"
            f" but at most {MAX_ACCUMULATORS} leave room for the rest"
        )
    if not spec.epilogue.unroll:
        found.append("epilogue.unroll=false: wgmma accumulators are registers, a loop cannot index them")
    return found


def _pipeline_violations(spec: GemmSpec) -> list[str]:
    found = []
    specialized = spec.roles == "specialized"
    if spec.step <= 4 and spec.pipe_depth != 1:
        found.append(f"pipe_depth={spec.pipe_depth}: step {spec.step} has no ring, its depth is 1 (use step 5)")
    elif specialized and spec.pipe_depth == 1:
        found.append("pipe_depth=1: specialized roles need two stages, one is read while one is loaded")
    elif not 1 <= spec.pipe_depth <= MAX_PIPE_DEPTH:
        found.append(f"pipe_depth={spec.pipe_depth}: a ring has 1 to {MAX_PIPE_DEPTH} stages")
    if specialized != (spec.step >= 7):
        wanted = "specialized" if spec.step >= 7 else "unified"
        found.append(f"roles={spec.roles}: step {spec.step} has {wanted} roles")
    for name, value, first, rest in (
        ("load", spec.load, "threads", "tma"),
        ("epilogue.store", spec.epilogue.store, "direct", "tma"),
    ):
        wanted = first if spec.step <= 3 else rest
        if value != wanted:
            found.append(f"{name}={value}: step {spec.step} has {name}={wanted}")
    return found


def _scheduler_violations(spec: GemmSpec) -> list[str]:
    scheduler = spec.scheduler
    if (scheduler.kind == "single") != (spec.step <= 2):
        wanted = "single: they compute one tile" if spec.step <= 2 else "grid or persistent"
        return [f"scheduler.kind={scheduler.kind}: steps like {spec.step} have {wanted}"]
    if scheduler.order == "grouped" and (scheduler.group is None or scheduler.group < 1):
        return [f"scheduler.group={scheduler.group}: the grouped order needs a group of 1 or more"]
    if scheduler.group is not None and scheduler.group >= 2**31:
        return [f"scheduler.group={scheduler.group}: a group is below 2**31 tile rows"]
    if scheduler.order != "grouped" and scheduler.group is not None:
        return [
            f"scheduler.group={scheduler.group} has a meaning only with scheduler.order=grouped"
            f" (the order is {scheduler.order})"
        ]
    return []


def _plan_violations(spec: GemmSpec) -> list[str]:
    found = []
    span = spec.operand_swizzle
    if span is not None and spec.tile.k * 2 % span:
        found.append(
            f"operand_swizzle={span}: the span does not divide a row of a stage,"
            f" tile.k={spec.tile.k} x 2 bytes = {spec.tile.k * 2} bytes"
        )
    slices = epilogue_slices(spec)
    if spec.epilogue.slice_n is not None and spec.epilogue.slice_n not in slices:
        found.append(
            f"epilogue.slice_n={spec.epilogue.slice_n}: a slice is a number of columns that divides"
            f" tile.n={spec.tile.n} (possible: {', '.join(map(str, slices))})"
        )
    buffers = spec.epilogue.staging_buffers
    if spec.epilogue.staging == "tile" and buffers != 1:
        found.append(f"epilogue.staging_buffers={buffers}: staging of the whole tile is one buffer")
    elif not 1 <= buffers <= 4:
        found.append(f"epilogue.staging_buffers={buffers}: slices are staged in 1 to 4 buffers")
    return found or spec.plan.violations()
