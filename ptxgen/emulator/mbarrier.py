"""The mbarrier object: phases of arrivals and bytes (PTX ISA 9.1 §9.7.13.15).

The state lives here and not in the eight bytes of shared memory. What those hold on real chips is
opaque; here it is poison.
"""

from __future__ import annotations

from ptxgen.errors import MachineError
from ptxgen.hardware.mbarrier import MAX_COUNT, MAX_TX


class Mbarrier:
    """One barrier. `phase` counts completed phases; its parity is that of the current phase.

    A phase completes when no arrival is pending and no byte is outstanding, whichever operation brings
    that about; the next one starts at once with `expected` arrivals pending.
    """

    __slots__ = ("expected", "initialised", "pending", "phase", "tx")

    def __init__(self) -> None:
        self.initialised = False
        self.phase = self.pending = self.expected = self.tx = 0

    def init(self, count: int) -> None:
        """`mbarrier.init`: phase 0 with `count` arrivals expected in every phase."""
        if not 1 <= count <= MAX_COUNT:
            raise MachineError("arrive-count-exceeded", f"mbarrier.init with count {count}: it is 1..{MAX_COUNT}")
        if self.initialised:
            raise MachineError(
                "barrier-overwritten",
                f"mbarrier.init on a live barrier ({self.describe()}); mbarrier.inval has to end its use first",
            )
        self.initialised = True
        self.phase = self.tx = 0
        self.pending = self.expected = count

    def inval(self) -> None:
        """`mbarrier.inval`: the eight bytes may be used for something else."""
        self._live("mbarrier.inval")
        if self.tx:
            raise MachineError("tx-count-mismatch", f"mbarrier.inval while bytes are outstanding ({self.describe()})")
        self.initialised = False

    def arrive(self, count: int = 1, *, tx: int = 0) -> bool:
        """`mbarrier.arrive`, with `tx` also `.expect_tx`; True when it completes the phase."""
        self._live("an arrive")
        if tx:
            self._expect(tx)
        if not 1 <= count <= self.pending:
            raise MachineError(
                "arrive-count-exceeded",
                f"{count} arrivals on a barrier that still waits for {self.pending} ({self.describe()})\n"
                "  missing, before this arrival: a wait for what its phase ends with, or a larger count",
            )
        self.pending -= count
        return self._complete()

    def arrive_drop(self, count: int = 1, *, tx: int = 0) -> bool:
        """`mbarrier.arrive_drop`: arrives and lowers the count of all later phases."""
        self._live("an arrive_drop")
        if not 1 <= count <= self.pending:
            return self.arrive(count, tx=tx)  # raises: no count outside 1..pending can arrive
        self.expected -= count
        return self.arrive(count, tx=tx)

    def expect_tx(self, tx: int) -> bool:
        """`mbarrier.expect_tx`: the phase also waits for `tx` more bytes; True when it completes the phase,
        whose arrivals and bytes were all there already (docs/hardware-facts.md).
        """
        self._expect(tx)
        return self._complete()

    def _expect(self, tx: int) -> None:
        self._live("an expect_tx")
        if not 0 <= tx <= MAX_TX or self.tx + tx > MAX_TX:
            raise MachineError(
                "tx-count-mismatch",
                f"expect_tx of {tx} bytes takes the transaction count beyond {MAX_TX} ({self.describe()})",
            )
        self.tx += tx

    def complete_tx(self, tx: int) -> bool:
        """`complete_tx` of an asynchronous copy; True when it completes the phase."""
        self._live("a complete_tx")
        if not 0 <= tx <= MAX_TX or self.tx - tx < -MAX_TX:
            raise MachineError(
                "tx-count-mismatch",
                f"complete_tx of {tx} bytes takes the transaction count below -{MAX_TX} ({self.describe()})",
            )
        self.tx -= tx
        return self._complete()

    def test(self, parity: int) -> bool:
        """`test_wait.parity`: whether the phase of that parity, current or previous, is complete."""
        self._live("a wait")
        return self.phase & 1 != parity & 1

    def state(self) -> int:
        """The opaque 64-bit state that an arrive returns: take it before arriving."""
        return (self.phase & 0xFFFFFFFF) << 32 | self.pending

    def test_state(self, state: int) -> bool:
        """`test_wait` with a state: whether the phase it was taken in is complete."""
        self._live("a wait")
        return state >> 32 != self.phase & 0xFFFFFFFF

    def check_exit(self) -> None:
        """What must hold when the CTA ends: no byte is outstanding."""
        if self.initialised and self.tx:
            raise MachineError("tx-count-mismatch", f"the CTA ends while bytes are outstanding ({self.describe()})")

    def describe(self) -> str:
        """The state in words, for messages."""
        return f"phase {self.phase}, {self.pending} of {self.expected} arrivals pending, {self.tx} bytes outstanding"

    def _live(self, what: str) -> None:
        if not self.initialised:
            raise MachineError("barrier-not-initialised", f"{what} on a barrier that is not initialised")

    def _complete(self) -> bool:
        if self.pending or self.tx:
            return False
        self.phase += 1
        self.pending = self.expected
        return True
