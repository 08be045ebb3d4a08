"""`ptxgen launch-template`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ptxgen.device.declarations import DeclaredEntry, DeclaredParameter

_PITCH = {name: ["round_up", ["product", name, 2], 16] for name in "NK"}
_GUESSED_TILE = 128
_GUESSED_SMEM_BYTES = 48 * 1024  # what a CTA may have without opting in


@click.command("launch-template")
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE.ptx")
@click.option("--entry", "entry_name", help="Which entry, where the file has several.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to a file instead of stdout.")
def launch_template(file: Path, entry_name: str | None, output: Path | None) -> None:
    """Print a launch description for PTX from elsewhere, to fill in and give to --launch.

    Parameters, block and cluster are those that the file declares. PTX does not say the rest: what the
    parameters mean, the grid, the dynamic shared memory, boxes and swizzles of tensor maps. Those are guesses
    for a GEMM in tiles of 128 x 128, to be replaced.
    """
    from ptxgen.device.declarations import declarations
    from ptxgen.errors import LaunchError, UnknownNameError
    from ptxgen.files import read_text, write_file

    text = read_text(file)
    entries = declarations(text, str(file)).entries
    if not entries:
        raise LaunchError(f"{file} has no entry to launch")
    if entry_name is None and len(entries) > 1:
        raise click.UsageError(f"{file} has several entries, choose one with --entry: {', '.join(entries)}")
    if entry_name is not None and entry_name not in entries:
        raise UnknownNameError(f"entry of {file}", entry_name, entries)
    entry = entries[entry_name or next(iter(entries))]
    template = _text(_description(entry, dynamic_smem=re.search(r"^\s*\.extern\s+\.shared\b", text, re.M) is not None))
    if output is None:
        click.echo(template, nl=False)
    else:
        write_file(output, template)
    click.echo(
        "ptxgen: guessed, so check: "
        + ", ".join(
            ["grid", *(["block"] if entry.reqntid is None else []), "dynamic_smem_bytes", "buffers", "arguments"]
        ),
        err=True,
    )


def _description(entry: DeclaredEntry, dynamic_smem: bool) -> dict[str, Any]:
    cluster = entry.cluster or (1, 1, 1)
    matrices = [parameter.name for parameter in entry.parameters if _is_matrix(parameter)]
    # Three matrices are, as a rule, A, B and D in this order.
    gemm = len(matrices) == 3
    names = dict(zip(matrices, "ABD", strict=True)) if gemm else {name: name for name in matrices}
    shapes = {"A": ("M", "K"), "B": ("N", "K")}
    buffers = [
        {
            "name": name,
            "type": "f16",
            "shape": [*shapes.get(name, ("M", "N"))],
            "pitch_bytes": _PITCH[shapes.get(name, ("M", "N"))[1]],
            "fill": "input" if name in ("A", "B") else "nan",
        }
        for name in names.values()
    ]
    extents: list[Any] = [["ceil_div", "N", _GUESSED_TILE], ["ceil_div", "M", _GUESSED_TILE], 1]
    return {
        "version": 1,
        "entry": entry.name,
        "grid": [
            ["round_up", extent, size] if size > 1 else extent for extent, size in zip(extents, cluster, strict=True)
        ],
        "block": [*(entry.reqntid or entry.maxntid or (128, 1, 1))],
        "cluster": [*cluster],
        "dynamic_smem_bytes": _GUESSED_SMEM_BYTES if dynamic_smem else 0,
        "buffers": buffers,
        "arguments": [_argument(parameter, names) for parameter in entry.parameters],
        "defaults": {"M": 512, "N": 512, "K": 512},
        "verify": [[128, 128, 64]],
        **({"expect": {"kind": "gemm", "a": "A", "b": "B", "d": "D"}} if gemm else {}),
    }


def _is_matrix(parameter: DeclaredParameter) -> bool:
    from ptxgen.hardware.tensor_map import TENSOR_MAP_BYTES

    return parameter.size_bytes == TENSOR_MAP_BYTES or parameter.type in ("u64", "b64")


def _argument(parameter: DeclaredParameter, names: dict[str, str]) -> dict[str, Any]:
    argument: dict[str, Any] = {"name": parameter.name}
    if parameter.name in names:
        buffer = names[parameter.name]
        if parameter.type in ("u64", "b64"):
            return argument | {"kind": "buffer", "buffer": buffer}
        rows, columns = {"A": ("M", "K"), "B": ("N", "K")}.get(buffer, ("M", "N"))
        return argument | {
            "kind": "tensor_map",
            "buffer": buffer,
            "dims": [columns, rows],
            "strides_bytes": [_PITCH[columns]],
            "box": [64, _GUESSED_TILE],
            "swizzle": 128,
        }
    kind = parameter.type.replace("b", "u")
    if parameter.size_bytes > 8 or kind.startswith("f16"):
        return argument | {"kind": "bytes", "hex": "00" * parameter.size_bytes}
    if kind.startswith("f"):
        return argument | {"kind": kind, "value": 1.0}
    named = parameter.name.rpartition("_")[2].upper()
    return argument | {"kind": kind, "value": named if named in ("M", "N", "K") else 0}


def _text(description: dict[str, Any]) -> str:
    """JSON with one line an item, as in the headers of emitted files."""
    lines = []
    for key, value in description.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            items = ",\n".join(f"    {json.dumps(item)}" for item in value)
            lines.append(f'  "{key}": [\n{items}\n  ]')
        else:
            lines.append(f'  "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"
