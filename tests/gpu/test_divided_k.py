"""Split-K and stream-K on a GPU: right numbers, the same bits every time, and nothing shared that runs at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import ptxgen

KernelOf = Callable[..., ptxgen.Kernel]
SMALL: dict[str, Any] = {"tile": {"m": 64, "n": 64, "k": 64}, "consumers": 1}
CHOICES: dict[str, dict[str, Any]] = {
    "split 2": {"scheduler": {"split_k": 2}},
    "split 7, small tiles": {"scheduler": {"split_k": 7}, **SMALL},
    "stream": {"scheduler": {"stream_k": True}},
    "stream, small tiles": {"scheduler": {"stream_k": True}, **SMALL},
    "stream along m": {"scheduler": {"stream_k": True}, "cluster": (2, 1, 1)},
    "split 4 along n": {"scheduler": {"split_k": 4}, "cluster": (1, 2, 1), "epilogue": {"staging": "slices"}},
}
SHAPES = [
    (128, 256, 64), (1, 1, 1), (130, 40, 72), (257, 251, 320), (16, 8192, 4096), (1000, 1000, 1000), (100, 136, 16),
    (2048, 2048, 2048), (3000, 1100, 200),
]  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_the_product_is_right(name: str, kernel: KernelOf, torch: Any, operands: Any, reference: Any) -> None:
    for seed, (m, n, k) in enumerate(SHAPES):
        a, b = operands(m, n, k, seed=seed)
        expected = reference(a, b).half()
        for grid in (None, (2, 1, 1), (78, 1, 1), None):
            assert torch.equal(kernel(10, **CHOICES[name])(a, b, grid=grid), expected), (m, n, k, grid)


@pytest.mark.parametrize("name", ["split 2", "stream", "stream, small tiles"])
@pytest.mark.parametrize("shape", [(1000, 1000, 1000), (16, 8192, 2048), (520, 904, 4096)], ids=str)
def test_a_thousand_launches_give_the_same_bits(
    name: str, shape: tuple[int, int, int], kernel: KernelOf, torch: Any, operands: Any
) -> None:
    """Sums that round, in the order of the units, whoever comes first."""
    m, n, k = shape
    a, b = operands(m, n, k, kind="normal")
    first = kernel(10, **CHOICES[name])(a, b)
    out = torch.full_like(first, float("nan"))
    prepared = kernel(10, **CHOICES[name]).prepare(a, b, out=out)
    different = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        prepared.launch()
        different += (out != first).any()
    assert int(different) == 0


def test_launches_back_to_back(kernel: KernelOf, torch: Any, operands: Any, reference: Any) -> None:
    """Each begins before its predecessor has ended; kernels of other divisions and shapes use the same flags."""
    made = []
    for seed, name in enumerate(CHOICES):
        a, b = operands(400 + 8 * seed, 520, 1032, seed=seed)
        out = torch.full((a.shape[0], b.shape[0]), float("nan"), dtype=torch.float16, device="cuda")
        made.append((kernel(10, **CHOICES[name]).prepare(a, b, out=out), out, reference(a, b).half()))
    for _ in range(200):
        for prepared, _, _ in made:
            prepared.launch()
    torch.cuda.synchronize()
    for _, out, expected in made:
        assert torch.equal(out, expected)


def test_streams_at_once(kernel: KernelOf, torch: Any, operands: Any, reference: Any) -> None:
    streams = [torch.cuda.Stream() for _ in range(4)]
    a, b = operands(512, 512, 2048)
    expected = reference(a, b).half()
    outs = [torch.full_like(expected, float("nan")) for _ in streams]
    torch.cuda.synchronize()
    for _ in range(50):
        for stream, out in zip(streams, outs, strict=True):
            kernel(10, **CHOICES["stream, small tiles"]).launch(a, b, out=out, stream=stream, grid=(30, 1, 1))
    torch.cuda.synchronize()
    assert all(torch.equal(out, expected) for out in outs)


def test_graphs_at_once(kernel: KernelOf, torch: Any, operands: Any, reference: Any) -> None:
    """Two graphs that were captured on one stream, replayed on two."""
    a, b = operands(512, 512, 2048)
    expected = reference(a, b).half()
    call = kernel(10, **CHOICES["stream, small tiles"])
    graphs, outs = [], []
    for _ in range(2):
        out = torch.full_like(expected, float("nan"))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(3):
                call.launch(a, b, out=out, grid=(60, 1, 1))
        graphs.append(graph)
        outs.append(out)
    streams = [torch.cuda.Stream() for _ in graphs]
    torch.cuda.synchronize()
    for _ in range(20):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(out, expected) for out in outs)
