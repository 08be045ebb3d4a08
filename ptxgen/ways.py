"""Ways out of a refusal, each of which works alone where nothing else is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ptxgen.plan import default_slice, epilogue_slices

if TYPE_CHECKING:
    from ptxgen.plan import Plan
    from ptxgen.spec import GemmSpec


def memory_ways(spec: GemmSpec) -> tuple[str, ...]:
    """Settings that bring a spec into shared memory, as on the command line; none where only a smaller tile does."""
    return tuple(_memory_ways(spec, spec.plan))


def _memory_ways(spec: GemmSpec, plan: Plan) -> Iterator[str]:
    epilogue = spec.epilogue
    deepest = (plan.smem_limit_bytes - plan.ring_offset) // plan.stage_bytes
    if deepest >= (2 if spec.roles == "specialized" else 1):
        yield f"pipe_depth={deepest}"
    if not plan.staged:
        return

    def fits(columns: int, buffers: int) -> bool:
        return replace(plan, staging=replace(plan.staging, columns=columns, buffers=buffers)).fits

    if spec.swap_ab:
        return
    if epilogue.staging == "tile":
        if fits(epilogue.slice_n or default_slice(spec, "slices"), 1):
            yield "epilogue.staging=slices"
        return
    fewest = 2 if spec.step == 10 and spec.target == "sm_100a" else 1
    buffers = [count for count in range(fewest, epilogue.staging_buffers) if fits(plan.slice_n, count)]
    if buffers:
        yield f"epilogue.staging_buffers={buffers[-1]}"
    narrower = [n for n in epilogue_slices(spec) if n < plan.slice_n and fits(n, epilogue.staging_buffers)]
    if narrower:
        yield f"epilogue.slice_n={narrower[-1]}"
