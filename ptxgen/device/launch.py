"""A launch with every size known: what a device is asked to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from struct import pack
from typing import Protocol, TypeAlias, TypeVar

from ptxgen.device.description import (
    Argument,
    BufferArgument,
    BytesArgument,
    LaunchDescription,
    ScalarArgument,
    TensorMapArgument,
)
from ptxgen.device.expression import Expression, evaluate
from ptxgen.errors import LaunchError, SpecError
from ptxgen.hardware.element_types import ElementType
from ptxgen.hardware.swizzle import Swizzle, swizzle_of_span
from ptxgen.hardware.targets import Target
from ptxgen.hardware.tensor_map import TensorMap

_Encoded = TypeVar("_Encoded")
Extent: TypeAlias = tuple[int, int, int]

_TENSOR_MAP_PARAM_ALIGN_BYTES = 64  # cuda.h: what the driver needs; emitted kernels declare 128


class Parameter(Protocol):
    """A `.param` of an entry. Sizes in bytes."""

    @property
    def name(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def align(self) -> int: ...


class Entry(Protocol):
    """A kernel as its PTX declares it; None where a directive is absent."""

    @property
    def name(self) -> str: ...
    @property
    def parameters(self) -> Sequence[Parameter]: ...
    @property
    def reqntid(self) -> Extent | None: ...
    @property
    def maxntid(self) -> Extent | None: ...
    @property
    def cluster(self) -> Extent | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferShape:
    """A row-major matrix of `rows` x `columns`; rows start `pitch_bytes` apart."""

    name: str
    element_type: ElementType
    rows: int
    columns: int
    pitch_bytes: int
    fill: str
    scratch: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of a row that hold elements."""
        return self.columns * self.element_type.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Numbers for one launch of one entry. `grid` counts CTAs; `symbols` are M, N, K, SM_COUNT and CTAS."""

    entry: str
    grid: Extent
    block: Extent
    cluster: Extent
    dynamic_smem_bytes: int
    buffers: tuple[BufferShape, ...]
    arguments: tuple[Argument, ...]
    symbols: Mapping[str, int]
    declared_pitches: Mapping[str, Expression]
    resident: bool = False
    dependent: bool | None = None

    @classmethod
    def of(
        cls,
        description: LaunchDescription,
        *,
        problem: Mapping[str, int],
        chip: Target,
        grid: Extent | None = None,
    ) -> Launch:
        """The launch of `description` for a problem (M, N, K) on a chip.

        `grid` replaces the grid of a persistent kernel. LaunchError where a precondition or a limit of
        the chip is broken.
        """
        grid, symbols = checked_grid(description, problem, chip, grid)
        launch = cls(
            entry=description.entry,
            grid=grid,
            block=description.block,
            cluster=description.cluster,
            dynamic_smem_bytes=evaluate(description.dynamic_smem_bytes, symbols, "dynamic_smem_bytes"),
            buffers=tuple(
                BufferShape(
                    name=buffer.name,
                    element_type=buffer.element_type,
                    rows=evaluate(buffer.rows, symbols, f"rows of {buffer.name}"),
                    columns=evaluate(buffer.columns, symbols, f"columns of {buffer.name}"),
                    pitch_bytes=evaluate(buffer.pitch_bytes, symbols, f"pitch of {buffer.name}"),
                    fill=buffer.fill,
                    scratch=buffer.scratch,
                )
                for buffer in description.buffers
            ),
            arguments=description.arguments,
            symbols=symbols,
            declared_pitches={buffer.name: buffer.pitch_bytes for buffer in description.buffers},
            resident=description.resident,
            dependent=description.dependent,
        )
        violations = launch._violations(chip)
        if violations:
            rules = "\n".join(f"  - {violation}" for violation in violations)
            raise LaunchError(f"{description.entry} cannot run {_problem_text(problem)}:\n{rules}")
        return launch

    def buffer(self, name: str) -> BufferShape:
        """The buffer called `name`, which must exist."""
        return next(buffer for buffer in self.buffers if buffer.name == name)

    def pitch_is_free(self, name: str) -> bool:
        """Whether the kernel learns the pitch of buffer `name` from tensor maps alone."""
        uses = [argument for argument in self.arguments if isinstance(argument, TensorMapArgument | BufferArgument)]
        return all(
            isinstance(argument, TensorMapArgument) and argument.strides_bytes == (self.declared_pitches[name],)
            for argument in uses
            if argument.buffer == name
        )

    def with_pitch(self, name: str, pitch_bytes: int) -> Launch:
        """This launch with rows of buffer `name` starting `pitch_bytes` apart."""
        return replace(
            self,
            buffers=tuple(
                replace(buffer, pitch_bytes=pitch_bytes) if buffer.name == name else buffer for buffer in self.buffers
            ),
        )

    def check_entry(self, entry: Entry, source: str) -> None:
        """LaunchError, listing every misfit, unless this launch fits the kernel as its PTX declares it."""
        misfits = []
        if len(entry.parameters) != len(self.arguments):
            declared = ", ".join(f"{param.name} ({param.size_bytes} bytes)" for param in entry.parameters)
            given = ", ".join(f"{argument.name} ({argument.size_bytes} bytes)" for argument in self.arguments)
            misfits.append(
                f"the entry has {len(entry.parameters)} parameters: {declared or 'none'}; "
                f"the description has {len(self.arguments)} arguments: {given or 'none'}"
            )
        else:
            for argument, param in zip(self.arguments, entry.parameters, strict=True):
                if argument.size_bytes != param.size_bytes:
                    misfits.append(
                        f"argument {argument.name} has {argument.size_bytes} bytes, "
                        f"parameter {param.name} {param.size_bytes}"
                    )
                if isinstance(argument, TensorMapArgument) and param.align < _TENSOR_MAP_PARAM_ALIGN_BYTES:
                    misfits.append(
                        f"parameter {param.name} holds a tensor map but is aligned to {param.align} bytes; "
                        "declare it `.param .align 128 .b8 name[128]`"
                    )
        if entry.reqntid is not None and entry.reqntid != self.block:
            misfits.append(f"block {self.block} is not the entry's .reqntid {entry.reqntid}")
        if entry.maxntid is not None and _volume(self.block) > _volume(entry.maxntid):
            misfits.append(
                f"block {self.block} has {_volume(self.block)} threads, "
                f"the entry's .maxntid allows {_volume(entry.maxntid)}"
            )
        if entry.cluster is not None and entry.cluster != self.cluster:
            misfits.append(f"cluster {self.cluster} is not the entry's .reqnctapercluster {entry.cluster}")
        if misfits:
            rules = "\n".join(f"  - {misfit}" for misfit in misfits)
            raise LaunchError(f"the launch description does not fit entry {entry.name} of {source}:\n{rules}")

    def pack(
        self, addresses: Mapping[str, int], encode_tensor_map: Callable[[TensorMap], _Encoded]
    ) -> tuple[bytes | _Encoded, ...]:
        """The arguments in order, for buffers at these global addresses.

        Scalars and addresses become little-endian bytes; tensor maps what `encode_tensor_map` makes of
        them. LaunchError names the argument and lists the rules that it breaks.
        """
        packed: list[bytes | _Encoded] = []
        for argument in self.arguments:
            if isinstance(argument, BytesArgument):
                packed.append(argument.data)
            elif isinstance(argument, BufferArgument):
                packed.append(addresses[argument.buffer].to_bytes(8, "little"))
            elif isinstance(argument, ScalarArgument):
                packed.append(self._pack_scalar(argument))
            else:
                packed.append(encode_tensor_map(self._tensor_map(argument, addresses[argument.buffer])))
        return tuple(packed)

    def _pack_scalar(self, argument: ScalarArgument) -> bytes:
        if isinstance(argument.value, float):
            return pack("<f" if argument.kind == "f32" else "<d", argument.value)
        value = evaluate(argument.value, self.symbols, argument.name)
        try:
            return value.to_bytes(argument.size_bytes, "little", signed=argument.kind.startswith("s"))
        except OverflowError:
            raise LaunchError(
                f"argument {argument.name} is {value} for {_problem_text(self.symbols)}, "
                f"which does not fit {argument.kind}"
            ) from None

    def _tensor_map(self, argument: TensorMapArgument, address: int) -> TensorMap:
        buffer = self.buffer(argument.buffer)
        strides = tuple(
            buffer.pitch_bytes
            if stride == self.declared_pitches[buffer.name]
            else evaluate(stride, self.symbols, argument.name)
            for stride in argument.strides_bytes
        )
        try:
            return TensorMap(
                element_type=buffer.element_type,
                address=address,
                dims=tuple(evaluate(size, self.symbols, argument.name) for size in argument.dims),
                strides_bytes=strides,
                box=argument.box,
                element_strides=argument.element_strides,
                interleave=argument.interleave,
                swizzle=Swizzle.NONE if argument.swizzle == 0 else swizzle_of_span(argument.swizzle),
                l2_promotion=argument.l2_promotion,
                oob_fill=argument.oob_fill,
            )
        except SpecError as error:
            rules = "\n".join(f"  - {violation}" for violation in error.violations)
            raise LaunchError(
                f"argument {argument.name}, a tensor map over buffer {buffer.name} "
                f"({buffer.rows} x {buffer.columns} {buffer.element_type}, pitch {buffer.pitch_bytes} bytes):\n{rules}"
            ) from None

    def _violations(self, chip: Target) -> list[str]:
        found = []
        for axis, extent, limit in zip("xyz", self.grid, chip.max_grid, strict=True):
            if not 1 <= extent <= limit:
                found.append(
                    f"grid {axis} = {extent} is not in 1..{limit}"
                    + ("; take a 1-D grid (scheduler.order=grouped or scheduler=persistent)" if axis != "x" else "")
                )
        threads = _volume(self.block)
        if min(self.block) < 1 or threads > chip.max_threads_per_cta:
            found.append(f"block {self.block} has {threads} threads, not 1..{chip.max_threads_per_cta}")
        if min(self.cluster) < 1:
            found.append(f"cluster {self.cluster} has an extent below 1")
        elif any(extent % size for extent, size in zip(self.grid, self.cluster, strict=True)):
            found.append(f"grid {self.grid} is not a multiple of the cluster {self.cluster}")
        if not 0 <= self.dynamic_smem_bytes <= chip.smem_optin_bytes:
            found.append(
                f"{self.dynamic_smem_bytes} bytes of dynamic shared memory; "
                f"a CTA on {chip.chip} has {chip.smem_optin_bytes}"
            )
        if self.resident and _volume(self.grid) > chip.sm_count:
            found.append(
                f"a grid of {_volume(self.grid)} CTAs, which wait for each other and so must all run at once; "
                f"{chip.chip} has {chip.sm_count} SMs"
            )
        for buffer in self.buffers:
            if buffer.rows < 1 or buffer.columns < 1:
                found.append(f"buffer {buffer.name} has shape {buffer.rows} x {buffer.columns}")
            if buffer.pitch_bytes < buffer.row_bytes:
                found.append(
                    f"buffer {buffer.name} has rows of {buffer.row_bytes} bytes but a pitch of {buffer.pitch_bytes}"
                )
        return found


def checked_grid(
    description: LaunchDescription, problem: Mapping[str, int], chip: Target, grid: Extent | None = None
) -> tuple[Extent, dict[str, int]]:
    """The grid for a problem (M, N, K), and the value of every symbol; LaunchError where a precondition is broken."""
    symbols = {**problem, "SM_COUNT": chip.sm_count}
    grid = _grid_of(description, symbols, grid)
    symbols["CTAS"] = _volume(grid)
    for condition in description.preconditions:
        value = evaluate(condition.expression, symbols, condition.rule)
        low, high = condition.at_least, condition.below
        if (low is not None and value < low) or (high is not None and value >= high):
            bounds = ("" if low is None else f"{low} <= ") + "value" + ("" if high is None else f" < {high}")
            raise LaunchError(
                f"{description.entry} cannot run {_problem_text(problem)}: {condition.rule} "
                f"(the value is {value}, the rule {bounds})"
            )
    return grid, symbols


def _grid_of(description: LaunchDescription, symbols: Mapping[str, int], chosen: Extent | None) -> Extent:
    """The description's grid, or the one that was chosen in its place; LaunchError where none can be."""
    if chosen is None:
        x, y, z = (evaluate(extent, symbols, "grid") for extent in description.grid)
        return x, y, z
    if not description.persistent:
        raise LaunchError(
            f"the grid of {description.entry} follows from the problem size; only the grid of a persistent "
            "kernel (one that depends on SM_COUNT) can be chosen"
        )
    if any(own == 1 != wanted for own, wanted in zip(description.grid, chosen, strict=True)):
        raise LaunchError(f"the grid of {description.entry} has CTAs along x only; got {chosen}")
    return chosen


def _volume(extent: Extent) -> int:
    return extent[0] * extent[1] * extent[2]


def _problem_text(symbols: Mapping[str, int]) -> str:
    return " ".join(f"{name}={symbols[name]}" for name in ("M", "N", "K"))
