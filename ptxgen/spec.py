"""GemmSpec: what is wanted, as a frozen value.

A spec holds choices that do not depend on a problem size: D[M, N] = A[M, K] . B[N, K]^T is
computed by the same text for every M, N and K. Every axis of the ladder has a field from the
start; a value that no step can build yet is refused with "not built yet", never ignored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ptxgen.errors import PtxgenError, SpecError, UnknownNameError
from ptxgen.plan import Plan
from ptxgen.rules import BANDED, OPTIONAL, violations

DEFAULT_GROUP = 8
DEFAULT_CLAIM_DEPTH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """The output tile m x n of one CTA and the K extent k of one stage, in elements."""

    m: int = 128
    n: int = 128
    k: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """How output tiles reach CTAs.

    kind: "single" (one tile, one CTA), "grid" (a CTA, or cluster, per tile), "persistent" (CTAs, or
    clusters, walk tile ids c, c + grid, ...) or "clc" (a cluster per tile, of which those that run take
    over the tiles of others by cluster launch control).
    order: "row_major", "grouped": bands of `group` tile rows, walked column by column, or "hilbert":
    squares of `group` x `group` tiles along such bands, each walked along a Hilbert curve.
    depth: with "clc", the tiles that a cluster may have claimed ahead (None: 2).
    split_k: parts of K that a tile is computed in (split-K), each by the CTA or cluster whose turn it is.
    stream_k: the tiles of the last wave, and of the one before where the last is not whole, are cut into equal
    ranges of K tiles, one for each CTA or cluster (stream-K).
    """

    kind: str = "grid"
    order: str = "row_major"
    group: int | None = None
    depth: int | None = None
    split_k: int = 1
    stream_k: bool = False

    @property
    def divides_k(self) -> bool:
        """Whether several CTAs may work on one tile, each on a range of its K tiles."""
        return self.split_k > 1 or self.stream_k

    @property
    def claim_slots(self) -> int:
        """Answers to claims of tiles that shared memory holds; 0 where none are claimed."""
        return (self.depth or DEFAULT_CLAIM_DEPTH) if self.kind == "clc" else 0


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

    setmaxnreg: warps that only issue leave registers to those that store.
    dependent_launch: the kernel may be launched before its predecessor in the stream has ended, and lets
    its successor do the same.
    consumer_tiles: with several consumers, "shared" (they split each tile) or "own" (ping-pong: each
    has tiles of its own and stores one while another multiplies).
    swap_ab: each tile's transpose is what wgmma computes, rows of B times rows of A, since it takes its first
    operand in blocks of 64 rows, its second in groups of 8: for few rows of A (tile.m from 8 on).
    a_cache, b_cache: how gladly the L2 cache gives up what the loads of A, of B bring: evict_first,
    evict_normal or evict_last.
    l2_promotion: bytes that the L2 cache fetches from memory at a time for a load of A or B: 0 (as many as are asked
    for), 64, 128 or 256. The tensor maps carry it, the text does not depend on it.
    suspend_ns: how long a thread that waits on an mbarrier may sleep before it looks again, in
    nanoseconds (None: as long as the hardware pleases).

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
    consumer_tiles: str = "shared"
    swap_ab: bool = False
    accumulators: int = 1
    a_cache: str = "evict_normal"
    b_cache: str = "evict_normal"
    l2_promotion: int = 0
    suspend_ns: int | None = None
    scheduler: Scheduler = field(default_factory=Scheduler)
    epilogue: Epilogue = field(default_factory=Epilogue)
    setmaxnreg: bool = False
    dependent_launch: bool = False

    def __post_init__(self) -> None:
        if broken := violations(self):
            raise SpecError(f"step {self.step} with these choices", broken)

    @property
    def plan(self) -> Plan:
        """The geometry that follows from the choices (panels, stages, offsets, bytes)."""
        return Plan.of(self)

    @property
    def threads(self) -> int:
        """Threads of a CTA: one warpgroup, and with specialized roles the warps that they add.

        sm_90a: a producer warpgroup beside the consumers. sm_100a: a storing warpgroup and a
        multiplying warp for each consumer, a loading warp, and one that claims tiles; where registers
        move, all but the storers make a whole warpgroup.
        """
        if self.roles == "unified":
            return 128
        if self.target == "sm_90a":
            return 128 * (1 + self.consumers)
        if self.setmaxnreg:
            return 128 * (self.consumers + 1)
        return 128 * self.consumers + 32 * (self.consumers + 1 + (self.scheduler.kind == "clc"))

    @property
    def cluster_ctas(self) -> int:
        """CTAs of a cluster."""
        return math.prod(self.cluster)

    @property
    def multicast(self) -> tuple[int, int]:
        """CTAs that share their rows of A, and of B: those beside each other along N, and along M.

        The CTAs of a cta_group::2 pair share an MMA instead.
        """
        return (self.cluster[1], self.cluster[0]) if self.cta_group == 1 else (1, 1)

    @property
    def cluster_tile(self) -> Tile:
        """The output tile of a cluster; a cta_group::2 pair has one tile."""
        along_n, along_m = self.multicast
        return Tile(m=self.tile.m * along_m, n=self.tile.n * along_n, k=self.tile.k)

    @property
    def tile_consumers(self) -> int:
        """Consumers that multiply one tile."""
        return 1 if self.consumer_tiles == "own" else self.consumers

    @property
    def consumer_warp(self) -> int:
        """The first warp that multiplies."""
        return 4 if self.roles == "specialized" and self.target == "sm_90a" else 0

    @property
    def hash(self) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of the step and of all settings that are not the usual ones.

        A choice that is added to the language later leaves the hashes of older specs as they are.
        """
        text = json.dumps(self.chosen(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()[:16]

    def replace(self, **changes: Any) -> GemmSpec:
        """Return a spec with some fields changed; a part may be given as a mapping of its fields.

        `spec.replace(pipe_depth=4, tile={"n": 256})` keeps the tile's m and k. In a mapping, what has no meaning
        beside a new value goes back to its usual one, unless it is given too: `epilogue={"store": "direct"}` stages
        nothing, `scheduler={"order": "row_major"}` has no group, another order its usual one.
        """
        known = {item.name for item in dataclasses.fields(self)}
        for name, value in changes.items():
            if name not in known:
                raise UnknownNameError("spec field", name, sorted(known))
            part = getattr(self, name)
            if isinstance(value, Mapping) and dataclasses.is_dataclass(part):
                changes[name] = _replace_part(name, part, {**implied(name, value, part), **value})
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

    def chosen(self) -> dict[str, Any]:
        """The step, and every setting that is not the usual one of the language, by its dotted name."""
        return {name: value for name, value in self.settings().items() if value != _USUAL.get(name)}

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


_USUAL = {name: value for name, value in GemmSpec(step=4).settings().items() if name != "step"}


def implied(name: str, changes: Mapping[str, Any], part: Any) -> dict[str, Any]:
    """What changes of a part bring with them, where they are not given too."""
    if name == "scheduler" and changes.get("order", part.order) != part.order:
        return {"group": DEFAULT_GROUP if changes["order"] in BANDED else None}
    if name == "epilogue" and changes.get("store") == "direct":
        return {"staging": "tile", "staging_buffers": 1}
    return {}


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
    if key in ("step", "target"):
        raise PtxgenError(f"{key} is chosen with --{key}, not with a setting: a setting changes a step's usual choices")
    if key not in settings:
        known = [name for name in settings if name not in ("step", "target")]
        raise UnknownNameError("setting", key, [*known, *short_forms])
    if key == "epilogue.ops":
        return {key: tuple(item for item in value.split(",") if item)}
    if isinstance(settings[key], bool):
        if value not in ("true", "false"):
            raise PtxgenError(f"{key} is true or false, got {value!r}")
        return {key: value == "true"}
    if key in OPTIONAL and value == "auto":
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
