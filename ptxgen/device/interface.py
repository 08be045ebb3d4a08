"""The Device interface: what a kernel needs from the thing that runs it.

A device copies matrices, encodes tensor maps and launches; it knows PTX text and launches, nothing of how
the text came about. Addresses are 64-bit, sizes in bytes. All errors are DeviceError unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ptxgen.device.description import LaunchDescription
from ptxgen.device.launch import Entry, Extent, Launch
from ptxgen.hardware.targets import Target
from ptxgen.hardware.tensor_map import TensorMap

if TYPE_CHECKING:
    from ptxgen.device.arrays import Matrix
    from ptxgen.emulator import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProperties:
    """What a device is. `name` is for people; the limits are those of `chip`."""

    name: str
    chip: Target


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchReport:
    """What happened in one launch.

    `findings` are broken rules that the device saw, empty where it cannot see any (a GPU). `guard_damage`
    says which memory around the outputs was overwritten. `seconds` is the
    time of the launch alone; `instructions` counts warp instructions where the device counts them.
    """

    device: str
    grid: tuple[int, int, int]
    seconds: float
    findings: tuple[Finding, ...] = ()
    guard_damage: tuple[str, ...] = ()
    instructions: int | None = None

    @property
    def errors(self) -> tuple[str, ...]:
        """What makes the result worthless, a text each."""
        broken = (str(finding) for finding in self.findings if finding.severity == "error")
        return (*broken, *self.guard_damage)


class Buffer(Protocol):
    """Global memory of a device, until `free`."""

    @property
    def address(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def free(self) -> None: ...


class Module(Protocol):
    """Loaded PTX. `target` is its `.target`."""

    @property
    def target(self) -> str: ...
    @property
    def entries(self) -> Mapping[str, Entry]: ...


class Stream(Protocol):
    """Work in order."""

    def synchronize(self) -> None:
        """Return when everything issued to this stream is done."""


class Event(Protocol):
    """A point in a stream."""

    def record(self, stream: Stream | None = None) -> None:
        """Mark the point behind everything issued to the stream so far."""

    def synchronize(self) -> None:
        """Return when the recorded point is reached."""

    def seconds_since(self, earlier: Event) -> float:
        """Device time between two recorded events."""


EncodedArgument: TypeAlias = "bytes | TensorMap"
"""A parameter's bytes, or a tensor map in the form that the device's `encode_tensor_map` gave it."""


class GemmCalls(Protocol):
    """A kernel called on arrays that lie on its device; they are neither copied nor waited for."""

    def __call__(self, a: Any, b: Any, *, copy: bool, cast: bool, grid: Extent | None) -> Any:
        """A new D = A @ B.T of A's library."""

    def launch(
        self,
        a: Any,
        b: Any,
        out: Any,
        *,
        stream: Any,
        copy: bool,
        cast: bool,
        grid: Extent | None,
        programmatic: bool,
    ) -> None:
        """D into `out`."""

    def prepare(self, a: Any, b: Any, out: Any, *, grid: Extent | None, programmatic: bool) -> PreparedCall:
        """All of a launch but the launch."""


class PreparedCall(Protocol):
    """A launch on certain arrays, whose content may change."""

    def launch(self, stream: Any = None) -> None:
        """Launch and return at once."""


class Device(Protocol):
    """A place that runs PTX."""

    @property
    def properties(self) -> DeviceProperties: ...

    def allocate(self, size_bytes: int, *, name: str) -> Buffer:
        """Global memory, aligned to 256 bytes; `name` stands in errors and findings."""

    def fill(self, buffer: Buffer, value: int) -> None:
        """Set every byte of a buffer."""

    def write_rows(self, buffer: Buffer, matrix: Matrix, *, pitch_bytes: int, offset_bytes: int = 0) -> None:
        """Copy a host matrix into a buffer, rows `pitch_bytes` apart; bytes between rows stay."""

    def read_rows(self, buffer: Buffer, matrix: Matrix, *, pitch_bytes: int, offset_bytes: int = 0) -> None:
        """Copy rows of a buffer into a host matrix."""

    def encode_tensor_map(self, tensor_map: TensorMap) -> EncodedArgument:
        """The kernel argument that stands for a tensor map."""

    def create_stream(self) -> Stream: ...

    def create_event(self) -> Event: ...

    def load(self, text: str, *, name: str) -> Module:
        """Load PTX; `name` is the file that errors speak of. PtxError or DeviceError if it cannot be."""

    def gemm(self, module: Module, description: LaunchDescription, name: str) -> GemmCalls | None:
        """Calls of a kernel on arrays that lie on this device; None where no array can."""

    def occupancy(self, module: Module, entry: str, *, threads: int, dynamic_smem_bytes: int) -> int:
        """How many CTAs fit on one SM at a time; 0 if not even one does."""

    def launch(
        self,
        module: Module,
        launch: Launch,
        arguments: Sequence[EncodedArgument],
        *,
        stream: Stream | None = None,
    ) -> LaunchReport:
        """Run an entry. `arguments` are those of `launch`, packed for this device."""
