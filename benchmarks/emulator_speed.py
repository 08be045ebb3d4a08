"""How long the emulator takes: steps 6 and 10 at 4096 x 4096 x 4096 with every tile checked, and one tile of step 4.

Both are whole processes, as a user runs them: start-up, inputs, execution, float64 reference. Memory is
the sum of the resident sets of the process and its workers, sampled.

    python benchmarks/emulator_speed.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from common import record, user_environment

ROOT = Path(__file__).resolve().parents[1]
PAGE = 4096


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants; shared pages count once for each."""
    total, pids = 0, [pid]
    while pids:
        current = Path(f"/proc/{pids.pop()}")
        try:
            # Proportional set size: shared pages are divided among those who map them.
            for line in (current / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
            for task in (current / "task").iterdir():
                pids += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return total


def run(*arguments: str) -> dict[str, Any]:
    """One `ptxgen run` as a process: seconds, peak memory, and its own last line."""
    command = [sys.executable, str(ROOT / "cli.py"), "run", "--device", "emulator", *arguments]
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=user_environment()
    )
    peak = 0

    def sample() -> None:
        nonlocal peak
        while process.poll() is None:
            peak = max(peak, resident_bytes(process.pid))
            time.sleep(0.1)

    watcher = threading.Thread(target=sample)
    watcher.start()
    assert process.stdout is not None
    output = process.stdout.read()
    code = process.wait()
    seconds = time.perf_counter() - start
    watcher.join()
    if code:
        raise SystemExit(f"{' '.join(command)} failed:\n{output}")
    return {"seconds": round(seconds, 2), "peak_gb": round(peak / 1e9, 2), "output": output.splitlines()[-1]}


def main() -> None:
    run("--step", "4", "-m", "128", "-n", "128", "-k", "64")  # compiles modules and templates once
    large = run("--step", "6", "-m", "4096", "-n", "4096", "-k", "4096")
    pairs = run("--step", "10", "-m", "4096", "-n", "4096", "-k", "4096")
    tiles = [run("--step", "4", "-m", "128", "-n", "128", "-k", "64") for _ in range(5)]
    record(
        "emulator_speed",
        {
            "step 6, 4096 x 4096 x 4096": {**large, "bound_seconds": 30, "bound_gb": 4},
            "step 10, 4096 x 4096 x 4096": {**pairs, "bound_seconds": 60, "bound_gb": 4},
            "step 4, 128 x 128 x 64": {
                "median_seconds": statistics.median(tile["seconds"] for tile in tiles),
                "runs": [tile["seconds"] for tile in tiles],
                "bound_seconds": 1,
            },
        },
    )


if __name__ == "__main__":
    main()
