"""Pictures of a report as plain shapes; a template turns them into SVG.

Everything is in pixels. Shapes that stand on a time axis carry their clocks too, so that a script can stretch
the axis.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ptxgen.hardware.swizzle import Swizzle
from ptxgen.review.maps import Region
from ptxgen.review.roles import warps_text
from ptxgen.review.spans import EPILOGUE, LOAD, MULTIPLY, STORE, WAIT, Span, Timeline
from ptxgen.review.structure import Structure

WIDTH = 1190
_LEFT = 150
_ROW, _GAP = 22, 4
_CHARACTER = 6.6
"""Width of a character of a label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle with a label in it; `style` is a CSS class, `title` shows on hovering, `line` is the PTX line that
    it leads to. `start` and `stop` are clocks, -1 away from a time axis."""

    x: float
    y: float
    width: float
    height: float
    style: str
    label: str = ""
    title: str = ""
    line: int = 0
    start: float = -1
    stop: float = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """A text; `anchor` is SVG's. `at` is a clock, -1 away from a time axis."""

    x: float
    y: float
    text: str
    style: str = ""
    anchor: str = "start"
    at: float = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Shapes. `scale` is pixels per clock on a time axis that begins at `left`, 0 without one."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    words: tuple[Words, ...]
    left: float = 0
    scale: float = 0.0


# -- time -----------------------------------------------------------------------------------------


def timeline_picture(timeline: Timeline, structure: Structure, clock_hz: float) -> Picture:
    """Engines above, roles below; a row for each stage's loads."""
    scale = (WIDTH - _LEFT - 10) / max(timeline.end, 1.0)
    boxes: list[Box] = []
    words: list[Words] = []
    y = 26.0
    ctas = sorted({span.cta for span in timeline.spans})
    for cta in ctas:
        tiles = list(dict.fromkeys(span.tile for span in timeline.of(LOAD, cta) if span.tile[0] >= 0))
        if len(ctas) > 1:
            words.append(Words(x=0, y=y + 14, text=f"CTA {cta} of the cluster", style="heading"))
            y += _ROW
        for name, spans in _rows(timeline, structure, cta):
            words.append(Words(x=_LEFT - 10, y=y + 15, text=name, anchor="end"))
            boxes.append(
                Box(x=_LEFT, y=y, width=WIDTH - _LEFT - 10, height=_ROW, style="row", start=0, stop=timeline.end)
            )
            boxes += [_span_box(span, y, scale, tiles) for span in spans]
            y += _ROW + _GAP
        y += 8
    words += _axis(timeline.end, scale, clock_hz)
    return Picture(width=WIDTH, height=y + 4, boxes=tuple(boxes), words=tuple(words), left=_LEFT, scale=scale)


def _rows(timeline: Timeline, structure: Structure, cta: int) -> list[tuple[str, list[Span]]]:
    """Names of rows and what stands in them."""
    mine = [span for span in timeline.spans if span.cta == cta]
    loads = _joined([span for span in mine if span.kind == LOAD])
    rows = []
    for stage in sorted({span.stage for span in loads}):
        name = "TMA load" if stage < 0 else f"load, stage {stage}"
        rows.append((name, [span for span in loads if span.stage == stage]))
    multiplies = _distinct([span for span in mine if span.kind == MULTIPLY])
    if multiplies:
        rows.append(("tensor core", multiplies))
    stores = _overlapping([span for span in mine if span.kind == STORE])
    if stores:
        rows.append(("TMA store", stores))
    for role in structure.roles:
        spans = _of_role(mine, role.warps)
        if spans:
            name = f"{role.name}, " if len(structure.roles) > 1 else ""
            rows.append((name + warps_text(role.warps).replace(" to ", "-"), spans))
    return rows


