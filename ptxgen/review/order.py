"""The order in which CTAs take output tiles, as the emulator saw them store."""

from __future__ import annotations

from ptxgen.device.description import LaunchDescription, TensorMapArgument
from ptxgen.emulator import Event, events
from ptxgen.errors import PtxgenError
from ptxgen.review.sources import Source
from ptxgen.review.trace import record

_TILE_ROWS, _TILE_COLUMNS = 10, 4
"""Output tiles of the run: more rows than a usual band has."""
_WORKERS = 10
"""CTAs, or clusters, of a persistent kernel."""


def tile_order(source: Source, description: LaunchDescription) -> list[tuple[int, int, int, int]]:
    """Tile row, tile column, CTA and its place in that CTA's order, for a problem of one K tile; empty for a kernel
    that does not tell (it stores without tensor maps, or cannot run that problem)."""
    outputs = {buffer.name for buffer in description.buffers if buffer.fill != "input"}
    boxes = [
        argument
        for argument in description.arguments
        if isinstance(argument, TensorMapArgument) and argument.buffer in outputs
    ]
    if not boxes or not description.verify or description.expect is None:
        return []
    m, n, k = description.verify[0]
    clusters = description.cluster
    size = clusters[0] * clusters[1] * clusters[2]
    grid = (_WORKERS * clusters[0], clusters[1], clusters[2]) if description.persistent else None
    problem = {"M": m * _TILE_ROWS, "N": n * _TILE_COLUMNS, "K": k}
    try:
        trace = record(source.text, source.name, description, problem=problem, grid=grid, only=is_store)
    except PtxgenError:
        return []
    found: list[tuple[int, int, int, int]] = []
    taken: dict[int, list[tuple[int, int]]] = {}
    for event in trace.events:
        if isinstance(event, events.AsyncIssue) and isinstance(event.detail, tuple):
            column, row = event.detail[0] // n, event.detail[1] // m
            mine = taken.setdefault(event.unit, [])
            if (row, column) not in mine:
                mine.append((row, column))
                found.append((row, column, event.unit * size, len(mine) - 1))
    return found


def is_store(event: Event) -> bool:
    """Whether an event is the issue of a tensor store."""
    return isinstance(event, events.AsyncIssue) and event.kind == "tensor-store"
