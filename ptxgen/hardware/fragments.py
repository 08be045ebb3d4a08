"""Register fragments: which thread holds which element, as (thread, register) -> (row, column).

wgmma: PTX ISA 9.1 §9.7.15.5.1.1; ldmatrix and stmatrix: §9.7.14.5.15. Threads of wgmma count
over the warpgroup (0..127), those of ldmatrix over the warp (0..31).
"""

from __future__ import annotations

WGMMA_M = 64
WARPGROUP_THREADS = 128


def wgmma_accumulator_registers(n: int) -> int:
    """f32 or s32 registers of one thread for an m64 x n accumulator."""
    return n // 2


def wgmma_accumulator(thread: int, register: int) -> tuple[int, int]:
    """(row, column) of D in register `register` (one element each; f16 packs 2i and 2i+1)."""
    warp, lane = divmod(thread, 32)
    row = 16 * warp + lane // 4 + 8 * (register >> 1 & 1)
    return row, 8 * (register >> 2) + 2 * (lane % 4) + (register & 1)


def wgmma_accumulator_owner(row: int, column: int) -> tuple[int, int]:
    """Inverse of `wgmma_accumulator`: (thread, register) that hold an element."""
    thread = 32 * (row // 16) + 4 * (row % 8) + column % 8 // 2
    return thread, 4 * (column // 8) + 2 * (row // 8 % 2) + column % 2


def wgmma_a_operand(thread: int, element: int, element_bits: int) -> tuple[int, int]:
    """(row, k) of element `element` of A in registers: 32 bytes of K, elements packed in order.

    A thread holds 8 elements of 16 bits, 16 of 8 bits or 4 of 32 bits, in four registers.
    """
    warp, lane = divmod(thread, 32)
    per_register = 32 // element_bits
    register, part = divmod(element, per_register)
    row = 16 * warp + lane // 4 + 8 * (register & 1)
    return row, per_register * (lane % 4) + part + 4 * per_register * (register >> 1)


def ldmatrix(thread: int, register: int) -> tuple[int, int, int]:
    """(matrix, row, first of two columns) of an 8x8 b16 fragment, also for stmatrix.

    Register i belongs to matrix i, whose row r is addressed by thread 8i + r.
    """
    return register, thread // 4, 2 * (thread % 4)
