"""Texts of many kernels, made by processes."""

from __future__ import annotations

from multiprocessing import get_context

import ptxgen
from ptxgen.tuning.candidates import variations
from ptxgen.tuning.kernels import _texts


def make_texts() -> None:
    spec = ptxgen.step(10, target="sm_90a")
    specs = [spec, spec.replace(pipe_depth=2), spec.replace(dependent_launch=False)]
    assert list(_texts(specs)) == [ptxgen.emit(spec) for spec in specs]


def test_a_worker_that_made_texts_ends() -> None:
    """multiprocessing waits for a process's own children before it ends: they must have gone."""
    worker = get_context("spawn").Process(target=make_texts)
    worker.start()
    worker.join(60)
    ended = worker.exitcode
    worker.kill()
    assert ended == 0


def test_clusters_are_varied() -> None:
    spec = ptxgen.step(10, target="sm_90a")
    assert {other.cluster for other in variations(spec)} == {(1, 1, 1), (2, 1, 1), (1, 2, 1)}
