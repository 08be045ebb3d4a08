"""What the ring, the roles and the way out of the accumulator may be, and what shared memory holds of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.plan import CONTROL_BYTES, epilogue_slices
from ptxgen.ways import memory_ways

if TYPE_CHECKING:
    from ptxgen.spec import GemmSpec

MAX_PIPE_DEPTH = 8


def pipeline_violations(spec: GemmSpec) -> list[str]:
    """Of stages, roles, hints, and the way of the accumulator to D."""
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
    if epilogue.slice_n is not None and spec.swap_ab and spec.target == "sm_90a":
        found.append(
            f"epilogue.slice_n={epilogue.slice_n}: with swap_ab=true the whole tile is staged (leave it at auto)"
        )
    elif epilogue.slice_n is not None and spec.target == "sm_90a" and epilogue.staging == "tile":
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


def plan_violations(spec: GemmSpec) -> list[str]:
    """Of what shared memory holds; only where tile and cluster are possible."""
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
