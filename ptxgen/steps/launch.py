"""The launch description of a spec: what the driver, or the emulator, must be given.

Sizes are expressions of M, N, K and SM_COUNT, so that one text serves every problem.
"""

from __future__ import annotations

import json
from typing import Any

from ptxgen.hardware.element_types import element_type
from ptxgen.plan import Operand
from ptxgen.rules import BANDED
from ptxgen.spec import GemmSpec, implied, setting_text
from ptxgen.steps.partials import PARAMETERS, slot_bytes, slot_flags

Expression = int | str | list[Any]


def launch_description(spec: GemmSpec) -> dict[str, Any]:
    """The JSON object described in docs/launch.md."""
    plan, tile, cluster_tile = spec.plan, spec.tile, spec.cluster_tile
    m_tiles: Expression = ["ceil_div", "M", cluster_tile.m]
    n_tiles: Expression = ["ceil_div", "N", cluster_tile.n]
    tiles: Expression = ["product", m_tiles, n_tiles]
    persistent = spec.scheduler.kind == "persistent"
    grouped = spec.scheduler.order in BANDED
    grid: list[Expression] = [n_tiles, m_tiles, 1]
    preconditions: list[dict[str, Any]] = []
    if spec.scheduler.kind == "single":
        grid = [1, 1, 1]
        preconditions += [
            {"expression": "M", "below": tile.m + 1, "rule": "one tile"},
            {"expression": "N", "below": tile.n + 1, "rule": "one tile"},
        ]
    if spec.step == 1:
        preconditions.append({"expression": "K", "below": tile.k + 1, "rule": "one K tile"})
    if persistent:
        pairs: Expression = ["ceil_div", "SM_COUNT", spec.cluster_ctas]
        grid = ["SM_COUNT" if spec.cluster_ctas == 1 else ["product", spec.cluster_ctas, pairs], 1, 1]
    elif spec.cluster_ctas > 1:
        grid = [["product", spec.cluster_ctas, tiles], 1, 1]
    elif grouped:
        grid = [tiles, 1, 1]
    staging = plan.staging
    output = {"inner": staging.panel_columns, "rows": staging.rows, "span": staging.panel_span}
    maps = []
    if spec.load == "tma":
        promotion = {"l2_promotion": spec.l2_promotion} if spec.l2_promotion else {}
        maps.append(_map("a_map", "A", spec.operand_type, "M", "K", _box(plan.a)) | promotion)
        maps.append(_map("b_map", "B", spec.operand_type, "N", "K", _box(plan.b)) | promotion)
    if spec.epilogue.store == "tma":
        maps.append(_map("d_map", "D", spec.output_type, "M", "N", output))
    counts = [] if spec.step == 1 else [_count("k_tiles", ["ceil_div", "K", tile.k])]
    by_id = grouped or persistent or spec.cluster_ctas > 1
    if grouped or persistent:
        counts.append(_count("m_tiles", m_tiles))
    if by_id:
        counts.append(_count("n_tiles", n_tiles))
    preconditions.append({"expression": ["ceil_div", "K", tile.k], "at_least": 1, "rule": "K >= 1"})
    if by_id:
        preconditions.append({"expression": tiles, "below": 2**31, "rule": "tile ids are 31-bit numbers"})
    if spec.scheduler.divides_k:
        preconditions.append(_divided(spec, tiles))
    if spec.cluster_ctas > 1 and not persistent:
        preconditions.append({"expression": grid[0], "below": 2**31, "rule": "a grid has fewer CTAs"})
    return {
        "version": 1,
        "entry": f"gemm_step{spec.step}",
        "grid": grid,
        "block": [spec.threads, 1, 1],
        "cluster": [spec.cluster_ctas, 1, 1],
        "dynamic_smem_bytes": plan.smem_bytes,
        "buffers": [
            _buffer("A", spec.operand_type, "M", "K", "input"),
            _buffer("B", spec.operand_type, "N", "K", "input"),
            _buffer("D", spec.output_type, "M", "N", "nan"),
            *_scratch(spec, tiles),
        ],
        **({"resident": True} if spec.scheduler.divides_k else {}),
        **({"dependent": True} if spec.dependent_launch else {}),
        "arguments": [*maps, *counts, *_pointers(spec)],
        "preconditions": preconditions,
        "defaults": _defaults(spec),
        "verify": verify_shapes(spec),
        "expect": {"kind": "gemm", "a": "A", "b": "B", "d": "D"},
    }


def _defaults(spec: GemmSpec) -> dict[str, int]:
    """The tutorial's problem; of the steps that compute one tile, that tile."""
    if spec.scheduler.kind != "single":
        return {"M": 4096, "N": 4096, "K": 4096}
    return {"M": spec.tile.m, "N": spec.tile.n, "K": spec.tile.k if spec.step == 1 else 4096}


def verify_shapes(spec: GemmSpec) -> list[list[int]]:
    """Small M, N, K that reach every path: one and several K tiles, more than the ring holds, odd
    counts, edge tiles on every side, one tile and several (and so no tile for some CTA), and for the
    grouped order a second band, shorter than the first."""
    tile, depth = spec.tile, spec.pipe_depth
    if spec.scheduler.kind == "single":
        several = tile.k if spec.step == 1 else 3 * tile.k
        return [[tile.m, tile.n, tile.k], [tile.m - 3, tile.n - 8, several - 5], [1, 8, 1]]
    group, whole = spec.scheduler.group, spec.cluster_tile
    if spec.scheduler.divides_k:  # an odd number of tiles, which two CTAs or clusters divide
        third = [2 * whole.m + 1, whole.n - 5, tile.k * (2 * depth + 1)]
    else:
        third = [2 * tile.m + 1, 2 * tile.n - 5, tile.k * (2 * depth + 1)]
    return [
        [tile.m, tile.n, tile.k],
        [tile.m - 3, tile.n + 8, tile.k * depth + 8],
        third,
        *([[group * whole.m + 1, whole.n + 8, tile.k]] if group else []),
    ]


