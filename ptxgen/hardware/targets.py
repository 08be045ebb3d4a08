"""The chips: limits, PTX versions, and which `.target` loads on which device.

Sources: CUDA C Programming Guide (compute capabilities), PTX ISA release history, and what
ptxas 13.0 accepts.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.errors import UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One code-generation target and the chip that it is for. Sizes in bytes."""

    name: str
    ptx_version: tuple[int, int]
    """Lowest `.version` that has the target's tensor-core and TMA instructions."""
    capability: tuple[int, int]
    chip: str
    sm_count: int
    l2_bytes: int
    tmem_columns: int
    """Columns of tensor memory per SM; 0 where there is none."""
    smem_optin_bytes: int = 227 * 1024
    """Most dynamic plus static shared memory of one CTA, after opting in."""
    smem_per_sm_bytes: int = 228 * 1024
    smem_reserved_bytes: int = 1024
    """Taken by the system from every resident CTA."""
    smem_default_bytes: int = 48 * 1024
    """Limit of a CTA that does not opt in."""
    registers_per_sm: int = 64 * 1024
    max_registers_per_thread: int = 255
    max_threads_per_cta: int = 1024
    max_threads_per_sm: int = 2048
    max_ctas_per_sm: int = 32
    max_named_barriers: int = 16
    max_cluster_ctas: int = 8
    """Portable limit; 16 with the non-portable attribute."""
    max_grid: tuple[int, int, int] = (2**31 - 1, 65535, 65535)

    @property
    def has_tcgen05(self) -> bool:
        """Whether tensor cores are programmed by tcgen05 (and TMEM exists)."""
        return self.tmem_columns > 0


TARGETS: dict[str, Target] = {
    "sm_100a": Target(
        name="sm_100a",
        ptx_version=(8, 6),
        capability=(10, 0),
        chip="B200",
        sm_count=148,
        l2_bytes=126 * 2**20,
        tmem_columns=512,
    ),
    "sm_90a": Target(
        name="sm_90a",
        ptx_version=(8, 0),
        capability=(9, 0),
        chip="H200",
        sm_count=132,
        l2_bytes=50 * 2**20,
        tmem_columns=0,
    ),
}


def target(name: str) -> Target:
    """The target called `name`; UnknownNameError with the nearest name otherwise."""
    try:
        return TARGETS[name]
    except KeyError:
        raise UnknownNameError("target", name, TARGETS) from None


# Lowest `.version` that ptxas 13.0 accepts with each `.target`.
MINIMUM_PTX_VERSION: dict[str, tuple[int, int]] = {
    "sm_90": (7, 8),
    "sm_90a": (8, 0),
    "sm_100": (8, 6),
    "sm_100a": (8, 6),
    "sm_101a": (8, 6),
    "sm_120a": (8, 7),
    "sm_100f": (8, 8),
    "sm_103a": (8, 8),
    "sm_103f": (8, 8),
    "sm_121a": (8, 8),
    "sm_110a": (9, 0),
    "sm_110f": (9, 0),
}

# `.version` -> (CUDA toolkit, lowest driver branch) that reads it.
PTX_VERSIONS: dict[tuple[int, int], tuple[str, int]] = {
    (7, 8): ("11.8", 520),
    (8, 0): ("12.0", 525),
    (8, 1): ("12.1", 530),
    (8, 2): ("12.2", 535),
    (8, 3): ("12.3", 545),
    (8, 4): ("12.4", 550),
    (8, 5): ("12.5", 555),
    (8, 6): ("12.7", 565),
    (8, 7): ("12.8", 570),
    (8, 8): ("12.9", 575),
    (9, 0): ("13.0", 580),
    (9, 1): ("13.1", 590),
    (9, 2): ("13.2", 595),
    (9, 3): ("13.3", 610),
}

# Family targets load on every device of the family: (major, minors).
_FAMILIES: dict[str, tuple[int, tuple[int, ...]]] = {
    "sm_100f": (10, (0, 3)),
    "sm_103f": (10, (3,)),
    "sm_110f": (11, (0,)),
    "sm_101f": (11, (0,)),
    "sm_120f": (12, (0, 1)),
    "sm_121f": (12, (1,)),
}
_RENAMED = {"sm_101a": "sm_110a", "sm_101": "sm_110"}


def target_loads_on(target_name: str, capability: tuple[int, int]) -> bool:
    """Whether PTX with `.target target_name` can be loaded on a device of `capability`.

    `a` targets load on their own capability only, `f` targets on their family, plain targets on
    every later device. UnknownNameError when the name does not read as a target.
    """
    if target_name in _FAMILIES:
        major, minors = _FAMILIES[target_name]
        return capability[0] == major and capability[1] in minors
    name = _RENAMED.get(target_name, target_name)
    digits = name.removeprefix("sm_").removesuffix("a")
    if not name.startswith("sm_") or not digits.isdecimal() or len(digits) < 2:
        raise UnknownNameError("PTX target", target_name, [*MINIMUM_PTX_VERSION, *_FAMILIES])
    own = int(digits[:-1]), int(digits[-1])
    return capability == own if name.endswith("a") else capability >= own
