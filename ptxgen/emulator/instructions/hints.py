"""Prefetches and cache policies: checked, without effect, as caches are not modelled."""

from __future__ import annotations

from ptxgen.emulator.decode import Decode, Op, instruction
from ptxgen.emulator.values import Registers


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
    """Cache policies have no effect; the value is opaque (PTX ISA 9.1 §9.7.9.18)."""
    form = d.choice("fractional", "range", "cvt")
    d.optional("L2", "global")
    d.flag("global")
    d.optional("L2::evict_first", "L2::evict_last", "L2::evict_normal", "L2::evict_unchanged")
    d.optional("L2::evict_first", "L2::evict_unchanged")
    d.require("b64")
    out = d.dst("b64")
    if form == "range":
        d.address()
        d.src("u32")
        d.src("u32")
    elif form == "cvt":
        d.src("b64")
    elif d.operands:
        d.src("f32")

    def op(r: Registers) -> None:
        r[out] = 0x12F0000000000000

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


