"""Tensor memory: lanes and columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ptxgen.checker.memory import Memory
from ptxgen.checker.operations import TENSOR_MEMORY_ACCESSES, Operation
from ptxgen.checker.order import ORDERED, Access, Agent, SameLane, Verdict
from ptxgen.checker.shadow import Cells, Numbers, Where

if TYPE_CHECKING:
    from ptxgen.checker.cluster import Cluster

_TMEM_LANES, _TMEM_COLUMNS = 128, 512


class TensorMemory(Memory):
    """One CTA's tensor memory: cells of one column and 16 lanes, or fewer where accesses need it."""

    space = "tensor"

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._cells = Cells((_TMEM_COLUMNS, _TMEM_LANES // 16), 16)

    def access(self, agent: Agent, lanes: tuple[int, int], columns: tuple[int, int], write: bool) -> None:
        """Lanes [first, last], columns [first, stop)."""
        cells = self._cells
        first, stop = lanes[0], lanes[1] + 1
        if (first | stop) % cells.granule:
            cells.refine(1)
        self.touch(cells, (columns, (first // cells.granule, stop // cells.granule)), agent, write)

    def _all_known(self, numbers: Numbers, agent: Agent) -> bool:
        """What comes after an allocation is judged one by one: an operation needs its own fence."""
        return isinstance(agent, Access) and super()._all_known(numbers, agent)

    def _judge_first_access(self, first: Access, lanes: list[int], second: Agent, same_lane: SameLane) -> Verdict:
        """The first is an allocation."""
        order = self._cluster.order
        clock = second.view.clock if isinstance(second, Access) else second.clock
        if first.warp == second.warp:
            return ORDERED
        if not order.knows_whole(clock, first):
            return Verdict.UNORDERED
        if isinstance(second, Access) or (second.after is not None and order.knows_whole(second.after, first)):
            if isinstance(second, Operation):
                self._cluster.need_lines(second.after_line)
            return ORDERED
        return Verdict.UNFENCED

    def _judge_first_operation(self, first: Operation, first_writes: bool, second: Agent) -> Verdict:
        if isinstance(second, Operation) and self._pipelined(first, second):
            return ORDERED
        verdict = super()._judge_first_operation(first, first_writes, second)
        if verdict is not ORDERED:
            return verdict
        if first.kind in TENSOR_MEMORY_ACCESSES and first.warp == second.warp:
            return ORDERED
        fenced = second.view.clock if isinstance(second, Access) else second.after
        if fenced is None or not fenced.fenced & first.bit:
            return Verdict.UNFENCED
        self._cluster.need_lines(first.fence_line)
        if isinstance(second, Operation):
            self._cluster.need_lines(second.after_line)
        return ORDERED

    def _pipelined(self, first: Operation, second: Operation) -> bool:
        """MMAs of one thread on one accumulator run in order (PTX ISA 9.1 §9.7.16.6)."""
        return (
            first.kind == second.kind == "mma" and first.of_thread == second.of_thread and first.region == second.region
        )

    def describe(self, cells: Cells, where: Where, hits: npt.NDArray[np.bool_]) -> str:
        columns, lanes = (np.flatnonzero(hits.any(axis=axis)) for axis in (1, 0))
        (column, _), (lane, _) = where
        first, last = (lane + int(lanes[0])) * cells.granule, (lane + int(lanes[-1]) + 1) * cells.granule - 1
        return f"lanes {first}-{last}, columns {column + int(columns[0])}-{column + int(columns[-1])} of tensor memory"
