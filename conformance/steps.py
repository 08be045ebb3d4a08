"""ptxgen's own sm_90a kernels as probes: every step, operand swizzle and width of a tile.

The rest is sampled: tile heights and depths, types, staging, and problems with edge tiles and K tails. Inputs
are small integers, so D is the exact product, rounded once, in whatever order a device adds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from conformance.probe import Case, Probe, Question
from ptxgen.device.description import launch_in_header
from ptxgen.errors import SpecError
from ptxgen.render import emit
from ptxgen.spec import GemmSpec
from ptxgen.steps import STEPS as LADDER
from ptxgen.steps import step

TARGET = "sm_90a"
STEPS = tuple(number for number, rung in LADDER.items() if TARGET in rung.targets)
SWIZZLES = (128, 64, 32, 16)
WIDTHS = tuple(range(8, 257, 8))

_OUTPUTS = ("f16", "bf16", "f32")
_OPERANDS = ("f16", "bf16")
_DEPTHS = (64, 32, 128)


def step_probes(steps: tuple[int, ...] = STEPS, widths: tuple[int, ...] = WIDTHS) -> Iterator[Probe]:
    """A probe for every kernel; together they ask one question per step and swizzle."""
    for number, swizzle, n in itertools.product(steps, SWIZZLES, widths):
        index = n // 8 + SWIZZLES.index(swizzle) + 5 * number
        spec = _spec(number, swizzle, n, index)
        if spec is None:
            continue
        M, N, K = _problem(spec, index)
        text = emit(spec)
        description = launch_in_header(text, f"step {number}")
        assert description is not None  # every emitted text carries one
        tile = spec.tile
        name = (
            f"{tile.m}x{tile.n}x{tile.k} {spec.operand_type} to {spec.output_type}"
            f" {spec.epilogue.staging} depth {spec.pipe_depth}, M={M} N={N} K={K}"
        )
        yield Probe(
            name=f"step{number}_swizzle{swizzle}",
            area="steps",
            text=text,
            questions=(
                Question(
                    name="product",
                    ask=f"Is D = A . B^T with step {number} and operand swizzle {swizzle if swizzle > 16 else 'none'}?",
                    answer="Yes, for every tile width from 8 to 256 in steps of 8 that fits, to the last bit.",
                    cases=(Case(name=name, description=replace(description, defaults={"M": M, "N": N, "K": K})),),
                    inputs={"A": "integers", "B": "integers"},
                ),
            ),
        )


def _spec(number: int, swizzle: int, n: int, index: int) -> GemmSpec | None:
    """The first of a sequence of choices that the builder accepts, or None where there is none."""
    base = step(number, target=TARGET)
    for turn in range(12):
        consumers = 1 + (index + turn) % 2 if number == 7 else 1
        depth = {4: 1, 7: 2 + (index + turn) % 3}.get(number, 1 + (index + turn) % 4)
        changes: dict[str, Any] = {
            "operand_swizzle": swizzle,
            "operand_type": _OPERANDS[(index // 2) % 2],
            "output_type": _OUTPUTS[index % 3],
            "tile": {"m": (64, 128)[(index + turn // 2) % 2] * consumers, "n": n, "k": _DEPTHS[(index + turn) % 3]},
            "pipe_depth": depth,
            "epilogue": {"staging": ("tile", "slices")[(index + turn) % 2]},
        }
        if number == 7:
            changes["consumers"] = consumers
        try:
            return base.replace(**changes)
        except SpecError:
            continue
    return None


def _problem(spec: GemmSpec, index: int) -> tuple[int, int, int]:
    """M, N and K: whole tiles, edges, tails and less than one tile, in turn."""
    tile = spec.tile
    M = (tile.m, tile.m + 1, tile.m - 7, 2 * tile.m - 3, 1)[index % 5]
    N = (tile.n, tile.n + 3, 2 * tile.n - 1, max(tile.n - 5, 1))[index % 4]
    K = (tile.k, 2 * tile.k + 8, tile.k - 1, 3 * tile.k - 5, 8, 1, 4 * tile.k)[index % 7]
    return M, N, K