def launch_text(spec: GemmSpec) -> str:
    """The description as JSON with one line an entry, so that it diffs well."""
    lines = []
    for key, value in launch_description(spec).items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            items = ",\n    ".join(json.dumps(item) for item in value)
            lines.append(f'  "{key}": [\n    {items}\n  ]')
        else:
            lines.append(f'  "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(lines) + "\n}"


def reproduce_command(spec: GemmSpec) -> str:
    """The command line that prints the same text: the step and every setting that differs."""
    words = [f"ptxgen emit --step {spec.step} --target {spec.target}"]
    return " ".join((*words, *(f"--set {text}" for text in changed(spec))))


def changed(spec: GemmSpec) -> tuple[str, ...]:
    """The settings in which a spec differs from its step's usual ones, as on the command line; but for those that the
    others bring with them."""
    from ptxgen.steps import step

    base = step(spec.step, target=spec.target)
    usual = base.settings()
    found = {name: value for name, value in spec.settings().items() if value != usual[name]}
    for part in ("scheduler", "epilogue"):
        own = {name.partition(".")[2]: value for name, value in found.items() if name.startswith(f"{part}.")}
        brought = implied(part, own, getattr(base, part))
        usual.update({f"{part}.{name}": value for name, value in brought.items()})
    return tuple(setting_text(name, value) for name, value in spec.settings().items() if value != usual[name])


def _pointers(spec: GemmSpec) -> list[dict[str, Any]]:
    """Matrices that threads load or store themselves: addresses, pitches, sizes."""
    matrices = [("A", spec.operand_type, "K"), ("B", spec.operand_type, "K")] if spec.load == "threads" else []
    matrices += [("D", spec.output_type, "N")] if spec.epilogue.store == "direct" else []
    sizes = ("M", "N", "K") if spec.load == "threads" else ("M", "N")
    return [
        *({"name": name.lower(), "kind": "buffer", "buffer": name} for name, _, _ in matrices),
        *(_count(f"{name.lower()}_pitch", _pitch(kind, columns)) for name, kind, columns in matrices),
        *(_count(size.lower(), size) for size in sizes if matrices),
        *(
            {"name": item.name, "kind": "buffer", "buffer": item.name.upper()}
            for item in (PARAMETERS if spec.scheduler.divides_k else ())
        ),
    ]


def _divided(spec: GemmSpec, tiles: Expression) -> dict[str, Any]:
    """Where K is divided, what is counted has 31 bits."""
    k_tiles: Expression = ["ceil_div", "K", spec.tile.k]
    if spec.scheduler.stream_k:
        rule = "K tiles of two waves are counted in 31 bits"
        return {"expression": ["product", 2, "CTAS", k_tiles], "below": 2**31, "rule": rule}
    rule = "parts of tiles are 31-bit numbers"
    return {"expression": ["product", tiles, spec.scheduler.split_k], "below": 2**31, "rule": rule}


def _scratch(spec: GemmSpec, tiles: Expression) -> list[dict[str, Any]]:
    """Partial sums and their flags: a slot for every unit of K tiles that may begin inside a tile."""
    if not spec.scheduler.divides_k:
        return []
    slots: Expression = "CTAS"
    if not spec.scheduler.stream_k:
        slots = ["product", tiles, spec.scheduler.split_k, spec.cluster_ctas]
    rows = (("partials", "f32", slot_bytes(spec) // 4, "nan"), ("flags", "u32", slot_flags(spec), "zero"))
    return [
        {
            "name": name.upper(),
            "type": kind,
            "shape": [slots, columns],
            "pitch_bytes": 4 * columns,
            "fill": fill,
            "scratch": True,
        }
        for name, kind, columns, fill in rows
    ]


def _count(name: str, value: Expression) -> dict[str, Any]:
    return {"name": name, "kind": "u32", "value": value}


def _buffer(name: str, kind: str, rows: str, columns: str, fill: str) -> dict[str, Any]:
    pitch = _pitch(kind, columns)
    return {
        "name": name,
        "type": kind,
        "shape": [rows, columns],
        "pitch_bytes": pitch,
        "fill": fill,
    }


def _pitch(kind: str, columns: str) -> Expression:
    """Row pitch in bytes: tensor maps take multiples of 16 (cuTensorMapEncodeTiled)."""
    return ["round_up", ["product", columns, element_type(kind).bytes], 16]


def _box(operand: Operand) -> dict[str, int]:
    return {
        "inner": operand.panel_k,
        "rows": operand.load_rows,
        "span": operand.swizzle.span_bytes,
    }


def _map(name: str, buffer: str, kind: str, rows: str, columns: str, box: dict[str, int]) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "tensor_map",
        "buffer": buffer,
        "dims": [columns, rows],
        "strides_bytes": [_pitch(kind, columns)],
        "box": [box["inner"], box["rows"]],
        "swizzle": box["span"] if box["span"] > 16 else 0,
    }
