"""Products against sums over elements that are placed and found one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

Array = np.ndarray[Any, Any]

TYPES: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2, "s8": np.int8, "u8": np.uint8,
}  # fmt: skip
M = 64


def registers(name: str, count: int, first: int = 0) -> str:
    return "{" + ", ".join(f"%{name}{first + i}" for i in range(count)) + "}"


def integers(seed: int, rows: int, k: int, kind: str, most: int = 4) -> Array:
    low = 0 if kind == "u8" else -most
    return np.random.default_rng(seed).integers(low, most + 1, (rows, k)).astype(np.float32).astype(TYPES[kind])


def elements(out: Array, n: int, kind: str) -> Array:
    """D out of the threads' registers, element by element."""
    d = np.zeros((M, n))
    per_register = 2 if kind == "f16" else 1
    parts = out.view({"f32": np.float32, "s32": np.int32, "f16": np.float16}[kind]).reshape(*out.shape, per_register)
    for thread in range(128):
        for index in range(n // 2):
            row = thread // 32 * 16 + thread % 32 // 4 + index // 2 % 2 * 8
            column = index // 4 * 8 + thread % 4 * 2 + index % 2
            d[row, column] = parts[index // per_register, thread, index % per_register]
    return d


def spread(d: Array, kind: str) -> Array:
    """The inverse of `elements`: rows of words for the threads."""
    n = d.shape[1]
    per_register = 2 if kind == "f16" else 1
    dtype: Any = {"f32": np.float32, "s32": np.int32, "f16": np.float16}[kind]
    parts = np.zeros((n // 2 // per_register, 128, per_register), dtype)
    for thread in range(128):
        for index in range(n // 2):
            row = thread // 32 * 16 + thread % 32 // 4 + index // 2 % 2 * 8
            column = index // 4 * 8 + thread % 4 * 2 + index % 2
            parts[index // per_register, thread, index % per_register] = d[row, column]
    return parts.view(np.uint32).reshape(-1, 128)


def instruction(n: int, kinds: str, a: str, b: str, tail: str, scale_d: str = "%p1") -> str:
    """`kinds` as "f32.f16.f16"; D in %d0 on."""
    d_type, a_type, _ = kinds.split(".")[:3]
    k = 256 // (8 * np.dtype(TYPES[a_type]).itemsize)
    count = n // 4 if d_type == "f16" else n // 2
    return f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{kinds} {registers('d', count)}, {a}, {b}, {scale_d}{tail};"


def program(a: tuple[int, ...], b: tuple[int, ...], mma: Callable[[str, str, str], str], load: int = 0) -> str:
    """One group of mma over descriptors of A and B; `load` registers of D come from the input first."""
    lines = [f"ld.global.b32 %d{i}, [%words+{512 * i}];" for i in range(load)]
    lines += [f"setp.eq.u32 %p1, {0 if load else 1}, 0;", "wgmma.fence.sync.aligned;"]
    for step, (x, y) in enumerate(zip(a, b, strict=True)):
        lines += [f"add.u64 %desc0, %rd7, {x:#x};", f"add.u64 %desc1, %rd7, {y:#x};"]
        lines.append(mma("%desc0", "%desc1", "1" if step else "%p1"))
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"]
    return "\n".join(lines)


@pytest.mark.parametrize("span", [128, 64, 32, 16])
@pytest.mark.parametrize(("n", "kind"), [(8, "f16"), (24, "bf16"), (128, "f16"), (256, "bf16")])
def test_k_major_in_every_swizzle(run_wgmma: Any, images: Any, n: int, kind: str, span: int) -> None:
    a, b = integers(n, M, 64, kind), integers(span, n, 64, kind)
    x, y = images.k_major(a, span), images.k_major(b, span)
    mma = lambda p, q, scale: instruction(n, f"f32.{kind}.{kind}", p, q, ", 1, 1, 0, 0", scale)  # noqa: E731
    text = program(x.descriptors, y.moved(len(x.data)), mma)
    got = run_wgmma(text, image=x.data + y.data, stored=n // 2)
    assert got.rules == []
    np.testing.assert_array_equal(elements(got.out, n, "f32"), a.astype(float) @ b.astype(float).T)


@pytest.mark.parametrize("span", [128, 64, 32, 16])
@pytest.mark.parametrize(("a_major", "b_major"), [(1, 0), (0, 1), (1, 1)])
def test_mn_major_in_every_swizzle(run_wgmma: Any, images: Any, a_major: int, b_major: int, span: int) -> None:
    n = 128
    a, b = integers(span, M, 64, "f16"), integers(1, n, 64, "f16")
    x, y = ((images.mn_major if m else images.k_major)(v, span) for m, v in ((a_major, a), (b_major, b)))
    mma = lambda p, q, scale: instruction(n, "f32.f16.f16", p, q, f", 1, 1, {a_major}, {b_major}", scale)  # noqa: E731
    got = run_wgmma(program(x.descriptors, y.moved(len(x.data)), mma), image=x.data + y.data, stored=n // 2)
    assert got.rules == []
    np.testing.assert_array_equal(elements(got.out, n, "f32"), a.astype(float) @ b.astype(float).T)


KINDS = [
    "f32.tf32.tf32", "f32.e4m3.e4m3", "f32.e4m3.e5m2", "f32.e5m2.e4m3", "f16.e5m2.e5m2", "f16.f16.f16",
    "s32.s8.s8", "s32.s8.u8", "s32.u8.s8", "s32.u8.u8", "s32.s8.s8.satfinite",
]  # fmt: skip


@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize("kinds", [*KINDS, "f32.f16.f16", "f32.bf16.bf16"])
def test_every_type_from_both_places_of_a(run_wgmma: Any, images: Any, kinds: str, in_registers: bool) -> None:
    d_type, a_type, b_type = kinds.split(".")[:3]
    n, size = 48, np.dtype(TYPES[a_type]).itemsize
    a, b = integers(1, M, 128 // size, a_type), integers(2, n, 128 // size, b_type)
    before = np.random.default_rng(3).integers(-9, 10, (M, n)).astype(float)
    x, y = images.k_major(a, 128), images.k_major(b, 128)
    tail = "" if d_type == "s32" else ", 1, 1"
    if a_type in ("f16", "bf16"):
        tail += ", 0" if in_registers else ", 0, 0"
    count = n // 4 if d_type == "f16" else n // 2
    words = spread(before, d_type)
    loads = ""
    if in_registers:
        words = np.concatenate([words, *(a_words(a[:, k : k + 32 // size]) for k in range(0, a.shape[1], 32 // size))])
        loads = "\n".join(f"ld.global.b32 %a{i}, [%words+{512 * (count + i)}];" for i in range(16)) + "\n"
    steps = iter(range(4))

    def mma(p: str, q: str, scale: str) -> str:
        source = registers("a", 4, 4 * next(steps)) if in_registers else p
        return instruction(n, kinds, source, q, tail, scale)

    text = loads + program(x.descriptors, y.moved(len(x.data)), mma, load=count)
    got = run_wgmma(text, image=x.data + y.data, words=words, stored=count)
    assert got.rules == []
    wanted = before + a.astype(float) @ b.astype(float).T
    np.testing.assert_array_equal(elements(got.out, n, d_type), wanted)


def a_words(a: Array) -> Array:
    """A's registers of one instruction, 32 bytes of K, element by element."""
    size = a.dtype.itemsize
    per_register = 4 // size
    words = np.zeros((4, 128, per_register), a.dtype)
    for thread in range(128):
        for register in range(4):
            for part in range(per_register):
                row = thread // 32 * 16 + thread % 32 // 4 + register % 2 * 8
                k = (register // 2 * 4 + thread % 4) * per_register + part
                words[register, thread, part] = a[row, k]
    return words.view(np.uint32).reshape(4, 128)


@pytest.mark.parametrize(("scales", "sign"), [("1, 1", 1), ("-1, 1", -1), ("1, -1", -1), ("-1, -1", 1)])
def test_operands_are_negated(run_wgmma: Any, images: Any, scales: str, sign: int) -> None:
    a, b = integers(1, M, 32, "f16"), integers(2, 16, 32, "f16")
    before = np.random.default_rng(3).integers(-9, 10, (M, 16)).astype(float)
    x, y = images.k_major(a, 64), images.k_major(b, 64)
    mma = lambda p, q, scale: instruction(16, "f32.f16.f16", p, q, f", {scales}, 0, 0", scale)  # noqa: E731
    text = program(x.descriptors, y.moved(len(x.data)), mma, load=8)
    got = run_wgmma(text, image=x.data + y.data, words=spread(before, "f32"), stored=8)
    np.testing.assert_array_equal(elements(got.out, 16, "f32"), before + sign * (a.astype(float) @ b.astype(float).T))


@pytest.mark.parametrize(("saturates", "edge"), [(".satfinite", 2**31 - 1), ("", -(2**31) + 3999)])
def test_integer_sums_wrap_or_saturate(run_wgmma: Any, images: Any, saturates: str, edge: int) -> None:
    a, b = np.full((M, 32), 25, np.int8), np.full((8, 32), 5, np.int8)
    x, y = images.k_major(a, 32), images.k_major(b, 32)
    before = np.full((M, 8), 2**31 - 1, np.int64)
    mma = lambda p, q, scale: instruction(8, f"s32.s8.s8{saturates}", p, q, "", scale)  # noqa: E731
    text = program(x.descriptors, y.moved(len(x.data)), mma, load=4)
    got = run_wgmma(text, image=x.data + y.data, words=spread(before, "s32"), stored=4)
    np.testing.assert_array_equal(elements(got.out, 8, "s32"), np.full((M, 8), edge))


def test_long_sums_of_large_integers_are_exact(run_wgmma: Any, images: Any) -> None:
    """1024 of 255 x 255 exceed what f32 sums exactly."""
    a, b = integers(1, M, 1024, "u8", 255), integers(2, 8, 1024, "u8", 255)
    x, y = images.k_major(a, 128), images.k_major(b, 128)
    mma = lambda p, q, scale: instruction(8, "s32.u8.u8", p, q, "", scale)  # noqa: E731
    got = run_wgmma(program(x.descriptors, y.moved(len(x.data)), mma), image=x.data + y.data, stored=4)
    np.testing.assert_array_equal(elements(got.out, 8, "s32"), a.astype(float) @ b.astype(float).T)


def test_tf32_drops_the_low_13_bits(run_wgmma: Any, images: Any) -> None:
    a = (np.random.default_rng(1).integers(1 << 20, 1 << 24, (M, 8)) / 4096).astype(np.float32)
    b = np.eye(8, dtype=np.float32)
    x, y = images.k_major(a, 32), images.k_major(b, 32)
    mma = lambda p, q, scale: instruction(8, "f32.tf32.tf32", p, q, ", 1, 1", scale)  # noqa: E731
    got = run_wgmma(program(x.descriptors, y.moved(len(x.data)), mma), image=x.data + y.data, stored=4)
    kept = (a.view(np.uint32) & 0xFFFFE000).view(np.float32)
    np.testing.assert_array_equal(elements(got.out, 8, "f32"), kept)
    assert (kept != a).any()


def test_f16_accumulators_round_after_every_instruction(run_wgmma: Any, images: Any) -> None:
    """2048 + 1 is 2048 in f16, as often as it is added; 2048 + 4 x 1 would be 2052."""
    a, b = np.zeros((M, 64), np.float16), np.ones((8, 64), np.float16)
    a[:, ::16] = 1
    x, y = images.k_major(a, 128), images.k_major(b, 128)
    mma = lambda p, q, scale: instruction(8, "f16.f16.f16", p, q, ", 1, 1, 0, 0", scale)  # noqa: E731
    text = program(x.descriptors, y.moved(len(x.data)), mma, load=2)
    got = run_wgmma(text, image=x.data + y.data, words=spread(np.full((M, 8), 2048.0), "f16"), stored=2)
    np.testing.assert_array_equal(elements(got.out, 8, "f16"), np.full((M, 8), 2048))
