"""Texts of the library in the words of Python: its settings, and what Python has not."""

from __future__ import annotations

import re

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


def by_python(text: str) -> str:
    """Return a text of the library with Python's settings in place of those of Rust and of the command."""
    for said, instead in _INSTEAD:
        text = text.replace(said, instead)
    text = _FORKED.sub(rf"\g<0>: {REMEDY_OF_FORKS}", text)
    text = _SETTING.sub(r"`zarrs_cuda.\1`", text)
    text = _BACKEND.sub(lambda found: f'`backend="{found[1].lower()}"`', text)
    text = _OPTION.sub(r"`zarrs_cuda.\1`", text)
    return _OF_RUST.sub(r"`\1` in Rust", text)
