"""Bytes that a kernel moves from and to memory."""

from __future__ import annotations

from ptxgen.hardware.element_types import element_type
from ptxgen.hardware.targets import Target
from ptxgen.spec import GemmSpec


def memory_bytes(
    spec: GemmSpec, chip: Target, problem: tuple[int, int, int], *, tile: tuple[int, int], at_once: int
) -> float:
    """D once; A and B once where both fit the L2 cache, else once for every wave of tiles that needs them.

    problem: M, N, K. tile: rows and columns of one unit of the schedule, of which `at_once` run together.
    """
    m, n, k = problem
    size, out = element_type(spec.operand_type).bytes, element_type(spec.output_type).bytes
    written = m * n * out
    both = (m + n) * k * size
    if both <= chip.l2_bytes:
        return both + written
    m_tiles, n_tiles = -(-m // tile[0]), -(-n // tile[1])
    group = min(spec.scheduler.group or 1, m_tiles)
    across = min(-(-at_once // group), n_tiles)
    waves = -(-m_tiles * n_tiles // at_once)
    rows, columns = min(-(-at_once // across), m_tiles) * tile[0], across * tile[1]
    return min(waves * (rows + columns) * k * size, (m * n_tiles + n * m_tiles) * k * size) + written
