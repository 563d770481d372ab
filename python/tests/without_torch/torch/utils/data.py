"""A loader with workers, which takes a batch of each worker in turn, as PyTorch's does."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection


class IterableDataset:
    pass


@dataclass
class Worker:
    """The number of a worker, and of all workers."""

    id: int
    num_workers: int


info: Worker | None = None


def get_worker_info() -> Worker | None:
    return info


def work(end: Connection, dataset: Any, worker: Worker) -> None:
    """Send the batches of an epoch, each time that one is asked for."""
    global info
    info = worker
    while end.recv():
        try:
            for batch in dataset:
                end.send((batch, None))
            end.send((None, None))
        except Exception as error:
            end.send((None, error))


class DataLoader:
    def __init__(
        self,
        dataset: Any,
        batch_size: None,
        num_workers: int = 0,
        multiprocessing_context: str | None = None,
        persistent_workers: bool = False,
        pin_memory: bool = False,
    ) -> None:
        assert batch_size is None
        assert pin_memory in (False, True)
        self.dataset, self.count, self.persistent = dataset, num_workers, persistent_workers
        self.context: Any = multiprocessing.get_context(multiprocessing_context)
        self.workers: list[tuple[Any, Connection]] = []

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        if self.count == 0:
            yield from self.dataset
            return
        if not self.persistent or not self.workers:
            self.workers = [self.started(number) for number in range(self.count)]
        turn = [end for _, end in self.workers]
        for end in turn:
            end.send(True)
        while turn:
            end = turn.pop(0)
            batch, error = end.recv()
            if error is not None:
                raise error
            if batch is not None:
                yield batch
                turn.append(end)
        if not self.persistent:
            for process, end in self.workers:
                end.send(False)
                process.join(30)

    def started(self, number: int) -> tuple[Any, Connection]:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(
            target=work, args=(theirs, self.dataset, Worker(number, self.count)), daemon=True
        )
        process.start()
        return process, ours
