"""Many kernels at once: texts are made by processes, and compiled by threads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

from ptxgen.device.cuda import CudaDevice
from ptxgen.device.description import launch_in_header
from ptxgen.device.kernel import Kernel
from ptxgen.errors import PtxgenError
from ptxgen.render import emit
from ptxgen.spec import GemmSpec

_WORKERS = min(16, os.cpu_count() or 1)
_FEW = 2
"""So many texts are made here: starting processes takes longer."""


class Kernels:
    """Kernels on one GPU by their specs, each made once."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._made: dict[GemmSpec, Kernel | PtxgenError] = {}

    def compile(self, specs: Sequence[GemmSpec]) -> None:
        """Make the kernels of specs; an error is kept until it is asked for."""
        missing = [spec for spec in dict.fromkeys(specs) if spec not in self._made]
        with ThreadPoolExecutor(_WORKERS) as threads:
            self._made |= dict(zip(missing, threads.map(self._loaded, missing, _texts(missing)), strict=True))

    def get(self, spec: GemmSpec) -> Kernel:
        """The kernel of a spec; raises what went wrong when it was made."""
        if spec not in self._made:
            self.compile([spec])
        made = self._made[spec]
        if isinstance(made, PtxgenError):
            raise made
        return made

    def _loaded(self, spec: GemmSpec, text: str | PtxgenError) -> Kernel | PtxgenError:
        if isinstance(text, PtxgenError):
            return text
        name = f"step {spec.step} ({spec.target})"
        description = launch_in_header(text, name)
        assert description is not None  # every emitted text carries one
        try:
            return Kernel(text, description, self._device, name=name, spec=spec)
        except PtxgenError as error:
            return error


def _texts(specs: Sequence[GemmSpec]) -> Iterator[str | PtxgenError]:
    if len(specs) <= _FEW or _WORKERS == 1:
        yield from map(_text, specs)
        return
    # They end here: a worker of a search over several GPUs would wait for processes of its own when it ends.
    with ProcessPoolExecutor(min(_WORKERS, len(specs)), mp_context=get_context("spawn")) as processes:
        yield from processes.map(_text, specs)


def _text(spec: GemmSpec) -> str | PtxgenError:
    try:
        return emit(spec)
    except PtxgenError as error:
        return PtxgenError(str(error))  # those with more than a message do not travel between processes
