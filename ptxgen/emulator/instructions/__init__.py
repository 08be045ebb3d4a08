"""The instruction set: a file per kind of work, each registering its decoders.

`load_all` imports them; the registration table is in ptxgen.emulator.decode.
"""

from __future__ import annotations

from importlib import import_module

_FAMILIES = (
    "arithmetic",
    "async_copy",
    "atomics",
    "barriers",
    "bits",
    "bulk_copy",
    "bulk_groups",
    "bulk_plain",
    "cluster_launch",
    "compare",
    "control",
    "convert",
    "fences",
    "floating",
    "hints",
    "load_store",
    "matrix_moves",
    "mbarriers",
    "move",
    "tcgen05",
    "tcgen05_access",
    "tcgen05_alloc",
    "tcgen05_copy",
    "tensor_map_edits",
    "warp_ops",
    "wgmma",
)


def load_all() -> None:
    """Registers every instruction that the emulator knows."""
    for family in _FAMILIES:
        import_module(f"{__name__}.{family}")
