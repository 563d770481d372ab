"""Ends reads that wait on Ctrl-C, and lets a process end whose reads wait.

`interrupted` in `python/src/writing.rs` ends calls of writers on Ctrl-C.

In Python, a signal reaches the main thread alone.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import contextvars
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


async def on_thread[T](work: Callable[[], T]) -> T:
    """Do work on a thread for which the end of the process does not wait, unlike ``asyncio.to_thread``.

    Parameters
    ----------
    work
        What to do. It goes on to its end if the caller is cancelled.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def end(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(work)
        except BaseException as raised:
            error = raised
        # The loop may be closed, if nobody waits any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(end, result, error)

    threading.Thread(target=run, name="zarrs_cuda device reader", daemon=True).start()
    return await future
