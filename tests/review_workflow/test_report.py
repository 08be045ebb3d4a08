"""The page: what is on it, that it needs nothing else, and that a browser is content with it."""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ptxgen.commands import run
from ptxgen.hardware.swizzle import Swizzle
from ptxgen.review.order import tile_order
from ptxgen.review.pictures import WIDTH, swizzle_picture
from ptxgen.review.report import make_report, report_page
from ptxgen.review.sources import Source, read_source

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
BROWSERS_OWN = re.compile(r"https?://[^/]*\.(?:google|googleapis|gvt1)\.com/")
"""What Chromium asks for itself, whatever the page."""
VOID = {"meta", "br", "hr", "img", "input", "link", "col"}


class Page(HTMLParser):
    """Checks that elements nest, and collects ids, links and what would be fetched."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        if tag not in VOID:
            self._open.append(tag)
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "a":
            self.links.append(found["href"])
        elif "href" in found:
            self.fetched.append(found["href"])
        self.fetched += [found[name] for name in ("src", "srcset", "data") if name in found]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def html() -> str:
    return report_page(make_report(read_source("step:7"), predicted=False))


def test_the_page_is_whole_and_needs_nothing_else(html: str) -> None:
    page = Page(html)
    assert page.fetched == []
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\s", html)
    assert len(page.ids) == len(set(page.ids))
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    for section in ("timeline", "phases", "memory", "order", "ledger", "findings", "configuration", "costs", "ptx"):
        assert section in page.ids
    text = "".join(page.words)
    assert "checker: no errors" in text and "numbers right" in text
    assert "model" in text and "not a measurement" in text


def test_every_line_of_the_text_is_there(html: str) -> None:
    source = read_source("step:7").text
    text = "".join(Page(html).words)
    for line in source.splitlines():
        code, _, comment = line.partition("//")
        assert code.rstrip() in text and comment in text


def test_pictures_fit_the_page(html: str) -> None:
    widths = [float(width) for width in re.findall(r'<svg [^>]*width="([\d.]+)"', html)]
    assert len(widths) >= 5
    assert max(widths) <= WIDTH < 1280


def test_markup_in_a_text_stays_text() -> None:
    """Comments of a foreign file cannot add to the page."""
    evil = "</pre><script>alert(1)</script>"
    source = read_source("step:4")
    text = source.text.replace("// fill the ring", f"// {evil}").replace("// A and B have landed", f"// {evil}")
    assert evil in text
    page = report_page(make_report(Source(name=f"<b>{evil}", text=text), predicted=False))
    assert evil not in page
    assert evil in "".join(Page(page).words)


def test_findings_stand_on_their_lines() -> None:
    text = read_source("step:4").text
    broken = text.replace("fence.proxy.async.shared::cta;", "")
    assert broken != text
    report = make_report(Source(name="broken.ptx", text=broken), predicted=False)
    assert report.facts.edited and report.prediction is None
    findings = report.explanation.trace.findings if report.explanation.trace is not None else ()
    lines = {finding.line for finding in findings if finding.rule == "missing-proxy-fence"}
    assert lines
    page = report_page(report)
    assert "missing-proxy-fence" in page
    for line in lines:
        below = page.split(f'<div id="L{line}"')[1].split('<div id="L')[0]
        assert '<div class="found">missing-proxy-fence' in below


def test_a_text_that_cannot_run_has_a_page_too(numbered: Source) -> None:
    page = report_page(make_report(numbered))
    text = "".join(Page(page).words)
    assert "Nothing was run, so nothing was checked." in text
    assert "There is no launch description" in text
    assert 'id="timeline"' not in page


def test_order_of_tiles_is_the_ladders() -> None:
    """Bands of eight tile rows, walked column by column; ten CTAs take every tenth."""
    source = read_source("step:6")
    description = make_report(source, predicted=False).explanation.description
    assert description is not None
    found = tile_order(source, description)
    order = {(cta, place): (row, column) for row, column, cta, place in found}
    ids = [(cta, place) for place in range(4) for cta in range(10)]
    wanted = [
        (row, column) for first, rows in ((0, 8), (8, 2)) for column in range(4) for row in range(first, first + rows)
    ]
    assert [order[one] for one in ids] == wanted


@pytest.mark.parametrize("swizzle", [Swizzle.B128, Swizzle.B64, Swizzle.B32])
def test_swizzle_picture_is_a_permutation_of_each_row(swizzle: Swizzle) -> None:
    picture = swizzle_picture(swizzle)
    rows: dict[float, list[str]] = {}
    for box in picture.boxes:
        rows.setdefault(box.y, []).append(box.label)
    chunks = [str(chunk) for chunk in range(swizzle.span_bytes // 16)]
    assert len(rows) == 8 and all(sorted(labels) == chunks for labels in rows.values())
    assert rows[min(rows)] == chunks


def test_command_writes_page_and_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, trace = tmp_path / "report.html", tmp_path / "trace.json"
    assert run(["report", "--step", "4", "-o", str(page), "--trace", str(trace)]) == 0
    assert "TFLOP/s" in page.read_text()
    assert json.loads(trace.read_text())["traceEvents"]
    assert run(["report", "step:4", "-o", str(tmp_path / "no" / "page.html")]) == 2
    assert "folder is missing" in capsys.readouterr().err


@pytest.mark.slow
def test_a_page_takes_seconds(tmp_path: Path) -> None:
    """The command for step 7 takes at most five seconds of processor time; it is three where nothing else runs."""
    command = [sys.executable, "-c", "from ptxgen.commands import main; main()", "report", "step:7", "-o"]
    found = []
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*command, str(tmp_path / "page.html")], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(found) <= 5.0


def browse(page: Path, folder: Path) -> tuple[list[str], list[str]]:
    """Console messages of a page in headless Chromium, and what it asks a network for."""
    assert CHROMIUM is not None
    log = folder / "net.json"
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900",
        "--disable-background-networking", "--disable-component-update", "--enable-logging=stderr", "--v=0",
        f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "</html>" in done.stdout
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    asked = re.findall(r'"url":"((?:https?|wss?):[^"]*)"', log.read_text())
    return said, [url for url in asked if not BROWSERS_OWN.match(url)]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_the_browser_would_tell(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text('<html><img src="http://127.0.0.1:9/a.png"><script>nothing();</script></html>')
    said, asked = browse(page, tmp_path)
    assert any("nothing is not defined" in line for line in said)
    assert "http://127.0.0.1:9/a.png" in asked


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
@pytest.mark.parametrize("word", ["step:4", "step:6", "step:7", "step:7@sm_90a", "diff"])
def test_a_browser_has_no_complaints(word: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    if word == "diff":
        assert run(["diff", "step:5", "step:6", "--html", str(page), "--no-run", "--no-ptxas"]) == 0
    else:
        assert run(["report", word, "-o", str(page), "--no-predict"]) == 0
    assert browse(page, tmp_path) == ([], [])
