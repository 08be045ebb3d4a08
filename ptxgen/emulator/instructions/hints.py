"""Prefetches and cache policies: checked, without effect, as caches are not modelled."""

from __future__ import annotations

import struct

import numpy as np

from ptxgen.emulator.decode import Decode, Op, instruction
from ptxgen.emulator.values import Registers
from ptxgen.errors import NotSupportedError

_ONE = 0x3F800000  # the f32 1.0
_UNCHANGED = "L2::evict_unchanged"
_POLICIES = {
    ("L2::evict_first", _UNCHANGED, 1.0): 0x12F0000000000000,
    ("L2::evict_last", _UNCHANGED, 1.0): 0x14F0000000000000,
    ("L2::evict_normal", _UNCHANGED, 1.0): 0x16F0000000000000,
    (_UNCHANGED, _UNCHANGED, 1.0): 0x10F0000000000000,
    ("L2::evict_first", _UNCHANGED, 0.5): 0x1270000000000000,
    ("L2::evict_last", _UNCHANGED, 0.5): 0x1470000000000000,
    ("L2::evict_normal", _UNCHANGED, 0.5): 0x1670000000000000,
    ("L2::evict_last", "L2::evict_first", 0.5): 0x1570000000000000,
}
"""(primary priority, secondary priority, fraction of the accesses) -> policy, as recorded on an H200
(docs/hardware-facts.md); PTX leaves the bits open."""


@instruction("prefetch", "prefetchu")
def prefetch(d: Decode) -> Op:
    """No effect here; the address is checked by the access that follows."""
    d.optional("L1", "L2")
    d.optional("global", "local", "param", "const")
    d.optional("L2::evict_last", "L2::evict_normal")
    d.flag("tensormap")
    d.address()
    return _no_effect


@instruction("createpolicy")
def createpolicy(d: Decode) -> Op:
    """Policies have no effect, but kernels may look at their bits (PTX ISA 9.1 §9.7.9.18)."""
    form = d.choice("fractional", "range", "cvt")
    if form != "fractional":
        d.fail(f"createpolicy.{form} is not supported: what bits it gives is not known")
    primary = d.choice("L2::evict_first", "L2::evict_last", "L2::evict_normal", _UNCHANGED)
    secondary = d.choice("L2::evict_first", _UNCHANGED, default=_UNCHANGED)
    d.require("b64")
    out = d.dst("b64")
    fraction = d.src("f32") if d.operands else d.slots.constant(_ONE, 32)

    def policy(bits: int) -> int:
        (part,) = struct.unpack("<f", bits.to_bytes(4, "little"))
        found = _POLICIES.get((primary, secondary, part))
        if found is None:
            form = f"createpolicy.fractional.{primary}.{secondary}.b64 with fraction {part:g}"
            raise NotSupportedError(f"{form}: what bits it gives is not known; known: 1, mostly 0.5")
        return found

    def op(r: Registers) -> None:
        x = r[fraction]
        r[out] = policy(x) if type(x) is int else np.array([policy(int(bits)) for bits in x], dtype=np.uint64)

    return op


@instruction("applypriority", "discard")
def hint(d: Decode) -> Op:
    d.flag("global")
    d.optional("L2::evict_normal", "L2")
    d.address()
    d.integer("the size")
    return _no_effect


def _no_effect(r: Registers) -> None:
    return
