"""Random valid specs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from ptxgen.errors import SpecError
from ptxgen.plan import epilogue_slices
from ptxgen.spec import GemmSpec
from ptxgen.steps import STEPS, step


@st.composite
def _specs(draw: DrawFn) -> GemmSpec | None:
    """A spec of any built step and target; None where the drawn choices do not go together."""
    target = draw(st.sampled_from(("sm_100a", "sm_90a")))
    base = step(
        draw(st.sampled_from([item.number for item in STEPS.values() if target in item.targets])), target=target
    )
    hopper, specialized = target == "sm_90a", base.roles == "specialized"
    beyond = base.step == 10 and not hopper
    order = draw(st.sampled_from(("row_major", "grouped")))
    store = draw(st.sampled_from(("tma", "direct"))) if beyond else base.epilogue.store
    staging = "tile" if store == "direct" else draw(st.sampled_from(("tile", "slices")))
    kind = base.scheduler.kind
    if base.step > 2:
        kind = draw(st.sampled_from(("grid", "persistent", *(("clc",) if beyond else ()))))
    consumers = base.consumers
    if specialized and (hopper or base.step == 10):
        consumers = draw(st.sampled_from((1, 2)))
    k = draw(st.sampled_from((32, 64, 128)))
    changes: dict[str, Any] = {
        "tile": {
            "m": (256 if base.cta_group == 2 else draw(st.sampled_from((64, 128)))) * consumers,
            "n": draw(st.sampled_from(range(8 if hopper else 16, 257, 8 if hopper else 16))),
            "k": k,
        },
        "pipe_depth": 1 if base.step <= 4 else draw(st.integers(2 if specialized else 1, 8)),
        "operand_type": draw(st.sampled_from(("f16", "bf16"))),
        "output_type": draw(st.sampled_from(("f16", "bf16", "f32"))),
        "operand_swizzle": draw(st.sampled_from([None, *(span for span in (128, 64, 32, 16) if 2 * k % span == 0)])),
        "consumers": consumers,
        "accumulators": draw(st.sampled_from((1, 2))) if specialized and not hopper else 1,
        "scheduler": {
            "kind": kind,
            "order": order,
            "group": draw(st.integers(1, 40)) if order == "grouped" else None,
            "depth": draw(st.sampled_from((None, 2, 3, 4))) if kind == "clc" else None,
        },
        "epilogue": {
            "store": store,
            "staging": staging,
            "staging_buffers": draw(st.integers(1, 4)) if staging == "slices" else 1,
            "unroll": hopper or draw(st.booleans()),
        },
        "setmaxnreg": beyond and draw(st.booleans()),
        "dependent_launch": beyond and draw(st.booleans()),
    }
    if base.step == 10:
        changes |= _beyond(draw, hopper, changes)
    try:
        spec = base.replace(**changes)
        slice_n = draw(st.sampled_from((None, *epilogue_slices(spec))))
        return spec.replace(epilogue={"slice_n": slice_n})
    except SpecError:
        return None


def _beyond(draw: DrawFn, hopper: bool, changes: dict[str, Any]) -> dict[str, Any]:
    """Choices of step 10 only."""
    found: dict[str, Any] = {
        "a_cache": draw(st.sampled_from(("evict_first", "evict_normal", "evict_last"))),
        "b_cache": draw(st.sampled_from(("evict_first", "evict_normal", "evict_last"))),
        "suspend_ns": draw(st.sampled_from((None, 1, 1000))),
        "dependent_launch": draw(st.booleans()),
    }
    if draw(st.booleans()):
        side = draw(st.sampled_from((2, 4, 8, 16, 32, 64)))
        found["scheduler"] = {"kind": "persistent", "order": "hilbert", "group": side}
    if hopper:
        found["cluster"] = draw(st.sampled_from(((1, 1, 1), (2, 1, 1), (1, 2, 1))))
        if changes["consumers"] == 2 and draw(st.booleans()):
            found["consumer_tiles"] = "own"
            found["tile"] = {**changes["tile"], "m": changes["tile"]["m"] // 2}
        if draw(st.booleans()):
            tile = found.get("tile", changes["tile"])
            found |= {"swap_ab": True, "tile": {**tile, "m": tile["n"], "n": tile["m"]}}
    if "consumer_tiles" not in found and draw(st.booleans()):
        divided = {"split_k": draw(st.integers(2, 64))} if draw(st.booleans()) else {"stream_k": True}
        scheduler = found.get("scheduler", changes["scheduler"])
        found["scheduler"] = {**scheduler, "kind": "persistent", "depth": None, **divided}
    return found


@pytest.fixture(scope="session")
def specs() -> SearchStrategy[GemmSpec]:
    return _specs().filter(lambda spec: spec is not None)  # type: ignore[return-value]