def _of_role(spans: Sequence[Span], warps: Sequence[int]) -> list[Span]:
    """Waits and epilogues of a role's busiest warp; the waits inside an epilogue are too short to show."""
    by_warp = {warp: [span for span in spans if span.track == f"warp {warp}"] for warp in warps}
    best = max(by_warp.values(), key=len, default=[])
    epilogues = [_with_tile(span, spans) for span in best if span.kind == EPILOGUE]
    waits = [
        span
        for span in best
        if span.kind == WAIT and not any(one.start <= span.start and span.stop <= one.stop for one in epilogues)
    ]
    return waits + epilogues


def _with_tile(epilogue: Span, spans: Sequence[Span]) -> Span:
    """An epilogue with the tile of the first store after it."""
    stores = [span for span in spans if span.kind == STORE and span.start >= epilogue.start]
    if not stores:
        return epilogue
    return dataclasses.replace(epilogue, tile=min(stores, key=lambda span: span.start).tile)


def _joined(loads: Sequence[Span]) -> list[Span]:
    """The loads of one K tile together."""
    found: dict[tuple[int, int, tuple[int, int]], list[Span]] = {}
    for span in loads:
        key = (span.stage, span.k_tile, span.tile) if span.k_tile >= 0 else (span.stage, int(span.start), span.tile)
        found.setdefault(key, []).append(span)
    return [_merged(spans) for spans in found.values()]


def _merged(spans: Sequence[Span]) -> Span:
    return dataclasses.replace(spans[0], start=min(span.start for span in spans), stop=max(span.stop for span in spans))


def _distinct(spans: Sequence[Span]) -> list[Span]:
    """Products once, though they read two operands."""
    return list({(span.start, span.stop): span for span in spans}.values())


def _overlapping(spans: Sequence[Span]) -> list[Span]:
    """Stores that overlap as one."""
    found: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: span.start):
        if found and span.start < max(one.stop for one in found[-1]):
            found[-1].append(span)
        else:
            found.append([span])
    return [_merged(group) for group in found]


def _span_box(span: Span, y: float, scale: float, tiles: Sequence[tuple[int, int]]) -> Box:
    width = max((span.stop - span.start) * scale, 1.0)
    number = tiles.index(span.tile) if span.tile in tiles else -1
    place = f", output tile {span.tile[0]}, {span.tile[1]}" if span.tile[0] >= 0 else ""
    what = {WAIT: "waits", LOAD: "loads", MULTIPLY: "multiplies", STORE: "stores", EPILOGUE: "epilogue"}[span.kind]
    words = f"{what}{f' ({span.label})' if span.label else ''}{place}"
    return Box(
        x=_LEFT + span.start * scale,
        y=y + (6 if span.kind == WAIT else 1),
        width=width,
        height=_ROW - (12 if span.kind == WAIT else 2),
        style=f"{span.kind}{' odd' if number > 0 and number % 2 else ''}",
        label=span.label if span.kind in (LOAD, MULTIPLY) and width > len(span.label) * _CHARACTER else "",
        title=f"{words}: clock {span.start:.0f} to {span.stop:.0f} ({span.stop - span.start:.0f}), line {span.line}",
        line=span.line,
        start=span.start,
        stop=span.stop,
    )


def _axis(end: float, scale: float, clock_hz: float) -> list[Words]:
    step = next(size for size in (100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 10**9) if size * scale > 105)
    ticks = [step * number for number in range(int(end / step) + 1) if step * number * scale < WIDTH - _LEFT - 60]
    found = [Words(x=_LEFT - 10, y=14, text="clocks", style="axis", anchor="end")]
    for tick in ticks:
        micro = f" ({tick / clock_hz * 1e6:.1f} µs)" if tick else ""
        anchor = "start" if tick == 0 else "middle" if tick * scale < WIDTH - _LEFT - 60 else "end"
        found.append(Words(x=_LEFT + tick * scale, y=14, text=f"{tick:,}{micro}", style="axis", anchor=anchor, at=tick))
    return found


