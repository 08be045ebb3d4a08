"""What a GemmSpec must obey: the choices that exist, those that are built, and the hardware's limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ptxgen.errors import UnknownNameError
from ptxgen.rules.pipeline import MAX_PIPE_DEPTH, pipeline_violations, plan_violations
from ptxgen.rules.schedulers import BANDED, scheduler_violations, split_violations
from ptxgen.rules.tiles import built_clusters, extents_text, multicast_violations, tile_violations

if TYPE_CHECKING:
    from ptxgen.spec import GemmSpec

__all__ = ["BANDED", "MAX_PIPE_DEPTH", "OPTIONAL", "violations"]

OPTIONAL = ("operand_swizzle", "suspend_ns", "epilogue.slice_n", "scheduler.group", "scheduler.depth")
"""Numbers that may be left open."""

_CACHES = ("evict_first", "evict_normal", "evict_last")
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
    "consumer_tiles": ("shared", "own"),
    "operand_swizzle": (None, 128, 64, 32, 16),
    "l2_promotion": (0, 64, 128, 256),
    "a_cache": _CACHES,
    "b_cache": _CACHES,
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
}


def _type_violations(spec: GemmSpec) -> list[str]:
    found = []
    integers = (
        *("step", "pipe_depth", "cta_group", "consumers", "accumulators"),
        *("l2_promotion", "tile.m", "tile.n", "tile.k", "scheduler.split_k"),
    )
    for name, value in spec.settings().items():
        optional = name in OPTIONAL
        wanted: type = str
        if name in integers or name == "epilogue.staging_buffers" or optional:
            wanted = int
        elif name in ("epilogue.unroll", "setmaxnreg", "dependent_launch", "swap_ab", "scheduler.stream_k"):
            wanted = bool
        elif name in ("cluster", "epilogue.ops"):
            wanted = tuple
        if optional and value is None:
            continue
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            found.append(f"{name} must be of type {wanted.__name__}, got {value!r}")
    return found


def violations(spec: GemmSpec) -> list[str]:
    """Every rule that the spec breaks, with the numbers; none where it can be built."""
    found = _type_violations(spec)
    if found:
        return found
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
    pair = spec.step >= 8 and spec.target == "sm_100a"
    clusters = built_clusters(spec, pair)
    if spec.cluster not in clusters:
        built = ", ".join(map(extents_text, clusters))
        found.append(f"cluster={extents_text(spec.cluster)} is not built yet for step {spec.step} (built: {built})")
    elif not pair and spec.cluster != (1, 1, 1):
        found += multicast_violations(spec)
    if (spec.cta_group == 2) != pair:
        found.append(f"cta_group={spec.cta_group}: step {spec.step} has cta_group={1 + pair}")
    if spec.epilogue.ops:
        found.append(f"epilogue.ops={list(spec.epilogue.ops)} is not built yet (built: none)")
    shape = tile_violations(spec)
    possible = not found and not shape and 1 <= spec.pipe_depth <= MAX_PIPE_DEPTH
    plan = plan_violations(spec) if possible else []
    scheduling = scheduler_violations(spec) + split_violations(spec)
    return found + shape + pipeline_violations(spec) + scheduling + plan
