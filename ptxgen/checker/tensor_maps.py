"""Tensor maps that a kernel makes: from the generic proxy to the tensormap proxy, and not past it.

Who writes a map releases it (tensormap.cp_fenceproxy, or fence.proxy.tensormap::generic.release), who uses it has
acquired its 128 bytes since (PTX ISA 9.1 §9.7.13.4). A map that nobody wrote in this launch needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ptxgen.checker.clocks import epoch_of
from ptxgen.hardware.tensor_map import TENSOR_MAP_BYTES

if TYPE_CHECKING:
    from ptxgen.checker.cluster import Cluster
    from ptxgen.checker.operations import Operation
    from ptxgen.checker.order import Access
    from ptxgen.emulator import events
    from ptxgen.emulator.events import Ranges


class _Release(NamedTuple):
    order: int
    warp: int
    lanes: int
    line: int


class MapFences:
    """The fences of one cluster between the generic and the tensormap proxy."""

    def __init__(self) -> None:
        self._releases: list[_Release] = []
        self._acquires: dict[int, list[Access]] = {}

    def release(self, cluster: Cluster, event: events.Fence) -> None:
        self._releases.append(_Release(cluster.now, cluster.warp(event).number, event.lanes, event.line))

    def acquire(self, cluster: Cluster, event: events.Fence) -> None:
        """The fence reads the map as a thread does: what it brings over must be there by then."""
        agents = cluster.thread_agents(event, uniform=True, write=False)
        cluster.globals.access(agents, ((event.address, event.address + TENSOR_MAP_BYTES),), event.lanes, False)
        self._acquires.setdefault(event.address, []).extend(access for _, access in agents)

    def use(self, cluster: Cluster, operation: Operation, ranges: Ranges) -> None:
        """An operation goes by the map at `ranges`."""
        operation.reads_map = True
        cluster.globals.access(((0, operation),), ranges, 0, False)
        operation.reads_map = False
        ((start, stop),) = ranges
        for write in cluster.globals.writers(start, stop):
            self._judge(cluster, operation, start, write)

    def _judge(self, cluster: Cluster, operation: Operation, address: int, write: Access) -> None:
        released = next((one for one in self._releases if _after(one, write)), None)
        acquired = released and next(
            (
                one
                for one in self._acquires.get(address, ())
                if released.order < one.order < operation.order and _knows(operation, one)
            ),
            None,
        )
        if released and acquired:
            cluster.need_lines(released.line, acquired.line)
        else:
            cluster.findings.map_not_fenced(cluster, write, operation, released.line if released else 0)


def _after(release: _Release, write: Access) -> bool:
    return release.warp == write.warp and not write.lanes & ~release.lanes and release.order > write.order


def _knows(operation: Operation, acquired: Access) -> bool:
    """Whether its issuing thread ran the fence, or comes after one that did."""
    clock = operation.clock
    return any(
        acquired.warp << 5 | lane == operation.of_thread or epoch_of(clock.knows(acquired.warp, lane)) >= acquired.epoch
        for lane in range(32)
        if acquired.lanes >> lane & 1
    )
