"""Every pair of choices that can be made together: the specs of a covering array build, assemble and run.

The array has at least 1,000 distinct valid specs and every pair of axis values that some valid spec
has; the pairs that none has are listed with the rule that forbids them.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ptxgen
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.errors import SpecError
from ptxgen.render import emit
from ptxgen.spec import GemmSpec
from ptxgen.steps import step
from ptxgen.toolchain import assemble, find_tool

SEED = 20240607
SIZE = 1000

AXES: dict[str, tuple[Any, ...]] = {
    "step": (4, 5, 6, 7),
    "tile.m": (64, 128),
    "tile.n": tuple(range(16, 257, 16)),
    "tile.k": (32, 64, 128),
    "pipe_depth": tuple(range(1, 9)),
    "accumulators": (1, 2),
    "operand_type": ("f16", "bf16"),
    "output_type": ("f16", "bf16", "f32"),
    "operand_swizzle": (None, 128, 64, 32, 16),
    "scheduler.kind": ("grid", "persistent"),
    "group": (None, 1, 2, 8, 1000),  # None: row-major order
    "slice_n": (None, 16, 32, 48, 64),
    "staging": ("tile", "slices"),
    "buffers": (1, 2, 3, 4),
    "unroll": (False, True),
}
Choice = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]


def spec_of(choice: Choice) -> GemmSpec:
    return step(choice["step"]).replace(
        tile={axis: choice[f"tile.{axis}"] for axis in "mnk"},
        pipe_depth=choice["pipe_depth"],
        accumulators=choice["accumulators"],
        operand_type=choice["operand_type"],
        output_type=choice["output_type"],
        operand_swizzle=choice["operand_swizzle"],
        scheduler={
            "kind": choice["scheduler.kind"],
            "order": "row_major" if choice["group"] is None else "grouped",
            "group": choice["group"],
        },
        epilogue={
            "slice_n": choice["slice_n"],
            "staging": choice["staging"],
            "staging_buffers": choice["buffers"],
            "unroll": choice["unroll"],
        },
    )


def pairs_of(choice: Choice) -> Iterator[Pair]:
    yield from itertools.combinations(choice.items(), 2)


def every_pair() -> list[Pair]:
    axes = [[(name, value) for value in values] for name, values in AXES.items()]
    return [pair for one, other in itertools.combinations(axes, 2) for pair in itertools.product(one, other)]


def attempt(choice: Choice) -> tuple[GemmSpec | None, tuple[str, ...]]:
    try:
        return spec_of(choice), ()
    except SpecError as error:
        return None, error.violations


def small(number: int) -> Choice:
    """Choices that leave room for any other: little shared memory, no constraint on a second value."""
    first = {name: values[0] for name, values in AXES.items()}
    return {**first, "step": number, "tile.k": 128, "tile.n": 192, "pipe_depth": 2 if number >= 7 else 1}


def completions(pair: Pair, generator: random.Random) -> Iterator[Choice]:
    """Choices with this pair: small ones of every step, then random ones, ever smaller."""
    fixed = dict(pair)
    for number in AXES["step"]:
        yield {**small(number), **fixed}
        yield {**small(number), "staging": "slices", "tile.k": 32, "tile.n": 96, "pipe_depth": 2, **fixed}
    for _ in range(20):
        yield {**{name: generator.choice(values) for name, values in AXES.items()}, **fixed}


@lru_cache(maxsize=1)
def covering() -> tuple[tuple[GemmSpec, ...], dict[Pair, tuple[str, ...]]]:
    """The array, and the pairs that no try could cover, each with the fewest rules that a try broke."""
    generator = random.Random(SEED)
    found: dict[GemmSpec, None] = {}
    uncovered = dict.fromkeys(every_pair())

    def take(spec: GemmSpec, choice: Choice) -> None:
        found[spec] = None
        for pair in pairs_of(choice):
            uncovered.pop(pair, None)

    while len(found) < SIZE:
        choice = {name: generator.choice(values) for name, values in AXES.items()}
        spec, _ = attempt(choice)
        if spec is not None:
            take(spec, choice)
    excluded: dict[Pair, tuple[str, ...]] = {}
    for pair in list(uncovered):
        if pair not in uncovered:
            continue
        broken: list[tuple[str, ...]] = []
        for choice in completions(pair, generator):
            spec, violations = attempt(choice)
            if spec is not None:
                take(spec, choice)
                break
            broken.append(violations)
        else:
            excluded[pair] = min(broken, key=len)
    return tuple(found), excluded


def forbidden() -> dict[Pair, str]:
    """The pairs that cannot be, and the start of the rule that says so."""
    rules: dict[Pair, str] = {}

    def forbid(one: str, value: Any, other: str, second: Any, rule: str) -> None:
        rules[(one, value), (other, second)] = rule

    for depth in range(2, 9):
        forbid("step", 4, "pipe_depth", depth, f"pipe_depth={depth}: step 4 has no ring")
    forbid("step", 7, "pipe_depth", 1, "pipe_depth=1: specialized roles need two stages")
    for number in (4, 5, 6):
        forbid("step", number, "accumulators", 2, "accumulators=2: only specialized roles")
    forbid("pipe_depth", 1, "accumulators", 2, "accumulators=2: only specialized roles|pipe_depth=1: specialized")
    forbid("tile.k", 32, "operand_swizzle", 128, "operand_swizzle=128: the span does not divide")
    for n, width in itertools.product(AXES["tile.n"], (32, 48, 64)):
        if n % width:
            forbid("tile.n", n, "slice_n", width, f"epilogue.slice_n={width}: a slice is a number of columns")
    for buffers in (2, 3, 4):
        forbid("staging", "tile", "buffers", buffers, f"epilogue.staging_buffers={buffers}: staging of the whole tile")
    return rules


def test_every_pair_of_choices_is_covered_or_forbidden_by_a_rule() -> None:
    specs, excluded = covering()
    assert len(specs) == len(set(specs)) >= SIZE
    assert set(excluded) == set(forbidden())
    for pair, rule in forbidden().items():
        (violation,) = excluded[pair]
        assert re.match(rule, violation), pair


# ---- assembled ------------------------------------------------------------------------------


Merge = Callable[[list[str]], str]


def assemble_all(specs: Sequence[GemmSpec], merged: Merge) -> None:
    batches = [specs[start : start + 20] for start in range(0, len(specs), 20)]
    with ThreadPoolExecutor(2) as pool:
        texts = (merged([emit(spec) for spec in batch]) for batch in batches)
        assemblies = pool.map(lambda text: assemble(text, line_info=False), texts)
        found = []
        for batch, assembly in zip(batches, assemblies, strict=True):
            assert (assembly.warnings, assembly.infos) == ((), ())
            entries = {entry.entry: entry for entry in assembly.entries}
            for index, spec in enumerate(batch):
                entry = entries[f"k{index}"]
                if entry.registers > 128 or entry.spill_store_bytes or entry.spill_load_bytes or entry.stack_bytes:
                    found.append((spec, entry))
    assert not found


def sample(count: int) -> list[GemmSpec]:
    return random.Random(SEED + count).sample(covering()[0], count)


needs_ptxas = pytest.mark.skipif(find_tool("ptxas") is None, reason="ptxas is not installed")


@needs_ptxas
def test_a_sample_assembles_without_spills_or_remarks(merged: Merge) -> None:
    assemble_all(sample(40), merged)


@needs_ptxas
@pytest.mark.slow
def test_every_spec_assembles_without_spills_or_remarks(merged: Merge) -> None:
    assemble_all(covering()[0], merged)


@needs_ptxas
@pytest.mark.slow
def test_unrolled_slices_do_not_overlap_in_registers(merged: Merge) -> None:
    """ptxas must not read the next slice before it has stored this one, whatever the width."""
    axes = itertools.product((5, 6, 7), AXES["tile.n"], (16, 32, 48, 64), ("f16", "f32"), (1, 2))
    specs = [
        step(number).replace(
            tile={"n": n}, output_type=kind, accumulators=count, epilogue={"slice_n": width, "unroll": True}
        )
        for number, n, width, kind, count in axes
        if n % width == 0 and (count == 1 or number == 7)
    ]
    assemble_all(specs, merged)


# ---- run ------------------------------------------------------------------------------------

NUMPY_TYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}


def run_exactly(spec: GemmSpec, seed: int) -> None:
    """Tiles in both directions, edges on both sides, more K tiles than stages, integers of small sums."""
    generator = np.random.default_rng(seed)
    m, n = spec.tile.m + int(generator.integers(1, 40)), spec.tile.n + int(generator.integers(1, 40))
    k = spec.tile.k * (spec.pipe_depth + 1) + int(generator.integers(1, spec.tile.k))
    kind = NUMPY_TYPES[spec.operand_type]
    a = generator.integers(-8, 9, (m, k))
    b = generator.integers(-8, 9, (n, k))
    policy = ("eager", "late", "random")[seed % 3]
    kernel = ptxgen.compile(spec, device=EmulatedDevice(policy=policy, seed=seed, workers=1))
    grid = (1 + seed % 5, 1, 1) if spec.scheduler.kind == "persistent" else None
    d = kernel(a.astype(kind), b.astype(kind), grid=grid)
    exact = (a @ b.T).astype(np.float64).astype(NUMPY_TYPES[spec.output_type])
    np.testing.assert_array_equal(d, exact, err_msg=f"{spec}")


@pytest.mark.parametrize("seed", range(6))
def test_some_specs_run_exactly(seed: int) -> None:
    run_exactly(sample(60)[seed], seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 60))
def test_sixty_specs_run_exactly(seed: int) -> None:
    run_exactly(sample(60)[seed], seed)
