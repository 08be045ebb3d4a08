"""One line of a kernel: what it does, who runs it, on which stage, and what orders it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ptxgen.emulator import events
from ptxgen.errors import PtxgenError
from ptxgen.review import kinds
from ptxgen.review.barriers import Use
from ptxgen.review.descriptors import decoded_operands
from ptxgen.review.explain import Explanation
from ptxgen.review.maps import Region, tensor_map_of
from ptxgen.review.outline import describe
from ptxgen.review.roles import warps_text
from ptxgen.review.structure import Site

if TYPE_CHECKING:
    from ptxgen.review.trace import Trace

_WAITS = (
    ("cp.async.bulk.prefetch", None),
    ("cp.async.bulk", "cp.async.bulk.wait_group"),
    ("cp.async", "cp.async.wait"),
    ("tcgen05.ld", "tcgen05.wait::ld"),
    ("tcgen05.st", "tcgen05.wait::st"),
)
"""What waits for work that no mbarrier reports. The first prefix that fits decides."""

_DOES = {
    kinds.TENSOR_LOAD: "starts an asynchronous copy of a tensor map's box from global to shared memory",
    kinds.TENSOR_STORE: "starts an asynchronous copy of a tensor map's box from shared to global memory",
    kinds.BULK_COPY: "starts an asynchronous copy",
    kinds.MMA: "starts a matrix multiply-accumulate on the tensor core, which runs asynchronously",
    kinds.COMMIT: "gathers asynchronous work issued before it, so that its completion can be waited for",
    kinds.GROUP_WAIT: "waits for asynchronous work of its own thread or warp",
    kinds.TMEM_ALLOCATION: "manages columns of tensor memory",
    kinds.TMEM_LOAD: "starts copying tensor memory to registers",
    kinds.TMEM_STORE: "starts a copy into tensor memory",
    kinds.MBARRIER_INIT: "sets up an mbarrier, or ends it",
    kinds.MBARRIER_ARRIVE: "arrives at an mbarrier",
    kinds.MBARRIER_WAIT: "asks whether a phase of an mbarrier is complete; the branch after it asks again",
    kinds.NAMED_BARRIER: "meets other warps of the CTA at a barrier",
    kinds.CLUSTER_BARRIER: "meets the other CTAs of the cluster at a barrier",
    kinds.FENCE: "orders memory accesses before it and after it",
    kinds.SHARED_STORE: "writes shared memory",
    kinds.SHARED_LOAD: "reads shared memory",
    kinds.GLOBAL_ACCESS: "accesses global memory",
    kinds.REGISTER_BUDGET: "changes the registers that a warp owns",
    kinds.WARP_OP: "exchanges values between the lanes of a warp, or picks one of them",
    kinds.CONVERSION: "converts numbers",
    kinds.BRANCH: "changes the flow of control",
    kinds.ARITHMETIC: "computes in registers",
}
_DOES_EXACTLY = (
    ("mbarrier.init", "sets up an mbarrier with the arrivals that complete each of its phases"),
    ("mbarrier.inval", "ends an mbarrier, so that its memory may be used for other things"),
    ("mbarrier.arrive.expect_tx", "arrives at an mbarrier, and raises the bytes that its phase waits for"),
    ("fence.mbarrier_init", "shows initialised mbarriers to the asynchronous units and the cluster"),
    ("fence.proxy.async", "orders this thread's accesses of shared memory before those of the asynchronous proxy"),
    ("fence.proxy.tensormap", "orders writes of a tensor map before the copies that use it"),
    ("tcgen05.fence::before_thread_sync", "orders tcgen05 work before it before the synchronisation that follows"),
    ("tcgen05.fence::after_thread_sync", "orders tcgen05 work after it behind the synchronisation that went before"),
    ("wgmma.fence", "orders accesses of accumulator registers and shared memory before the wgmmas that follow"),
    ("tcgen05.alloc", "allocates columns of tensor memory, waiting for them if need be; writes their address"),
    ("tcgen05.dealloc", "frees columns of tensor memory"),
    ("tcgen05.relinquish", "gives up the right to allocate tensor memory"),
    ("tcgen05.commit", "lets the MMAs and copies that this thread has issued arrive at an mbarrier when complete"),
    ("wgmma.commit_group", "closes a batch of this warpgroup's wgmmas, for wgmma.wait_group to wait for"),
    ("wgmma.wait_group", "waits until at most so many batches of this warpgroup's wgmmas are unfinished"),
    ("cp.async.bulk.commit_group", "closes a group of this thread's bulk copies, for wait_group to wait for"),
    ("cp.async.bulk.wait_group.read", "waits until at most so many groups of this thread still read their sources"),
    ("cp.async.bulk.wait_group", "waits until at most so many of this thread's groups of bulk copies are unfinished"),
    ("tcgen05.wait::ld", "waits until this thread's tensor memory loads are in registers"),
    ("tcgen05.wait::st", "waits until this thread's tensor memory stores are done"),
    ("elect.sync", "picks one lane of the warp"),
    ("setmaxnreg.inc", "takes registers for each thread of the warp, waiting for them if need be"),
    ("setmaxnreg.dec", "gives up registers of each thread of the warp"),
    ("mapa", "finds the address of the same place in another CTA of the cluster"),
    ("barrier.cluster.arrive", "arrives at the barrier of the cluster"),
    ("barrier.cluster.wait", "waits for all threads of the cluster at its barrier"),
    ("prefetch", "brings something into a cache"),
    ("ret", "ends the thread"),
    ("exit", "ends the thread"),
)
"""By the first prefix that fits, where a sort of instruction says too little."""
_MOST_SHOWN = 12


def line_lines(found: Explanation, line: int) -> Iterator[str]:
    """The explanation of a line. PtxgenError where the file has no such line."""
    structure = found.structure
    if not 1 <= line <= len(structure.lines):
        raise PtxgenError(f"{found.source.name} has {len(structure.lines)} lines; there is no line {line}")
    yield f"{found.source.name}:{line}: {structure.lines[line - 1].strip()}"
    sites = structure.by_line.get(line)
    if not sites:
        yield from _no_instruction(found, line)
        return
    for site in sites:
        name = site.instruction.name
        yield f"  {next((text for start, text in _DOES_EXACTLY if name.startswith(start)), _DOES[site.kind])}"
        yield f"  {_who(site, len(structure.roles) > 1)}"
        yield from (f"  {text}" for text in _operands(found, site))
        if found.trace is not None:
            yield from (f"  {text}" for text in _in_the_run(found, found.trace, site))
        yield from (f"  {text}" for text in _order(found, site))


def _no_instruction(found: Explanation, line: int) -> Iterator[str]:
    if line < found.structure.function.line:
        yield "  no instruction: it stands before the entry"
        return
    inside = [item for item in found.structure.function.instructions if item.line == line]
    if inside:
        yield "  no warp reaches this instruction"
        return
    site = found.structure.at(line)
    yield "  no instruction" + (
        "" if site is None else f"; the next is line {site.line}: {found.structure.text(site.line)}"
    )


def _who(site: Site, roles: bool) -> str:
    lanes = "one lane of " if site.one else ""
    who = f"run by {lanes}{warps_text(site.warps)}"
    if roles:
        who += f", role {site.role}" if site.role else ", where all roles meet"
    if site.loops:
        who += f", in {' > '.join(site.loops)}"
    return who + (f"; section: {site.section}" if site.section else "")


def _operands(found: Explanation, site: Site) -> Iterator[str]:
    if site.kind in (kinds.TENSOR_LOAD, kinds.TENSOR_STORE):
        name, argument = tensor_map_of(site, found.structure, found.description)
        if name:
            text = next((text for text in found.tensor_maps if text.startswith(f"{name}:")), name)
            yield f"tensor map {text}"
        elif argument is None:
            yield "which tensor map it uses is not known from the text"
    for one in decoded_operands(site):
        starts = " or ".join(str(place) for place in (one.start, *one.others) if place is not None)
        start = (f"from {starts}" + (f" + {one.step} x i" if one.step else "")) if starts else ""
        yield f"{one.operand}: {', '.join(filter(None, (one.value, start, one.meaning)))}"
    for use in _uses(found, site):
        if use.action == "init":
            yield f"{_name(use)} gets {use.number} arrival{'' if use.number == 1 else 's'} a phase"
        elif use.action == "expect":
            size = "a number of bytes not in the text" if use.number is None else f"{use.number} bytes"
            yield f"announces {size} on {_name(use)}"


def _in_the_run(found: Explanation, trace: Trace, site: Site) -> Iterator[str]:
    """How often, by whom and on what it ran in the first cluster."""
    mine = [event for event in trace.first_unit if event.line == site.line]
    if not mine:
        return
    warps = sorted({event.warp for event in mine})
    times = _executions(mine)
    if times:
        yield f"in the run: {'once' if times == 1 else f'{times} times'} by {warps_text(warps)}"
    places = _places(found, mine)
    if places:
        more = " ..." if len(places) > _MOST_SHOWN else ""
        yield f"on, in order: {', '.join(places[:_MOST_SHOWN])}{more}"


def _executions(mine: Sequence[events.Event]) -> int:
    for kind in (events.AsyncIssue, events.MbarrierArrive, events.NamedBarrier, events.Fence, events.WaitGroup):
        count = sum(isinstance(event, kind) for event in mine)
        if count:
            return count
    return sum(isinstance(event, events.MbarrierWait) and event.success for event in mine) or len(mine)


def _places(found: Explanation, mine: Sequence[events.Event]) -> list[str]:
    """Barriers with their phases, or regions of shared memory, one for each execution."""
    from ptxgen.review.trace import smem_offset

    labels = {address: group.label(address) for group in found.barriers for address in group.addresses}
    texts: list[str] = []
    for event in mine:
        if isinstance(event, events.MbarrierWait) and event.success:
            offset = smem_offset(event.barrier)
            texts.append(f"{labels.get(offset, offset)} phase {event.phase - 1 if event.phase else 'before 0'}")
        elif isinstance(event, events.MbarrierArrive):
            offset = smem_offset(event.barrier)
            texts.append(f"{labels.get(offset, offset)} phase {event.phase}")
        elif isinstance(event, events.Access) and event.space == "shared" and event.proxy == "async":
            start = smem_offset(event.ranges[0][0])
            texts.append(_stage(found.smem, start))
    return texts


def _stage(regions: Sequence[Region], start: int) -> str:
    """A region by its name, and its number among those of its name, else by its start."""
    here = next((region for region in regions if region.start == start and region.name), None)
    if here is None:
        return f"byte {start}"
    same = [region.start for region in regions if region.name == here.name and region.size == here.size]
    return f"{here.name}[{same.index(start)}]" if len(same) > 1 else here.name


def _order(found: Explanation, site: Site) -> Iterator[str]:
    """What has to happen before, and who learns of it."""
    for use in _uses(found, site):
        others = [other for other in found.uses if other.barriers is use.barriers and other.site is not site]
        if use.barriers is None:
            yield "which mbarrier it uses is not known from the text"
        elif use.action == "wait":
            yield f"goes on when a phase of {_name(use)} is complete:"
            yield from (f"  {text}" for text in _tellers(found, others))
        elif use.action in ("arrive", "commit", "bytes"):
            what = {"arrive": "arrives at", "commit": "arrives, when that work is done, at", "bytes": "completes on"}
            yield f"{what[use.action]} {_name(use)}, waited for by"
            waits = [f"  {_place(other.site)}" for other in others if other.action == "wait"]
            yield from waits or ["  nobody"]
    if site.kind == kinds.MMA:
        commit = _next(found, site, kinds.COMMIT, site.instruction.name.partition(".")[0])
        if commit is not None:
            yield f"is complete when the commit in line {commit.line} says so: {found.structure.text(commit.line)}"
    if waited := next((wait for start, wait in _WAITS if site.instruction.name.startswith(start)), None):
        wait = _next(found, site, kinds.GROUP_WAIT, waited)
        if wait is not None and not _uses(found, site):
            yield f"is waited for in line {wait.line}: {found.structure.text(wait.line)}"
    before, after = _neighbours(found, site)
    if before is not None:
        yield f"after line {before.line}: {describe(before, found.structure, _barrier(found, before))}"
    if after is not None:
        yield f"before line {after.line}: {describe(after, found.structure, _barrier(found, after))}"


def _tellers(found: Explanation, others: Sequence[Use]) -> Iterator[str]:
    for other in others:
        if other.action in ("arrive", "commit"):
            yield f"arrival by {_place(other.site)}: {kinds.short_name(other.site.instruction.name)}"
        elif other.action == "bytes":
            name = tensor_map_of(other.site, found.structure, found.description)[0]
            yield f"bytes of {name or 'a copy'} by {_place(other.site)}"


def _uses(found: Explanation, site: Site) -> list[Use]:
    return [use for use in found.uses if use.site is site]


def _name(use: Use) -> str:
    return "an mbarrier" if use.barriers is None else use.barriers.name


def _barrier(found: Explanation, site: Site) -> str:
    return next((use.barriers.name for use in _uses(found, site) if use.barriers is not None), "")


def _place(site: Site) -> str:
    return f"{site.role or warps_text(site.warps)}, line {site.line}"


def _next(found: Explanation, site: Site, kind: str, name: str) -> Site | None:
    """The next instruction of a kind and name that the same warps run, around the loop if need be."""
    mine = [
        other
        for other in found.structure.sites
        if other.kind == kind and other.instruction.name.startswith(name) and set(other.warps) & set(site.warps)
    ]
    inside = [other for other in mine if other.loops[: len(site.loops)] == site.loops]
    later = [other for other in inside if other.index > site.index]
    beyond = [other for other in mine if other.index > site.index]
    return next(iter((*later, *(inside if site.loops else ()), *beyond)), None)


def _neighbours(found: Explanation, site: Site) -> tuple[Site | None, Site | None]:
    """The nearest synchronisation before and after it in the text, by the same warps."""
    same = [
        other
        for other in found.structure.sites
        if other.kind in kinds.SYNCHRONISATION and set(other.warps) & set(site.warps) and other is not site
    ]
    before = [other for other in same if other.index < site.index]
    after = [other for other in same if other.index > site.index]
    return (before[-1] if before else None), (after[0] if after else None)
