"""The machine: modules, launches, and the checks before one starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ptxgen.emulator.code import Code, build_code
from ptxgen.emulator.events import Event, Observer
from ptxgen.emulator.instructions import load_all
from ptxgen.emulator.memory import SHARED_RESERVED_BYTES, Block, GlobalMemory, poisoned
from ptxgen.emulator.module import Function, Immediate, Parameter, ParsedModule, Variable
from ptxgen.emulator.parser.modules import parse
from ptxgen.emulator.policy import ELECTIONS, POLICIES
from ptxgen.emulator.report import Report
from ptxgen.emulator.runner import run_units
from ptxgen.emulator.tensor_maps import TensorMaps
from ptxgen.errors import LaunchError, UnknownNameError
from ptxgen.hardware.targets import Target
from ptxgen.hardware.tensor_map import TENSOR_MAP_BYTES, TensorMap

Extent = tuple[int, int, int]
Argument = bytes | TensorMap

load_all()


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """An entry parameter: `size` and `align` in bytes, `type` as declared ("u64", "b8" …)."""

    name: str
    size: int
    align: int
    type: str


class Entry:
    """An entry of a module, decoded: every instruction in it is known."""

    def __init__(self, module: ParsedModule, function: Function) -> None:
        self._module = module
        self._function = function
        self._codes: dict[bool, Code] = {}
        self.name = function.name
        self.params = tuple(
            Param(name=p.name, size=p.size_bytes, align=p.align, type=p.type) for p in function.parameters
        )
        self.reqntid = function.reqntid
        self.maxntid = function.maxntid
        self.cluster = function.cluster
        self.maxnreg = function.maxnreg
        self.minnctapersm = function.minnctapersm
        self.code(hooks=False)

    @property
    def static_smem_bytes(self) -> int:
        return self.code(hooks=False).layout.shared_bytes

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return self._function.parameters

    def code(self, hooks: bool) -> Code:
        """The decoded code; with `hooks` its memory and synchronisation ops make events."""
        if hooks not in self._codes:
            self._codes[hooks] = build_code(self._module, self._function, hooks)
        return self._codes[hooks]


class Module:
    """A loaded PTX module. `version` as (major, minor), `target` as written, `entries` by name."""

    def __init__(self, parsed: ParsedModule) -> None:
        self.file = parsed.file
        self.lines = parsed.lines
        self.version = parsed.version
        self.target = parsed.target
        self.entries = {f.name: Entry(parsed, f) for f in parsed.functions.values() if f.is_entry}


def load_module(text: str, name: str = "<ptx>") -> Module:
    """Parses and decodes PTX text. PtxError with file, line and text on whatever is not known; an
    instruction is never skipped."""
    return Module(parse(text, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything that the clusters of one launch share."""

    code: Code
    lines: tuple[str, ...]
    chip: Target
    memory: GlobalMemory
    grid: Extent
    block: Extent
    cluster: Extent
    dynamic_smem_bytes: int
    smem_bytes: int
    parameters: Block
    constants: Block
    maps: TensorMaps
    template: tuple[Any, ...]
    late: tuple[tuple[int, str | int], ...]
    policy: str
    seed: int
    elect: str | int
    instruction_budget: int | None
    one_process: bool
    registers_per_thread: int
    observers: tuple[Observer, ...] = field(default=())

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def cluster_size(self) -> int:
        return self.cluster[0] * self.cluster[1] * self.cluster[2]

    @property
    def units(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2] // self.cluster_size

    def ctas_of(self, number: int) -> list[Extent]:
        """Grid coordinates of a cluster's CTAs, by rank (x fastest)."""
        across = tuple(g // c for g, c in zip(self.grid, self.cluster, strict=True))
        corner = (number % across[0], number // across[0] % across[1], number // (across[0] * across[1]))
        x, y, z = (k * c for k, c in zip(corner, self.cluster, strict=True))
        return [
            (x + i, y + j, z + k)
            for k in range(self.cluster[2])
            for j in range(self.cluster[1])
            for i in range(self.cluster[0])
        ]


class Machine:
    """A chip that runs launches.

    `policy` ("eager", "late", "random" with `seed`) decides when asynchronous work takes effect,
    `elect` ("first", "last", "random" or a lane) which lane elect.sync picks; by default "random"
    under the random policy, else "first". `workers` processes share the clusters (None: one per
    CPU; only where processes can be forked). `observers` get every event; launches with observers,
    with global atomics or with spinning on global memory run in this process. `progress` is called
    with clusters done and their total. `instruction_budget` bounds the warp instructions of a cluster.
    """

    def __init__(
        self,
        *,
        chip: Target,
        memory: GlobalMemory,
        policy: str = "eager",
        seed: int = 0,
        elect: str | int | None = None,
        observers: Sequence[Observer] = (),
        workers: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        instruction_budget: int | None = None,
    ) -> None:
        if policy not in POLICIES:
            raise UnknownNameError("policy", policy, POLICIES)
        if isinstance(elect, str) and elect not in ELECTIONS:
            raise UnknownNameError("election", elect, ELECTIONS)
        self.chip, self.memory, self.policy, self.seed = chip, memory, policy, seed
        self.elect = elect if elect is not None else ("random" if policy == "random" else "first")
        self.observers = tuple(observers)
        self.workers = workers
        self.progress = progress
        self.instruction_budget = instruction_budget

    def launch(
        self,
        module: Module,
        entry: str,
        *,
        grid: Extent,
        block: Extent,
        cluster: Extent = (1, 1, 1),
        dynamic_smem_bytes: int = 0,
        arguments: Sequence[Argument] = (),
    ) -> Report:
        """Runs a grid of CTAs to its end. Broken rules of the hardware are findings of the report;
        LaunchError when the launch itself is not possible, NotSupportedError when the kernel uses
        what is not modelled."""
        began = time.perf_counter()
        if entry not in module.entries:
            raise UnknownNameError("entry", entry, module.entries)
        code = module.entries[entry].code(hooks=bool(self.observers))
        held: list[Any] = []
        try:
            launch = self._prepare(
                module, module.entries[entry], code, grid, block, cluster, dynamic_smem_bytes, arguments, held
            )
            findings, instructions, ctas = run_units(launch, self.workers, self.progress)
        finally:
            for buffer in held:
                self.memory.release(buffer)
        return Report(findings=findings, instructions=instructions, ctas=ctas, seconds=time.perf_counter() - began)

    def _prepare(
        self,
        module: Module,
        entry: Entry,
        code: Code,
        grid: Extent,
        block: Extent,
        cluster: Extent,
        dynamic_smem_bytes: int,
        arguments: Sequence[Argument],
        held: list[Any],
    ) -> Launch:
        self._check(entry, code, grid, block, cluster, dynamic_smem_bytes, arguments)
        parameters = Block(poisoned(max(16, sum(p.size_bytes + p.align for p in entry.parameters))))
        maps = TensorMaps(self.memory, parameters.data)
        for parameter, argument in zip(entry.parameters, arguments, strict=True):
            raw = self._argument(parameter, argument, maps, held)
            parameters.data[parameter.offset : parameter.offset + len(raw)] = memoryview(raw)
        template, late = list(code.slots.template), []
        globals_: dict[Variable, Any] = {}
        for slot, key in code.slots.late:
            if key[0] in ("special", "shared"):
                late.append((slot, key[1]))
            elif key[0] == "param":
                template[slot] = parameters.load_word(key[1], key[2])
            else:
                template[slot] = self._global(key[1], globals_, held) + key[2]
        constants = Block(poisoned(max(16, len(code.layout.const))))
        constants.data[: len(code.layout.const)] = memoryview(bytes(code.layout.const))
        return Launch(
            code=code,
            lines=module.lines,
            chip=self.chip,
            memory=self.memory,
            grid=grid,
            block=block,
            cluster=cluster,
            dynamic_smem_bytes=dynamic_smem_bytes,
            smem_bytes=SHARED_RESERVED_BYTES + code.layout.shared_bytes + dynamic_smem_bytes,
            parameters=parameters,
            constants=constants,
            maps=maps,
            template=tuple(template),
            late=tuple(late),
            policy=self.policy,
            seed=self.seed,
            elect=self.elect,
            instruction_budget=self.instruction_budget,
            one_process=code.shares_global,
            registers_per_thread=self._registers(entry, code, block),
            observers=self.observers,
        )

    def _registers(self, entry: Entry, code: Code, block: Extent) -> int:
        """Registers per thread at launch, by the entry's directives (0: not known). ptxas 13 gives no
        more than the largest setmaxnreg.inc asks for."""
        if entry.maxnreg is not None:
            limit = entry.maxnreg
        elif entry.minnctapersm is not None:
            threads = block[0] * block[1] * block[2] * entry.minnctapersm
            limit = min(self.chip.max_registers_per_thread + 1, self.chip.registers_per_sm // threads) & ~7
        else:
            return 0
        grown = [item.operands[0] for item in code.entry.instructions if item.name.startswith("setmaxnreg.inc")]
        return min(limit, max((int(g.value) for g in grown if isinstance(g, Immediate)), default=limit))

    def _argument(self, parameter: Parameter, argument: Argument, maps: TensorMaps, held: list[Any]) -> bytes:
        if isinstance(argument, bytes):
            return argument
        if parameter.size_bytes == TENSOR_MAP_BYTES:
            return maps.parameter(parameter.offset, argument)
        buffer = self.memory.allocate(TENSOR_MAP_BYTES, name=f"tensor map {parameter.name}")
        held.append(buffer)
        buffer.data[:] = memoryview(maps.encode(argument))
        return buffer.address.to_bytes(8, "little")

    def _global(self, variable: Variable, known: dict[Variable, Any], held: list[Any]) -> int:
        if variable not in known:
            size = max(variable.size_bytes, 1)
            buffer = self.memory.allocate(size, name=variable.name, align=max(256, variable.align))
            buffer.data[:] = 0
            if variable.initial is not None:
                buffer.data[: len(variable.initial)] = memoryview(variable.initial)
            held.append(buffer)
            known[variable] = buffer
        return int(known[variable].address)

    def _check(
        self,
        entry: Entry,
        code: Code,
        grid: Extent,
        block: Extent,
        cluster: Extent,
        dynamic_smem_bytes: int,
        arguments: Sequence[Argument],
    ) -> None:
        chip, broken = self.chip, []
        threads = block[0] * block[1] * block[2]
        if min(grid) < 1 or any(g > most for g, most in zip(grid, chip.max_grid, strict=True)):
            broken.append(f"grid {grid} is not within 1..{chip.max_grid}")
        if min(block) < 1 or threads > chip.max_threads_per_cta:
            broken.append(f"block {block} has {threads} threads; 1 to {chip.max_threads_per_cta} are possible")
        if min(cluster) < 1 or any(g % max(c, 1) for g, c in zip(grid, cluster, strict=True)):
            broken.append(f"grid {grid} is not a multiple of cluster {cluster}")
        if entry.reqntid is not None and entry.reqntid != block:
            broken.append(f"block {block} is not the entry's .reqntid {entry.reqntid}")
        if entry.maxntid is not None and threads > entry.maxntid[0] * entry.maxntid[1] * entry.maxntid[2]:
            broken.append(f"block {block} exceeds the entry's .maxntid {entry.maxntid}")
        if entry.cluster is not None and entry.cluster != cluster:
            broken.append(f"cluster {cluster} is not the entry's .reqnctapercluster {entry.cluster}")
        if 2 in code.cta_groups and cluster[0] * cluster[1] * cluster[2] % 2:
            broken.append(f"cluster {cluster} has no pairs of CTAs; line {code.cta_groups[2]} names cta_group::2")
        smem = code.layout.shared_bytes + dynamic_smem_bytes
        if dynamic_smem_bytes < 0 or smem > chip.smem_optin_bytes:
            broken.append(f"{smem} bytes of shared memory; {chip.chip} has {chip.smem_optin_bytes} for one CTA")
        if len(arguments) != len(entry.params):
            broken.append(f"{len(arguments)} arguments for {len(entry.params)} parameters")
        for param, argument in zip(entry.params, arguments, strict=False):
            if isinstance(argument, bytes):
                if len(argument) != param.size:
                    broken.append(f"parameter {param.name} has {param.size} bytes, its argument {len(argument)}")
            elif param.size not in (8, TENSOR_MAP_BYTES):
                broken.append(f"parameter {param.name} of {param.size} bytes cannot hold a tensor map")
            elif param.size == TENSOR_MAP_BYTES and param.align < 64:
                broken.append(f"parameter {param.name} is aligned to {param.align}, a tensor map needs 64")
        if broken:
            raise LaunchError(f"launch of {entry.name} is not possible: " + "; ".join(broken))


def emitter(observers: Sequence[Observer]) -> Callable[[Event], None] | None:
    """One call for all observers, or None."""
    if not observers:
        return None
    if len(observers) == 1:
        return observers[0].on_event

    def emit(event: Event) -> None:
        for observer in observers:
            observer.on_event(event)

    return emit
