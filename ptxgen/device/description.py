"""Launch descriptions: what a launcher must know beside the PTX text.

A description is versioned JSON. It stands in the header comment of every emitted file, so that a file,
also one edited by hand, can be run alone; it may also come from a file of its own. Sizes in it are
expressions (see ptxgen.device.expression); `LaunchDescription.at` turns them into numbers.

    {"version": 1, "entry": "gemm", "grid": [e, e, e], "block": [128, 1, 1], "cluster": [1, 1, 1],
     "dynamic_smem_bytes": e,
     "buffers": [{"name": "A", "type": "f16", "shape": [e, e], "pitch_bytes": e, "fill": "input"}, ...,
                 {"name": "FLAGS", "type": "u32", "shape": [e, e], "pitch_bytes": e, "fill": "zero", "scratch": true}],
     "resident": true, "dependent": true,
     "arguments": [
       {"name": "a_map", "kind": "tensor_map", "buffer": "A", "box": [64, 128], "swizzle": 128,
        "dims": [e, e], "strides_bytes": [e]},
       {"name": "k_tiles", "kind": "u32", "value": e},
       {"name": "d", "kind": "buffer", "buffer": "D"},
       {"name": "raw", "kind": "bytes", "hex": "00ff"}],
     "defaults": {"M": 4096, "N": 4096, "K": 4096}, "verify": [[M, N, K], ...],
     "preconditions": [{"expression": e, "at_least": 1, "below": 2147483648, "rule": "why"}, ...],
     "expect": {"kind": "gemm", "a": "A", "b": "B", "d": "D"}}

`grid` counts CTAs. `fill` is "input", "nan" or "zero". A scratch buffer is the launcher's: its content may come from
an earlier launch of any kernel in the same stream, but one filled with zeros is left so by every launch. In a resident
kernel CTAs wait for each other, so that all must run at once. A dependent one may begin before the launch ahead of it
in the stream has ended; where the key is absent, the checker takes one with griddepcontrol.wait to do so. A
precondition holds where its expression is at least `at_least` and below `below`; either bound may be absent. Without
`expect` nothing can be said about the numbers that a kernel computes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ptxgen.device.expression import PROBLEM_SYMBOLS, Expression, symbols_in, to_json
from ptxgen.device.reader import Reader
from ptxgen.errors import LaunchError
from ptxgen.hardware.element_types import ELEMENT_TYPES, ElementType, element_type
from ptxgen.hardware.tensor_map import TENSOR_MAP_BYTES, Interleave, OobFill

VERSION = 1
FILLS = ("input", "nan", "zero")
SCALAR_BYTES = {"s8": 1, "u8": 1, "s16": 2, "u16": 2, "s32": 4, "u32": 4, "s64": 8, "u64": 8, "f32": 4, "f64": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferDescription:
    """A row-major matrix in global memory; `fill` says what it holds before the launch, `scratch` that no caller
    ever sees it."""

    name: str
    element_type: ElementType
    rows: Expression
    columns: Expression
    pitch_bytes: Expression
    fill: str
    scratch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMapArgument:
    """A tensor map over a buffer. Lists run from the innermost dimension outwards.

    `swizzle` is the span in bytes (128, 64, 32, or 0 for none). A stride written as the same expression
    as the buffer's pitch follows the pitch that the buffer really has.
    """

    name: str
    buffer: str
    box: tuple[int, ...]
    swizzle: int
    dims: tuple[Expression, ...]
    strides_bytes: tuple[Expression, ...]
    element_strides: tuple[int, ...]
    interleave: Interleave
    l2_promotion: int
    oob_fill: OobFill

    size_bytes = TENSOR_MAP_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarArgument:
    """A number; `kind` is its PTX type."""

    name: str
    kind: str
    value: Expression | float

    @property
    def size_bytes(self) -> int:
        return SCALAR_BYTES[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferArgument:
    """The address of a buffer, as a 64-bit integer."""

    name: str
    buffer: str

    size_bytes = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesArgument:
    """Raw bytes."""

    name: str
    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)


Argument: TypeAlias = TensorMapArgument | ScalarArgument | BufferArgument | BytesArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class Precondition:
    """A rule of the problem size: `at_least` <= value of `expression` < `below`."""

    expression: Expression
    at_least: int | None
    below: int | None
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmExpectation:
    """The buffers named `d`, `a`, `b` are to satisfy D = A . B^T: M x N, M x K and N x K."""

    a: str
    b: str
    d: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchDescription:
    """A kernel's launch at any problem size."""

    entry: str
    grid: tuple[Expression, Expression, Expression]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_smem_bytes: Expression
    buffers: tuple[BufferDescription, ...]
    arguments: tuple[Argument, ...]
    defaults: Mapping[str, int]
    verify: tuple[tuple[int, int, int], ...]
    preconditions: tuple[Precondition, ...]
    expect: GemmExpectation | None
    resident: bool = False
    dependent: bool | None = None

    @property
    def persistent(self) -> bool:
        """Whether the grid depends on the number of SMs, and so is the launcher's choice."""
        return any("SM_COUNT" in symbols_in(extent) for extent in self.grid)

    def buffer(self, name: str) -> BufferDescription:
        """The buffer called `name`, which must exist."""
        return next(buffer for buffer in self.buffers if buffer.name == name)

    def problem(self, **sizes: int | None) -> dict[str, int]:
        """M, N and K from `sizes`, the rest from the defaults; LaunchError where a size is missing."""
        known = dict(self.defaults) | {name: size for name, size in sizes.items() if size is not None}
        for name, size in known.items():
            if size < 1:
                raise LaunchError(f"{name} = {size}; sizes are at least 1")
        return known

    @classmethod
    def from_json(cls, data: object, source: str) -> LaunchDescription:
        """The description in decoded JSON. `source` names it in errors (LaunchError)."""
        root = Reader(data, f"launch description of {source}")
        version = root.integer("version")
        if version != VERSION:
            raise LaunchError(f"{root.where}: version {version} is not known; this ptxgen reads version {VERSION}")
        buffers = tuple(_read_buffer(item) for item in root.nested_list("buffers"))
        names = [buffer.name for buffer in buffers]
        if len(set(names)) < len(names):
            raise LaunchError(f"{root.where}: buffers: names repeat: {', '.join(names)}")
        by_name = {buffer.name: buffer for buffer in buffers}
        description = cls(
            entry=root.text("entry"),
            grid=_triple(root.expressions("grid", count=3)),
            block=_triple(root.integers("block", count=3)),
            cluster=_triple(root.integers("cluster", count=3, default=(1, 1, 1))),
            dynamic_smem_bytes=root.expression("dynamic_smem_bytes", default=0),
            buffers=buffers,
            arguments=tuple(_read_argument(item, by_name) for item in root.nested_list("arguments")),
            defaults=_read_defaults(root),
            verify=tuple(_triple(shape) for shape in root.integer_lists("verify", count=3)),
            preconditions=tuple(_read_precondition(item) for item in root.nested_list("preconditions", default=())),
            expect=_read_expectation(root, names),
            resident=root.boolean("resident", default=False),
            dependent=root.optional_boolean("dependent"),
        )
        root.finish()
        if any("CTAS" in symbols_in(extent) for extent in description.grid):
            raise LaunchError(f"{root.where}: grid: CTAS counts the CTAs of the grid, so the grid cannot depend on it")
        return description

    def to_json(self) -> dict[str, object]:
        """The JSON form, inverse of `from_json`; what a default would give back is written out too."""
        data: dict[str, object] = {
            "version": VERSION,
            "entry": self.entry,
            "grid": [to_json(extent) for extent in self.grid],
            "block": list(self.block),
            "cluster": list(self.cluster),
            "dynamic_smem_bytes": to_json(self.dynamic_smem_bytes),
            "buffers": [
                {
                    "name": buffer.name,
                    "type": buffer.element_type.name,
                    "shape": [to_json(buffer.rows), to_json(buffer.columns)],
                    "pitch_bytes": to_json(buffer.pitch_bytes),
                    "fill": buffer.fill,
                }
                | ({"scratch": True} if buffer.scratch else {})
                for buffer in self.buffers
            ],
            "arguments": [_argument_json(argument) for argument in self.arguments],
            "defaults": dict(self.defaults),
            "verify": [list(shape) for shape in self.verify],
            "preconditions": [
                {"expression": to_json(item.expression), "rule": item.rule}
                | ({} if item.at_least is None else {"at_least": item.at_least})
                | ({} if item.below is None else {"below": item.below})
                for item in self.preconditions
            ],
        }
        if self.resident:
            data["resident"] = True
        if self.dependent is not None:
            data["dependent"] = self.dependent
        if self.expect:
            data["expect"] = {"kind": "gemm", "a": self.expect.a, "b": self.expect.b, "d": self.expect.d}
        return data


