"""What the hooks for observers cost when nobody observes: the interpreter as it is, and with them stripped at load.

Stripping edits the syntax trees of ptxgen.emulator while they are imported: every `if` that only a hook needs (its
condition is, or requires, `hooks` or `.observed`) is taken out. Both variants are compiled from syntax trees. A round
is a new process that loads both and runs step 5 with each turn about, with no garbage collection: runs this short
share the clock that the machine gives them at the moment. A round's figure is the median ratio of CPU time over its
pairs; the cost is the median of the rounds.

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
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 9
PAIRS = 25
LIMIT = 0.02
SIZE = (128, 128, 16384)
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


def swap(modules: dict[str, ModuleType]) -> dict[str, ModuleType]:
    """Puts these modules in the place of ptxgen's, which it returns: late imports then meet their own variant."""
    present = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "ptxgen"}
    for name in present:
        del sys.modules[name]
    sys.modules.update(modules)
    return present


def load(strip: bool) -> Callable[[], float]:
    """A run of step 5 with ptxgen loaded anew, its hooks stripped or not; it returns its CPU seconds."""
    StrippingLoader.strip = strip
    swap({})
    ptxgen = importlib.import_module("ptxgen")
    import numpy as np

    kernel = ptxgen.compile(ptxgen.step(5), device="emulator")
    m, n, k = SIZE
    a, b = np.ones((m, k), np.float16), np.ones((n, k), np.float16)
    kernel(a, b)
    modules = swap({})

    def run() -> float:
        swap(modules)
        start = time.process_time()
        kernel(a, b)
        return time.process_time() - start

    return run


def serve() -> None:
    """Prints how many hooks were stripped, the CPU seconds with and without them, and the ratio, as medians."""
    sys.path.insert(0, str(ROOT))
    sys.meta_path.insert(0, StrippingFinder())
    variants = [load(strip=False), load(strip=True)]
    gc.collect()
    gc.disable()
    pairs = []
    for turn in range(PAIRS):
        times = [0.0, 0.0]
        for index in (0, 1) if turn % 2 == 0 else (1, 0):
            times[index] = variants[index]()
        pairs.append((*times, times[0] / times[1]))
    print(Stripper.count, *map(statistics.median, zip(*pairs, strict=True)))


def main() -> int:
    from common import record

    rounds = []
    for _ in range(ROUNDS):
        done = subprocess.run([sys.executable, __file__, "round"], stdout=subprocess.PIPE, text=True, check=True)
        rounds.append([float(word) for word in done.stdout.split()])
    count, hooks, stripped, ratio = map(statistics.median, zip(*rounds, strict=True))
    record(
        "interpreter_hooks",
        {
            "with_hooks_cpu_seconds": [figures[1] for figures in rounds],
            "stripped_cpu_seconds": [figures[2] for figures in rounds],
            "ratios": [figures[3] for figures in rounds],
            "hooks_stripped": int(count),
            "cost": ratio - 1,
        },
    )
    print(f"{count:.0f} hooks; median {hooks:.4f} s with, {stripped:.4f} s without: {ratio - 1:+.1%}")
    return 0 if count and ratio - 1 <= LIMIT else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve()
    else:
        sys.exit(main())
