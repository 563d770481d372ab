"""Processes that were forked, or started in another way, while arrays are in use."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarrs_cuda
from conftest import OURS, create, exit_code, opened

if TYPE_CHECKING:
    from pathlib import Path

SHAPE = (64, 64, 16)
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def values() -> np.ndarray[Any, Any]:
    return np.arange(np.prod(SHAPE), dtype="uint32").reshape(SHAPE)


def make(path: Path, **kwargs: Any) -> Any:
    array = create(path, shape=SHAPE, chunks=(8, 8, 8), shards=(32, 32, 16), dtype="uint32", **kwargs)
    array[...] = values()
    return array


def check_and_write(array: Any, number: int) -> None:
    """Read the array, of which the shards with smaller numbers were written, and write a shard of it."""
    expected = values()
    for before in range(number):
        expected[32 * before : 32 * before + 32, 32:, :] = before + 1
    np.testing.assert_array_equal(array[...], expected)
    array[32 * (number % 2) : 32 * (number % 2) + 32, 32:, :] = number + 1
    assert (array[32 * (number % 2) : 32 * (number % 2) + 32, 32:, :] == number + 1).all()


@pytest.mark.parametrize("way", ["fork", "forkserver", "spawn"])
def test_children_read_and_write(way: str, tmp_path: Path) -> None:
    array = make(tmp_path)
    np.testing.assert_array_equal(array[...], values())
    context = multiprocessing.get_context(way)
    for number in range(2):
        child = context.Process(target=check_and_write, args=(array, number))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert (array[32 * number : 32 * number + 32, 32:, :] == number + 1).all()


def test_a_loader_that_forks(tmp_path: Path) -> None:
    array = make(tmp_path)
    with multiprocessing.get_context("fork").Pool(3) as pool:
        slices = pool.map(array.__getitem__, range(SHAPE[0]))
    np.testing.assert_array_equal(np.stack(slices), values())


def test_a_fork_while_four_threads_read(tmp_path: Path) -> None:
    array = make(tmp_path)
    expected = values()
    end = threading.Event()
    wrong, outcomes = [], []

    def read() -> None:
        while not end.is_set():
            if not np.array_equal(array[...], expected):
                wrong.append(1)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for number in range(20):
            time.sleep(0.003 * (number % 4))
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    good = np.array_equal(array[...], expected)
                    array[:32, :32] = expected[:32, :32]
                    status = 0 if good else 2
                except RuntimeError:
                    status = 3
                finally:
                    os._exit(status)
            outcomes.append(exit_code(child, 1))
    finally:
        end.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert set(outcomes) <= {0, 3}
    assert 0 in outcomes


def test_arrays_that_children_open(tmp_path: Path) -> None:
    make(tmp_path)

    def child() -> None:
        check_and_write(opened(tmp_path, OURS), 0)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_a_fork_while_four_writers_append(tmp_path: Path) -> None:
    # Slices that are long enough for all threads, and shards that are put together by them.
    kind = {"shape": (0, 256, 256), "chunks": (8, 64, 64), "shards": (32, 256, 256), "dtype": "uint16"}
    end, part = threading.Event(), np.ones((32, 256, 256), "uint16")

    def write(number: int) -> None:
        writer = zarrs_cuda.ArrayWriter(create(tmp_path / str(number), **kind))
        while not end.is_set():
            writer.append(part)
            writer.flush()
        writer.abort()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    outcomes = []
    try:
        for number in range(10):
            time.sleep(0.01 * (number % 4))
            array = create(tmp_path / f"child{number}", **kind)
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    writer = zarrs_cuda.ArrayWriter(array)
                    writer.append(part)
                    writer.finish()
                    status = 0
                except RuntimeError:
                    status = 3
                finally:
                    os._exit(status)
            outcomes.append(exit_code(child, 10))
            if outcomes[-1] == 0:
                assert (opened(tmp_path / f"child{number}", OURS)[...] == 1).all()
    finally:
        end.set()
        for thread in threads:
            thread.join()
    assert set(outcomes) <= {0, 3}
    assert 0 in outcomes
