"""What a command compares or explains: PTX from a file, a step, a spec, or a revision in git."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ptxgen.errors import PtxgenError
from ptxgen.files import read_text
from ptxgen.spec import GemmSpec, parse_settings

_STEP = re.compile(r"step:(?P<number>\d+)(?:@(?P<target>\w+))?(?:,(?P<settings>.+))?$")
FORMS = "a PTX file, a spec's JSON file, step:N[@TARGET][,KEY=VALUE...], git:REVISION:PATH, or a folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """PTX and where it came from."""

    name: str
    text: str


def read_source(word: str) -> Source:
    """The one text that `word` names. Raises PtxgenError where there is none, or a folder."""
    if match := _STEP.match(word):
        return _step(word, match)
    if word.startswith("git:"):
        return _from_text(word, _git_show(word))
    path = Path(word)
    if path.is_dir():
        raise PtxgenError(f"{word} is a folder; name a file")
    if not path.is_file():
        raise PtxgenError(f"there is no file {word!r}; a source is {FORMS}")
    return _from_text(word, read_text(path))


def is_folder(word: str) -> bool:
    """Whether `word` names a folder, on disk or in a revision of git."""
    if word.startswith("git:"):
        revision, path = _revision(word)
        return _git("cat-file", "-t", f"{revision}:{path}").strip() == "tree"
    return Path(word).is_dir()


def read_folder(word: str) -> dict[str, Source]:
    """Every PTX file below a folder, by its path in it."""
    if not word.startswith("git:"):
        root = Path(word)
        files = sorted(root.rglob("*.ptx"))
        return {file.relative_to(root).as_posix(): read_source(str(file)) for file in files}
    revision, path = _revision(word)
    names = _git("ls-tree", "-r", "--name-only", "-z", f"{revision}:{path}").split("\0")
    base = PurePosixPath(path)
    return {name: read_source(f"git:{revision}:{base / name}") for name in sorted(names) if name.endswith(".ptx")}


def spec_of(text: str) -> GemmSpec | None:
    """The spec that a text says it was made from, by the command in its header; None where it says nothing, or
    where its spec hash is not that of the command."""
    match = re.search(r"^// ptxgen emit --step (\d+) --target (\w+)(.*)$", text, re.MULTILINE)
    stated = re.search(r"^// spec: sha256 ([0-9a-f]+)$", text, re.MULTILINE)
    if match is None or stated is None:
        return None
    from ptxgen.steps import step

    settings = tuple(re.findall(r"--set (\S+)", match[3]))
    try:
        spec = parse_settings(step(int(match[1]), target=match[2]), settings)
    except PtxgenError:
        return None
    return spec if spec.hash == stated[1] else None


def _step(word: str, match: re.Match[str]) -> Source:
    from ptxgen.render import emit
    from ptxgen.steps import step

    settings = tuple((match["settings"] or "").split(",")) if match["settings"] else ()
    spec = parse_settings(step(int(match["number"]), target=match["target"] or "sm_100a"), settings)
    return Source(name=word, text=emit(spec))


def _from_text(name: str, text: str) -> Source:
    """PTX as it is; of a spec in JSON the PTX that it makes."""
    if not text.lstrip().startswith("{"):
        return Source(name=name, text=text)
    from ptxgen.render import emit

    return Source(name=name, text=emit(GemmSpec.from_json(text)))


def _revision(word: str) -> tuple[str, str]:
    _, revision, *rest = word.split(":", 2)
    if not rest or not revision:
        raise PtxgenError(f"{word!r}: a source in git is written git:REVISION:PATH, as in git:HEAD~1:generated/a.ptx")
    return revision, rest[0].rstrip("/")


def _git_show(word: str) -> str:
    revision, path = _revision(word)
    return _git("show", f"{revision}:{path}")


def _git(*arguments: str) -> str:
    """What git prints; paths are those of the repository around the working folder, or relative (./)."""
    try:
        run = subprocess.run(["git", *arguments], capture_output=True, check=False)
    except OSError as error:
        raise PtxgenError(f"git cannot be run: {error.strerror or error}") from error
    if run.returncode:
        said = run.stderr.decode(errors="replace").strip().removeprefix("fatal: ")
        raise PtxgenError(f"git {' '.join(arguments)}: {said}")
    return run.stdout.decode()
