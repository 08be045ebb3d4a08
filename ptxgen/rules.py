"""What a GemmSpec must obey: the choices that exist, those that are built, and the hardware's limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ptxgen.errors import UnknownNameError
from ptxgen.plan import CONTROL_BYTES, epilogue_slices
from ptxgen.ways import memory_ways

if TYPE_CHECKING:
    from ptxgen.spec import GemmSpec

MAX_PIPE_DEPTH = 8
MAX_CLAIM_DEPTH = 4
"""Tiles that a cluster has claimed, no other can compute: few are best."""
MAX_SPLIT_K = 64
MAX_ACCUMULATORS = 128
"""f32 accumulators of a thread on sm_90a, of 255 registers."""


OPTIONAL = ("operand_swizzle", "suspend_ns", "epilogue.slice_n", "scheduler.group", "scheduler.depth")
"""Numbers that may be left open."""

BANDED = ("grouped", "hilbert")
"""Orders in bands of `scheduler.group` tile rows."""

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
    clusters = _clusters(spec, pair)
    if spec.cluster not in clusters:
        built = ", ".join(map(extents_text, clusters))
        found.append(f"cluster={extents_text(spec.cluster)} is not built yet for step {spec.step} (built: {built})")
    elif not pair and spec.cluster != (1, 1, 1):
        found += _multicast_violations(spec)
    if (spec.cta_group == 2) != pair:
        found.append(f"cta_group={spec.cta_group}: step {spec.step} has cta_group={1 + pair}")
    if spec.epilogue.ops:
        found.append(f"epilogue.ops={list(spec.epilogue.ops)} is not built yet (built: none)")
    shape = _tile_violations(spec)
    possible = not found and not shape and 1 <= spec.pipe_depth <= MAX_PIPE_DEPTH
    plan = _plan_violations(spec) if possible else []
    scheduling = _scheduler_violations(spec) + _split_violations(spec)
    return found + shape + _pipeline_violations(spec) + scheduling + plan


def extents_text(extents: Iterable[int]) -> str:
    """Extents as the command line takes them: 2x1x1."""
    return "x".join(map(str, extents))


def _clusters(spec: GemmSpec, pair: bool) -> tuple[tuple[int, int, int], ...]:
    if pair:
        return ((2, 1, 1),)
    if spec.step == 10 and spec.target == "sm_90a":
        return ((1, 1, 1), (2, 1, 1), (1, 2, 1))
    return ((1, 1, 1),)


def _multicast_violations(spec: GemmSpec) -> list[str]:
    """Of a cluster whose CTAs each load a part of the operand that they share."""
    found = []
    if spec.scheduler.kind != "persistent":
        found.append(
            f"scheduler.kind={spec.scheduler.kind}: clusters of {spec.cluster_ctas} need persistent CTAs"
            " (use scheduler=persistent)"
        )
    name, rows, ctas = (
        ("A", spec.tile.m, spec.cluster[1]) if spec.cluster[1] > 1 else ("B", spec.tile.n, spec.cluster[0])
    )
    if rows % (8 * ctas):
        found.append(
            f"cluster={extents_text(spec.cluster)}: {rows} rows of {name} in {ctas} parts,"
            " but a part is whole groups of 8 rows"
        )
    return found


def _tile_violations(spec: GemmSpec) -> list[str]:
    found = _wgmma_violations(spec) if spec.target == "sm_90a" else _tcgen05_violations(spec)
    if spec.tile.k not in (32, 64, 128):
        found.append(f"tile.k={spec.tile.k}: a stage holds K 32, 64 or 128")
    return found


def _tcgen05_violations(spec: GemmSpec) -> list[str]:
    found = []
    if spec.cta_group == 2:
        if spec.tile.m != 256 * spec.consumers:
            found.append(
                f"tile.m={spec.tile.m}: a pair's MMA has 256 rows, 128 a CTA, for each of its consumers"
                f" (tile.m={256 * spec.consumers} with consumers={spec.consumers})"
            )
        if spec.tile.n not in range(32, 257, 32):
            found.append(f"tile.n={spec.tile.n}: a pair's tile has N 32 to 256 in steps of 32, half of B a CTA")
    else:
        if spec.tile.m not in (64, 128):
            found.append(f"tile.m={spec.tile.m}: one CTA's tcgen05.mma has M 64 or 128")
        if spec.tile.n not in range(16, 257, 16):
            found.append(f"tile.n={spec.tile.n}: tcgen05.mma takes N 16 to 256 in steps of 16")
    if spec.step == 10 and spec.consumers not in (1, 2):
        found.append(
            f"consumers={spec.consumers}: one or two warps multiply, for 256 rows each"
            " (consumers=1 with tile.m=256, consumers=2 with tile.m=512)"
        )
    elif spec.step != 10 and spec.consumers != (2 if spec.step == 9 else 1):
        other = "step 9 has two" if spec.step != 9 else "step 8 has one"
        found.append(
            f"consumers={spec.consumers}: step {spec.step} for sm_100a has {2 if spec.step == 9 else 1}"
            f" ({other}, step 10 either)"
        )
    elif spec.consumers * spec.accumulators * spec.tile.n > 512:
        found.append(
            f"tensor memory: {spec.consumers} consumers x {spec.accumulators} accumulators x {spec.tile.n} columns ="
            f" {spec.consumers * spec.accumulators * spec.tile.n}, but an SM has 512"
        )
    if spec.accumulators not in (1, 2):
        found.append(f"accumulators={spec.accumulators}: one, or two that alternate from tile to tile")
    elif spec.accumulators == 2 and spec.consumers == 2:
        found.append("accumulators=2: two consumers have an accumulator each, which fill tensor memory")
    elif spec.accumulators == 2 and spec.roles != "specialized":
        found.append("accumulators=2: only specialized roles can fill one while the other is stored")
    return found


def _wgmma_violations(spec: GemmSpec) -> list[str]:
    found = []
    if spec.accumulators != 1:
        found.append(f"accumulators={spec.accumulators}: wgmma has one accumulator, in registers")
    consumers = spec.consumers
    blocks, groups = ("n", "m") if spec.swap_ab else ("m", "n")
    rows, columns = getattr(spec.tile, blocks), getattr(spec.tile, groups)
    if consumers not in (1, 2):
        return [f"consumers={consumers}: one or two warpgroups multiply (use 1 or 2)"]
    if consumers != 1 and spec.roles != "specialized":
        found.append(f"consumers={consumers}: needs roles=specialized (step 7)")
    if spec.consumer_tiles == "own":
        found += _own_tile_violations(spec)
        consumers = 1
    if rows not in (64 * consumers, 128 * consumers):
        operand = " of B, with swap_ab=true" if spec.swap_ab else ""
        found.append(
            f"tile.{blocks}={rows}: each of {consumers} consumer warpgroups multiplies 64 or 128 rows{operand}, so"
            f" tile.{blocks} is {64 * consumers} or {128 * consumers}"
        )
    if columns not in range(8, 257, 8):
        found.append(f"tile.{groups}={columns}: wgmma takes N 8 to 256 in steps of 8")
    registers = rows // 64 // consumers * columns // 2
    if not found and registers > MAX_ACCUMULATORS:
        found.append(
            f"tile {spec.tile.m} x {spec.tile.n} on {consumers} warpgroups: {registers} accumulator registers a thread,"
            f" but at most {MAX_ACCUMULATORS} leave room for the rest"
            f" (it fits with tile.{blocks}={64 * consumers} or tile.{groups}={MAX_ACCUMULATORS})"
        )
    if spec.swap_ab and (spec.output_type == "f32" or spec.epilogue.staging != "tile"):
        found.append(
            f"swap_ab=true with output_type={spec.output_type} and epilogue.staging={spec.epilogue.staging} is not"
            " built yet (built: f16 and bf16, the whole tile)"
        )
    if not spec.epilogue.unroll:
        found.append("epilogue.unroll=false: wgmma accumulators are registers, a loop cannot index them")
    return found


def _own_tile_violations(spec: GemmSpec) -> list[str]:
    found = []
    if spec.step != 10 or spec.consumers != 2:
        found.append(
            f"consumer_tiles=own: two consumers of step 10 take turns, this is step {spec.step} with {spec.consumers}"
            " (step 10 and consumers=2, or consumer_tiles=shared)"
        )
    if spec.scheduler.kind != "persistent":
        found.append(
            f"consumer_tiles=own: with scheduler.kind={spec.scheduler.kind} a CTA has one tile, not several"
            " (use scheduler=persistent)"
        )
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
    beyond = spec.step == 10 and spec.target == "sm_100a"
    if spec.setmaxnreg and not beyond:
        found.append(f"setmaxnreg=true: a choice of step 10 for sm_100a, not of step {spec.step} for {spec.target}")
    if spec.dependent_launch and spec.step != 10:
        found.append(f"dependent_launch=true: a choice of step 10, not of step {spec.step}")
    if specialized != (spec.step >= 7):
        wanted = "specialized" if spec.step >= 7 else "unified"
        found.append(f"roles={spec.roles}: step {spec.step} has {wanted} roles")
    if spec.swap_ab and (spec.step, spec.target) != (10, "sm_90a"):
        found.append(f"swap_ab=true: a choice of step 10 for sm_90a, not of step {spec.step} for {spec.target}")
    if spec.consumer_tiles == "own" and spec.target != "sm_90a":
        found.append(f"consumer_tiles=own is not built yet for {spec.target} (built: sm_90a)")
    if spec.step != 10:
        for name, none in (
            ("a_cache", "evict_normal"),
            ("b_cache", "evict_normal"),
            ("suspend_ns", None),
            ("l2_promotion", 0),
        ):
            hint = getattr(spec, name)
            if hint != none:
                found.append(f"{name}={hint}: hints belong to step 10, step {spec.step} gives none")
    if spec.suspend_ns is not None and not 1 <= spec.suspend_ns < 2**32:
        found.append(f"suspend_ns={spec.suspend_ns}: a time hint is 1 to {2**32 - 1} nanoseconds")
    for name, value, first, rest, where in (
        ("load", spec.load, "threads", "tma", "steps 1 to 3" if spec.load == "threads" else "step 4 and up"),
        ("epilogue.store", spec.epilogue.store, "direct", "tma", _stores(spec.epilogue.store)),
    ):
        wanted = first if spec.step <= 3 else rest
        if value != wanted and not (name == "epilogue.store" and beyond):
            found.append(
                f"{name}={value}: step {spec.step} for {spec.target} has {name}={wanted} ({name}={value}: {where})"
            )
    epilogue = spec.epilogue
    if beyond and epilogue.store == "tma":
        found += _streaming_violations(spec)
    if epilogue.store == "direct":
        for name, usual in (("staging", "tile"), ("staging_buffers", 1)):
            value = getattr(epilogue, name)
            if value != usual:
                found.append(
                    f"epilogue.{name}={value} has a meaning only with epilogue.store=tma:"
                    f" direct stores stage nothing (leave it at {usual})"
                )
    if epilogue.slice_n is not None and spec.target == "sm_90a" and epilogue.staging == "tile":
        found.append(
            f"epilogue.slice_n={epilogue.slice_n} has a meaning on sm_90a only with epilogue.staging=slices:"
            " the accumulator is in registers, and the whole tile is staged from them"
        )
    return found


def _stores(store: str) -> str:
    """Who stores so."""
    return "steps 1 to 3, and step 10 for sm_100a" if store == "direct" else "step 4 and up"


def _streaming_violations(spec: GemmSpec) -> list[str]:
    """Step 10's ring of staging buffers."""
    epilogue = spec.epilogue
    if epilogue.staging != "slices":
        return [f"epilogue.staging={epilogue.staging}: step 10 stages slices (epilogue.staging=slices)"]
    if epilogue.staging_buffers == 1:
        return [
            "epilogue.staging_buffers=1: step 10 for sm_100a needs two, one is stored from while one is written"
            " (epilogue.staging_buffers=2)"
        ]
    return []


