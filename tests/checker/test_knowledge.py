"""Clocks: what is known of warps, of single lanes and of operations, and the lines by which it became known."""

from __future__ import annotations

from ptxgen.checker.clocks import Clock, Paths, acquire, empty, epoch_of, execution_of, merge, path_of, stamp


def clock(*warps: int, lanes: dict[int, int] | None = None, done: int = 0, fenced: int = 0) -> Clock:
    values = tuple(map(stamp, warps))
    return Clock(values, {thread: stamp(epoch) for thread, epoch in (lanes or {}).items()}, values, {}, done, 0, fenced)


def test_stamps_compare_by_epoch_and_keep_their_path() -> None:
    assert stamp(3, 7) > stamp(2, 0)
    assert stamp(3, 2) > stamp(3, 7), "of two paths to one epoch the older wins"
    assert (epoch_of(stamp(3, 7)), path_of(stamp(3, 7))) == (3, 7)


def test_one_lane_does_not_speak_for_the_others() -> None:
    known = acquire(empty(3), clock(0, 4, 0, lanes={32 + 6: 9}), Paths(), 0)
    assert epoch_of(known.knows(1, 6)) == 9
    assert epoch_of(known.knows(1, 7)) == 4
    assert epoch_of(known.knows(0, 6)) == 0


def test_lanes_within_their_warp_are_dropped() -> None:
    both = merge(clock(0, 4, 0, lanes={32 + 6: 9, 64: 2}), clock(0, 9, 1, lanes={3: 1}))
    assert sorted(both.lanes) == [3, 64]
    assert [epoch_of(value) for value in both.warps] == [0, 9, 1]


def test_what_is_known_already_keeps_its_path() -> None:
    paths = Paths()
    first, second = paths.of((10,)), paths.of((20,))
    known = acquire(empty(2), clock(3, 0), paths, first)
    known = acquire(known, clock(3, 8), paths, second)
    assert [path_of(value) for value in known.warps] == [first, second]
    paths.need(path_of(known.warps[1]))
    assert paths.needed_lines == {20}


def test_paths_add_up() -> None:
    paths = Paths()
    known = acquire(empty(2), clock(3, 0), paths, paths.of((10, 11)))
    further = acquire(empty(2), known, paths, paths.of((20,)))
    paths.need(path_of(further.warps[0]))
    assert paths.needed_lines == {10, 11, 20}
    assert not paths.full


def test_too_many_paths_are_said_to_be_too_many() -> None:
    paths = Paths(most=3)
    numbers = [paths.of((line,)) for line in range(5)]
    assert numbers == [1, 2, 0, 0, 0]
    assert paths.full


def test_relaxed_synchronisation_passes_on_fenced_operations_only() -> None:
    passed = execution_of(clock(7, 7, done=0b111, fenced=0b010), empty(2), observations=0b100)
    assert passed.done == 0b110
    assert [epoch_of(value) for value in passed.warps] == [0, 0]
