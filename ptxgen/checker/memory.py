"""What the shadows of all memories share: an access is judged against the last write and the reads since."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ptxgen.checker.operations import Operation
from ptxgen.checker.order import ORDERED, Access, Agent, SameLane, Verdict
from ptxgen.checker.shadow import SETS, Block, Box, Cells, Numbers, Where, by_access, distinct

if TYPE_CHECKING:
    from ptxgen.checker.cluster import Cluster

Lanes = npt.NDArray[np.int32]


class Memory(ABC):
    """One shadowed memory. `space` is its name in messages."""

    space = ""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._seen: set[tuple[int, int]] = set()

    @abstractmethod
    def describe(self, cells: Cells, where: Where, hits: npt.NDArray[np.bool_]) -> str:
        """Those cells of a selection that `hits` marks, in words."""

    def _judge_first_access(self, first: Access, lanes: list[int], second: Agent, same_lane: SameLane) -> Verdict:
        order = self._cluster.order
        if isinstance(second, Access):
            return order.thread_then_thread(first, lanes, second, same_lane)
        return order.thread_then_operation(first, lanes, second)

    def _judge_first_operation(self, first: Operation, first_writes: bool, second: Agent) -> Verdict:
        return self._cluster.order.operation_then_agent(first, first_writes, second)

    # -- one access ------------------------------------------------------------------------------

    def touch(self, cells: Cells, box: Box, agent: Agent, write: bool) -> None:
        """The agent as a whole reads or writes a box of cells, one block if there is one."""
        block = cells.blocks.get(box)
        if block is not None:
            self.touch_block(block, cells, box, agent, write)
            return
        if cells.blocks:
            cells.dissolve(box)
        mine = whole_number(agent)
        self._touch_cells(cells, box, None, mine, agent, write)
        if write:
            cells.blocks[box] = Block(mine, 0)

    def touch_block(self, block: Block, cells: Cells, box: Box, agent: Agent, write: bool) -> None:
        """The same for the block that lies in the box."""
        if block.writes:
            self._judge_block(block.writes, cells, box, agent, True, write)
        if not write:
            block.reads = self._reader(block.reads, whole_number(agent), agent)
            return
        if block.reads:
            self._judge_block(block.reads, cells, box, agent, False, True)
        block.writes, block.reads = whole_number(agent), 0

    def touch_by_lane(
        self, cells: Cells, where: npt.NDArray[Any], within: tuple[int, int], lanes: Lanes | None, agent: Agent,
        write: bool,
    ) -> None:  # fmt: skip
        """The same for any cells, all `within` [first, stop); `lanes` says who accesses which of them, None that
        the whole agent accesses all."""
        if cells.blocks:
            cells.dissolve((within,))
        mine: Any = whole_number(agent) if lanes is None else agent.number << 5 | lanes
        self._touch_cells(cells, where, lanes, mine, agent, write)

    def _touch_cells(
        self, cells: Cells, where: Where, lanes: Lanes | None, mine: Any, agent: Agent, write: bool
    ) -> None:
        self._judge_cells(cells.writers(where), cells, where, lanes, agent, True, write)
        readers = cells.readers(where)
        if write:
            self._judge_cells(readers, cells, where, lanes, agent, False, True)
            cells.write(where, mine)
        else:
            cells.read(where, self._readers(readers, mine, agent))

    def _judge_cells(
        self, numbers: Numbers, cells: Cells, where: Where, lanes: Lanes | None, agent: Agent, first_writes: bool,
        second_writes: bool,
    ) -> None:  # fmt: skip
        if not np.count_nonzero(numbers):
            return
        low, top = int(numbers.min()), int(numbers.max())
        if low == top:
            self._judge([low], numbers, cells, where, lanes, agent, first_writes, second_writes)
            return
        if low >= 0 and top < SETS and not self._cluster.paths.cta_scoped:
            if isinstance(agent, Access):
                view = agent.view
                if top >> 5 < view.settled:
                    key = (agent.line, view.settled_path)
                    if key in self._seen:
                        return
                    self._seen.add(key)
            if self._all_known(numbers, agent):
                return
        self._judge(distinct(numbers), numbers, cells, where, lanes, agent, first_writes, second_writes)

    def _judge_block(
        self, number: int, cells: Cells, box: Box, agent: Agent, first_writes: bool, second_writes: bool
    ) -> None:
        if number < 0:  # what follows is _judge, for its most frequent case
            first = self._cluster.operations[-1 - number]
            if self._judge_first_operation(first, first_writes, agent) is ORDERED:
                return
        self._judge([number], None, cells, box, None, agent, first_writes, second_writes)

    def _judge(
        self,
        raw: list[int],
        numbers: Numbers | None,
        cells: Cells,
        where: Where,
        lanes: Lanes | None,
        agent: Agent,
        first_writes: bool,
        second_writes: bool,
    ) -> None:
        """`raw` are the different numbers in the cells, `numbers` all of them; None: a block's."""
        members = self._cluster.readers.members
        flat = raw
        if raw[-1] >= SETS:
            flat = sorted({number for one in raw for number in members(one)})
        shared = _Shared(members, numbers, raw, lanes)
        for access, found in by_access(flat):
            first: Agent
            if access < 0:
                first = self._cluster.operations[-1 - access]
                if first.strong and agent.strong:
                    continue
                verdict = self._judge_first_operation(first, first_writes, agent)
            else:
                first = self._cluster.accesses[access]
                if first.strong and agent.strong:
                    continue
                if isinstance(agent, Access) and (first.order == agent.order or first.same_store(agent)):
                    continue  # one instruction, or one value
                same_lane = shared.same_lane(first, agent)
                among = lane_list(first.lanes) if first.uniform else found
                verdict = self._judge_first_access(first, among, agent, same_lane)
            if verdict is not ORDERED:
                wanted = {access} if access < 0 else {access << 5 | lane for lane in found}
                place = partial(self._describe, cells, where, numbers, raw, wanted)
                self._cluster.conflict(self.space, first, agent, first_writes, second_writes, verdict, place)

    def _describe(self, cells: Cells, where: Where, numbers: Numbers | None, raw: list[int], wanted: set[int]) -> str:
        if numbers is None:
            return self.describe(cells, where, np.ones([stop - start for start, stop in where], np.bool_))
        members = self._cluster.readers.members
        chosen = [one for one in raw if not wanted.isdisjoint(members(one))]
        return self.describe(cells, where, np.isin(numbers, chosen))

    def _all_known(self, numbers: Numbers, agent: Agent) -> bool:
        """Whether every one of these accesses is ordered before the agent for all lanes of its warp."""
        accesses, order = self._cluster.accesses, self._cluster.order
        firsts = [accesses[number] for number in np.unique(numbers >> 5).tolist() if number]
        if isinstance(agent, Access):
            return all(order.knows_whole(agent.view.clock, first) for first in firsts)
        return all(order.knows_whole_proxied(agent.clock, first) for first in firsts)

    # -- readers ---------------------------------------------------------------------------------

    def _reader(self, before: int, mine: int, agent: Agent) -> int:
        """A block's readers after a read: those before that the agent does not know stay."""
        if not before or before == mine:
            return mine
        others = self._kept(before, agent)
        return self._cluster.readers.number(tuple(sorted({*others, mine}))) if others else mine

    def _readers(self, before: Numbers, mine: Any, agent: Agent) -> Any:
        """The same for cells."""
        raw = distinct(before)
        if not raw:
            return mine
        kept = {number: self._kept(number, agent) for number in raw}
        if not any(kept.values()):
            return mine
        numbers = self._cluster.readers.number
        if not isinstance(mine, np.ndarray):
            after = before.copy()
            after[before == 0] = mine
            for number, others in kept.items():
                after[before == number] = numbers(tuple(sorted({*others, mine})))
            return after
        after = np.broadcast_to(mine, before.shape).copy()
        for number, others in kept.items():
            if others:
                for index in np.argwhere(before == number):
                    place = tuple(index)
                    after[place] = numbers(tuple(sorted({*others, int(after[place])})))
        return after

    def _kept(self, number: int, agent: Agent) -> tuple[int, ...]:
        return tuple(reader for reader in self._cluster.readers.members(number) if not self._covers(reader, agent))

    def _covers(self, reader: int, agent: Agent) -> bool:
        """Whether who comes after the agent's read also comes after this one."""
        clock = agent.view.clock if isinstance(agent, Access) else agent.clock
        if reader < 0:
            return bool(clock.read & self._cluster.operations[-1 - reader].bit)
        access, lane = self._cluster.accesses[reader >> 5], reader & 31
        if access.uniform:
            if isinstance(agent, Access) and agent.uniform and agent.warp == access.warp:
                return not access.lanes & ~agent.lanes or clock.warps[access.warp] >> 20 >= access.epoch
            return clock.warps[access.warp] >> 20 >= access.epoch
        if isinstance(agent, Access) and access.warp == agent.warp and agent.lanes == 1 << lane:
            return True
        return clock.knows(access.warp, lane) >> 20 >= access.epoch