def phase_picture(timeline: Timeline, labels: dict[tuple[int, int], str]) -> Picture:
    """A row for each mbarrier: its phases from end to end, darker from the first arrival on."""
    scale = (WIDTH - _LEFT - 10) / max(timeline.end, 1.0)
    boxes: list[Box] = []
    words: list[Words] = []
    y = 4.0
    for key, name in labels.items():
        phases = sorted(
            (phase for phase in timeline.phases if (phase.cta, phase.address) == key), key=lambda p: p.phase
        )
        if not phases:
            continue
        words.append(Words(x=_LEFT - 10, y=y + 15, text=name, anchor="end"))
        before = 0.0
        for phase in phases:
            parity = "odd" if phase.phase % 2 else "even"
            title = f"{name} phase {phase.phase} (parity {phase.phase & 1})"
            for style, start in (("pending", before), ("arriving", phase.start)):
                width = max((phase.stop - start) * scale, 1.0)
                short = (phase.stop - phase.start) * scale <= 10
                label = str(phase.phase) if width > 10 and short == (style == "pending") else ""
                boxes.append(
                    Box(
                        x=_LEFT + start * scale,
                        y=y + 2,
                        width=width,
                        height=_ROW - 4,
                        style=f"{style} {parity}",
                        label=label,
                        title=f"{title}: first arrival at clock {phase.start:.0f}, complete at {phase.stop:.0f}",
                        start=start,
                        stop=phase.stop,
                    )
                )
            before = phase.stop
        y += _ROW + 2
    return Picture(width=WIDTH, height=y + 4, boxes=tuple(boxes), words=tuple(words), left=_LEFT, scale=scale)


# -- memory ---------------------------------------------------------------------------------------


def smem_picture(regions: Sequence[Region], total_bytes: int) -> Picture:
    """Shared memory as a strip to scale; what is too small for a label stands in the table."""
    scale = (WIDTH - 2) / max(total_bytes, 1)
    boxes = [Box(x=1, y=1, width=WIDTH - 2, height=46, style="row")]
    counts = Counter(region.name for region in _laid_out(regions, total_bytes) if region.name)
    seen: Counter[str] = Counter()
    for region in _laid_out(regions, total_bytes):
        width = max((region.size or 0) * scale, 1.5)
        name = region.name or "staging"
        if counts[region.name] > 1:
            name = f"{name}[{seen[region.name]}]"
            seen[region.name] += 1
        label = f"{name} {region.size:,} B" if region.size else name
        short = label if width > len(label) * _CHARACTER else name if width > len(name) * _CHARACTER else ""
        lower = "written by st" in region.uses or not region.name
        boxes.append(
            Box(
                x=1 + region.start * scale,
                y=25 if lower else 3,
                width=width,
                height=20 if lower else 21,
                style=f"memory {_memory_style(region)}",
                label=short,
                title=f"[{region.start}, {region.stop}): {'; '.join(region.uses)}",
                line=region.lines[0],
            )
        )
    words = [
        Words(x=0, y=62, text="0", style="axis"),
        Words(x=WIDTH, y=62, text=f"{total_bytes:,} bytes", style="axis", anchor="end"),
    ]
    return Picture(width=WIDTH, height=68, boxes=tuple(boxes), words=tuple(words))


def _laid_out(regions: Sequence[Region], total_bytes: int) -> list[Region]:
    """Regions with an end each. One that a text shows as a start and a step is taken to go on to the next region."""
    found = []
    for region in regions:
        if region.stop is not None and not region.step:
            found.append(region)
        elif region.step:
            end = min((other.start for other in regions if other.start > region.start), default=total_bytes)
            size = region.size or region.step
            found += [
                dataclasses.replace(region, start=start, stop=start + size, step=0)
                for start in range(region.start, end - size + 1, region.step)
            ]
    return found


