"""What another compiler emits is explained, compared and shown on a page; what cannot be known is said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ptxgen.review.comparison import compare
from ptxgen.review.explain import explain
from ptxgen.review.explain_text import explanation_lines
from ptxgen.review.report import make_report, report_page
from ptxgen.review.sources import Source

pytestmark = pytest.mark.peers

TILE = (128, 128, 64)


def source(matmul: Any) -> Source:
    """The PTX of a compiled kernel."""
    return Source(name="triton.ptx", text="\n".join(matmul.module.lines))


def launch(matmul: Any) -> Source:
    """How such a kernel is launched, which its text does not say."""
    sizes = {"A": ("M", "K"), "B": ("N", "K"), "D": ("M", "N")}
    arguments: list[dict[str, Any]] = []
    buffers = []
    for (name, (rows, columns)), (box, swizzle) in zip(sizes.items(), matmul.boxes, strict=True):
        pitch = ["round_up", ["product", columns, 2], 16]
        buffers.append(
            {"name": name, "type": "f16", "shape": [rows, columns], "pitch_bytes": pitch}
            | {"fill": "nan" if name == "D" else "input"}
        )
        span = swizzle.span_bytes if swizzle.span_bytes > 16 else 0
        arguments += [
            {"name": f"{name}_map", "kind": "tensor_map", "buffer": name, "dims": [columns, rows]}
            | {"strides_bytes": [pitch], "box": list(box[::-1]), "swizzle": span},
            {"name": f"{name}_rows", "kind": "u32", "value": rows},
            {"name": f"{name}_columns", "kind": "u32", "value": columns},
            {"name": f"{name}_stride", "kind": "u64", "value": columns},
            {"name": f"{name}_one", "kind": "u64", "value": 1},
        ]
    arguments += [{"name": name, "kind": "u32", "value": name} for name in ("M", "N", "K")]
    arguments += [{"name": name, "kind": "u64", "value": 0} for name in ("scratch", "profile")]
    m, n, k = matmul.tile
    description = {
        "version": 1,
        "entry": next(iter(matmul.module.entries)),
        "grid": [["ceil_div", "M", m], ["ceil_div", "N", n], 1],
        "block": [matmul.threads, 1, 1],
        "dynamic_smem_bytes": matmul.dynamic_smem_bytes,
        "buffers": buffers,
        "arguments": arguments,
        "defaults": {"M": 4096, "N": 4096, "K": 4096},
        "verify": [[m, n, k], [m, n, 5 * k]],
        "expect": {"kind": "gemm", "a": "A", "b": "B", "d": "D"},
    }
    return Source(name="launch.json", text=json.dumps(description))


@pytest.mark.parametrize(
    ("kernel", "constants"), [("plain", {}), ("plain", {"ROLES": True}), ("persistent", {"ROLES": True})]
)
def test_from_the_text_alone(triton_matmul: Any, kernel: str, constants: dict[str, bool]) -> None:
    found = explain(source(triton_matmul(kernel, TILE, **constants)))
    text = "\n".join(explanation_lines(found))
    for use in found.descriptors:
        assert "not known" not in use.text
    operands = {use.decoded.operand: use for use in found.descriptors}
    assert operands["instruction descriptor"].decoded.meaning.startswith("M 128 x N 128, f16 x f16 -> f32")
    first, second = (operands[f"{place} operand"].decoded for place in ("first", "second"))
    assert first.meaning == second.meaning == "swizzle B128, stride 1024 B"
    assert found.accounts and all(account.count == "1" or account.count.isdecimal() for account in found.accounts)
    assert any("bytes expected" in arrive for account in found.accounts for arrive in account.entries[0].arrives)
    assert "There is no launch description" in text
    assert "are made by whoever launches the kernel" in text
    assert ("indexed branch" in text) == bool(constants)


def test_with_a_launch_description_phase_by_phase(triton_matmul: Any) -> None:
    matmul = triton_matmul("plain", TILE, ROLES=True)
    found = explain(source(matmul), launch=launch(matmul))
    assert found.trace is not None and found.trace.comparison is not None and found.trace.comparison.matches
    loaded = [account for account in found.accounts if any(entry.bytes for entry in account.entries)]
    assert sum(sum(account.phases or ()) for account in loaded) >= 5
    uses = {use for region in found.smem for use in region.uses}
    assert {"TMA load A_map", "TMA load B_map", "TMA store D_map", "MMA operand"} <= uses


def test_a_page(triton_matmul: Any) -> None:
    matmul = triton_matmul("plain", TILE, ROLES=True)
    page = report_page(make_report(source(matmul), launch=launch(matmul)))
    assert 'id="timeline"' in page and "numbers right" in page


def test_tiles_of_another_width_are_compared(triton_matmul: Any) -> None:
    old, new = (source(triton_matmul("plain", tile)) for tile in (TILE, (128, 256, 64)))
    found = compare(old, new, ptxas=False, run=False)
    changes = {(change.group, change.name): (change.old, change.new) for change in found.changes}
    assert changes["memory", "TMEM"] == ("128 columns", "256 columns")
    descriptor = changes["MMA", "instruction descriptor"]
    assert "N 128" in str(descriptor[0]) and "N 256" in str(descriptor[1])
    assert found.hunks.renamed > 100
