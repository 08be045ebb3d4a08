"""Every error that ptxgen raises on purpose.

The command line prints `str(error)` and exits with 2; nothing here ever needs a traceback to be
understood. A message names what is wrong, the values, the rule and the way out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PtxgenError(Exception):
    """Base of all errors that a user can cause and mend."""


def _may_be_meant(known: str, name: str) -> bool:
    """Whether a slip of the pen leads from one to the other: sm_80 is not sm_90a, nor 11 a slip for 1.

    In the number of a chip or a step a digit may have been forgotten, but none is another.
    """
    if known == name or name.isdecimal():
        return False
    one, other = ("".join(filter(str.isdecimal, item)) for item in (known, name))
    return not known.startswith("sm_") or one in other or other in one


class UnknownNameError(PtxgenError):
    """A name that is not one of a closed set; the message suggests the nearest one."""

    def __init__(self, kind: str, name: object, known: Iterable[object]) -> None:
        names = [str(item) for item in known]
        alike = [item for item in names if _may_be_meant(item, str(name))]
        near = difflib.get_close_matches(str(name), alike, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        super().__init__(f"unknown {kind} {str(name)!r}{hint} (known: {', '.join(names)})")


class SpecError(PtxgenError):
    """A request that breaks rules of the hardware or asks for what is not built yet.

    `violations` lists every broken rule, not only the first.
    """

    def __init__(self, subject: str, violations: Iterable[str]) -> None:
        self.violations = tuple(violations)
        rules = "\n".join(f"  - {violation}" for violation in self.violations)
        super().__init__(f"{subject} is not possible:\n{rules}")


class ProgramError(PtxgenError):
    """A Program that breaks a static rule (see ptxgen.ir.checks)."""

    def __init__(self, subject: str, violations: Iterable[str]) -> None:
        self.violations = tuple(violations)
        rules = "\n".join(f"  - {violation}" for violation in self.violations)
        super().__init__(f"{subject} is not a valid program:\n{rules}")


class LaunchError(PtxgenError):
    """A launch description or arguments that do not fit the kernel."""


class ToolchainError(PtxgenError):
    """ptxas is absent or refused the text."""


class DeviceError(PtxgenError):
    """A device is absent, does not fit the kernel, or failed."""


class HungKernelError(DeviceError):
    """A kernel on a GPU that did not end in time, and still runs.

    Its process can neither wait for the device nor give memory back, and does best to end at once.
    """


class PtxError(PtxgenError):
    """PTX text that the emulator cannot parse or does not know; never skipped silently."""

    def __init__(self, file: str, line: int, text: str, reason: str) -> None:
        self.file, self.line, self.text, self.reason = file, line, text, reason
        super().__init__(f"{file}:{line}: {reason}\n  {text.strip()}")


class NotSupportedError(PtxgenError):
    """Legal PTX that the emulator does not model; a run that meets it proves nothing."""


class MachineError(PtxgenError):
    """A rule of the hardware that the running kernel broke.

    `rule` is a stable kebab-case name; the machine adds line, CTA and warp when it reports it.
    """

    def __init__(self, rule: str, message: str) -> None:
        self.rule, self.message = rule, message
        super().__init__(f"{rule}: {message}")