def _hilbert_violations(spec: GemmSpec) -> list[str]:
    found = []
    side = spec.scheduler.group
    if side not in (2, 4, 8, 16, 32, 64):
        found.append(f"scheduler.group={side}: the curve's squares have sides of 2, 4, 8, 16, 32 or 64 tiles")
    if spec.step != 10:
        found.append(f"scheduler.order=hilbert: a choice of step 10, not of step {spec.step}")
    elif spec.scheduler.kind == "grid":
        found.append("scheduler.order=hilbert: needs CTAs that walk tiles, scheduler=persistent or clc")
    return found


def _scheduler_violations(spec: GemmSpec) -> list[str]:
    found = []
    scheduler = spec.scheduler
    one_tile = spec.step <= 2
    if (scheduler.kind == "single") != one_tile:
        wanted = "single: they compute one tile" if one_tile else "grid or persistent"
        found.append(f"scheduler.kind={scheduler.kind}: steps like {spec.step} have {wanted}")
    if one_tile and scheduler.order != "row_major":
        found.append(f"scheduler.order={scheduler.order}: step {spec.step} computes one tile, its order is row_major")
    elif scheduler.order == "grouped" and (scheduler.group is None or scheduler.group < 1):
        found.append(f"scheduler.group={scheduler.group}: the grouped order needs a group of 1 or more")
    elif scheduler.order == "hilbert":
        found += _hilbert_violations(spec)
    elif scheduler.group is not None and scheduler.group >= 2**31:
        found.append(f"scheduler.group={scheduler.group}: a group is below 2**31 tile rows")
    if scheduler.order not in BANDED and scheduler.group is not None:
        found.append(
            f"scheduler.group={scheduler.group} has a meaning only with scheduler.order=grouped or hilbert"
            f" (the order is {scheduler.order})"
        )
    claims = spec.step == 10 and spec.target == "sm_100a"
    if scheduler.kind == "clc" and not claims:
        found.append(
            f"scheduler.kind=clc: step {spec.step} for {spec.target} has no warp that claims tiles (use step 10"
            " for sm_100a)"
        )
    if scheduler.kind != "clc" and scheduler.depth is not None:
        found.append(
            f"scheduler.depth={scheduler.depth} has a meaning only with scheduler.kind=clc"
            f" (the kind is {scheduler.kind})"
        )
    elif scheduler.depth is not None and not 2 <= scheduler.depth <= MAX_CLAIM_DEPTH:
        found.append(f"scheduler.depth={scheduler.depth}: 2 to {MAX_CLAIM_DEPTH} tiles are claimed ahead")
    return found


