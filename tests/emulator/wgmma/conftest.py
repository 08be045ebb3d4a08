"""Kernels of one or more warpgroups around a few wgmma instructions, and operands as shared memory holds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ptxgen.emulator import GlobalMemory, Machine, Report, load_module
from ptxgen.hardware.targets import target

Array = np.ndarray[Any, Any]

# The image is copied to shared memory from %smem on; %rd7 is that address in units of 16 bytes. %words and %out point
# to this thread's word of the first row of the input and of the output.
TEXT = """\
.version 8.0
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel(.param .u64 image, .param .u32 image_bytes, .param .u64 words, .param .u64 out)
{{
    .reg .pred %p<8>;
    .reg .b32 %t, %warp, %smem, %at, %bytes, %x<8>, %a<16>, %d<160>;
    .reg .b64 %image, %words, %out, %from, %rd<8>, %desc<16>;
    mov.u32 %t, %tid.x;
    shr.u32 %warp, %t, 5;
    mov.u32 %smem, smem;
    ld.param.u64 %image, [image];
    ld.param.u32 %bytes, [image_bytes];
    ld.param.u64 %words, [words];
    ld.param.u64 %out, [out];
    mul.wide.u32 %rd0, %t, 4;
    add.u64 %words, %words, %rd0;
    add.u64 %out, %out, %rd0;
    shl.b32 %at, %t, 4;
copy:
    setp.ge.u32 %p0, %at, %bytes;
    @%p0 bra copied;
    cvt.u64.u32 %rd0, %at;
    add.u64 %from, %image, %rd0;
    ld.global.v4.b32 {{%x0, %x1, %x2, %x3}}, [%from];
    add.u32 %x4, %smem, %at;
    st.shared.v4.b32 [%x4], {{%x0, %x1, %x2, %x3}};
    add.u32 %at, %at, {step};
    bra copy;
copied:
    fence.proxy.async.shared::cta;
    bar.sync 0;
    cvt.u64.u32 %rd7, %smem;
    shr.u64 %rd7, %rd7, 4;
{body}
    ret;
}}
"""


@dataclass(frozen=True)
class Outcome:
    """`out` is what the threads stored: rows of a word for each."""

    report: Report
    out: Array

    @property
    def rules(self) -> list[str]:
        return [finding.rule for finding in self.report.findings]


def kernel(body: str, threads: int = 128, stored: int = 0) -> str:
    """The text; %d0 … %d<stored - 1> are stored after the body."""
    stores = [f"    st.global.b32 [%out+{4 * threads * i}], %d{i};" for i in range(stored)]
    return TEXT.format(body="\n".join([body, *stores]), step=16 * threads)


@pytest.fixture
def wgmma_kernel() -> Callable[..., str]:
    return kernel


@pytest.fixture
def run_wgmma() -> Callable[..., Outcome]:
    """`run_wgmma(body, image=bytes, words=rows of u32 for each thread, stored=registers)` runs a body on one CTA."""

    def run(
        body: str,
        *,
        image: bytes = bytes(1024),
        words: Array | None = None,
        stored: int = 0,
        threads: int = 128,
        **options: Any,
    ) -> Outcome:
        memory = GlobalMemory()
        raw = np.zeros(1, np.uint32) if words is None else np.ascontiguousarray(words, dtype=np.uint32).reshape(-1)
        sources = [memory.allocate(size, name=name) for name, size in (("image", len(image)), ("words", raw.nbytes))]
        sources[0].data[:] = np.frombuffer(image, np.uint8)
        sources[1].data[:] = raw.view(np.uint8)
        out = memory.allocate(4 * threads * max(1, stored), name="out")
        out.data[:] = 0
        pointers = [buffer.address.to_bytes(8, "little") for buffer in (*sources, out)]
        report = Machine(chip=target("sm_90a"), memory=memory, workers=1, **options).launch(
            load_module(kernel(body, threads, stored), name="body.ptx"),
            "kernel",
            grid=(1, 1, 1),
            block=(threads, 1, 1),
            dynamic_smem_bytes=len(image),
            arguments=[pointers[0], len(image).to_bytes(4, "little"), *pointers[1:]],
        )
        return Outcome(report, out.data.view(np.uint32).copy().reshape(-1, threads))

    return run


@dataclass(frozen=True)
class Image:
    """A matrix as the tensor core reads it: its bytes, and a descriptor for every 32 bytes of K, from address 0."""

    data: bytes
    descriptors: tuple[int, ...]

    def moved(self, place: int) -> tuple[int, ...]:
        return tuple(descriptor + (place >> 4) for descriptor in self.descriptors)


SWIZZLE_CODES = {128: 1, 64: 2, 32: 3, 16: 0}


def _descriptor(start: int, lbo: int, sbo: int, span: int) -> int:
    return start >> 4 | lbo >> 4 << 16 | sbo >> 4 << 32 | SWIZZLE_CODES[span] << 62


def k_major(matrix: Array, span: int) -> Image:
    """Rows of MN, columns of K; `span` is the swizzle in bytes, 16 none."""
    raw = np.ascontiguousarray(matrix)
    data = raw.view(np.uint8).reshape(raw.shape[0], -1)
    rows, row_bytes = data.shape
    panel = rows * span  # all rows by one span of K
    image = np.zeros(rows * row_bytes, np.uint8)
    for r in range(rows):
        for byte in range(0, row_bytes, 16):
            at = r * span + byte % span + byte // span * panel
            at ^= (at >> 7 & (span // 16 - 1)) << 4
            image[at : at + 16] = data[r, byte : byte + 16]
    starts = [32 * step // span * panel + 32 * step % span for step in range(row_bytes // 32)]
    lbo = panel if span == 16 else 16
    return Image(image.tobytes(), tuple(_descriptor(start, lbo, 8 * span, span) for start in starts))


def mn_major(matrix: Array, span: int) -> Image:
    """The same matrix, of 16-bit elements, with MN contiguous; K comes in groups of 8."""
    data = np.ascontiguousarray(matrix).view(np.uint16)
    rows, k = data.shape
    width = span // 2  # elements of MN in one span
    group = rows // width * 8 * span  # all of MN by 8 of K
    image = np.zeros(rows * k, np.uint16)
    for r in range(rows):
        for column in range(k):
            at = r % width * 2 + column % 8 * span + r // width * 8 * span + column // 8 * group
            image[(at ^ (at >> 7 & (span // 16 - 1)) << 4) // 2] = data[r, column]
    lbo, sbo = (group, 8 * span) if span == 16 else (8 * span, group)  # without a swizzle they change roles
    return Image(image.tobytes(), tuple(_descriptor(start // 8 * group, lbo, sbo, span) for start in range(0, k, 16)))


class Images:
    k_major = staticmethod(k_major)
    mn_major = staticmethod(mn_major)


@pytest.fixture
def images() -> type[Images]:
    """`images.k_major(matrix, span)` and `images.mn_major(matrix, span)`."""
    return Images
