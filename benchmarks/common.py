"""What the benchmark scripts share: which machine this is, and results that are complete or not there."""

from __future__ import annotations

import json
import os
import platform
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
        "date": date.today().isoformat(),
        "processor": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
    }


def record(name: str, result: dict[str, Any]) -> None:
    """Write benchmarks/results/NAME.json and print it."""
    text = json.dumps({"machine": machine(), **result}, indent=2) + "\n"
    RESULTS.mkdir(exist_ok=True)
    write_file(RESULTS / f"{name}.json", text)
    print(text, end="")
