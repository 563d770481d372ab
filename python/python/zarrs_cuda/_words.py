"""Texts of the library in the words of Python: its settings, and what Python has not."""

from __future__ import annotations

import functools
import inspect
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# Pairs: the words of the library or of the command, and the words of Python.
_INSTEAD = (
    (
        " and so do `Options::with_devices` in Rust, `zarrs_cuda.configure` in Python, and `--devices` of "
        "the command",
        " and so does `zarrs_cuda.configure(devices=[0])` in the program",
    ),
    (
        "nvCOMP was not found; the options or ZARRS_CUDA_NVCOMP can name its file",
        "nvCOMP was not found: `pip install nvidia-libnvcomp-cu12` installs it, or nvidia-libnvcomp-cu13 for "
        "CUDA 13; `zarrs_cuda.configure(nvcomp=…)` or ZARRS_CUDA_NVCOMP can name its file",
    ),
    ("give a longer --limit", "call `python -m zarrs_cuda doctor --limit 300`, which waits longer"),
)

# The words of the library for a process that was forked too late, and the remedy.
_FORKED = re.compile(
    r"the process was forked after it (?:looked for (?:CUDA devices|them)|opened the device)"
    r"|was opened before this process was forked: a child process cannot use it"
)
REMEDY_OF_FORKS = (
    'start workers by "spawn" or "forkserver", or before the first read or write of an array that asks for a '
    "GPU"
)

_SETTING = re.compile(
    r"`?\bOptions::with_(devices|device_memory|device_timeout|device_check|device_decode|nvcomp)\b`?"
)
_OPTION = re.compile(r"`?--(devices|backend)\b`?")
_BACKEND = re.compile(r"`Backend::(Auto|Host|Cuda)`")
_OF_RUST = re.compile(r"`(Options::\w+)`(?! in Rust)")


# Pairs: the words of the command, and those of a function that calls it.
_CALLS = (
    (
        "run the same command once with --prepare, and the parts when it has ended",
        "a `client` plans the parts first; or run `zarrs-cuda … --prepare N` once, and the parts afterwards",
    ),
    ("run the same command", "make the same call"),
    ("`python -m zarrs_cuda reencode --decode-with zarr-python IN OUT`", '`decode_with="zarr-python"`'),
)
# The end of a message about wrong options.
_USAGE = re.compile(r"\n+(?:Usage: |For more information, try '--help').*", re.DOTALL)
# An option, as the command names one that is wrong, and as other messages do.
_QUOTED = re.compile(r"'(--[a-z][a-z-]*)(?:[ =]<[^>']*>)?'")
_NAMED = re.compile(r"(?<![\w/.~-])(--[a-z][a-z-]*)(?: I/(\w+))?(?!\w)")
_PLACE = re.compile(r"(?<![\w/.~-])(OUT|IN)(?![\w~-]|\.\w)")
_PLACES = {"OUT": "destination", "IN": "source"}


def in_words_of_python[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Make a function that calls the command name its own arguments in errors, in place of options."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (ValueError, RuntimeError) as error:
            if error.args and isinstance(error.args[0], str):
                given = (value for value in (*args, *kwargs.values()) if isinstance(value, str | os.PathLike))
                paths = [str(os.fspath(value)) for value in given]
                error.args = (by_arguments(error.args[0], signature.parameters, paths), *error.args[1:])
            raise

    return call


def by_arguments(text: str, parameters: Mapping[str, inspect.Parameter], given: Iterable[str] = ()) -> str:
    """Return a text of the command with the arguments of a function in place of options, and of OUT and IN.

    Parameters
    ----------
    text
        The text. Commands in it, between backticks, stay.
    parameters
        The parameters of the function. Options of which it has none stay.
    given
        Paths that were given, and stay.
    """

    def argument(option: str, parts: str | None = None) -> str:
        if option in ("--devices", "--backend"):
            return f"`zarrs_cuda.{option[2:]}`"
        name = {"--axis": "axes", "--prepare": "client"}.get(option, option[2:].replace("-", "_"))
        if name not in parameters:
            return option
        if name == "part" and parts is not None:
            return f"`part=(I, {parts})`"
        return f"`{name}=True`" if parameters[name].default is False else f"`{name}`"

    def place(word: str) -> str:
        name = _PLACES[word]
        return f"`{name}`" if name in parameters else f"`{next(iter(parameters), word)}`"

    text = _USAGE.sub("", text).removeprefix("error: ")
    for said, instead in (*_INSTEAD, *_CALLS):
        text = text.replace(said, instead)
    text = _QUOTED.sub(lambda found: argument(found[1]), text)
    kept = [rf"(?<![\w/]){re.escape(path)}(?!\w)" for path in given if _PLACE.search(path) or "--" in path]
    spans = re.split("(" + "|".join([*kept, "`[^`]*`"]) + ")", text)
    for at, span in enumerate(spans):
        if at % 2 == 0:
            named = _NAMED.sub(lambda found: argument(found[1], found[2]) + _rest(found), span)
            spans[at] = _PLACE.sub(lambda found: place(found[1]), named)
        elif span.startswith("`"):
            spans[at] = _PLACE.sub(lambda found: _PLACES[found[1]].upper(), span)
    return "".join(spans)


def _rest(found: re.Match[str]) -> str:
    """Return what follows an option and is no part of an argument that takes its place."""
    return f" I/{found[2]}" if found[2] is not None and found[1] != "--part" else ""


def by_python(text: str) -> str:
    """Return a text of the library with Python's settings in place of those of Rust and of the command."""
    for said, instead in _INSTEAD:
        text = text.replace(said, instead)
    text = _FORKED.sub(rf"\g<0>: {REMEDY_OF_FORKS}", text)
    text = _SETTING.sub(r"`zarrs_cuda.\1`", text)
    text = _BACKEND.sub(lambda found: f'`backend="{found[1].lower()}"`', text)
    text = _OPTION.sub(r"`zarrs_cuda.\1`", text)
    return _OF_RUST.sub(r"`\1` in Rust", text)
