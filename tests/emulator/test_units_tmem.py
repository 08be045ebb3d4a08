"""Tensor memory: allocation rules, and loads and stores against the shapes' maps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgen.emulator.tmem import Tmem, TmemRegion, lane_is_implicit
from ptxgen.errors import MachineError, SpecError
from ptxgen.hardware.tmem import ACCESS_SHAPES, REPEATS, access_shape, pack_address


def filled(columns: int = 512) -> Tmem:
    """All words distinct, `columns` columns allocated."""
    tmem = Tmem()
    tmem.alloc(columns)
    # An odd factor maps different numbers to different words, with both halves in use.
    numbers = np.arange(tmem.words.size, dtype=np.uint32) * np.uint32(2654435761)
    tmem.words[...] = numbers.reshape(tmem.words.shape)
    return tmem


def rule_of(action: Callable[[], object]) -> str:
    with pytest.raises(MachineError) as error:
        action()
    return error.value.rule


def test_allocation_life() -> None:
    tmem = Tmem()
    tmem.check_exit()
    assert [tmem.alloc(256), tmem.alloc(128), tmem.alloc(128)] == [0, 256, 384]
    assert tmem.alloc(32) is None
    tmem.dealloc(256, 128)
    assert tmem.alloc(32) == 256
    tmem.relinquish()
    for address, columns in ((0, 256), (256, 32), (384, 128)):
        tmem.dealloc(address, columns)
    tmem.check_exit()


def test_allocation_errors() -> None:
    tmem = Tmem()
    for columns in (0, 16, 48, 1024):
        assert rule_of(lambda: tmem.alloc(columns)) == "illegal-tmem-allocation"  # noqa: B023
    tmem.alloc(64)
    assert rule_of(lambda: tmem.alloc(128)) == "illegal-tmem-allocation"
    assert rule_of(lambda: tmem.dealloc(0, 32)) == "illegal-tmem-allocation"
    assert rule_of(lambda: tmem.dealloc(pack_address(32, 0), 64)) == "illegal-tmem-allocation"
    assert rule_of(tmem.check_exit) == "tmem-leak"
    tmem.dealloc(0, 64)
    assert rule_of(lambda: tmem.dealloc(0, 64)) == "tmem-use-after-dealloc"
    tmem.relinquish()
    assert rule_of(lambda: tmem.alloc(32)) == "alloc-after-relinquish"


def test_access_needs_an_allocation() -> None:
    tmem = Tmem()
    assert rule_of(lambda: tmem.load("32x32b", 1, 0, 0)) == "out-of-bounds"
    tmem.alloc(64)
    assert tmem.load("32x32b", 32, 0, 32).shape == (32, 32)
    assert rule_of(lambda: tmem.load("32x32b", 32, 0, 33)) == "out-of-bounds"
    assert rule_of(lambda: tmem.load("16x32bx2", 8, 0, 0, half_split=60)) == "out-of-bounds"
    tmem.dealloc(0, 64)
    assert rule_of(lambda: tmem.load("32x32b", 32, 0, 32)) == "tmem-use-after-dealloc"
    tmem.alloc(64)
    assert tmem.load("32x32b", 32, 0, 32).shape == (32, 32)


def test_reset_is_a_new_tmem() -> None:
    tmem = filled(256)
    tmem.relinquish()
    tmem.reset(7)
    assert (tmem.words == 7).all()
    assert tmem.alloc(512) == 0


def test_lane_rules() -> None:
    tmem = filled()
    assert np.array_equal(tmem.load("32x32b", 1, 6, pack_address(64, 3))[0], tmem.words[3, 64:96])
    # The warp's own lanes are filled in when the address leaves them out.
    assert np.array_equal(tmem.load("32x32b", 1, 6, 3)[0], tmem.words[3, 64:96])
    assert lane_is_implicit(6, 3)
    assert lane_is_implicit(6, pack_address(16, 3))
    assert not lane_is_implicit(6, pack_address(64, 3))
    assert not lane_is_implicit(4, 3)
    for warp, lane in ((1, 64), (1, 48), (1, 16), (0, 32)):
        assert rule_of(lambda: tmem.load("32x32b", 1, warp, lane << 16)) == "tmem-lane-access"  # noqa: B023
    for warp, lane in ((1, 64), (1, 40), (0, 32)):
        assert rule_of(lambda: tmem.load("16x64b", 1, warp, lane << 16)) == "tmem-lane-access"  # noqa: B023
    with pytest.raises(SpecError, match="x3"):
        tmem.load("16x64b", 3, 0, 0)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_loads_and_stores_follow_the_shape(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(sorted(ACCESS_SHAPES)))
    kind = access_shape(shape)
    repeats = data.draw(st.sampled_from([count for count in REPEATS if count <= min(kind.max_repeats, 16)]))
    pack = data.draw(st.booleans())
    warp = data.draw(st.integers(0, 7))
    width = kind.columns(repeats, pack=pack)
    column = data.draw(st.integers(0, 512 - 2 * width))
    split = data.draw(st.integers(width, 512 - width - column)) if shape == "16x32bx2" else 0
    half = 0 if shape == "32x32b" else data.draw(st.sampled_from([0, 16]))
    lane = 32 * (warp % 4) + half
    address = pack_address(data.draw(st.sampled_from([lane, half])), column)
    places = {
        (register, thread): [
            (column + where, lane + row) for row, where in kind.positions(thread, register, pack=pack, half_split=split)
        ]
        for register in range(kind.registers(repeats))
        for thread in range(32)
    }
    tmem = filled()
    loaded = tmem.load(shape, repeats, warp, address, pack=pack, half_split=split)
    for place, words in places.items():
        values = [int(tmem.words[word]) for word in words]
        assert loaded[place] == (values[0] if not pack else values[0] % 2**16 | values[1] % 2**16 << 16)

    new = np.random.default_rng(1).integers(0, 2**32, loaded.shape, dtype=np.uint32)
    wanted = tmem.words.copy()
    for place, words in places.items():
        for index, word in enumerate(words):
            wanted[word] = int(new[place]) >> 16 * index & 0xFFFF if pack else new[place]
    before = tmem.words.copy()
    tmem.store(shape, repeats, warp, address, new, unpack=pack, half_split=split)
    assert np.array_equal(tmem.words, wanted)

    region = tmem.access_region(shape, repeats, warp, address, pack=pack, half_split=split)
    assert words_of(region) == {word for words in places.values() for word in words}
    assert set(zip(*map(list, np.nonzero(before != tmem.words)), strict=True)) <= words_of(region)


def words_of(region: TmemRegion) -> set[tuple[int, int]]:
    return {
        (column, lane)
        for first, stop in region.columns
        for column in range(first, stop)
        for low, high in region.lanes
        for lane in range(low, high)
    }


def test_a_load_is_a_copy() -> None:
    tmem = filled()
    loaded = tmem.load("32x32b", 8, 0, 0)
    before = loaded.copy()
    tmem.words[...] = 0
    assert np.array_equal(loaded, before)
