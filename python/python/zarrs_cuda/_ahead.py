"""Does work ahead of a loop that takes the results, by threads of the process that loops."""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Ahead[T, R]:
    """Results of work on items, in their order, of which some are worked on ahead.

    Its threads end when the block of ``with`` ends, each with the item that it has begun.

    Parameters
    ----------
    work
        What is done to an item, on a thread.
    items
        The items. They are taken from the iterable as they are needed.
    count
        How many items are worked on, or are done and wait to be taken, at the same time.
    """

    def __init__(self, work: Callable[[T], R], items: Iterable[T], count: int) -> None:
        self._work = work
        self._items = iter(items)
        self._count = count
        self._process = os.getpid()
        self._tasks: SimpleQueue[tuple[T, Future[R]] | None] = SimpleQueue()
        self._pending: deque[tuple[T, Future[R]]] = deque()

    def __enter__(self) -> Self:
        for _ in range(self._count):
            # The end of the process does not wait for a server that hangs.
            threading.Thread(
                target=_serve, args=(self._tasks, self._work), name="zarrs_cuda crops", daemon=True
            ).start()
        return self

    def __exit__(self, *_why: object) -> None:
        # A forked child has no threads that could end.
        if self._process != os.getpid():
            return
        for _item, result in self._pending:
            result.cancel()
        for _ in range(self._count):
            self._tasks.put(None)

    def more(self) -> None:
        """Let the threads go on, as far ahead as they may.

        Raises
        ------
        RuntimeError
            If this is a child that was forked while the loop went on: it has no threads.
        """
        if self._process != os.getpid():
            msg = (
                f"the iterator belongs to the process {self._process}, and its threads do not exist in "
                f"{os.getpid()}, which was forked: make a new one here, with `iter`"
            )
            raise RuntimeError(msg)
        while len(self._pending) < self._count:
            for item in self._items:
                task = item, Future[R]()
                self._pending.append(task)
                self._tasks.put(task)
                break
            else:
                return

    def take(self) -> tuple[T, Future[R]] | None:
        """Return the next item and its result, as soon as it is begun; None after the last one."""
        self.more()
        return self._pending.popleft() if self._pending else None


def _serve[T, R](tasks: SimpleQueue[tuple[T, Future[R]] | None], work: Callable[[T], R]) -> None:
    while (task := tasks.get()) is not None:
        item, result = task
        if result.set_running_or_notify_cancel():
            try:
                result.set_result(work(item))
            except BaseException as error:
                result.set_exception(error)
        # The result is the loop's alone.
        del task, item, result
