"""How many CTAs of a kernel an SM holds at a time, and what limits them."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.hardware.targets import Target

_REGISTER_UNIT = 256
"""Registers are given to warps in units of so many (CUDA C++ Programming Guide, occupancy)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """CTAs per SM, and the resources that allow no more."""

    ctas: int
    limits: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.ctas} (limited by {', '.join(self.limits)})"


def occupancy(*, chip: Target, threads: int, registers: int, smem_bytes: int, tmem_columns: int) -> Occupancy:
    """`registers` per thread at launch; `smem_bytes` static and dynamic; 0 leaves a resource out."""
    warps = -(-threads // 32)
    room = {"CTA slots": chip.max_ctas_per_sm, "threads": chip.max_threads_per_sm // (32 * warps)}
    if registers:
        per_warp = -(-registers * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
        room["registers"] = chip.registers_per_sm // (per_warp * warps)
    room["SMEM"] = chip.smem_per_sm_bytes // (smem_bytes + chip.smem_reserved_bytes)
    if tmem_columns:
        room["TMEM"] = chip.tmem_columns // tmem_columns
    ctas = min(room.values())
    return Occupancy(ctas=ctas, limits=tuple(name for name, most in room.items() if most == ctas))