def _memory_style(region: Region) -> str:
    uses = " ".join(region.uses)
    for mark, style in (
        ("TMA load", "load"),
        ("MMA operand", "load"),
        ("mbarrier", "barrier"),
        ("TMA store", "store"),
        ("written by st", "stage"),
    ):
        if mark in uses:
            return style
    return "other"


def tmem_picture(regions: Sequence[Region], allocated: int, columns: int) -> Picture:
    """Tensor memory: 128 lanes down, columns across."""
    width = 700
    scale = (width - 60) / columns
    boxes = [
        Box(x=50, y=4, width=columns * scale, height=72, style="row", title=f"{columns} columns x 128 lanes"),
        Box(x=50, y=4, width=allocated * scale, height=72, style="memory free", title=f"{allocated} columns allocated"),
    ]
    for region in _laid_out(regions, allocated):
        if region.stop is None or "accumulator" not in region.name:
            continue
        label = f"{region.name}: {region.size} columns"
        boxes.append(
            Box(
                x=50 + region.start * scale,
                y=4,
                width=(region.size or 0) * scale,
                height=72,
                style="memory multiply",
                label=label if region.size and region.size * scale > len(label) * _CHARACTER else "",
                title=f"columns {region.start} to {region.stop - 1}: {'; '.join(region.uses)}",
                line=region.lines[0],
            )
        )
    words = [
        Words(x=44, y=14, text="lane 0", style="axis", anchor="end"),
        Words(x=44, y=76, text="127", style="axis", anchor="end"),
        Words(x=50, y=90, text="column 0", style="axis"),
        Words(x=50 + columns * scale, y=90, text=f"{columns}", style="axis", anchor="end"),
    ]
    return Picture(width=width, height=96, boxes=tuple(boxes), words=tuple(words))


def swizzle_picture(swizzle: Swizzle) -> Picture:
    """Where the 16-byte chunks of eight rows lie: each cell names the chunk of its row that is stored there."""
    span = swizzle.span_bytes
    cell, chunks = 26, span // 16
    boxes, words = [], []
    for row in range(8):
        words.append(Words(x=44, y=row * cell + 18, text=f"row {row}", style="axis", anchor="end"))
        for place in range(chunks):
            address = row * span + place * 16
            chunk = swizzle.apply(address) % span // 16
            boxes.append(
                Box(
                    x=50 + place * cell * 1.6,
                    y=row * cell + 1,
                    width=cell * 1.6 - 2,
                    height=cell - 3,
                    style=f"chunk c{chunk}",
                    label=str(chunk),
                    title=f"bytes {address} to {address + 15} hold chunk {chunk} of row {row}",
                )
            )
    return Picture(width=60 + chunks * cell * 1.6, height=8 * cell + 4, boxes=tuple(boxes), words=tuple(words))


def order_picture(order: Sequence[tuple[int, int, int, int]]) -> Picture:
    """Output tiles: (tile row, tile column, CTA, place in that CTA's order)."""
    if not order:
        return Picture(width=0, height=0, boxes=(), words=())
    rows, columns = max(tile[0] for tile in order) + 1, max(tile[1] for tile in order) + 1
    cell = min(46.0, (WIDTH - 60) / columns)
    boxes = [
        Box(
            x=50 + column * cell,
            y=18 + row * cell * 0.62,
            width=cell - 2,
            height=cell * 0.62 - 2,
            style=f"chunk c{cta % 8}",
            label=f"{cta}.{place}",
            title=f"tile row {row}, column {column}: CTA {cta}, its tile number {place}",
        )
        for row, column, cta, place in order
    ]
    words = [Words(x=50, y=12, text="tile column 0 and on", style="axis")]
    words += [
        Words(x=44, y=18 + row * cell * 0.62 + cell * 0.4, text=f"row {row}", style="axis", anchor="end")
        for row in range(rows)
    ]
    return Picture(width=60 + columns * cell, height=24 + rows * cell * 0.62, boxes=tuple(boxes), words=tuple(words))
