"""What the hooks for observers cost when nobody observes: the interpreter as it is, and with them stripped at load.

Stripping edits the syntax trees of ptxgen.emulator while they are imported: every `if` that only a hook needs (its
condition is, or requires, `hooks` or `.observed`) is taken out. Both variants are compiled from syntax trees, and run
step 5 turn about, each time in a new process and with no garbage collection; the figure is CPU time, so that other
work on the machine disturbs it less.

    python benchmarks/interpreter_hooks.py
"""

from __future__ import annotations

import ast
import gc
import importlib.abc
import importlib.machinery
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 9
LIMIT = 0.02
SIZE = (128, 128, 65536)
"""One tile, hence one CTA: more would run in worker processes, whose CPU time is not this process's."""


def is_hook(test: ast.expr) -> bool:
    """Whether a condition can only hold when somebody observes."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(is_hook(value) for value in test.values)
    return (isinstance(test, ast.Name) and test.id == "hooks") or (
        isinstance(test, ast.Attribute) and test.attr in ("observed", "hooks")
    )


class Stripper(ast.NodeTransformer):
    """Takes hooks out of a module; `count` says how many."""

    count = 0

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        if not is_hook(node.test):
            return node
        Stripper.count += 1
        return node.orelse or ast.copy_location(ast.Pass(), node)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        self.generic_visit(node)
        if not is_hook(node.test):
            return node
        Stripper.count += 1
        return node.orelse


class StrippingLoader(importlib.machinery.SourceFileLoader):
    strip = False

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        if self.strip:
            tree = Stripper().visit(tree)
        return compile(ast.fix_missing_locations(tree), path, "exec")


class StrippingFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("ptxgen.emulator"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = StrippingLoader(spec.loader.name, spec.loader.path)
        return spec


def serve(strip: bool) -> None:
    """Prints how many hooks were stripped and the CPU seconds of the kernel, the least of three runs."""
    sys.path.insert(0, str(ROOT))
    StrippingLoader.strip = strip
    sys.meta_path.insert(0, StrippingFinder())
    import numpy as np

    import ptxgen

    kernel = ptxgen.compile(ptxgen.step(5), device="emulator")
    m, n, k = SIZE
    a, b = np.ones((m, k), np.float16), np.ones((n, k), np.float16)
    kernel(a, b)
    gc.collect()
    gc.disable()
    times = []
    for _ in range(3):
        start = time.process_time()
        kernel(a, b)
        times.append(time.process_time() - start)
    print(Stripper.count, min(times))


def measure(variant: str) -> tuple[int, float]:
    done = subprocess.run([sys.executable, __file__, variant], stdout=subprocess.PIPE, text=True, check=True)
    count, seconds = done.stdout.split()
    return int(count), float(seconds)


def main() -> int:
    from common import record

    variants = ("hooks", "stripped")
    stripped_hooks = 0
    times: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(ROUNDS):
        for name in variants if turn % 2 == 0 else variants[::-1]:
            count, seconds = measure(name)
            stripped_hooks = max(stripped_hooks, count)
            times[name].append(seconds)
    hooks, stripped = map(statistics.median, times.values())
    cost = hooks / stripped - 1
    record(
        "interpreter_hooks",
        {
            "with_hooks_cpu_seconds": times["hooks"],
            "stripped_cpu_seconds": times["stripped"],
            "hooks_stripped": stripped_hooks,
            "cost": cost,
        },
    )
    print(f"{stripped_hooks} hooks; median {hooks:.3f} s with, {stripped:.3f} s without: {cost:+.1%}")
    return 0 if stripped_hooks and cost <= LIMIT else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(sys.argv[1] == "stripped")
    else:
        sys.exit(main())
