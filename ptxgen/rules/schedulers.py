"""What the tile scheduler may be: who computes which tile, in which order, and which part of its K."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptxgen.spec import GemmSpec

MAX_CLAIM_DEPTH = 4
"""Tiles that a cluster has claimed, no other can compute: few are best."""
MAX_SPLIT_K = 64

BANDED = ("grouped", "hilbert")
"""Orders in bands of `scheduler.group` tile rows."""


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


def scheduler_violations(spec: GemmSpec) -> list[str]:
    """Of the kind and the order of tiles."""
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


def split_violations(spec: GemmSpec) -> list[str]:
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
