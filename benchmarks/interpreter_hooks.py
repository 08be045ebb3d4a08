"""What the hooks for observers cost when nobody observes: the interpreter as it is, and with them stripped at load.

Stripping edits the syntax trees of ptxgen.emulator while they are imported: every `if` that only a hook needs (its
condition is, or requires, `hooks` or `.observed`) is taken out. Both variants run step 5 in a process of their own,
turn about; the figure is CPU time, so that other work on the machine disturbs it less.

    python benchmarks/interpreter_hooks.py
"""

from __future__ import annotations

import ast
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
    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        tree = Stripper().visit(ast.parse(self.get_data(path), path))
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
    """Runs the kernel once for each line of stdin and answers with its CPU seconds."""
    sys.path.insert(0, str(ROOT))
    if strip:
        sys.meta_path.insert(0, StrippingFinder())
    import numpy as np

    import ptxgen

    kernel = ptxgen.compile(ptxgen.step(5), device="emulator")
    m, n, k = SIZE
    a, b = np.ones((m, k), np.float16), np.ones((n, k), np.float16)
    kernel(a, b)
    print(Stripper.count, flush=True)
    for _ in sys.stdin:
        start = time.process_time()
        kernel(a, b)
        print(time.process_time() - start, flush=True)


def ask(child: subprocess.Popen[str], line: str = "") -> float:
    assert child.stdin is not None and child.stdout is not None
    if line:
        child.stdin.write(line)
        child.stdin.flush()
    return float(child.stdout.readline())


def main() -> int:
    from common import record

    children = [
        subprocess.Popen(
            [sys.executable, __file__, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in ("hooks", "stripped")
    ]
    stripped_hooks = [int(ask(child)) for child in children][1]
    times: list[list[float]] = [[], []]
    for turn in range(ROUNDS):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            times[which].append(ask(children[which], "run\n"))
    for child in children:
        child.communicate()
    hooks, stripped = map(statistics.median, times)
    cost = hooks / stripped - 1
    record(
        "interpreter_hooks",
        {
            "with_hooks_cpu_seconds": times[0],
            "stripped_cpu_seconds": times[1],
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
