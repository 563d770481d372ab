"""Ends reads that wait on Ctrl-C; `interrupted` in `python/src/writing.rs` ends calls of writers.

In Python, a signal reaches the main thread alone.
"""

from __future__ import annotations

import _thread
import os
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class _Worker:
    """A thread that does the work of the main thread, which waits and can be interrupted."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._queue: SimpleQueue[Any] = SimpleQueue()
        # The end of the process does not wait for a server that hangs.
        threading.Thread(target=self._work, name="zarrs_cuda reader", daemon=True).start()

    def _work(self) -> None:
        while (task := self._queue.get()) is not None:
            work, done, result = task
            try:
                result.append((work(), None))
            except BaseException as error:
                result.append((None, error))
            done.release()
            # The elements are the caller's alone.
            del task, work, done, result

    def do(self, work: Callable[[], Any]) -> Any:
        done, result = _thread.allocate_lock(), []  # type: ignore[var-annotated]
        done.acquire()
        self._queue.put((work, done, result))
        done.acquire()
        value, error = result.pop()
        if error is not None:
            raise error
        return value

    def end(self) -> None:
        self._queue.put(None)


# The idle worker of this process.
_idle: _Worker | None = None


def interruptible[T](work: Callable[[], T]) -> T:
    """Do work so that Ctrl-C raises at once. The work itself goes on to its end then, unseen.

    Parameters
    ----------
    work
        What to do, on another thread if this is the main one.
    """
    global _idle
    if threading.current_thread() is not threading.main_thread():
        return work()
    worker, _idle = _idle, None
    if worker is None or worker.process != os.getpid():
        worker = _Worker()
    try:
        done: T = worker.do(work)
    except KeyboardInterrupt:
        # It may still be at work.
        worker.end()
        raise
    except BaseException:
        _idle = worker
        raise
    _idle = worker
    return done
