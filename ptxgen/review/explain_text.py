"""An explanation as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from ptxgen.review.explain import Explanation
from ptxgen.review.ledger import Account
from ptxgen.review.maps import Region
from ptxgen.review.outline import work_of


def explanation_lines(found: Explanation) -> Iterator[str]:
    """All of it, a section at a time."""
    structure = found.structure
    yield f"{found.source.name}: {structure.function.name} for {structure.module.target}, {structure.threads} threads"
    yield found.provenance
    yield from _section("Roles", _roles(found))
    yield from _section("Shared memory", (_region(region, "bytes") for region in found.smem))
    if found.tmem_columns != 0:
        columns = "not known" if found.tmem_columns is None else found.tmem_columns
        yield from _section(
            f"Tensor memory ({columns} columns allocated)", (_region(region, "columns") for region in found.tmem)
        )
    yield from _section("Barrier ledger", (line for account in found.accounts for line in _account(account)))
    yield from _section("Descriptors", tuple(f"line {use.line:>4}  {use.text}" for use in found.descriptors))
    yield from _section("Tensor maps", found.tensor_maps)
    yield from _section("Outline", _outline(found))
    yield from _section("Not known", found.unknown)


def _section(title: str, lines: Iterator[str] | tuple[str, ...]) -> Iterator[str]:
    body = list(lines)
    if body:
        yield ""
        yield title
        yield from (f"  {line}" for line in body)


def _roles(found: Explanation) -> Iterator[str]:
    if len(found.structure.roles) == 1:
        yield "all warps do the same work"
        return
    for role in found.structure.roles:
        work = work_of(found.structure, role)
        yield f"{role.title}: {work}" if work else role.title


def _region(region: Region, unit: str) -> str:
    stop = "?" if region.stop is None else str(region.stop)
    step = f" + {region.step} x i" if region.step else ""
    size = "" if region.size is None else f"{region.size} {unit}"
    lines = ", ".join(str(line) for line in region.lines[:6]) + (" ..." if len(region.lines) > 6 else "")
    name = f"{region.name}: " if region.name else ""
    return f"{f'[{region.start}, {stop}){step}':<28} {size:<12} {name}{'; '.join(region.uses)} (line {lines})"


def _account(account: Account) -> Iterator[str]:
    at = ", ".join(str(address) for address in account.addresses)
    phases = ""
    if account.phases is not None:
        same = len(set(account.phases)) == 1
        counts = str(account.phases[0]) if same else ", ".join(map(str, account.phases))
        phases = f", {counts} phase{'' if counts == '1' else 's'}"
    count = f"{account.count} arrival{'' if account.count == '1' else 's'} a phase"
    where = f" at {at}" if at and at not in account.name else ""
    init = f", initialised by {account.init}" if account.init else ""
    yield f"{account.name}{where}: {count}{init}{phases}"
    for entry in account.entries:
        if entry.phases:
            yield f"    phase {entry.phases}:"
        indent = "      " if entry.phases else "    "
        for word, texts in (("arrive", entry.arrives), ("bytes", entry.bytes), ("wait", entry.waits)):
            for text in texts:
                yield f"{indent}{word:<7} {text}"
        if not entry.waits:
            yield f"{indent}wait    nobody"


def _outline(found: Explanation) -> Iterator[str]:
    for role in found.roles:
        yield f"{role.title}: {role.instructions} instruction{'' if role.instructions == 1 else 's'}"
        for item in role.items:
            first, last = item.lines
            lines = f"{first}" if first == last else f"{first}-{last}"
            text = item.text if item.kind != "loop" or item.text.startswith("loop") else f"loop {item.text}"
            times = f"{item.count} x " if item.count > 1 else ""
            yield f"  {lines:>9}  {'  ' * item.depth}{times}{text}"
