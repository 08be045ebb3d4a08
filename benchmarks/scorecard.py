"""sm_100a kernels beside those of other compilers for the same tile, from what ptxas makes of them. Needs no GPU.

    python -m benchmarks.scorecard [--record]

Peers are compiled where triton 3.9.0 and pyptx 0.1.1 are installed, and left out elsewhere. Instructions are SASS, of
the smallest loop around the role's own instruction: UTMALDG for the producer and UTC.MMA for the multiplier, per K
tile of 64; LDTM for the storers, per 32 columns. Stages and mbarriers are counted in the PTX's initialisations.
Fetched bytes are those that the tile needs from the L2 cache, waves those of persistent CTAs or clusters on 148 SMs.
The epilogue is exposed where a CTA has one accumulator.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import os
import re
import sys
import tempfile
import types
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ptxgen
from benchmarks.common import record
from benchmarks.comparison.triton_compiler import compile_kernel
from ptxgen.plan import MMA_K_BYTES
from ptxgen.spec import parse_settings
from ptxgen.toolchain import assemble, disassemble

ROOT = Path(__file__).resolve().parent.parent
SMS = 148
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?);")
_LABEL = re.compile(r"^(\.L_\w+):")
_TARGET = re.compile(r"\bBRA\b.*?`\((\.L_\w+)\)")


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A text, and of its launch what the text does not say. tile: of the CTA or the pair."""

    name: str
    text: str
    tile: tuple[int, int, int]
    ctas: int
    smem_bytes: int
    stages: int
    accumulators: int
    persistent: bool = True


@dataclass(frozen=True, kw_only=True)
class Row:
    """SASS instructions per K tile of 64 (per 32 columns for the epilogue); bytes; how full the waves are."""

    name: str
    tile: str
    producer: float | None
    multiplier: float | None
    epilogue: float | None
    registers: int
    smem_bytes: int
    stages: int
    mbarriers: int
    fetched_bytes_per_kflop: float
    waves_4096: float
    waves_8192: float
    epilogue_exposed: bool


class Sass:
    """Instructions in order, and the loops among them."""

    def __init__(self, text: str) -> None:
        self.code: list[str] = []
        labels: dict[str, int] = {}
        for line in text.splitlines():
            if label := _LABEL.match(line.strip()):
                labels[label[1]] = len(self.code)
            elif found := _INSTRUCTION.search(line):
                self.code.append(found[1])
        self.loops = [
            (labels[found[1]], number)
            for number, one in enumerate(self.code)
            if (found := _TARGET.search(one)) and labels.get(found[1], number + 1) <= number
        ]

    def loop_around(self, opcode: str) -> list[str] | None:
        """The smallest loop with such an instruction in it; None where there is none."""
        having = [
            self.code[start : end + 1]
            for start, end in self.loops
            if any(re.search(opcode, one) for one in self.code[start : end + 1])
        ]
        return min(having, key=len, default=None)


