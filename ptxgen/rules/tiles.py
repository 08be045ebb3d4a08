"""What a tile may be: the shapes that tcgen05 and wgmma take, and the parts that the CTAs of a cluster load."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptxgen.spec import GemmSpec

MAX_ACCUMULATORS = 128
"""f32 accumulators of a thread on sm_90a, of 255 registers."""


def extents_text(extents: Iterable[int]) -> str:
    """Extents as the command line takes them: 2x1x1."""
    return "x".join(map(str, extents))


def built_clusters(spec: GemmSpec, pair: bool) -> tuple[tuple[int, int, int], ...]:
    """The clusters that the spec's step and target have; `pair`: two CTAs to an MMA."""
    if pair:
        return ((2, 1, 1),)
    if spec.step == 10 and spec.target == "sm_90a":
        return ((1, 1, 1), (2, 1, 1), (1, 2, 1))
    return ((1, 1, 1),)


def multicast_violations(spec: GemmSpec) -> list[str]:
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


def tile_violations(spec: GemmSpec) -> list[str]:
    """Of the tile, and of who multiplies it."""
    found = _wgmma_violations(spec) if spec.target == "sm_90a" else _tcgen05_violations(spec)
    if spec.swap_ab and (spec.step, spec.target) != (10, "sm_90a"):
        found.append(
            f"swap_ab=true: a choice of step 10 for sm_90a, not of step {spec.step} for {spec.target}"
            " (leave it at false)"
        )
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
        fewer = " (or consumers=1)" if consumers == 2 and rows == 64 else ""
        found.append(
            f"tile.{blocks}={rows}: each of {consumers} consumer warpgroups multiplies 64 or 128 rows{operand}, so"
            f" tile.{blocks} is {64 * consumers} or {128 * consumers}{fewer}"
        )
    if columns not in range(8, 257, 8):
        operand = ", and with swap_ab=true that is rows of A," if spec.swap_ab else ""
        found.append(f"tile.{groups}={columns}: wgmma takes N 8 to 256{operand} in steps of 8")
    registers = rows // 64 // consumers * columns // 2
    if not found and registers > MAX_ACCUMULATORS:
        found.append(
            f"tile {spec.tile.m} x {spec.tile.n} on {consumers} warpgroups: {registers} accumulator registers a thread,"
            f" but at most {MAX_ACCUMULATORS} leave room for the rest"
            f" (it fits with tile.{blocks}={64 * consumers} or tile.{groups}={MAX_ACCUMULATORS})"
        )
    if spec.swap_ab and spec.epilogue.staging != "tile":
        found.append(f"swap_ab=true with epilogue.staging={spec.epilogue.staging} is not built yet (built: tile)")
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
