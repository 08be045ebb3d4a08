"""A timeline in the format of chrome://tracing and ui.perfetto.dev (Trace Event Format, JSON object)."""

from __future__ import annotations

import json

from ptxgen.review.spans import Timeline


def chrome_trace(timeline: Timeline, clock_hz: float, name: str) -> str:
    """Tracks are threads, CTAs of the cluster processes; times are microseconds of the model."""
    micro = 1e6 / clock_hz
    tracks: dict[tuple[int, str], int] = {}
    events: list[dict[str, object]] = []
    for span in timeline.spans:
        track = span.track if span.stage < 0 or span.kind != "load" else f"{span.track}, stage {span.stage}"
        tid = tracks.setdefault((span.cta, track), len(tracks) + 1)
        events.append(
            {
                "name": span.label or span.kind,
                "cat": span.kind,
                "ph": "X",
                "ts": span.start * micro,
                "dur": (span.stop - span.start) * micro,
                "pid": span.cta,
                "tid": tid,
                "args": {"line": span.line, "clocks": span.stop - span.start, "tile": list(span.tile)},
            }
        )
    for (cta, track), tid in tracks.items():
        events.append({"name": "thread_name", "ph": "M", "pid": cta, "tid": tid, "args": {"name": track}})
    for cta in sorted({cta for cta, _ in tracks}):
        events.append({"name": "process_name", "ph": "M", "pid": cta, "args": {"name": f"{name}, CTA {cta}"}})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"durations": "a model"}}) + "\n"
