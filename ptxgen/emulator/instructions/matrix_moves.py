"""ldmatrix, stmatrix, movmatrix: a warp moves 8x8 matrices of 16-bit elements
(PTX ISA 9.1 §9.7.14.5.15 to 17).

Matrix i has its rows, 16 bytes each, at the addresses of lanes 8i to 8i+7. Lane l holds in register
i the columns 2 * (l % 4) and the next of row l // 4; with .trans rows and columns change roles.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.emulator.decode import Decode, Op, instruction
from ptxgen.emulator.instructions.access import Access, lane_groups, report_access, whole_warp
from ptxgen.emulator.memory import Block
from ptxgen.emulator.values import LANES, Registers, to_lanes
from ptxgen.errors import MachineError, NotSupportedError

_ROW_BYTES = 16
_ALL = slice(None)
_NOT_MODELLED = ("m16n16", "m8n16", "m16n8")


def _shape(d: Decode) -> tuple[int, bool, str]:
    """How many matrices, whether transposed, and the state space."""
    d.require("sync", "aligned")
    for shape in _NOT_MODELLED:
        if d.has(shape):
            raise NotSupportedError(f"{d.module.file}:{d.line}: {d.opcode} with .{shape} is not modelled")
    d.require("m8n8", "b16")
    count = int(d.choice("x1", "x2", "x4")[1:])
    transposed = d.flag("trans")
    return count, transposed, d.optional("shared", "shared::cta")


def _transposed(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The registers (matrices x 32 lanes) of the transposed matrices."""
    elements = words.view(np.uint16).reshape(-1, 8, 8).transpose(0, 2, 1)
    return np.ascontiguousarray(elements).view(np.uint32).reshape(-1, LANES)


class _Rows:
    """The rows that the first 8 lanes for each matrix address."""

    def __init__(self, d: Decode, count: int, space: str) -> None:
        self.access = Access(d, space, _ROW_BYTES, 1)
        self.count = 8 * count
        self.hooks = d.hooks

    def find(self, r: Registers, kind: str) -> list[tuple[Block, Any, Any]]:
        """(block, lanes, indices of 16 bytes) of what these lanes address."""
        warp = r[0]
        warp.require_converged(self.access.name)
        found = whole_warp(self.access, r, write=kind == "write") if self.count == LANES else None
        if found is not None:
            own, index, ranges = found
            if self.hooks:
                report_access(self.access, r, kind, "weak", own.smem, ranges, own, warp.bits)
            return [(own.smem, _ALL, index)]
        saved = warp.narrow((1 << self.count) - 1)
        try:
            groups = lane_groups(self.access, warp, to_lanes(self.access.addresses(r), 64))
        finally:
            warp.widen(saved)
        places = []
        for block, lanes, offsets, cta in groups:
            if cta is None:
                raise MachineError("out-of-bounds", f"{self.access.name} addresses shared memory only")
            if self.hooks:
                bits = sum(1 << int(lane) for lane in lanes)
                report_access(self.access, r, kind, "weak", block, offsets, cta, bits)
            if kind == "write" and int(offsets.min()) < cta.barrier_high:
                for offset in offsets.tolist():
                    cta.check_store(offset, offset + _ROW_BYTES)
            places.append((block, lanes, offsets >> 4))
        return places


def _registers(d: Decode, count: int, write: bool) -> list[int]:
    slots = d.vector("b32", write=write)
    if len(slots) != count:
        d.fail(f"{d.item.name} takes {count} register(s), not {len(slots)}")
    return slots


@instruction("ldmatrix")
def ldmatrix(d: Decode) -> Op:
    count, transposed, space = _shape(d)
    slots = _registers(d, count, write=True)
    rows = _Rows(d, count, space)

    def op(r: Registers) -> None:
        raw = np.empty(8 * count, dtype=np.complex128)  # 16 bytes each
        for block, lanes, index in rows.find(r, "read"):
            raw[lanes] = block.views[_ROW_BYTES][index]
        words = raw.view(np.uint32).reshape(count, LANES)
        for slot, value in zip(slots, _transposed(words) if transposed else words, strict=True):
            r[slot] = value

    return op


@instruction("stmatrix")
def stmatrix(d: Decode) -> Op:
    count, transposed, space = _shape(d)
    rows = _Rows(d, count, space)
    slots = _registers(d, count, write=False)

    def op(r: Registers) -> None:
        words = np.empty((count, LANES), dtype=np.uint32)
        for place, slot in enumerate(slots):
            words[place] = r[slot]
        raw = (_transposed(words) if transposed else words).reshape(-1).view(np.complex128)
        for block, lanes, index in rows.find(r, "write"):
            block.views[_ROW_BYTES][index] = raw[lanes]
        r[0].cta.unit.activity += 1

    return op


@instruction("movmatrix")
def movmatrix(d: Decode) -> Op:
    d.require("sync", "aligned", "m8n8", "trans", "b16")
    out, a = d.dst("b32"), d.src("b32")

    def op(r: Registers) -> None:
        r[0].require_converged("movmatrix")
        r[out] = _transposed(to_lanes(r[a], 32).reshape(1, LANES))[0]

    return op
