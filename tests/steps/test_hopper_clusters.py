"""Step 10 on sm_90a, whatever is chosen: the right D on the emulator, in every order of asynchronous work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import ptxgen
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.errors import ProgramError, SpecError
from ptxgen.ir import ops as ir
from ptxgen.ir.checks import check
from ptxgen.spec import GemmSpec
from ptxgen.steps.multicast import MulticastKernel
from ptxgen.steps.step10 import _wgmma
from ptxgen.steps.turns import TurnsKernel

POLICIES = [("eager", 0), ("late", 0), ("random", 1)]


def spec(**changes: Any) -> GemmSpec:
    return ptxgen.step(10, target="sm_90a").replace(**changes)


SMALL: dict[str, Any] = {"tile": {"m": 128, "n": 64, "k": 64}, "consumers": 2}
SPECS = {
    "usual": spec(),
    "usual along m": spec(cluster=(2, 1, 1)),
    "along m": spec(cluster=(2, 1, 1), pipe_depth=2, **SMALL),
    "along n": spec(cluster=(1, 2, 1), pipe_depth=3, **SMALL),
    "alone": spec(cluster=(1, 1, 1), **SMALL),
    "256 rows": spec(cluster=(2, 1, 1), tile={"m": 256, "n": 128}),
    "256 rows along n": spec(tile={"m": 256, "n": 128}, cluster=(1, 2, 1)),
    "slices": spec(cluster=(2, 1, 1), pipe_depth=4, epilogue={"staging": "slices"}),
    "two slices": spec(
        cluster=(2, 1, 1), pipe_depth=4, epilogue={"staging": "slices", "slice_n": 32, "staging_buffers": 2}
    ),
    "panels": spec(cluster=(2, 1, 1), tile={"m": 64, "n": 32, "k": 128}, consumers=1, pipe_depth=2),
    "panels along n": spec(tile={"m": 64, "n": 32, "k": 128}, consumers=1, pipe_depth=2, cluster=(1, 2, 1)),
    "turns": spec(cluster=(2, 1, 1), consumer_tiles="own", tile={"m": 64, "n": 64}, pipe_depth=3),
    "turns alone": spec(consumer_tiles="own", tile={"m": 64, "n": 64}, pipe_depth=2, cluster=(1, 1, 1)),
    "turns, 128 rows": spec(cluster=(2, 1, 1), consumer_tiles="own", tile={"m": 128, "n": 128}, pipe_depth=5),
    "turns, slices": spec(
        consumer_tiles="own", pipe_depth=4, cluster=(1, 2, 1), tile={"m": 64, "n": 256}, epilogue={"staging": "slices"}
    ),
    "hints": spec(cluster=(2, 1, 1), a_cache="evict_last", b_cache="evict_first", suspend_ns=1000, **SMALL),
    "hilbert": spec(cluster=(2, 1, 1), scheduler={"order": "hilbert", "group": 2}, dependent_launch=False, **SMALL),
    "swapped": spec(swap_ab=True, tile={"m": 16, "n": 64, "k": 128}, consumers=1, pipe_depth=3),
    "swapped along m": spec(swap_ab=True, cluster=(2, 1, 1), tile={"m": 24, "n": 128}, pipe_depth=2),
    "swapped along n": spec(swap_ab=True, cluster=(1, 2, 1), tile={"m": 32, "n": 128}, consumers=1, pipe_depth=2),
    "swapped, 256 columns": spec(swap_ab=True, tile={"m": 8, "n": 256, "k": 32}, operand_swizzle=16, pipe_depth=2),
    "swapped, many rows": spec(swap_ab=True, tile={"m": 184, "n": 128}, pipe_depth=4),
    "swapped, f32": spec(swap_ab=True, output_type="f32", tile={"m": 24, "n": 64, "k": 128}, consumers=1, pipe_depth=2),
    "swapped, f32, 256 columns": spec(swap_ab=True, output_type="f32", tile={"m": 8, "n": 256}, pipe_depth=2),
    "swapped, turns": spec(swap_ab=True, consumer_tiles="own", tile={"m": 40, "n": 64}, pipe_depth=3),
    "no swizzle": spec(cluster=(2, 1, 1), tile={"m": 64, "n": 48, "k": 32}, consumers=1, operand_swizzle=16),
}


def require_product(chosen: GemmSpec, policy: tuple[str, int], shape: tuple[int, int, int], grid: int) -> None:
    """Integers, whose sums are exact: D is the product rounded once, in every element."""
    device = EmulatedDevice("sm_90a", policy=policy[0], seed=policy[1], workers=1)
    m, n, k = shape
    rng = np.random.default_rng(m + n + k)
    a = rng.integers(-5, 6, (m, k)).astype(np.float16)
    b = rng.integers(-5, 6, (n, k)).astype(np.float16)
    d = ptxgen.compile(chosen, device=device)(a, b, grid=(grid, 1, 1))
    np.testing.assert_array_equal(d, (a.astype(np.float64) @ b.astype(np.float64).T).astype(d.dtype))


def shapes(chosen: GemmSpec) -> Iterator[tuple[int, int, int]]:
    """One CTA's tile alone, so that the other CTA of a cluster has none; odd counts; edges on every side."""
    tile, depth = chosen.tile, chosen.pipe_depth
    yield tile.m, tile.n, tile.k
    yield 2 * tile.m + 1, 2 * tile.n + 9, tile.k * (2 * depth + 1) - 3
    yield tile.m - 7, 3 * tile.n - 5, tile.k * depth + 8