def whole_number(agent: Agent) -> int:
    """An agent's number in the cells that it accesses as a whole."""
    if isinstance(agent, Operation):
        return -1 - agent.number
    return agent.number << 5 | (agent.lanes & -agent.lanes).bit_length() - 1


def lane_list(bits: int) -> list[int]:
    return [lane for lane in range(32) if bits >> lane & 1]


class _Shared:
    """Which lanes access the cells that a lane of an earlier access was in; worked out when somebody asks."""

    def __init__(self, members: Callable[[int], tuple[int, ...]], numbers: Numbers | None, raw: list[int],
                 lanes: Lanes | None) -> None:  # fmt: skip
        self._members, self._numbers, self._raw, self._lanes = members, numbers, raw, lanes
        self._of_thread: dict[int, int] = {}
        self._of_access: dict[int, int] = {}

    def same_lane(self, first: Access, second: Agent) -> SameLane:
        """See order.SameLane. What all lanes of a warp did alike, each did itself."""

        def same(lane: int) -> bool:
            if not isinstance(second, Access):
                return False
            if self._lanes is None:
                return second.lanes == 1 << lane or (first.uniform and not second.lanes & ~first.lanes)
            if not self._of_access:
                self._look(self._lanes)
            if first.uniform:
                return not self._of_access.get(first.number, 0) & ~first.lanes
            return not self._of_thread.get(first.number << 5 | lane, 0) & ~(1 << lane)

        return same

    def _look(self, lanes: Lanes) -> None:
        assert self._numbers is not None, "a block is accessed as a whole"
        now: dict[int, int] = {}
        pairs = np.unique(self._numbers.astype(np.int64) << 5 | lanes)
        for pair in pairs.tolist():
            now[pair >> 5] = now.get(pair >> 5, 0) | 1 << (pair & 31)
        for number in self._raw:
            for member in self._members(number):
                self._of_thread[member] = self._of_thread.get(member, 0) | now[number]
                self._of_access[member >> 5] = self._of_access.get(member >> 5, 0) | now[number]
