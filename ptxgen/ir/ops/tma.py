"""Tensor copies, and the bulk groups of stores."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.ir.declarations import Address, Register
from ptxgen.ir.ops.base import Op


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PrefetchTensorMap(Op):
    """Bring a tensor map into its cache."""

    tensor_map: Register


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CachePolicy(Op):
    """A policy for accesses: how gladly the L2 cache gives up what they bring."""

    dst: Register
    priority: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TmaLoad(Op):
    """Copy one box into shared memory; its bytes complete on the mbarrier.

    cta_group 2: the mbarrier may be the one of the pair's other CTA. mask: CTAs of the cluster (a bit
    each) that get the box, each at the same place and reported on the same mbarrier of its own.
    """

    cta_group: int = 1
    box_bytes: int
    dst: Address
    tensor_map: Register
    coordinates: tuple[Register, ...]
    barrier: Address
    mask: Register | None = None
    policy: Register | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TmaStore(Op):
    """Copy one box from shared memory, clipped at the tensor's edges, in a bulk group."""

    box_bytes: int
    tensor_map: Register
    coordinates: tuple[Register, ...]
    src: Address


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CommitStores(Op):
    """Close the executing thread's bulk group."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WaitStores(Op):
    """Wait until at most `pending` of the thread's bulk groups are unfinished.

    read: only until their sources have been read, so that staging may be written again.
    """

    pending: int
    read: bool
