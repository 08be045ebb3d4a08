"""Branches, ends, calls, naps (PTX ISA 9.1 §9.7.12, §9.7.19)."""

from __future__ import annotations

from ptxgen.emulator import events
from ptxgen.emulator.decode import Decode, Ends, Op, instruction
from ptxgen.emulator.module import FunctionName
from ptxgen.emulator.values import Registers
from ptxgen.emulator.warp import Wait, Warp
from ptxgen.errors import MachineError


@instruction("bra")
def bra(d: Decode) -> Ends:
    d.flag("uni")
    return Ends(kind="branch", targets=(d.label(),))


@instruction("brx.idx")
def brx(d: Decode) -> Ends:
    d.flag("uni")
    index = d.src("u32")
    table = d.operand()
    targets = d.table(table.name) if isinstance(table, FunctionName) else None
    if not targets:
        d.fail("brx.idx needs a .branchtargets table with at least one label")
    return Ends(kind="indexed", targets=targets, index=index)


@instruction("ret", "exit")
def leave(d: Decode) -> Ends:
    d.flag("uni")
    return Ends(kind="exit")


@instruction("trap")
def trap(d: Decode) -> Op:
    def op(r: Registers) -> None:
        raise MachineError("trap", "the kernel executed trap")

    return op


@instruction("brkpt", "pmevent", "pmevent.mask")
def nothing(d: Decode) -> Op:
    if d.opcode != "brkpt":
        d.integer("the event")
    return _no_effect


@instruction("griddepcontrol.launch_dependents", "griddepcontrol.wait")
def griddepcontrol(d: Decode) -> Op:
    """Launches are in order here: what came before is complete and visible."""
    if not d.hooks or d.opcode != "griddepcontrol.wait":
        return _no_effect
    line = d.line

    def op(r: Registers) -> None:
        warp = r[0]
        unit = warp.cta.unit
        unit.emit(events.GridWait(*unit.where(warp, warp.bits, line)))

    return op


@instruction("nanosleep")
def nanosleep(d: Decode) -> Ends:
    d.require("u32")
    d.src("u32")
    line = d.line

    def op(r: Registers) -> bool:
        return bool(r[0].wait(Wait("sleep", line)))

    return Ends(kind="blocking", op=op)


@instruction("setmaxnreg.inc", "setmaxnreg.dec")
def setmaxnreg(d: Decode) -> Ends:
    """Moves registers between warps and the CTA's pool; `inc` waits until the pool has them. The
    pool's size is known only when the entry's directives fix the registers at launch."""
    d.require("sync", "aligned", "u32")
    wanted = d.integer("the register count")
    if not 24 <= wanted <= 256 or wanted % 8:
        d.fail(f"setmaxnreg takes a multiple of 8 from 24 to 256, not {wanted}")
    grows = d.opcode.endswith("inc")
    line = d.line
    request, hooks = (f"{d.opcode} to {wanted}", line), d.hooks

    def granted(warp: Warp) -> bool:
        warp.register_requests.append(request)
        if hooks:
            unit = warp.cta.unit
            unit.emit(events.RegisterRequest(*unit.where(warp, warp.bits, line)))
        return True

    def op(r: Registers) -> bool:
        warp = r[0]
        warp.require_converged("setmaxnreg")
        cta = warp.cta
        have = warp.registers_per_thread
        if not have:
            return granted(warp)
        if grows:
            if wanted < have:
                raise MachineError("register-pool-exhausted", f"setmaxnreg.inc to {wanted} from {have} shrinks")
            if wanted - have > cta.register_pool:
                cta.pool_waiters.append(warp.current)
                return bool(warp.wait(Wait("registers", line, detail=(wanted, have, cta.register_pool))))
            cta.register_pool -= wanted - have
        else:
            if wanted > have:
                raise MachineError("register-pool-exhausted", f"setmaxnreg.dec to {wanted} from {have} grows")
            cta.register_pool += have - wanted
            for fragment in cta.pool_waiters:
                fragment.wait = None
            cta.pool_waiters.clear()
        warp.registers_per_thread = wanted
        cta.unit.activity += 1
        return granted(warp)

    return Ends(kind="blocking", op=op, repeats=True)


def _no_effect(r: Registers) -> None:
    return


def emit_warp_sync(d: Decode, op: Op, what: str) -> Op:
    """Wraps an op that makes lanes meet, for observers."""
    line = d.line

    def observed(r: Registers) -> None:
        warp = r[0]
        unit = warp.cta.unit
        unit.emit(events.WarpSync(*unit.where(warp, warp.bits, line), what=what, mask=warp.bits))
        op(r)

    return observed
