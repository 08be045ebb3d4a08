"""Order: streams, other work beside ours, CUDA graphs, the caching allocator, threads, several kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import ptxgen

STEPS = (4, 5, 6, 7)
KernelOf = Callable[..., ptxgen.Kernel]


@pytest.mark.parametrize("step", STEPS)
def test_the_current_stream_orders_the_call(step: int, kernel: KernelOf, torch: Any, operands: Any) -> None:
    a, b = operands(512, 512, 256)
    stream = torch.cuda.Stream()
    expected = (2 * a).float() @ b.float().T
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # what comes first takes long
        doubled = a * 2
        d = kernel(step)(doubled, b)
        after = d.clone()
    stream.synchronize()
    assert torch.equal(after, expected.half())


@pytest.mark.parametrize("step", STEPS)
def test_other_streams_run_beside_it(step: int, kernel: KernelOf, torch: Any, operands: Any, reference: Any) -> None:
    a, b = operands(2048, 2048, 512)
    expected = reference(a, b).half()
    other, mine = torch.cuda.Stream(), torch.cuda.Stream()
    noise = torch.randn((4096, 4096), device="cuda", dtype=torch.float16)
    torch.cuda.synchronize()
    outs = [torch.full_like(expected, float("nan")) for _ in range(20)]
    torch.cuda.synchronize()
    for out in outs:
        with torch.cuda.stream(other):
            noise = noise @ noise
        kernel(step).launch(a, b, out=out, stream=mine)
    torch.cuda.synchronize()
    assert all(torch.equal(out, expected) for out in outs)


def test_memory_is_not_reused_too_early(kernel: KernelOf, torch: Any, operands: Any, reference: Any) -> None:
    """The operands are dropped while their stream still has the launch before it."""
    a, b = operands(1024, 1024, 256)
    expected = reference(a, b).half()
    stream = torch.cuda.Stream()
    out = torch.empty_like(expected)
    left, right = a.clone(), b.clone()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
    kernel(7).launch(left, right, out=out, stream=stream)
    del left, right
    for _ in range(50):  # on the current stream, where the allocator would hand the memory out again
        torch.full_like(a, float("nan"))
        torch.full_like(b, float("nan"))
    torch.cuda.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_graphs(step: int, warm: bool, kernel: KernelOf, torch: Any, operands: Any, reference: Any) -> None:
    sizes = (300 + 8 * step, 264, 136) if warm else (200 + 8 * step, 264, 136)
    a, b = operands(*sizes)
    out = torch.empty(sizes[:2], dtype=torch.float16, device="cuda")
    if warm:
        kernel(step).launch(a, b, out=out)
    else:
        kernel(step)  # compiled, but this size is new
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a.add_(1)
        kernel(step).launch(a, b, out=out)
        inside = kernel(step)(a, b)
    for turn in range(3):
        a.fill_(turn)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, reference(torch.full_like(a, turn + 1), b).half())
        assert torch.equal(inside, out)


def test_prepared_launches_in_a_graph(kernel: KernelOf, torch: Any, operands: Any, reference: Any) -> None:
    a, b = operands(256, 256, 128)
    outs = [torch.empty((256, 256), dtype=torch.float16, device="cuda") for _ in STEPS]
    prepared = [kernel(step).prepare(a, b, out=out) for step, out in zip(STEPS, outs, strict=True)]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for each in prepared:
            each.launch()
    b.fill_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(out, reference(a, b).half()) for out in outs)


def test_threads(kernel: KernelOf, torch: Any, operands: Any, reference: Any) -> None:
    failures: list[object] = []

    def work(seed: int) -> None:
        try:
            a, b = operands(128 * seed, 192, 64 * seed, seed=seed)
            expected = reference(a, b).half()
            with torch.cuda.stream(torch.cuda.Stream()):
                for step in STEPS * 10:
                    if not torch.equal(kernel(step)(a, b), expected):
                        failures.append((seed, step))
        except BaseException as error:
            failures.append(error)

    for step in STEPS:
        kernel(step)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_fresh_thread_has_no_context(kernel: KernelOf, torch: Any, operands: Any, reference: Any) -> None:
    """Nothing but our own call makes the context current there."""
    a, b = operands(128, 128, 64)
    out = torch.zeros((128, 128), dtype=torch.float16, device="cuda")
    prepared = kernel(5).prepare(a, b, out=out)
    torch.cuda.synchronize()
    thread = threading.Thread(target=lambda: prepared.launch(0))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.equal(out, reference(a, b).half())


def test_the_current_device_is_not_changed(kernel: KernelOf, torch: Any, operands: Any) -> None:
    before = torch.cuda.current_device()
    kernel(6)(*operands(64, 64, 64))
    assert torch.cuda.current_device() == before
    assert int(torch.ones(3, device="cuda").sum()) == 3


def test_every_device(torch: Any, operands: Any, reference: Any) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU only")
    for ordinal in range(torch.cuda.device_count()):
        kernel = ptxgen.compile(ptxgen.step(6, target="sm_90a"), f"cuda:{ordinal}")
        a, b = (matrix.to(f"cuda:{ordinal}") for matrix in operands(256, 200, 128))
        d = kernel(a, b)
        assert d.device.index == ordinal
        assert torch.equal(d, reference(a, b).half())