def row(kernel: Kernel) -> Row:
    """A kernel's row."""
    built = assemble(kernel.text, line_info=False)
    sass = Sass(disassemble(built.cubin))
    m, n, k = kernel.tile
    mmas = k * 2 // MMA_K_BYTES
    producer, multiplier, epilogue = (sass.loop_around(one) for one in (r"\bUTMALDG", r"\bUTC\w*MMA", r"\bLDTM"))

    def of(loop: list[str] | None, opcode: str, each: int) -> float | None:
        count = sum(bool(re.search(opcode, one)) for one in loop or ())
        return None if loop is None or count == 0 else round(len(loop) * each / count, 1)

    tiles_at = {size: (size // m) * (size // n) for size in (4096, 8192)}
    workers = SMS // kernel.ctas
    waves = {size: tiles / (-(-tiles // workers) * workers) for size, tiles in tiles_at.items()}
    columns = sum(
        int(found[1]) for one in epilogue or () if (found := re.search(r"LDTM(?:\.\d+dp\d+bit)?\.x(\d+)", one))
    )
    return Row(
        name=kernel.name,
        tile=" x ".join(map(str, kernel.tile)),
        producer=of(producer, r"\bUTMALDG", 2),
        multiplier=of(multiplier, r"\bUTC\w*MMA", mmas),
        epilogue=round(len(epilogue) * 32 / columns, 1) if epilogue and columns else None,
        registers=built.entries[0].registers,
        smem_bytes=kernel.smem_bytes,
        stages=kernel.stages,
        mbarriers=len(re.findall(r"mbarrier\.init", kernel.text)),
        fetched_bytes_per_kflop=round(1000 * 2 * (m + n) * k / (2.0 * m * n * k), 2),
        waves_4096=round(waves[4096], 3),
        waves_8192=round(waves[8192], 3),
        epilogue_exposed=not (kernel.persistent and kernel.accumulators > 1),
    )


_SMALLER = ("tile=256x256x64", "consumers=1", "accumulators=2", "pipe_depth=6")


def ours() -> Iterator[Kernel]:
    """Steps 7 to 10, and their variants for the peers' tiles."""
    for name, spec in (
        ("step 7", ptxgen.step(7).replace(tile={"m": 128, "n": 256}, accumulators=2, pipe_depth=3)),
        ("step 8", ptxgen.step(8)),
        ("step 9", ptxgen.step(9)),
        ("step 10", ptxgen.step(10)),
        ("step 10, 256 x 256", parse_settings(ptxgen.step(10), _SMALLER)),
    ):
        text = ptxgen.emit(spec)
        yield Kernel(
            name=name,
            text=text,
            tile=(spec.tile.m, spec.tile.n, spec.tile.k),
            ctas=spec.cluster_ctas,
            smem_bytes=int(re.findall(r'"dynamic_smem_bytes": (\d+)', text)[0]),
            stages=spec.pipe_depth,
            accumulators=spec.accumulators,
        )


def triton_kernels() -> Iterator[Kernel]:
    """Persistent, with roles, and without: kernels of tests/peers."""
    language = importlib.import_module("triton.language")
    spec = importlib.util.spec_from_file_location("triton_kernels", ROOT / "tests" / "peers" / "triton_kernels.py")
    assert spec is not None
    assert spec.loader is not None
    kernels = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = kernels
    spec.loader.exec_module(kernels)
    tile = 128, 256, 64
    for name, roles in (("Triton, roles", True), ("Triton", False)):
        constants = dict(zip(("BM", "BN", "BK"), tile, strict=True)) | {
            "OUT": language.float16,
            "ROLES": roles,
            "FLATTEN": False,
        }
        shapes = {"a": (tile[0], tile[2]), "b": (tile[1], tile[2]), "d": tile[:2]}
        signature = {one: f"tensordesc<fp16[{r},{c}]>" for one, (r, c) in shapes.items()}
        signature |= dict.fromkeys(("m", "n", "k"), "i32")
        done = compile_kernel(kernels.persistent, signature, constants, num_warps=4, num_stages=(stages := 3))
        text = done.asm["ptx"]
        columns = [int(found) for found in re.findall(r"tcgen05\.alloc[^;]*?, (\d+);", text)]
        yield Kernel(
            name=name,
            text=text,
            tile=tile,
            ctas=1,
            smem_bytes=done.metadata.shared,
            stages=stages,
            accumulators=max(columns, default=0) // tile[1],
        )


def pyptx_kernels() -> Iterator[Kernel]:
    """One CTA, persistent and not, and a pair. The module imports jax for its own runners only."""
    if importlib.util.find_spec("jax") is None:
        jax: Any = types.ModuleType("jax")
        jax.numpy = types.ModuleType("jax.numpy")
        sys.modules |= {"jax": jax, "jax.numpy": jax.numpy}
    examples = importlib.import_module("pyptx.examples.blackwell.gemm_highperf_blackwell")
    size = 4096, 4096, 4096
    for name, build, tile, ctas in (
        ("pyptx", examples.build_gemm, (128, 256, 64), 1),
        ("pyptx, persistent", partial(examples.build_gemm_persistent, num_ctas=SMS), (128, 256, 64), 1),
        ("pyptx, pair", examples.build_gemm_2sm, (256, 256, 64), 2),
    ):
        text = build(*size).ptx()
        stages = inspect.signature(build).parameters["stages"].default
        columns = [int(found) for found in re.findall(r"tcgen05\.alloc[^;]*?, (\d+);", text)]
        yield Kernel(
            name=name,
            text=text,
            tile=tile,
            ctas=ctas,
            smem_bytes=stages * (tile[0] + tile[1]) // ctas * tile[2] * 2,  # the ring; a few words come on top
            stages=stages,
            accumulators=max(columns, default=0) // tile[1],
            persistent="persistent" in name,
        )


def main() -> None:
    """Print the rows, and record them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/scorecard.json")
    options = parser.parse_args()
    kernels = [*ours()]
    for package, made in (("triton", triton_kernels), ("pyptx", pyptx_kernels)):
        if importlib.util.find_spec(package) is None:
            print(f"{package} is not installed")
            continue
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TRITON_CACHE_DIR"] = folder
            kernels += made()
    rows = [row(kernel) for kernel in sorted(kernels, key=lambda kernel: kernel.tile)]
    for one in rows:
        print(one)
    if options.record:
        record("scorecard", {"rows": [asdict(one) for one in rows]})


if __name__ == "__main__":
    main()
