"""The settings of this package in ``zarr.config``."""

import operator
import os
import re
import sys
from decimal import Decimal
from typing import Any, Literal, cast

from zarr.core.config import config

Mode = Literal["rewrite", "in_place", "shared"]
MODES: tuple[Mode, ...] = ("rewrite", "in_place", "shared")


# What `zarr.config` may have of `codec_pipeline`: of this package, and of zarr-python. Other packages have
# keys of their own there.
_OURS = ("shards", "strict", "sync", "max_workers")
_KNOWN = frozenset({*_OURS, "path", "batch_size", "fused"})

# The settings of GPUs, which are under `zarrs_cuda`.
OF_DEVICES = (
    "backend",
    "devices",
    "nvcomp",
    "device_memory",
    "device_timeout",
    "device_check",
    "device_decode",
)


def check() -> None:
    """Check this package's settings, before an array is opened with them.

    Raises
    ------
    ValueError
        If a value is none that the setting may have, or a key is almost one of this package's, or belongs
        under ``zarrs_cuda``.
    """
    given = config.get("codec_pipeline", {}) or {}
    for key in given:
        name = str(key).replace("-", "_")
        if name in _KNOWN:
            continue
        places = dict.fromkeys(_OURS, "codec_pipeline") | dict.fromkeys(OF_DEVICES, "zarrs_cuda")
        near = min(places, key=lambda ours: _distance(name, ours))
        if _distance(name, near) <= _MOST:
            msg = f"`codec_pipeline.{key}` is no setting: did you mean `{places[near]}.{near}`?"
            raise ValueError(msg)
    mode()
    is_strict()
    syncs()
    if config.get("codec_pipeline.max_workers", None) is not None:
        threads()


# How many letters a misspelt key has wrong, or more or less.
_MOST = 2


def _distance(one: str, other: str) -> int:
    """Return how many letters have to be changed, added or taken away, or swapped with their neighbours."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one, 1):
        last, before, row = before, row, [at]
        for index, wanted in enumerate(other, 1):
            cost = min(before[index] + 1, row[index - 1] + 1, before[index - 1] + (letter != wanted))
            if at > 1 and index > 1 and letter == other[index - 2] and one[at - 2] == wanted:
                cost = min(cost, last[index - 2] + 1)
            row.append(cost)
    return row[-1]


def unused() -> str | None:
    """Return why settings of this package do nothing; None if they do, or if there are none."""
    found = [
        key for key in _OURS if key != "max_workers" and config.get(f"codec_pipeline.{key}", None) is not None
    ]
    path = config.get("codec_pipeline.path", None)
    if not found or is_ours(path):
        return None
    names = ", ".join(f"`codec_pipeline.{key}`" for key in found)
    return (
        f"{names} is set, and does nothing: `codec_pipeline.path` is {path!r}. Set it to "
        "'zarrs_cuda.CodecPipeline' before arrays are opened"
    )


def is_ours(path: Any) -> bool:
    """Return whether a value of ``codec_pipeline.path`` names this package's pipeline."""
    return "zarrs_cuda" in str(path)


def mode() -> Mode:
    """Return how shards are written: ``codec_pipeline.shards``.

    Raises
    ------
    ValueError
        If the setting is none of the modes.
    """
    value = config.get("codec_pipeline.shards", "rewrite")
    if value not in MODES:
        msg = f"`codec_pipeline.shards` is {value!r}, and must be one of {', '.join(MODES)}"
        raise ValueError(msg)
    return cast("Mode", value)


def is_strict() -> bool:
    """Return whether a fallback is an error: ``codec_pipeline.strict``."""
    return _yes_or_no("strict")


def syncs() -> bool:
    """Return whether files are synced before a write returns: ``codec_pipeline.sync``."""
    return _yes_or_no("sync")


def threads() -> int:
    """Return how many threads one call may use.

    ``codec_pipeline.max_workers``, else ``threading.max_workers``, else the threads of the Dask
    worker that this is, else one for each core that the process may use.

    Raises
    ------
    ValueError
        If a setting is not a positive number.
    """
    for key in ("codec_pipeline.max_workers", "threading.max_workers"):
        value = config.get(key, None)
        if value is not None:
            return _positive(key, value)
    return _of_dask_worker() or _cores()


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}

# A number with a unit, such as 512MiB, 1.5 GB or 4096.
_SIZE = re.compile(r"(?a:\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*)", re.IGNORECASE)


def limits(memory: int | str | None, given: int | None) -> tuple[int | None, int]:
    """Return what a writer may use: the bytes that it was given, and how many threads encode.

    Raises
    ------
    ValueError
        If a value is none.
    """
    of_writer = _positive("threads", given) if given is not None else threads()
    return None if memory is None else size("memory", memory), of_writer


def size(key: str, value: Any) -> int:
    """Return a number of bytes, which may be given with a unit.

    Raises
    ------
    ValueError
        If `value` is none. The message names the setting `key`.
    """
    whole = integer(value)
    found = _SIZE.fullmatch(value if isinstance(value, str) else str(whole))
    number = int(Decimal(found[1]) * _UNITS[(found[2] or "").lower()]) if found else 0
    if not 1 <= number < 2**63:
        msg = f"`{key}` is {value!r}, and must be a number of bytes or a text such as '512MiB' or '4GB'"
        raise ValueError(msg)
    return number


def integer(value: Any) -> int | None:
    """Return an integer of Python or of numpy as one of Python; None for booleans and all else."""
    if isinstance(value, bool):
        return None
    try:
        # Booleans of numpy have no index.
        return operator.index(value)
    except TypeError:
        return None


def _yes_or_no(key: str) -> bool:
    value = config.get(f"codec_pipeline.{key}", False)
    # The environment gives 0 and 1, too.
    if value is None or value in (False, True):
        return bool(value)
    msg = f"`codec_pipeline.{key}` is {value!r}, and must be True or False"
    raise ValueError(msg)


def _positive(key: str, value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = 0
    if number < 1 or isinstance(value, bool) or (isinstance(value, float) and number != value):
        msg = f"`{key}` is {value!r}, and must be a positive number"
        raise ValueError(msg)
    return number


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _of_dask_worker() -> int | None:
    # Only a process that has loaded Dask's scheduler can be one of its workers.
    worker = sys.modules.get("distributed.worker")
    if worker is None:
        return None
    try:
        return int(worker.get_worker().state.nthreads)
    except (AttributeError, ValueError):
        return None
