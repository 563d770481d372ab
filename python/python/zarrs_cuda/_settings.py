"""The settings of this package in ``zarr.config``."""

import os
import sys
from typing import Any, Literal, cast

from zarr.core.config import config

Mode = Literal["rewrite", "in_place", "shared"]
MODES: tuple[Mode, ...] = ("rewrite", "in_place", "shared")


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
    return bool(config.get("codec_pipeline.strict", False))


def syncs() -> bool:
    """Return whether files are synced before a write returns: ``codec_pipeline.sync``."""
    return bool(config.get("codec_pipeline.sync", False))


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


def _positive(key: str, value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = 0
    if number < 1:
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
