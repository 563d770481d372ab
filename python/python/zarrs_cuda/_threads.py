"""Threads of Dask, none of which writes after the call that started it."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def ended_threads() -> Iterator[dict[str, Any]]:
    """Return keywords for a computation of Dask, whose threads have ended when the block ends.

    Dask raises the error of one block while its threads work on others. These blocks would be stored after
    the call had failed, over elements that the caller has stored since.
    """
    from dask import config, threaded
    from dask.array import Array
    from dask.base import get_scheduler
    from dask.system import CPU_COUNT

    if get_scheduler(cls=Array) is not threaded.get or config.get("pool", None) is not None:
        # The threads of the caller, and the workers of other schedulers, belong to them.
        yield {}
        return
    # A setting of Dask would be one for all threads of the process: keywords are of this call alone.
    pool = ThreadPoolExecutor(config.get("num_workers", None) or CPU_COUNT)
    try:
        yield {"pool": pool}
    finally:
        pool.shutdown(cancel_futures=True)
