"""What the benchmark scripts share: which machine this is, and results that are complete or not there."""

from __future__ import annotations

import json
import os
import platform
import time
from datetime import date
from pathlib import Path
from typing import Any

from ptxgen.files import write_file

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Processor, cores, Python and NumPy of this machine, and the date."""
    import numpy

    model = platform.processor()
    try:
        with Path("/proc/cpuinfo").open(encoding="ascii", errors="replace") as lines:
            model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "loop_seconds": loop_seconds(),
        "date": date.today().isoformat(),
        "processor": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
    }


def user_environment(**changes: str) -> dict[str, str]:
    """The environment of a user's process: Python keeps compiled modules, as it does unless told not to."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **changes}


def loop_seconds() -> float:
    """How long a million turns of a plain Python loop take on this machine, now: 0.06 s on an idle 2.4 GHz core."""
    found = []
    for _ in range(5):
        start = time.perf_counter()
        total = 0
        for number in range(1_000_000):
            total += number * number
        found.append(time.perf_counter() - start)
    return round(min(found), 3)


def record(name: str, result: dict[str, Any]) -> None:
    """Write benchmarks/results/NAME.json and print it."""
    text = json.dumps({"machine": machine(), **result}, indent=2) + "\n"
    RESULTS.mkdir(exist_ok=True)
    write_file(RESULTS / f"{name}.json", text)
    print(text, end="")
