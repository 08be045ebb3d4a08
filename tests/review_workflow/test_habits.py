"""What docs/review.md tells users to set up, tried in a repository of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ptxgen.review.goldens import generate

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "review.md"
MANIFEST = {"files": {"sm_100a/step4.ptx": {"step": 4}, "sm_100a/step5.ptx": {"step": 5}}}

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")


def block(name: str) -> str:
    """The code block behind a mark of the docs."""
    match = re.search(rf"<!-- {name} -->\n```\w*\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert match is not None
    return match[1]


@pytest.fixture
def shell(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs bash in a new repository with one commit, `ptxgen` being this interpreter's."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    launcher = bin_folder / "ptxgen"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "from ptxgen.commands import main; main()" "$@"\n')
    launcher.chmod(0o755)
    repository = tmp_path / "repository"
    repository.mkdir()
    environment = {
        **os.environ,
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }

    def call(script: str, *, check: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=repository,
            env={**environment, **more},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    (repository / "generated").mkdir()
    (repository / "generated" / "manifest.json").write_text(json.dumps(MANIFEST))
    generate(repository / "generated")
    (repository / ".gitattributes").write_text(block("gitattributes"))
    call("git init -q -b main . && git add . && git commit -q -m first")
    call(block("config"))
    return call


def test_our_own_attributes_are_those_of_the_docs() -> None:
    assert block("gitattributes").strip() in (ROOT / ".gitattributes").read_text()
    pattern = re.search(r"xfuncname '([^']+)'", block("config"))
    assert pattern is not None and pattern[1] in (ROOT / ".gitattributes").read_text()


def test_hunk_headers_name_role_and_op(shell: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    shell(
        "sed -i 's/mov.b32 %release_phase, 0;/mov.b32 %release_phase, 1;/; s/tcgen05.commit.*mma_done.;/&  /'"
        " generated/*/step5.ptx"
    )
    headers = re.findall(r"^@@ [^@]* @@ ?(.*)$", shell("git diff").stdout, re.MULTILINE)
    assert [header.strip() for header in headers] == ["set_up_done:", "wait_loaded:"]
    assert "generated: false" in shell("git check-attr linguist-generated generated/sm_100a/step4.ptx").stdout


@pytest.mark.slow
def test_ci_fails_for_a_stale_file_and_comments_either_way(
    shell: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    script = tmp_path / "kernels.sh"
    script.write_text(block("ci"))
    call = f"bash '{script}'"
    shell("""sed -i 's/"step": 5}/"step": 5, "set": ["pipe_depth=3"]}/' generated/manifest.json""")
    stale = shell(call, check=False, BASE="HEAD")
    assert stale.returncode == 1 and "stale: sm_100a/step5.ptx" in stale.stdout
    assert "the same: 2" in shell("cat comment.md").stdout
    shell("ptxgen generate && git add generated && git commit -q -m deeper")
    fresh = shell(f"{call} && cat comment.md", BASE="HEAD~1")
    assert "nothing found" in fresh.stdout
    assert "| spec | pipe\\_depth | 2 | 3 |" in fresh.stdout
    assert "- changed: 1, the same: 1" in fresh.stdout
    assert "**checked**: clean -> clean" in fresh.stdout
    shell("sed -i '/fence.proxy.async/d' generated/sm_100a/step4.ptx")
    broken = shell(call, check=False, BASE="HEAD")
    assert broken.returncode == 1 and "missing-proxy-fence" in broken.stdout
    assert "step4.ptx is not what its spec generates now" in shell("cat comment.md").stdout


def test_the_manifest_of_the_docs_generates_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(block("manifest"))
    assert {golden.path for golden in generate(tmp_path)} == set(json.loads(block("manifest"))["files"])


def test_the_job_runs_the_lines_of_the_docs() -> None:
    yaml = pytest.importorskip("yaml")
    configuration, workflow = (
        yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    )
    assert {hook["id"] for hook in configuration["repos"][0]["hooks"]} == set(hooks())
    job = workflow["jobs"]["kernels"]
    assert job["permissions"] == {"contents": "read", "pull-requests": "write"}
    runs = [step for step in job["steps"] if "run" in step]
    assert [step["run"].split()[0] for step in runs] == ["pip", "bash", "gh"]
    assert runs[1]["env"] == {"BASE": "origin/${{ github.base_ref }}"}
    assert "comment.md" in runs[2]["run"] and runs[2]["if"] == "${{ !cancelled() }}"


def hooks() -> dict[str, dict[str, str]]:
    """The hooks file, which is simple enough to be read without YAML."""
    found: dict[str, dict[str, str]] = {}
    for line in (ROOT / ".pre-commit-hooks.yaml").read_text().splitlines():
        match = re.match(r"(?:- |  )(\w+): (.*)$", line)
        if match and match[1] == "id":
            found[match[2]] = {}
        elif match:
            found[list(found)[-1]][match[1]] = match[2]
    return found


def test_hooks_refuse_what_they_should(shell: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    check, verify = hooks()["ptxgen-generate-check"], hooks()["ptxgen-verify"]
    assert re.search(check["files"], "generated/sm_100a/step4.ptx") and check["pass_filenames"] == "false"
    assert re.search(verify["files"], "generated/sm_100a/step4.ptx")
    assert shell(check["entry"], check=False).returncode == 0
    shell("sed -i '/fence.proxy.async/d' generated/sm_100a/step4.ptx")
    assert shell(check["entry"], check=False).returncode == 1
    broken = shell(f"{verify['entry']} generated/sm_100a/step4.ptx", check=False)
    assert broken.returncode == 1 and "missing-proxy-fence" in broken.stdout