@pytest.mark.parametrize("name", SPECS)
def test_the_product_is_right(name: str) -> None:
    """Every spec, with policies and grids in turn."""
    for index, shape in enumerate(shapes(SPECS[name])):
        require_product(SPECS[name], POLICIES[index % 3], shape, (2, 4, 40)[index % 3])


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p[0]}{p[1]}")
@pytest.mark.parametrize("name", SPECS)
def test_every_shape(name: str, policy: tuple[str, int]) -> None:
    for grid in (2, 4, 40):
        for shape in [*shapes(SPECS[name]), (1, 1, 1), (300, 200, 72)]:
            require_product(SPECS[name], policy, shape, grid)


class Early(TurnsKernel):
    """A consumer ends its turn before its K loop."""

    @contextmanager
    def k_loop(self) -> Iterator[None]:
        self._pass_turn()
        with super().k_loop():
            yield

    def end_turn(self, walker: Any) -> None:
        self._skip(walker, self.builder.registers["k_tiles"], "past the other's tile")


def test_turns_are_what_makes_a_parity_unambiguous() -> None:
    with pytest.raises(ProgramError, match="its parity test can pass too early"):
        check(_wgmma(Early(SPECS["turns"])))


class Local(MulticastKernel):
    """Consumers release their own CTA's stage only, though the other CTA writes there too."""

    def _release_arrivals(self, cursor: Any) -> list[ir.Arrive]:
        return [*super()._release_arrivals(cursor)[:1]] * 2


class Hasty(MulticastKernel):
    """A CTA ends when its own work is done, whatever the other still has to say about its stages."""

    def end_loads(self, walker: Any) -> None:
        pass


class Unmet(MulticastKernel):
    """Each CTA goes ahead when its own mbarriers are there."""

    def _meet(self, comment: str) -> None:
        self.builder.emit(ir.CtaBarrier(comment=comment))


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (Local, "the MMAs that read it are over"),
        (Hasty, "may end before an arrival of another CTA"),
        (Unmet, "without knowing that it is initialised"),
    ],
)
def test_the_protocol_check_finds(broken: type[MulticastKernel], rule: str) -> None:
    with pytest.raises(ProgramError, match=rule):
        check(_wgmma(broken(spec(cluster=(2, 1, 1)))))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"cluster": (2, 2, 1)}, r"cluster=2x2x1 is not built yet for step 10"),
        ({"cluster": (2, 1, 1), "scheduler": {"kind": "grid"}}, "clusters of 2 need persistent CTAs"),
        ({"cluster": (2, 1, 1), "tile": {"n": 248}}, "248 rows of B in 2 parts"),
        ({"tile": {"n": 128}, "consumers": 1, "consumer_tiles": "own"}, "two consumers of step 10 take turns"),
        ({"consumer_tiles": "own"}, "tile 128 x 256 on 1 warpgroups: 256 accumulator registers"),
        ({"a_cache": "evict_lat"}, "unknown a_cache 'evict_lat'"),
        ({"suspend_ns": 0}, "a time hint is 1 to"),
        ({"l2_promotion": 32}, "unknown l2_promotion '32'"),
        ({"pipe_depth": 5}, "shared memory: control 1024"),
        ({"swap_ab": True, "tile": {"n": 192}}, "tile.n=192: each of 2 consumer warpgroups .* rows of B, with swap_ab"),
        (
            {"swap_ab": True, "tile": {"m": 12}},
            "tile.m=12: wgmma takes N 8 to 256, and with swap_ab=true .* steps of 8",
        ),
        ({"swap_ab": True, "tile": {"n": 64}}, r"tile.n is 128 or 256 \(or consumers=1\)"),
        ({"swap_ab": True, "epilogue": {"slice_n": 32}}, "slice_n=32: with swap_ab=true the whole"),
        ({"swap_ab": True, "epilogue": {"staging": "slices"}}, "staging=slices is not built yet"),
        ({"swap_ab": True, "pipe_depth": 4}, r"\(it fits with pipe_depth=3 or a smaller tile\)"),
        ({"swap_ab": True, "cluster": (1, 2, 1), "tile": {"m": 24}}, "24 rows of A in 2 parts"),
        ({"swap_ab": True, "tile": {"m": 256}}, r"at most 128 .* \(it fits with tile.n=128 or tile.m=128\)"),
    ],
)
def test_refusals(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(SpecError, match=rule):
        spec(**changes)


def test_l2_promotion_is_in_the_tensor_maps_alone() -> None:
    """It goes with the launch: the instructions are the same."""
    one, other = (ptxgen.emit(spec(l2_promotion=value)) for value in (0, 256))
    different = [
        (left, right) for left, right in zip(one.splitlines(), other.splitlines(), strict=True) if left != right
    ]
    assert all(left.startswith("//") and right.startswith("//") for left, right in different)
    assert sum('"l2_promotion": 256' in right for _, right in different) == 2
    with pytest.raises(SpecError, match="l2_promotion=256: hints belong to step 10"):
        ptxgen.step(7, target="sm_90a").replace(l2_promotion=256)
