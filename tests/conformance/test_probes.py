"""Every probe assembles without a remark, and has on the emulator the outcome that is on record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance import report as reports
from conformance.execution import Outcome
from conformance.probe import Probe, load_probe, load_probes
from conformance.recorded import RECORD, recorded_report
from conformance.run import DOCS, hardware_facts
from conformance.steps import step_probes
from conformance.workers import answers
from ptxgen.device.emulated import EmulatedDevice
from ptxgen.errors import PtxgenError
from ptxgen.toolchain import assemble

PROBES = load_probes()
RERUN = f"run `python conformance/run.py --against {RECORD.name}`, or on a GPU anew"


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    report = recorded_report()
    assert report is not None
    questions = report["questions"]
    assert isinstance(questions, dict)
    return questions


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_a_probe_assembles(probe: Probe) -> None:
    assert probe.text.isascii()
    assert ".version 8.0\n.target sm_90a\n" in probe.text
    assembly = assemble(probe.text, name=probe.name)
    assert (assembly.warnings, assembly.infos, assembly.spill_bytes) == ((), (), 0)


def mismatches(probe: Probe, device: EmulatedDevice, recorded: dict[str, Any]) -> list[str]:
    """Cases whose outcome is neither that of the recorded GPU nor, without one, that of the recorded emulator."""
    found = []
    for question in probe.questions:
        known = recorded[reports.key(probe, question)]["cases"]
        for case, outcome in zip(question.cases, answers(device, probe, question), strict=True):
            entry = known.get(case.name)
            assert entry is not None, f"{case.name} of {probe.name} is not on record: {RERUN}"
            verdict = reports.verdict(question, outcome.signature, entry["cuda"])
            stays = outcome.signature == entry["emulator"]
            if outcome.wrong or verdict == reports.DIFFERS or not (stays or verdict == reports.EQUAL):
                found.append(f"{question.name}, {case.name}: {outcome.signature} {outcome.message}, recorded {entry}")
    return found


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_a_probe_has_its_recorded_outcome(probe: Probe, recorded: dict[str, Any]) -> None:
    """Recorded under the policy "eager"; under "late" nothing may be different."""
    device = EmulatedDevice(chip="sm_90a", policy="late", workers=1)
    assert mismatches(probe, device, recorded) == []


def test_steps_compute_the_product() -> None:
    """The plainest step and the most involved one, with every swizzle, at one of the widths of the whole run."""
    device = EmulatedDevice(chip="sm_90a", workers=1)
    probes = list(step_probes(steps=(4, 7), widths=(24,)))
    assert len(probes) == 8
    for probe in probes:
        (outcome,) = answers(device, probe, probe.questions[0])
        assert (outcome.fault, outcome.wrong) == ("", 0), (probe.questions[0].cases[0].name, outcome.message)


def test_the_record_is_of_these_questions(recorded: dict[str, Any]) -> None:
    asked = {reports.key(probe, question) for probe in PROBES for question in probe.questions}
    assert asked == {name for name, entry in recorded.items() if entry["area"] != "steps"}, RERUN


def test_the_docs_follow_from_probes_and_record() -> None:
    assert DOCS.read_text() == hardware_facts(), "run `python conformance/run.py --write-docs`"


def write(folder: Path, *replacements: tuple[str, str]) -> Path:
    text = next(probe.text for probe in PROBES if probe.name == "elect")
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    path = folder / "elect.ptx"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("// probe: {", "// {", "does not say what it asks"),
        ('"vary": {"mask"', '"vary": {"musk"', "no argument, buffer or launch field 'musk'"),
        ('"vary":', '"varies":', r"unknown fields \['varies'\]"),
        ('"name": "leader",', '"name": "leader"', "header is not JSON"),
        ("[4294967295, 4294967294,", "[4294967295, 4294967295,", "have the same name"),
        ("// launch:", "// launches:", "no launch description"),
    ],
)
def test_a_bad_header_is_refused(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    with pytest.raises(PtxgenError, match=complaint):
        load_probe(write(tmp_path, (old, new)))


def test_a_probe_that_does_something_else_is_found_out(tmp_path: Path, recorded: dict[str, Any]) -> None:
    device = EmulatedDevice(chip="sm_90a", workers=1)
    changed = load_probe(write(tmp_path, ("selp.u32 %word, 256", "selp.u32 %word, 512")))
    assert len(mismatches(changed, device, recorded)) == changed.cases == 8


def outcome(data: bytes = b"same", *, fault: str = "", wrong: int = 0) -> Outcome:
    return Outcome(buffers={} if fault else {"D": data}, fault=fault, message=fault, wrong=wrong)


@pytest.mark.parametrize(
    ("emulator", "cuda", "verdict"),
    [
        (outcome(), outcome(), reports.EQUAL),
        (outcome(), outcome(b"else"), reports.DIFFERS),
        (outcome(), outcome(wrong=1), reports.DIFFERS),
        (outcome(), outcome(fault="CUDA_ERROR_MISALIGNED_ADDRESS"), reports.DIFFERS),
        (outcome(fault="misaligned-address"), outcome(fault="CUDA_ERROR_MISALIGNED_ADDRESS"), reports.EQUAL),
        (outcome(fault="misaligned-address"), outcome(fault="CUDA_ERROR_ILLEGAL_INSTRUCTION"), reports.DIFFERS),
        (outcome(fault="misaligned-address"), outcome(), reports.DIFFERS),
        (outcome(fault="arrive-count-exceeded"), outcome(), reports.REFUSED),
        (outcome(fault="arrive-count-exceeded"), outcome(fault="hung"), reports.DIFFERS),
        (outcome(fault="not-modelled"), outcome(), reports.NOT_COMPARED),
        (outcome(fault="crashed"), outcome(), reports.DIFFERS),
        (outcome(), None, reports.ONE_DEVICE),
        (outcome(wrong=2), None, reports.DIFFERS),
    ],
)
def test_verdicts(emulator: Outcome, cuda: Outcome | None, verdict: str) -> None:
    question = replace(PROBES[0].questions[0], refuses="arrive-count-exceeded", shows="")
    entry = reports.case_record(question, question.cases[0], emulator, cuda, None)
    assert entry["verdict"] == verdict
    if cuda is not None:
        assert ("difference" in entry) == (verdict == reports.DIFFERS)
        later = reports.case_record(question, question.cases[0], emulator, None, entry)
        assert later["verdict"] == verdict


def test_a_difference_is_described() -> None:
    guard = bytes(4096)
    mine, theirs = outcome(guard + b"abcd" + guard), outcome(guard + b"abxd" + guard)
    text = reports.difference(mine, theirs)
    assert text.startswith("D: 1 of 4 bytes, first at 2: emulator 6364")
    assert "GPU 7864" in text
