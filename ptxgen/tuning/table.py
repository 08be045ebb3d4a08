"""Tables of measured choices, one for each GPU: which spec was fastest for a problem.

They are JSON files: those of the package (ptxgen/tuned/), and before them those that PTXGEN_TUNED names, a file or a
folder. `ptxgen tune` writes them.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ptxgen.errors import PtxgenError
from ptxgen.files import read_text
from ptxgen.hardware.element_types import element_type
from ptxgen.spec import GemmSpec

VERSION = 1
NEAR = 1.125
"""A measured problem answers for others whose every extent is within this factor of its own."""

_OTHER_TYPE = 1e-3
_FOLDER = Path(__file__).parent.parent / "tuned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What a choice is made for: D[m, n] = A[m, k] . B[n, k]^T with these types."""

    m: int
    n: int
    k: int
    operand_type: str = "f16"
    output_type: str = "f16"

    def __str__(self) -> str:
        types = self.operand_type
        if self.output_type != self.operand_type:
            types += f"->{self.output_type}"
        return f"{self.m} x {self.n} x {self.k} {types}"

    @property
    def flop(self) -> float:
        return 2.0 * self.m * self.n * self.k

    @property
    def extents(self) -> tuple[int, int, int]:
        return self.m, self.n, self.k

    @property
    def alike(self) -> tuple[int, int]:
        """Bytes of an operand's and of an output's element: f16 and bf16 take the same time."""
        return element_type(self.operand_type).bytes, element_type(self.output_type).bytes

    def distance(self, other: Problem) -> float | None:
        """How far the extents are apart, as the sum of the logarithms; None where they are not near.

        Other types of the same sizes are a little further away than the same ones.
        """
        ratios = [abs(math.log(one / two)) for one, two in zip(self.extents, other.extents, strict=True)]
        if self.alike != other.alike or max(ratios) > math.log(NEAR):
            return None
        same = (self.operand_type, self.output_type) == (other.operand_type, other.output_type)
        return sum(ratios) + (0 if same else _OTHER_TYPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The fastest spec that was measured for a problem. `grid`: CTAs of the launch, None for one on every SM;
    `seconds` of a launch, by mode."""

    problem: Problem
    spec: GemmSpec
    grid: int | None
    seconds: Mapping[str, float]

    @property
    def tflops(self) -> dict[str, float]:
        """TFLOP/s, by mode."""
        return {mode: self.problem.flop / value / 1e12 for mode, value in self.seconds.items()}

    def to_json(self) -> dict[str, Any]:
        problem = self.problem
        return {
            "m": problem.m,
            "n": problem.n,
            "k": problem.k,
            "operand_type": problem.operand_type,
            "output_type": problem.output_type,
            "spec": spec_json(self.spec),
            "hash": self.spec.hash,
            "grid": self.grid,
            "microseconds": {mode: round(value * 1e6, 3) for mode, value in self.seconds.items()},
        }

    @classmethod
    def of(cls, data: Mapping[str, Any], target: str) -> Entry:
        problem = Problem(**{name: data[name] for name in ("m", "n", "k", "operand_type", "output_type")})
        spec = spec_of(data["spec"], target)
        seconds = {mode: value / 1e6 for mode, value in data["microseconds"].items()}
        return cls(problem=problem, spec=spec, grid=data["grid"], seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What was measured on one GPU. `source` is the file; `environment` says how (driver, date, ptxgen)."""

    gpu: str
    target: str
    sm_count: int
    entries: tuple[Entry, ...] = ()
    environment: Mapping[str, Any] | None = None
    source: str = ""

    def fits(self, gpu: str, sm_count: int, target: str) -> bool:
        """Whether it is of such a GPU, all of it: part of one (MIG) is another GPU."""
        return (gpu_key(self.gpu), self.sm_count, self.target) == (gpu_key(gpu), sm_count, target)

    def nearest(self, problem: Problem) -> Entry | None:
        """The entry of the problem, or of the nearest one that is near enough."""
        near = [
            (distance, number)
            for number, entry in enumerate(self.entries)
            if (distance := problem.distance(entry.problem)) is not None
        ]
        return self.entries[min(near)[1]] if near else None

    def merged(self, entries: Iterable[Entry], environment: Mapping[str, Any]) -> Table:
        """With new entries in the place of old ones of the same problems, in order of types and size."""
        by_problem = {entry.problem: entry for entry in (*self.entries, *entries)}
        ordered = sorted(
            by_problem.values(),
            key=lambda entry: (
                entry.problem.operand_type,
                entry.problem.output_type,
                entry.problem.flop,
                entry.problem.extents,
            ),
        )
        return Table(
            gpu=self.gpu,
            target=self.target,
            sm_count=self.sm_count,
            entries=tuple(ordered),
            environment=environment,
            source=self.source,
        )

    def to_json(self) -> str:
        """The file's text: an entry a line, so that a diff shows which problems changed."""
        head = {
            "version": VERSION,
            "gpu": self.gpu,
            "target": self.target,
            "sm_count": self.sm_count,
            "environment": dict(self.environment or {}),
        }
        lines = ",\n".join(f"    {json.dumps(entry.to_json())}" for entry in self.entries)
        text = json.dumps(head, indent=2)
        return f'{text[:-2]},\n  "entries": [\n{lines}\n  ]\n}}\n'


def spec_json(spec: GemmSpec) -> dict[str, Any]:
    """What is chosen in a spec but for its target: as little as says it all, whatever a step's usual choices become."""
    nested: dict[str, Any] = {}
    for name, value in spec.chosen().items():
        head, _, tail = name.partition(".")
        if tail:
            nested.setdefault(head, {})[tail] = value
        elif head != "target":
            nested[head] = value
    return nested


def spec_of(data: Mapping[str, Any], target: str) -> GemmSpec:
    """Inverse of spec_json. SpecError where such a kernel can no longer be built."""
    return GemmSpec.from_json(json.dumps({**data, "target": target}))


def gpu_key(name: str) -> str:
    """A GPU's name as files are called: "NVIDIA H200" and "H200" are both "h200"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("nvidia ")).strip("-")


def parse_table(text: str, source: str) -> Table:
    """A table from JSON; PtxgenError names the file and what is wrong."""
    try:
        data = json.loads(text)
        if data["version"] != VERSION:
            raise PtxgenError(f"{source} is a table of version {data['version']}; this ptxgen reads {VERSION}")
        return Table(
            gpu=data["gpu"],
            target=data["target"],
            sm_count=data["sm_count"],
            entries=tuple(Entry.of(entry, data["target"]) for entry in data["entries"]),
            environment=data["environment"],
            source=source,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise PtxgenError(f"{source} is no table of tuned specs: {type(error).__name__}: {error}") from error


def load_table(path: Path) -> Table:
    """The table of a file."""
    return _loaded(path, path.stat().st_mtime_ns) if path.is_file() else parse_table(read_text(path), str(path))


def find_table(gpu: str, sm_count: int, target: str) -> Table | None:
    """The first table of such a GPU: in what PTXGEN_TUNED names, then in the package."""
    for path in _files():
        table = load_table(path)
        if table.fits(gpu, sm_count, target):
            return table
    return None


def _files() -> list[Path]:
    found: list[Path] = []
    if named := os.environ.get("PTXGEN_TUNED"):
        path = Path(named)
        found += sorted(path.glob("*.json")) if path.is_dir() else [path]
    return [*found, *sorted(_FOLDER.glob("*.json"))]


@lru_cache(maxsize=16)
def _loaded(path: Path, modified: int) -> Table:
    return parse_table(read_text(path), str(path))
