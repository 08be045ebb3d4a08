"""Groups of bulk copies: committed and waited for per thread (PTX ISA 9.1 §9.7.9.25.4)."""

from __future__ import annotations

from ptxgen.emulator import events
from ptxgen.emulator.decode import Decode, Op, instruction
from ptxgen.emulator.values import Registers


@instruction("cp.async.bulk.commit_group")
def commit_group(d: Decode) -> Op:
    line, hooks = d.line, d.hooks

    def op(r: Registers) -> None:
        warp = r[0]
        for lane, groups in warp.bulk.items():
            if warp.bits >> lane & 1:
                tracked = groups.commit()
                if hooks:
                    unit = warp.cta.unit
                    unit.emit(
                        events.Commit(*unit.where(warp, 1 << lane, line), mechanism="bulk-group", tracked=tracked)
                    )

    return op


@instruction("cp.async.bulk.wait_group")
def wait_group(d: Decode) -> Op:
    read_only = d.flag("read")
    pending = d.integer("the number of groups")
    line, hooks = d.line, d.hooks

    def op(r: Registers) -> None:
        warp = r[0]
        engine = warp.cta.unit.engine
        for lane, groups in warp.bulk.items():
            if not warp.bits >> lane & 1:
                continue
            covered = groups.wait(pending, read_only)
            for one in covered:
                if read_only:
                    engine.read_source(one)
                else:
                    engine.complete(one)
                one.waited = True
            if hooks:
                unit = warp.cta.unit
                unit.emit(
                    events.WaitGroup(
                        *unit.where(warp, 1 << lane, line), mechanism="bulk-group", pending=pending,
                        covered=tuple(one.id for one in covered), read_only=read_only,
                    )
                )  # fmt: skip

    return op
