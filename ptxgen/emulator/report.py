"""What a launch reports: findings, and how much was executed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A broken rule. `rule` is a stable kebab-case name, severity "error" or "warning".

    `line` and `text` are the PTX line (1-based) and what stands there, `cta` the CTA's coordinates
    in the grid, `warp` its warp; None where a finding belongs to the launch as a whole. `other_line` is that of what
    the finding stands against: the other access, an initialisation; `times` counts how often it was seen.
    """

    rule: str
    severity: str
    message: str
    line: int | None = None
    text: str = ""
    cta: tuple[int, int, int] | None = None
    warp: int | None = None
    unit: int = 0
    other_line: int | None = None
    times: int = 1

    @property
    def missing(self) -> str:
        """What would mend it, where the message says so."""
        return self._said("missing")

    @property
    def nearest_synchronisation(self) -> str:
        """What synchronisation stands next to the two accesses, where the message says so."""
        return self._said("nearest synchronisation")

    def _said(self, what: str) -> str:
        return self.message.partition(f"\n  {what}: ")[2].partition("\n")[0]

    def __str__(self) -> str:
        place = []
        if self.line is not None:
            place.append(f"line {self.line}")
        if self.cta is not None:
            place.append(f"CTA {self.cta}")
        if self.warp is not None:
            place.append(f"warp {self.warp}")
        where = f" ({', '.join(place)})" if place else ""
        source = f"\n    {self.text}" if self.text else ""
        seen = f"\n  seen {self.times} times" if self.times > 1 else ""
        return f"{self.severity} {self.rule}: {self.message}{seen}{where}{source}"


class Stop(Exception):  # noqa: N818 - it ends a unit, it is not an error of the caller
    """Ends a unit of work because of a finding of severity error."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(str(finding))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`findings` in the order of the clusters that made them; `instructions` counts warp
    instructions, `ctas` those that ran to their end, `seconds` wall time."""

    findings: tuple[Finding, ...]
    instructions: int
    ctas: int
    seconds: float

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")
