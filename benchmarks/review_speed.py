"""How long reviewing takes: `ptxgen diff` of two texts of over 2,000 lines, without assembler and emulator, and
`ptxgen report` of step 7. Whole processes, as a user runs them; the best of several, and all of them recorded.

    python benchmarks/review_speed.py
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import record, user_environment

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 5
LIMITS = {"diff": 1.0, "report": 5.0}
"""Seconds."""


def ptxgen(*arguments: str) -> dict[str, float]:
    """Wall and processor seconds of one command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    command = [sys.executable, str(ROOT / "cli.py"), *arguments]
    subprocess.run(command, env=user_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return {"seconds": seconds, "processor_seconds": spent}


def main() -> int:
    text = (ROOT / "generated" / "sm_100a" / "step7.ptx").read_text(encoding="utf-8")
    head, body = text.split("\n    // producer", 1)
    long = f"{head}\n" + "    add.u32 %smem, %smem, 0;\n" * 1800 + f"\n    // producer{body}"
    with tempfile.TemporaryDirectory() as folder:
        old, new, page = (str(Path(folder) / name) for name in ("old.ptx", "new.ptx", "report.html"))
        Path(old).write_text(long, encoding="utf-8")
        Path(new).write_text(long.replace("mov.b32 %pipe_depth, 2;", "mov.b32 %pipe_depth, 3;"), encoding="utf-8")
        commands = {
            "diff": ("diff", old, new, "--no-ptxas", "--no-run"),
            "report": ("report", "--step", "7", "-o", page),
        }
        runs = {name: [ptxgen(*arguments) for _ in range(ROUNDS)] for name, arguments in commands.items()}
    record("review_speed", {"lines": len(long.splitlines()), **runs})
    best = {name: min(run["seconds"] for run in every) for name, every in runs.items()}
    for name, seconds in best.items():
        print(f"{name}: {seconds:.2f} s, at most {LIMITS[name]:g}")
    return 0 if all(seconds <= LIMITS[name] for name, seconds in best.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
