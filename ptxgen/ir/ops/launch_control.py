"""Dependent launches, and cluster launch control (sm_100a)."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.ir.declarations import Address, Register
from ptxgen.ir.ops.base import Op


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class WaitForGrids(Op):
    """Wait until the grids that this one depends on are complete and what they wrote is there."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LaunchDependents(Op):
    """Grids that depend on this one may be launched once all its CTAs have said so, or ended."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ClaimCluster(Op):
    """Ask for a cluster of the grid that has not started, which then never will.

    The answer of 16 bytes goes to the same place in every CTA of the cluster, and its bytes complete on
    the same mbarrier of each.
    """

    slot: Address
    barrier: Address


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ReadAnswer(Op):
    """Read the answer to a claim from shared memory."""

    dst: Register
    address: Address


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class IsClaimed(Op):
    """Whether a cluster was claimed."""

    dst: Register
    answer: Register


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ClaimedCta(Op):
    """%ctaid.x of the claimed cluster's first CTA, where the predicate says that there is one."""

    dst: Register
    answer: Register
    predicate: Register
