"""Selections that are no boxes, while others write the elements between those that are selected."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from conftest import create, opened
from zarrs_cuda import _selections
from zarrs_cuda._selections import runs
from zarrs_cuda._turns import Turns

if TYPE_CHECKING:
    from pathlib import Path

OURS = "zarrs_cuda.CodecPipeline"
SIDE = 64


def selections(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Return what zarr-python gives for a chunk: slices with steps, numbers, indices, masks, coordinates."""
    kind = rng.integers(4)
    if kind == 0:
        return tuple(np.sort(rng.integers(0, extent, 7)) for extent in shape)
    if kind == 1:
        return rng.random(shape) < 0.3
    entries: list[Any] = []
    for extent in shape:
        start = int(rng.integers(extent))
        entries.append(slice(start, extent, int(rng.integers(1, 4))) if rng.random() < 0.7 else start)
    if kind == 2 and all(isinstance(entry, slice) for entry in entries):
        entries[int(rng.integers(len(shape)))] = rng.integers(0, shape[0], 5)
    return tuple(entries)


def test_runs_are_the_selected_elements() -> None:
    rng = np.random.default_rng(7)
    seen = 0
    for _ in range(2000):
        shape = tuple(int(rng.integers(1, 9)) for _ in range(int(rng.integers(1, 4))))
        shape = (shape[0],) * len(shape)
        selection = selections(rng, shape)
        found = runs(selection, shape)
        if found is None:
            continue
        expected = np.zeros(shape, int)
        values = rng.integers(1, 1000, expected[selection].shape)
        expected[selection] = values
        written = np.zeros(shape, int)
        part = np.asarray(values).reshape(-1)[found.order]
        for box, end in zip(found.boxes, found.ends, strict=True):
            assert not written[box].any(), "a place is written twice"
            written[box] = part[end]
        np.testing.assert_array_equal(written, expected)
        seen += 1
    assert seen > 1500


@pytest.mark.parametrize("are_dense", [False, True], ids=["runs", "boxes"])
@pytest.mark.parametrize("mode", ["rewrite", "in_place"])
@pytest.mark.parametrize("subchunk", [(8, 64), (1, 64), (64, 8)])
def test_threads_lose_nothing(
    tmp_path: Path, mode: str, subchunk: tuple[int, int], are_dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if are_dense:
        monkeypatch.setattr(_selections, "_MOST_ELEMENTS", 0)
    create(
        tmp_path / "a", shape=(SIDE, SIDE), chunks=subchunk, shards=(SIDE, SIDE), dtype="uint16", fill_value=0
    )
    failed = []

    def work(number: int) -> None:
        array = opened(tmp_path / "a", OURS, shards=mode)
        try:
            for column in range(SIDE):
                match column % 4:
                    case 0:
                        array[number::2, column] = column + 1
                    case 1:
                        array.oindex[np.arange(number, SIDE, 2), [column]] = column + 1
                    case 2:
                        # A box, of rows that are the other thread's in other columns.
                        array[number * SIDE // 2 : (number + 1) * SIDE // 2, column] = column + 1
                    case _:
                        rows = np.arange(number, SIDE, 2)
                        array.vindex[rows, np.full(len(rows), column)] = column + 1
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    with zarr.config.set({"codec_pipeline.path": OURS, "codec_pipeline.shards": mode}):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    found = opened(tmp_path / "a", OURS)[...]
    np.testing.assert_array_equal(found, np.tile(np.arange(1, SIDE + 1, dtype="uint16"), (SIDE, 1)))


PROCESS = f"""
import sys, zarr, zarrs_cuda
zarr.config.set({{"codec_pipeline.path": "{OURS}", "codec_pipeline.shards": "in_place"}})
array = zarr.open_array(sys.argv[1], mode="r+")
number = int(sys.argv[2])
for column in range({SIDE}):
    array[number::2, column] = column + 1
"""


def test_processes_lose_nothing(tmp_path: Path) -> None:
    create(
        tmp_path / "a",
        shape=(SIDE, SIDE),
        chunks=(1, SIDE),
        shards=(SIDE, SIDE),
        dtype="uint16",
        fill_value=0,
    )
    started = [
        subprocess.Popen([sys.executable, "-c", PROCESS, str(tmp_path / "a"), number], stderr=subprocess.PIPE)
        for number in "01"
    ]
    for process in started:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    found = opened(tmp_path / "a", OURS)[...]
    np.testing.assert_array_equal(found, np.tile(np.arange(1, SIDE + 1, dtype="uint16"), (SIDE, 1)))


def test_the_last_of_several_elements_for_one_place_stays(tmp_path: Path) -> None:
    array = create(
        tmp_path / "a", shape=(16, 16), chunks=(4, 4), shards=(16, 16), dtype="int32", fill_value=-1
    )
    expected = np.full((16, 16), -1, "int32")
    rng = np.random.default_rng(3)
    for _, values in itertools.product(range(5), [np.arange(40, dtype="int32"), np.int32(9)]):
        rows, columns = rng.integers(0, 16, (2, 40))
        array.vindex[rows, columns] = values
        expected[rows, columns] = values
        np.testing.assert_array_equal(array[...], expected)


def test_turns() -> None:
    """Threads that share a shard, and some that want it alone: these are alone, and all end."""
    turns, inside, most = Turns(), [0, 0], [0, 0]
    errors = []

    def work(number: int) -> None:
        for n in range(200):
            if (number + n) % 3:
                with turns.shared([("s", "a"), ("s", str(number))]):
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    if inside[1]:
                        errors.append("not alone")
                    inside[0] -= 1
            else:
                with turns.alone(("s", "a")):
                    inside[1] += 1
                    if inside != [0, 1]:
                        errors.append("not alone")
                    inside[1] -= 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not errors
    assert not turns._sharing
    assert not turns._alone
