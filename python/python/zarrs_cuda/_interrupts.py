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
        try:
            if error is not None:
                raise error
            return value
        finally:
            # The traceback of the error has this frame.
            del value, error, work

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


# The most threads of `on_thread`, as many as `asyncio.to_thread` has. Each may wait for a GPU that hangs.
_MOST = 32


class _Workers:
    """Threads that do the work of event loops. They are made when they are needed, and used again."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._lock = threading.Lock()
        # How many threads there are, and how much work is queued or being done.
        self._threads = self._works = 0

    def do(self, *task: Any) -> None:
        """Do the work of a task. Work beyond the most threads waits."""
        with self._lock:
            if self._works >= self._threads and self._threads < _MOST:
                # The end of the process does not wait for a GPU that hangs.
                thread = threading.Thread(target=self._work, name="zarrs_cuda device reader", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    # Another thread does it later, if there is one.
                    if not self._threads:
                        raise
                else:
                    self._threads += 1
            self._works += 1
        self._queue.put(task)

    def _work(self) -> None:
        while True:
            context, work, loop, future = self._queue.get()
            result, error = None, None
            try:
                result = context.run(work)
            except BaseException as raised:
                error = raised
            with self._lock:
                self._works -= 1
            # The loop may be closed, if nobody waits any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_end, future, result, error)
            # The array on the GPU is the caller's alone. The traceback of the error has this frame.
            del context, work, loop, future, result, error


def _end(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


_workers = _Workers()


async def on_thread[T](work: Callable[[], T]) -> T:
    """Do work on a thread for which the end of the process does not wait, unlike ``asyncio.to_thread``.

    Parameters
    ----------
    work
        What to do. It goes on to its end if the caller is cancelled.
    """
    global _workers
    if _workers.process != os.getpid():
        # A forked child has none of the threads.
        _workers = _Workers()
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    _workers.do(contextvars.copy_context(), work, loop, future)
    try:
        return await future
    finally:
        # The future has the error, whose traceback has this frame.
        del future, work
