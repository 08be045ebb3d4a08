"""What a PTX text declares: its version, its target and its entries with their parameters.

A device that leaves the instructions to NVIDIA's compiler needs no more of the text than this, and must
take instructions that nothing else in this project knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ptxgen.device.launch import Extent
from ptxgen.errors import PtxError
from ptxgen.toolchain import ptx_target

_TYPE_BYTES = {f"{kind}{bits}": bits // 8 for kind in "busf" for bits in (8, 16, 32, 64)} | {"b128": 16}
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_VERSION = re.compile(r"^[ \t]*\.version[ \t]+(\d+)\.(\d+)", re.MULTILINE)
_ENTRY = re.compile(r"\.entry\s+([\w$%]+)\s*(?:\(([^)]*)\))?([^{;]*)\{")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+"
    r"(?:\.ptr(?:\s+\.\w+(?:::\w+)?)*?(?:\s+\.align\s+\d+)?\s+)?(?P<name>[\w$%]+)\s*(?:\[\s*(?P<count>\w*)\s*\])?"
)
_DIRECTIVE = re.compile(r"\.(\w+)((?:\s*,?\s*\d+)*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredParameter:
    """A `.param` of an entry. `type` is without the dot; sizes in bytes."""

    name: str
    type: str
    size_bytes: int
    align: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredEntry:
    """An entry's head. `blocks_are_clusters`: a launch's grid counts clusters (PTX ISA, `.blocksareclusters`)."""

    name: str
    parameters: tuple[DeclaredParameter, ...]
    reqntid: Extent | None = None
    maxntid: Extent | None = None
    cluster: Extent | None = None
    blocks_are_clusters: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """The head of a PTX text; `entries` in the order of the text."""

    version: tuple[int, int]
    target: str
    entries: Mapping[str, DeclaredEntry]


def declarations(text: str, name: str) -> Declarations:
    """What `text` declares; PtxError, speaking of file `name`, where it does not read as PTX."""
    target = ptx_target(text, name)
    version = _VERSION.search(text)
    if version is None:
        raise PtxError(name, 1, text.split("\n", 1)[0], "there is no .version directive; is this PTX?")
    code = _COMMENT.sub(lambda comment: "\n" * comment.group().count("\n"), text)
    entries = {}
    for match in _ENTRY.finditer(code):
        line = code.count("\n", 0, match.start()) + 1
        entries[match[1]] = _entry(match[1], match[2] or "", match[3], name, line)
    return Declarations(version=(int(version[1]), int(version[2])), target=target, entries=entries)


def _entry(entry: str, parameters: str, directives: str, name: str, line: int) -> DeclaredEntry:
    found: dict[str, Extent] = {}
    for directive, numbers in _DIRECTIVE.findall(directives):
        x, y, z = ([int(number) for number in re.findall(r"\d+", numbers)] + [1, 1, 1])[:3]
        found[directive] = x, y, z
    return DeclaredEntry(
        name=entry,
        parameters=tuple(_parameter(part.strip(), name, line) for part in parameters.split(",") if part.strip()),
        reqntid=found.get("reqntid"),
        maxntid=found.get("maxntid"),
        cluster=found.get("reqnctapercluster"),
        blocks_are_clusters="blocksareclusters" in found,
    )


def _parameter(declaration: str, name: str, line: int) -> DeclaredParameter:
    match = _PARAMETER.fullmatch(declaration)
    element = _TYPE_BYTES.get(match["type"]) if match else None
    if match is None or element is None:
        raise PtxError(name, line, declaration, "this parameter declaration is not understood")
    count = int(match["count"], 0) if match["count"] else 1
    return DeclaredParameter(
        name=match["name"],
        type=match["type"],
        size_bytes=element * count,
        align=int(match["align"] or element),
    )
