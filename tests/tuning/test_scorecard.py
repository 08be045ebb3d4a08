"""benchmarks/scorecard.py: loops in SASS, and a row of our own."""

from __future__ import annotations

from benchmarks.scorecard import Sass, ours, row

TEXT = """
.L_x_0:
        /*0010*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R2], R3 ;
        /*0020*/              @!P0 BRA `(.L_x_2) ;
.L_x_1:
        /*0030*/                   UTMALDG.2D [UR16], [UR8] ;
        /*0040*/                   UTMALDG.2D [UR12], [UR6] ;
        /*0050*/                   BRA.U !UP0, `(.L_x_0) ;
        /*0060*/                   EXIT ;
.L_x_2:
        /*0070*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R2], R3 ;
        /*0080*/              @!P0 BRA `(.L_x_2) ;
        /*0090*/                   BRA `(.L_x_1) ;
"""


def test_the_smallest_loop() -> None:
    sass = Sass(TEXT)
    assert sass.loops == [(0, 4), (6, 7), (2, 8)]
    loop = sass.loop_around("UTMALDG")
    assert loop is not None
    assert len(loop) == 5
    assert sass.loop_around("LDTM") is None


def test_a_row_of_step_7() -> None:
    found = row(next(ours()))
    assert (found.name, found.stages, found.mbarriers) == ("step 7", 3, 10)
    assert (found.waves_4096, found.waves_8192) == (0.865, 0.988)
    assert found.fetched_bytes_per_kflop == 11.72
    assert not found.epilogue_exposed
    assert found.producer
    assert found.multiplier
    assert found.epilogue