def parse_launch(text: str, source: str) -> LaunchDescription:
    """The description in JSON text. LaunchError names the place of whatever is wrong."""
    return LaunchDescription.from_json(_decode(text, source, first_line=1), source)


_HEADER = re.compile(r"^[ \t]*//[ \t]*launch:[ \t]*(?=\{)", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*//[ \t]?(.*)$")


def launch_in_header(text: str, source: str) -> LaunchDescription | None:
    """The description in the comment lines of a PTX text, or None where there is none.

    It begins behind `// launch:` and goes on over the comment lines that follow.
    """
    starts = list(_HEADER.finditer(text))
    if not starts:
        return None
    if len(starts) > 1:
        lines = ", ".join(str(text.count("\n", 0, start.start()) + 1) for start in starts)
        raise LaunchError(f"{source} has several launch descriptions (lines {lines}); give one with --launch")
    first, *rest = text[starts[0].end() :].split("\n")
    lines_of_json = [first]
    for line in rest:
        match = _COMMENT.match(line)
        if match is None:
            break
        lines_of_json.append(match.group(1))
    first_line = text.count("\n", 0, starts[0].start()) + 1
    return LaunchDescription.from_json(_decode("\n".join(lines_of_json), source, first_line), source)


def _decode(text: str, source: str, first_line: int) -> object:
    try:
        data, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except json.JSONDecodeError as error:
        line = first_line + text[: len(text) - len(text.lstrip())].count("\n") + error.lineno - 1
        raise LaunchError(f"launch description of {source}, line {line}: not JSON: {error.msg}") from error
    except RecursionError as error:
        raise LaunchError(f"launch description of {source}: nested too deeply") from error
    return data


def _triple(values: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    x, y, z = values
    return x, y, z


def _read_buffer(item: Reader) -> BufferDescription:
    kind = element_type(item.choice("type", tuple(ELEMENT_TYPES)))
    rows, columns = item.expressions("shape", count=2)
    buffer = BufferDescription(
        name=item.text("name"),
        element_type=kind,
        rows=rows,
        columns=columns,
        pitch_bytes=item.expression("pitch_bytes"),
        fill=item.choice("fill", FILLS),
        scratch=item.boolean("scratch", default=False),
    )
    if buffer.scratch and buffer.fill == "input":
        raise LaunchError(f"{item.where}: a scratch buffer is no input; its fill is nan or zero")
    if kind.is_packed:
        raise LaunchError(f"{item.where}: type {kind} does not fill whole bytes; declare the bytes as u8")
    item.finish()
    return buffer


def _read_argument(item: Reader, buffers: Mapping[str, BufferDescription]) -> Argument:
    kind = item.choice("kind", ("tensor_map", "buffer", "bytes", *SCALAR_BYTES))
    name = item.text("name")
    argument: Argument
    if kind == "tensor_map":
        argument = _read_tensor_map(item, name, tuple(buffers))
    elif kind == "buffer":
        argument = BufferArgument(name=name, buffer=item.choice("buffer", tuple(buffers)))
    elif kind == "bytes":
        argument = BytesArgument(name=name, data=item.hexadecimal("hex"))
    elif kind.startswith("f"):
        argument = ScalarArgument(name=name, kind=kind, value=item.number("value"))
    else:
        argument = ScalarArgument(name=name, kind=kind, value=item.expression("value"))
    item.finish()
    return argument


def _read_tensor_map(item: Reader, name: str, buffers: tuple[str, ...]) -> TensorMapArgument:
    box = item.integers("box")
    span = item.integer("swizzle")
    interleave: dict[str, Interleave] = {"none": "none", "16B": "16B", "32B": "32B"}
    fill: dict[str, OobFill] = {"zero": "zero", "nan": "nan"}
    if span not in (0, 32, 64, 128):
        raise LaunchError(f"{item.where}.swizzle: {span} is none of the spans 0 (none), 32, 64, 128 bytes")
    return TensorMapArgument(
        name=name,
        buffer=item.choice("buffer", buffers),
        box=box,
        swizzle=span,
        dims=item.expressions("dims", count=len(box)),
        strides_bytes=item.expressions("strides_bytes", count=len(box) - 1),
        element_strides=item.integers("element_strides", count=len(box), default=(1,) * len(box)),
        interleave=interleave[item.choice("interleave", tuple(interleave), default="none")],
        l2_promotion=item.integer("l2_promotion", default=0),
        oob_fill=fill[item.choice("oob_fill", tuple(fill), default="zero")],
    )


def _argument_json(argument: Argument) -> dict[str, object]:
    if isinstance(argument, ScalarArgument):
        value = argument.value if isinstance(argument.value, float) else to_json(argument.value)
        return {"name": argument.name, "kind": argument.kind, "value": value}
    if isinstance(argument, BufferArgument):
        return {"name": argument.name, "kind": "buffer", "buffer": argument.buffer}
    if isinstance(argument, BytesArgument):
        return {"name": argument.name, "kind": "bytes", "hex": argument.data.hex()}
    return {
        "name": argument.name,
        "kind": "tensor_map",
        "buffer": argument.buffer,
        "box": list(argument.box),
        "swizzle": argument.swizzle,
        "dims": [to_json(size) for size in argument.dims],
        "strides_bytes": [to_json(stride) for stride in argument.strides_bytes],
        "element_strides": list(argument.element_strides),
        "interleave": argument.interleave,
        "l2_promotion": argument.l2_promotion,
        "oob_fill": argument.oob_fill,
    }


def _read_defaults(root: Reader) -> dict[str, int]:
    item = root.nested("defaults")
    defaults = {name: item.integer(name) for name in PROBLEM_SYMBOLS}
    item.finish()
    return defaults


def _read_precondition(item: Reader) -> Precondition:
    precondition = Precondition(
        expression=item.expression("expression"),
        at_least=item.optional_integer("at_least"),
        below=item.optional_integer("below"),
        rule=item.text("rule"),
    )
    item.finish()
    return precondition


def _read_expectation(root: Reader, buffers: list[str]) -> GemmExpectation | None:
    if not root.has("expect"):
        return None
    item = root.nested("expect")
    item.choice("kind", ("gemm",))
    a, b, d = (item.choice(key, tuple(buffers)) for key in ("a", "b", "d"))
    item.finish()
    return GemmExpectation(a=a, b=b, d=d)
