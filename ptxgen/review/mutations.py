"""Which rule catches each mutant of a kernel: the checker's own examination."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ptxgen.checker import RULES
from ptxgen.device.choice import chip_for
from ptxgen.device.description import LaunchDescription, launch_in_header
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.device.kernel import Kernel
from ptxgen.device.verification import Case, Run, cases, run_case
from ptxgen.errors import LaunchError
from ptxgen.review.mutants import Mutant, mutants
from ptxgen.toolchain import ptx_target

DAMAGE = "memory beside the results"
_SCHEDULES = ("eager", "late", "random")
_BUDGET = 300_000
"""Warp instructions for a cluster; the largest kernel needs a tenth of it at these sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the runs of a mutant found: the rules broken, those of the checker first, whether numbers were wrong, and
    whether memory beside the results was left as it must not be."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    wrong_numbers: bool = False
    damage: bool = False

    @property
    def harmless(self) -> bool:
        """Whether nothing noticed."""
        return not self.errors and not self.warnings and not self.wrong_numbers and not self.damage

    def joined(self, other: Outcome) -> Outcome:
        """What either has found."""
        errors = dict.fromkeys((*self.errors, *other.errors))
        return Outcome(
            errors=tuple(sorted(errors, key=lambda rule: RULES[rule].found_by == "machine")),
            warnings=tuple(dict.fromkeys((*self.warnings, *other.warnings))),
            wrong_numbers=self.wrong_numbers or other.wrong_numbers,
            damage=self.damage or other.damage,
        )

    def __str__(self) -> str:
        words = [*self.errors, *(f"{rule} (warning)" for rule in self.warnings)]
        if self.wrong_numbers and not self.errors:
            words.append("wrong numbers")
        if self.damage and not self.errors:
            words.append(DAMAGE)
        return ", ".join(words)


class Examination:
    """A kernel whose mutants are run."""

    def __init__(self, text: str, name: str) -> None:
        description = launch_in_header(text, name)
        if description is None:
            raise LaunchError(f"{name} has no launch description in its header")
        self.text, self.name = text, name
        self._description: LaunchDescription = description
        self._chip = chip_for(ptx_target(text, name))

    def mutants(self) -> Iterator[Mutant]:
        return mutants(self.text)

    def kernel(self, text: str) -> Kernel:
        """The kernel with another text, on a device that checks it."""
        device = EmulatedDevice(self._chip, workers=1, check=True, instruction_budget=_BUDGET)
        return Kernel(text, self._description, device, name=self.name)

    def examine(self, mutant: Mutant, enough: Callable[[Outcome], bool] | None = None) -> Outcome:
        """Runs a mutant at its sizes, under every schedule, until what was found is `enough` (None: until
        anything but a warning was found)."""
        kernel = self.kernel(mutant.text)
        found = Outcome()
        for case in self._cases(kernel):
            found = found.joined(_outcome(run_case(kernel, case)))
            if enough(found) if enough is not None else found.errors or found.wrong_numbers or found.damage:
                break
        return found

    def _cases(self, kernel: Kernel) -> list[Case]:
        """Of sizes with the same K the first. The middle one comes first: it finds most, for less than the largest
        takes. Persistent kernels run as one CTA or cluster, and as two."""
        every = cases(kernel, {}, None, _SCHEDULES, (0,))
        first_of_size = {case.problem["K"]: case.problem for case in reversed(every)}
        every = [case for case in every if case.problem == first_of_size[case.problem["K"]]]
        if kernel.description.persistent:
            every = [case for case in every if case.grid is not None]
        sizes = sorted({case.problem["K"] for case in every})
        order = sorted(sizes, key=lambda k: (k != sizes[len(sizes) // 2], -k))
        return sorted(every, key=lambda case: order.index(case.problem["K"]))


def _outcome(run: Run) -> Outcome:
    return Outcome(
        errors=_rules(run, "error"),
        warnings=_rules(run, "warning"),
        wrong_numbers=run.comparison is not None and not run.comparison.matches,
        damage=bool(run.report.guard_damage),
    )


def _rules(run: Run, severity: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.rule for one in run.report.findings if one.severity == severity))
