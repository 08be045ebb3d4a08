"""Probes: PTX files whose header says what they ask and how to launch them.

A header carries, in comment lines, a launch description (docs/launch.md) and before it

    // probe: {
    //   "inputs": {"T": "bytes"},
    //   "questions": [
    //     {"name": "outer_edges", "ask": "Which bytes ...?", "answer": "Those ...",
    //      "set": {"y": 8}, "vary": {"x": [0, 8], "map": [{"swizzle": 64}, {"swizzle": 128}]}}]
    // }

`inputs` says what a buffer holds before the launch (conformance.inputs); every other one holds what its
`fill` says. A question runs the launch once for every combination of the values in `vary`. A name in `set`
or `vary` is an argument (its value), or a tensor map, a buffer (fields to replace) or a field of the
launch itself; values under "together" are sets of such replacements. An argument's value may be "box",
"box+16" or "box-16": the bytes of the tensor map's box. A question may have `inputs` of its own.

`answer` says what the emulator does; it stands for hardware once a recorded run found both equal.
Optional: `refuses`, the rule by which the emulator stops where a GPU runs on; `tolerates`, a rule that the
emulator reports at the end although the kernel asks for it; `records`, where only the GPU can tell and
nothing is compared; `shows`, the buffer of 32- or 64-bit words that the report spells out.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ptxgen.device.description import LaunchDescription, launch_in_header
from ptxgen.errors import PtxgenError
from ptxgen.files import read_text
from ptxgen.hardware.element_types import element_type

PROBES = Path(__file__).parent / "probes"

_HEADER = re.compile(r"^// probe:[ ]*(?=\{)", re.MULTILINE)
_BOX = re.compile(r"box([+-]\d+)?")
_FIELDS = {"name", "ask", "answer", "inputs", "set", "vary", "refuses", "tolerates", "records", "shows"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One launch: its description with every value filled in."""

    name: str
    description: LaunchDescription


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked, what the emulator answers, and the launches that show it."""

    name: str
    ask: str
    answer: str
    cases: tuple[Case, ...]
    inputs: Mapping[str, Any]
    refuses: str = ""
    tolerates: tuple[str, ...] = ()
    records: bool = False
    shows: str = ""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One PTX file. `area` is the folder that it lies in."""

    name: str
    area: str
    text: str
    questions: tuple[Question, ...]

    @cached_property
    def cases(self) -> int:
        return sum(len(question.cases) for question in self.questions)


def load_probes(folder: Path = PROBES) -> tuple[Probe, ...]:
    """Every probe under a folder, by area and name."""
    return tuple(load_probe(path) for path in sorted(folder.glob("*/*.ptx")))


def load_probe(path: Path) -> Probe:
    """The probe in a file; PtxgenError says what is wrong with its header."""
    text = read_text(path)
    name = path.stem
    description = launch_in_header(text, path.name)
    header = _header(text, path.name)
    if description is None:
        raise PtxgenError(f"{path.name} has no launch description")
    launch = description.to_json()
    return Probe(
        name=name,
        area=path.parent.name,
        text=text,
        questions=tuple(_question(item, launch, header.get("inputs", {}), path.name) for item in header["questions"]),
    )


def _header(text: str, source: str) -> dict[str, Any]:
    start = _HEADER.search(text)
    if start is None:
        raise PtxgenError(f"{source} does not say what it asks: there is no `// probe: {{` in its header")
    lines = text[start.end() :].split("\n")
    comments = itertools.takewhile(lambda line: line.startswith("//"), lines[1:])
    try:
        header, _ = json.JSONDecoder().raw_decode("\n".join([lines[0], *(line[2:] for line in comments)]))
    except json.JSONDecodeError as error:
        raise PtxgenError(f"{source}: the probe's header is not JSON: {error}") from error
    assert isinstance(header, dict)
    return header


def _question(item: Mapping[str, Any], launch: Mapping[str, Any], inputs: Mapping[str, Any], source: str) -> Question:
    if unknown := set(item) - _FIELDS:
        raise PtxgenError(f"{source}: a question has unknown fields {sorted(unknown)}")
    cases = []
    for name, patches in _combinations(item.get("set", {}), item.get("vary", {})):
        data = copy.deepcopy(dict(launch))
        for key, value in patches:
            _patch(data, key, value, source)
        _measure_boxes(data)
        cases.append(Case(name=name, description=LaunchDescription.from_json(data, f"{source}, {name}")))
    if len({case.name for case in cases}) < len(cases):
        raise PtxgenError(f"{source}: two cases of {item['name']} have the same name")
    tolerates = item.get("tolerates", "")
    return Question(
        name=item["name"],
        ask=item["ask"],
        answer=item.get("answer", ""),
        cases=tuple(cases),
        inputs={**inputs, **item.get("inputs", {})},
        refuses=item.get("refuses", ""),
        tolerates=(tolerates,) if tolerates else (),
        records=item.get("records", False),
        shows=item.get("shows", ""),
    )


def _combinations(
    fixed: Mapping[str, Any], vary: Mapping[str, Sequence[Any]]
) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """(name, replacements) of every case."""
    for values in itertools.product(*vary.values()):
        chosen: list[tuple[str, Any]] = []
        for key, value in zip(vary, values, strict=True):
            chosen += value.items() if key == "together" else [(key, value)]
        name = " ".join(f"{key}={_shown(value)}" for key, value in chosen)
        yield name or "only", [*fixed.items(), *chosen]


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{_shown(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "x".join(map(str, value))
    return str(value)


def _patch(data: dict[str, Any], key: str, value: Any, source: str) -> None:
    """Replace an argument's value, fields of a tensor map or a buffer, or a field of the launch."""
    for item in (*data["arguments"], *data["buffers"]):
        if item["name"] == key and item.get("kind") != "buffer":
            item.update(value if isinstance(value, Mapping) else {"value": value})
            if "box" in item and len(item["box"]) != len(item["element_strides"]):
                item["element_strides"] = [1] * len(item["box"])
            return
    if key not in data:
        raise PtxgenError(f"{source}: there is no argument, buffer or launch field {key!r}")
    data[key] = value


def _measure_boxes(data: Mapping[str, Any]) -> None:
    """Replace "box" in arguments by the bytes that the only tensor map's box has in shared memory."""
    for argument in data["arguments"]:
        match = _BOX.fullmatch(str(argument.get("value")))
        if match is None:
            continue
        (tensor,) = (item for item in data["arguments"] if item["kind"] == "tensor_map")
        (buffer,) = (item for item in data["buffers"] if item["name"] == tensor["buffer"])
        rows = zip(tensor["box"][1:], tensor["element_strides"][1:], strict=True)
        elements = tensor["box"][0] * math.prod(-(-size // stride) for size, stride in rows)
        argument["value"] = elements * element_type(buffer["type"]).bytes + int(match[1] or 0)
