"""setmaxnreg: what warps have at launch, give up and take."""

from __future__ import annotations

import pytest

from ptxgen.emulator import GlobalMemory, Machine, Report, load_module
from ptxgen.hardware.targets import target
from ptxgen.toolchain import assemble, find_tool

TEXT = """\
.version 8.0
.target sm_90a
.address_size 64
.visible .entry kernel(.param .u64 out)
.reqntid {threads}
{directive}
{{
    .reg .pred %first;
    .reg .b32 %t, %group;
    .reg .b64 %out;
    ld.param.u64 %out, [out];
    mov.u32 %t, %tid.x;
    shr.u32 %group, %t, 7;
    setp.eq.u32 %first, %group, 0;
    @%first bra first;
    {others}
    st.global.u32 [%out], %t;
    ret;
first:
    {one}
    st.global.u32 [%out+4], %t;
    ret;
}}
"""


def kernel(threads: int, one: int | None, others: int | None, directive: str = ".minnctapersm 1") -> str:
    """The first warpgroup gives registers up, the others take some."""
    dec = f"setmaxnreg.dec.sync.aligned.u32 {one};" if one else ""
    inc = f"setmaxnreg.inc.sync.aligned.u32 {others};" if others else ""
    return TEXT.format(threads=threads, directive=directive, others=inc, one=dec)


def run(text: str, threads: int) -> Report:
    memory = GlobalMemory()
    out = memory.allocate(8, name="out")
    return Machine(chip=target("sm_90a"), memory=memory, workers=1).launch(
        load_module(text, name="body.ptx"),
        "kernel",
        grid=(1, 1, 1),
        block=(threads, 1, 1),
        arguments=[out.address.to_bytes(8, "little")],
    )


@pytest.mark.parametrize(
    ("threads", "one", "others", "directive", "used"),
    [
        (256, 24, 240, ".minnctapersm 1", 240),
        (256, 40, 200, ".minnctapersm 1", 200),
        (256, 24, None, ".minnctapersm 1", 255),
        (384, 24, 240, ".minnctapersm 1", 168),
        (384, 24, 240, ".maxnreg 128", 128),
        (384, 24, 96, ".maxnreg 160", 96),
        (512, 24, 160, ".minnctapersm 1", 128),
    ],
)
def test_registers_at_launch_are_those_of_ptxas(
    threads: int, one: int | None, others: int | None, directive: str, used: int
) -> None:
    """In whole eights; a dec to more is an error that names them."""
    if find_tool("ptxas") is not None:
        (entry,) = assemble(kernel(threads, one, others, directive), name="body.ptx").entries
        assert entry.registers == used
    allocated = -(-used // 8) * 8
    if allocated == 256:
        assert run(kernel(threads, 256, others, directive), threads).findings == ()
        return
    (finding,) = run(kernel(threads, allocated + 8, others, directive), threads).findings
    assert finding.rule == "register-pool-exhausted"
    assert f"from {allocated} grows" in finding.message


@pytest.mark.parametrize(("one", "others", "enough"), [(24, 240, True), (40, 232, True), (40, 240, False)])
def test_the_pool_holds_what_was_given_up(one: int, others: int, enough: bool) -> None:
    """384 threads have 168 each: two warpgroups can take 2 x 72 where one gave up 144, not 128."""
    findings = run(kernel(384, one, others), 384).findings
    assert [finding.rule for finding in findings] == ([] if enough else ["register-pool-exhausted"])