def _split_violations(spec: GemmSpec) -> list[str]:
    """Of tiles whose K several CTAs divide among them."""
    scheduler = spec.scheduler
    if not 1 <= scheduler.split_k <= MAX_SPLIT_K:
        return [f"scheduler.split_k={scheduler.split_k}: a tile's K is split into 1 to {MAX_SPLIT_K} parts"]
    if not scheduler.divides_k:
        return []
    found = []
    what = f"scheduler.split_k={scheduler.split_k}" if scheduler.split_k > 1 else "scheduler.stream_k=true"
    if scheduler.split_k > 1 and scheduler.stream_k:
        found.append(f"{what} and scheduler.stream_k=true: K is divided in one of these ways, not in both")
    if spec.step != 10:
        found.append(f"{what}: a choice of step 10, not of step {spec.step}")
    if scheduler.kind != "persistent":
        found.append(f"{what}: with scheduler.kind={scheduler.kind} a CTA has a whole tile (use scheduler=persistent)")
    if spec.consumer_tiles == "own":
        found.append(f"{what}: consumers that take turns have whole tiles (use consumer_tiles=shared)")
    return found


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
    plan = spec.plan
    if found or plan.fits:
        return found
    return [
        f"shared memory: control {CONTROL_BYTES} + staging {plan.staging_bytes} +"
        f" {plan.pipe_depth} stages x {plan.stage_bytes} = {plan.smem_bytes} bytes, but a CTA has"
        f" at most {plan.smem_limit_bytes} (it fits with {' or '.join((*memory_ways(spec), 'a smaller tile'))})"
    ]
