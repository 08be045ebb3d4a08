"""How long `ptxgen emit --step 6` takes from a cold start, and rendering alone in a warm process.

python benchmarks/cold_start.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import record, user_environment

ROOT = Path(__file__).resolve().parents[1]
RENDER = """
import time
from ptxgen.steps import step
from ptxgen.render import emit
start = time.perf_counter()
emit(step(6))
first = time.perf_counter()
emit(step(6))
later = time.perf_counter()
emit(step(6).replace(pipe_depth=3))
print(first - start, later - first, time.perf_counter() - later)
"""


def seconds(command: list[str], environment: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment, cwd=ROOT)
    return time.perf_counter() - start


def main() -> None:
    emit = [sys.executable, str(ROOT / "cli.py"), "emit", "--step", "6"]
    with tempfile.TemporaryDirectory() as folder:
        cached, uncached = user_environment(PTXGEN_CACHE_DIR=folder), user_environment(PTXGEN_CACHE="0")
        first = seconds(emit, cached)
        with_cache = [seconds(emit, cached) for _ in range(5)]
        without = [seconds(emit, uncached) for _ in range(5)]
        renders = []
        for _ in range(5):
            run = subprocess.run(
                [sys.executable, "-c", RENDER], check=True, capture_output=True, text=True, env=uncached, cwd=ROOT
            )
            renders.append(tuple(float(item) for item in run.stdout.split()))
    record(
        "cold_start",
        {
            "emit --step 6, median of 5, seconds": round(statistics.median(with_cache), 3),
            "first of all, seconds": round(first, 3),
            "without the template cache, median of 5, seconds": round(statistics.median(without), 3),
            "bound_seconds": 0.35,
            "first render without the cache, median of 5, ms": round(1e3 * statistics.median(r[0] for r in renders), 1),
            "later render, median of 5, ms": round(1e3 * statistics.median(r[1] for r in renders), 1),
            "later build and render of another spec, median of 5, ms": round(
                1e3 * statistics.median(r[2] for r in renders), 1
            ),
            "bounds_ms": [200, 10],
        },
    )


if __name__ == "__main__":
    main()
