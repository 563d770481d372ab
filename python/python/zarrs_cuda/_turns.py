"""Turns of the threads of this process at shards.

Most writes change a shard by one call of the library, which takes turns itself. A write that reads a part of
a shard, changes it here, and writes it again needs the shard alone until it has ended.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

type Shard = tuple[str, str]


class Turns:
    """Who is at which shards: many that share them, or one alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing: dict[Shard, int] = {}
        # Those that are alone at a shard, or wait to be: others do not begin meanwhile.
        self._alone: dict[Shard, int] = {}

    @contextmanager
    def shared(self, shards: Iterable[Shard]) -> Iterator[None]:
        """Be at shards with others. A thread that is at shards does not ask for others."""
        wanted = set(shards)
        with self._changed:
            self._changed.wait_for(lambda: not any(shard in self._alone for shard in wanted))
            for shard in wanted:
                self._sharing[shard] = self._sharing.get(shard, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                for shard in wanted:
                    _less(self._sharing, shard)
                self._changed.notify_all()

    @contextmanager
    def alone(self, shard: Shard) -> Iterator[None]:
        """Be at a shard alone."""
        with self._changed:
            self._alone[shard] = self._alone.get(shard, 0) + 1
            # One of several that want to be alone counts as sharing the shard.
            try:
                self._changed.wait_for(lambda: shard not in self._sharing)
            except BaseException:
                _less(self._alone, shard)
                self._changed.notify_all()
                raise
            self._sharing[shard] = 1
        try:
            yield
        finally:
            with self._changed:
                _less(self._sharing, shard)
                _less(self._alone, shard)
                self._changed.notify_all()


def _less(counts: dict[Shard, int], shard: Shard) -> None:
    counts[shard] -= 1
    if not counts[shard]:
        del counts[shard]


TURNS = Turns()


def _again() -> None:
    """Forget the threads that a forked child does not have."""
    global TURNS
    TURNS = Turns()


os.register_at_fork(after_in_child=_again)
