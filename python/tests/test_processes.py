"""Many processes that write the same shards, and processes that are killed."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarrs_cuda
from conftest import OURS, THEIRS, create, opened

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
FORK = multiprocessing.get_context("fork")
SUBCHUNKS, EXTENT = 16, 8


def make(path: Path) -> None:
    create(
        path,
        shape=(SUBCHUNKS * EXTENT, 4 * EXTENT),
        chunks=(EXTENT, EXTENT),
        shards=(4 * EXTENT, 4 * EXTENT),
        dtype="uint32",
        fill_value=0,
    )


def place(number: int) -> tuple[slice, slice]:
    """The subchunk with a number; neighbours are in different places of the same shards."""
    row, column = divmod(number, 4)
    return slice(row * EXTENT, (row + 1) * EXTENT), slice(column * EXTENT, (column + 1) * EXTENT)


def write_every_eighth(array: Any, first: int) -> None:
    for number in range(first, SUBCHUNKS * 4, 8):
        array[place(number)] = 1000 + number


def test_eight_processes_that_share_shards_lose_nothing(tmp_path: Path) -> None:
    make(tmp_path)
    array = opened(tmp_path, OURS, shards="shared")
    writers = [FORK.Process(target=write_every_eighth, args=(array, first)) for first in range(8)]
    for writer in writers:
        writer.start()
    # Packing goes on meanwhile, by one process.
    while any(writer.is_alive() for writer in writers):
        zarrs_cuda.consolidate(array)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    zarrs_cuda.consolidate(array)
    got = opened(tmp_path, THEIRS)
    lost = [n for n in range(SUBCHUNKS * 4) if not (got[place(n)] == 1000 + n).all()]
    assert lost == []


def write_until_killed(array: Any, first: int, acknowledge: Connection) -> None:
    value = first
    while True:
        value += 1
        array[place(value % (SUBCHUNKS * 4))] = value
        acknowledge.send(value)


@pytest.mark.parametrize("mode", ["rewrite", "shared"])
def test_kills_lose_nothing_that_was_acknowledged(mode: str, tmp_path: Path) -> None:
    make(tmp_path)
    array = opened(tmp_path, OURS, shards=mode)
    acknowledged: dict[int, int] = {}
    value, rng, total = 0, random.Random(7), 0
    for kill in range(50):
        receive, send = FORK.Pipe(duplex=False)
        writer = FORK.Process(target=write_until_killed, args=(array, value, send))
        writer.start()
        send.close()
        # At least one write, and then at any moment.
        assert receive.poll(30)
        time.sleep(rng.random() * 0.02)
        os.kill(writer.pid or 0, signal.SIGKILL)
        writer.join()
        try:
            while True:
                value = receive.recv()
                acknowledged[value % (SUBCHUNKS * 4)] = value
                total += 1
        except EOFError:
            pass
        # The write that was killed may be there, too.
        value += 1
        if mode == "shared" and kill % 5 == 4:
            zarrs_cuda.consolidate(array)
        got = array[...]
        for number, least in acknowledged.items():
            part = got[place(number)]
            assert part.min() == part.max() >= least, (kill, number)
    assert total >= 50
    if mode == "shared":
        zarrs_cuda.consolidate(array)
    np.testing.assert_array_equal(opened(tmp_path, THEIRS)[...], array[...])
