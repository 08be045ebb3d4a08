"""The tables that the package brings: what they name exists, assembles without spills, and is clean in the checker."""

from __future__ import annotations

from pathlib import Path

import pytest

import ptxgen
from ptxgen.commands import run
from ptxgen.spec import GemmSpec
from ptxgen.toolchain import assemble
from ptxgen.tuning.table import _FOLDER, Entry, Table, load_table

TABLES = sorted(_FOLDER.glob("*.json"))
ENTRIES = [(load_table(path), entry) for path in TABLES for entry in load_table(path).entries]
SPECS = {entry.spec.hash: entry.spec for _, entry in ENTRIES}


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_the_file_is_as_tune_writes_it(path: Path) -> None:
    table = load_table(path)
    assert table.merged((), table.environment or {}).to_json() == path.read_text()
    assert len({entry.problem for entry in table.entries}) == len(table.entries)


@pytest.mark.parametrize(("table", "entry"), ENTRIES, ids=lambda value: str(getattr(value, "problem", "")))
def test_best_takes_the_entry(table: Table, entry: Entry) -> None:
    """The settings still mean the spec that was measured: its hash says so."""
    assert f'"hash": "{entry.spec.hash}"' in Path(table.source).read_text()
    problem = entry.problem
    choice = ptxgen.best(
        *problem.extents,
        target=table.target,
        operand_type=problem.operand_type,
        output_type=problem.output_type,
    )
    assert (choice.basis, choice.spec) == ("measured", entry.spec)
    if entry.grid is not None:
        assert choice.grid == (entry.grid, 1, 1)
        assert entry.grid <= table.sm_count and entry.grid % entry.spec.cluster_ctas == 0


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_it_assembles(spec: GemmSpec) -> None:
    report = assemble(ptxgen.emit(spec), line_info=False)
    assert report.spill_bytes == 0
    assert not report.warnings


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_it_is_clean(spec: GemmSpec, tmp_path: Path) -> None:
    path = tmp_path / "tuned.ptx"
    path.write_text(ptxgen.emit(spec))
    assert run(["verify", str(path)]) == 0
