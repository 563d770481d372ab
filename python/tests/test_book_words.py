"""The commands that the book names, in text or in blocks: the programs know each of their words."""

from __future__ import annotations

import functools
import itertools
import re
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from book import BLOCKS, PAGES, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

TASKS = {"add", "bench", "check", "clippy", "doc", "fmt", "install", "package", "publish", "run"}
TASKS |= {"semver-checks", "test", "xtask"}
# Options of schedulers.
OTHERS = {"--requeue", "--gres"}


def commands_of(page: str) -> Iterator[tuple[int, str]]:
    """Return code within lines, and the commands in blocks, each with the number of its line."""
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        yield from ((number, span) for _, span in re.findall(r"(`+)(.+?)\1", line))
    for block in BLOCKS:
        if block.page == page and (block.is_program or block.language == "text"):
            for number, line in enumerate(block.text.splitlines(), block.line):
                yield from ((number, part.lstrip("$+ ")) for part in re.split(r" (?:\||&&|;) ", line))


@functools.cache
def options_of(module: str, *words: str) -> set[str]:
    command = [sys.executable, "-m", module, *words, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise ValueError(done.stderr.partition("\n")[0])
    return {"--help", *re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", done.stdout, re.MULTILINE)}


@functools.cache
def options_of_all() -> set[str]:
    names = {words[1] for page in PAGES for _, text in commands_of(page) if (words := subcommand(text))}
    return set.union(OTHERS, {"--features"}, *(options_of("zarrs_cuda", name) for name in names))


def subcommand(text: str) -> list[str]:
    """Return the words of a command `zarrs-cuda`, if it has a subcommand."""
    found = re.match(r"(?:zarrs-cuda|python3? -m zarrs_cuda) ([a-z-].*)", text)
    return ["zarrs-cuda", *found[1].split()] if found else []


@functools.cache
def packages() -> dict[str, dict[str, Any]]:
    """Return the manifests of Cargo by the names of their packages, each with its folder."""
    members = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["members"]
    folders = [".", *members]
    made = [{"folder": f, **tomllib.loads((ROOT / f / "Cargo.toml").read_text())} for f in folders]
    return {manifest["package"]["name"]: manifest for manifest in made}


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of packages and of what they depend on."""
    known = packages()["zarrs_cuda"]["workspace"]["dependencies"]
    found = {
        name: wanted if isinstance(wanted, str) else wanted.get("version", "")
        for name, wanted in known.items()
    }
    return found | {name: made["package"]["version"] for name, made in packages().items()}


def is_known(name: str, version: str) -> bool:
    return name in versions() and (not version or f"{versions()[name]}.".startswith(f"{version}."))


def wrong_of_cargo(words: list[str]) -> Iterator[str]:
    at = words.index("--") if "--" in words else len(words)
    task, *rest = words[:at]
    given = dict(itertools.pairwise(words[:at]))
    if task not in TASKS:
        yield f"cargo {task}"
    if task == "xtask" and rest:
        usage = (ROOT / "xtask/src/main.rs").read_text().split("cargo xtask ")
        told = " ".join(part for part in usage if part.split()[0] == rest[0])
        yield from (word for word in rest if word.islower() and word not in told.split())
    if task == "add":
        path = given.pop("--path", "")  # of a clone, in a folder of its own
        crates = [word.partition("@") for word in rest if word not in {"--path", path}]
        yield from (f"crate {name} {version}" for name, _, version in crates if not is_known(name, version))
    wanted = given.get("--package"), given.get("--path")
    where = [made for name, made in packages().items() if name == wanted[0] or made["folder"] == wanted[1]]
    if any(wanted) and not where:
        yield f"package {wanted[0] or wanted[1]}"
    package = where[0] if where else packages()["zarrs_cuda"]
    features = given.get("--features", "").split(",")
    yield from (f"feature {name}" for name in features if name and name not in package["features"])
    for kind in ("bench", "bin", "test"):
        name = given.get(f"--{kind}", "")
        if name.islower() and name not in [target["name"] for target in package.get(kind, [])]:
            yield f"{kind} {name}"
    if wanted[0] == "zarrs_cuda_cli":
        yield from wrong_in("zarrs-cuda " + " ".join(words[at + 1 :]))


def wrong_in(text: str) -> Iterator[str]:
    """Return what programs do not know of a command. Words in capitals stand for others."""
    text = text.split(" #")[0]
    options = set(re.findall(r"--[a-z][a-z-]*", text))
    if words := subcommand(text):
        yield from options - OTHERS - options_of("zarrs_cuda", words[1])
    elif found := re.match(r"python3? -m (\w+\.[\w.]+)", text):
        yield from options - options_of(found[1])
    elif found := re.match(r"python3? (\S+\.py)", text):
        files = [ROOT / folder / found[1] for folder in (".", "python", "python/tests")]
        beside = [other for file in files if file.exists() for other in file.parent.glob("*.py")]
        sources = "".join(other.read_text() for other in beside)
        yield from (word for word in options if word not in sources)
        yield from [] if beside else [found[1]]
    elif text.startswith("cargo "):
        yield from wrong_of_cargo(text.split()[1:])
    elif text.startswith("--"):
        yield from options - options_of_all()


@pytest.mark.parametrize("page", PAGES)
def test_programs_know_the_words(page: str) -> None:
    wrong = []
    for number, text in commands_of(page):
        try:
            wrong += [f"{page}:{number}: `{text}`: there is no {word}" for word in wrong_in(text)]
        except ValueError as error:
            wrong.append(f"{page}:{number}: `{text}`: {error}")
    assert not wrong, "\n".join(wrong)


def test_features_of_dependencies() -> None:
    tables = [tomllib.loads(block.text)["dependencies"] for block in BLOCKS if block.language == "toml"]
    assert tables
    for name, wanted in (pair for table in tables for pair in table.items()):
        assert is_known(name, wanted["version"]), f"{name} {wanted['version']}"
        if name in packages():
            assert set(wanted["features"]) <= set(packages()[name]["features"])
