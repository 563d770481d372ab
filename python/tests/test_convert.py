"""Arrays that are re-encoded: in parts, and as tasks of Dask, of which workers are killed."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
import zarrs_cuda
from zarrs_cuda import _convert

if TYPE_CHECKING:
    from pathlib import Path

VALUES = np.arange(4096, dtype="uint16").reshape(64, 64)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A group of Zarr v2 in small chunks."""
    group = zarr.open_group(tmp_path / "old", mode="w", zarr_format=2)
    for name in ["a", "deep/b"]:
        array = group.create_array(name, shape=(64, 64), chunks=(8, 8), dtype="uint16", fill_value=0)
        array[...] = VALUES
    return tmp_path / "old"


def check(path: Path) -> None:
    group = zarr.open_group(path, mode="r")
    for name in ["a", "deep/b"]:
        array = group[name]
        assert isinstance(array, zarr.Array)
        assert array.shards == (32, 32)
        np.testing.assert_array_equal(array[...], VALUES)


LIKE: dict[str, Any] = {"recursive": True, "shard": (32, 32), "subchunk": (8, 8), "threads": 1}


def test_here(old: Path, tmp_path: Path) -> None:
    report = zarrs_cuda.reencode(old, tmp_path / "new", **LIKE, verify=True, codec="zstd:1", memory="64MiB")
    assert len(report["arrays"]) == 2
    check(tmp_path / "new")
    with pytest.raises(RuntimeError, match=r"holds a Zarr group.*--overwrite"):
        zarrs_cuda.reencode(old, tmp_path / "new", **LIKE)
    zarrs_cuda.reencode(old, tmp_path / "new", **LIKE, overwrite=True)
    check(tmp_path / "new")


def test_parts(old: Path, tmp_path: Path) -> None:
    for number in (2, 3, 2, 1):
        assert not (tmp_path / "new/zarr.json").exists()
        report = zarrs_cuda.reencode(old, tmp_path / "new", **LIKE, part=(number, 3))
    assert report["state"] == "completed"
    check(tmp_path / "new")
    assert zarrs_cuda.reencode(old, tmp_path / "new", **LIKE, part=(1, 3))["state"] == "was_complete"
    with pytest.raises(RuntimeError, match="the number of parts is 3 there, and 4 here"):
        zarrs_cuda.reencode(old, tmp_path / "new", **LIKE, part=(1, 4))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"part": (0, 3)}, "parts count from 1"),
        ({"part": (1, 2), "overwrite": True}, "--overwrite"),
        ({"part": (1, 2), "verify": True}, "--verify"),
        ({"parts": 3}, "client"),
        ({"codec": "lzw"}, "lzw"),
    ],
)
def test_wrong_arguments(old: Path, tmp_path: Path, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        zarrs_cuda.reencode(old, tmp_path / "new", **{**LIKE, **wrong})
    assert not (tmp_path / "new").exists()


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"cannot open .*none"):
        zarrs_cuda.reencode(tmp_path / "none", tmp_path / "new")


def _slow(words: list[str]) -> dict[str, Any]:
    """Do a part, and kill this worker the first time that the second part is begun."""
    mark = f"{words[2]}.killed"
    if "2/5" in words:
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1)
    return _convert.run(words)


def test_tasks_of_which_a_worker_is_killed(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        assert zarrs_cuda.reencode(old, tmp_path / "two", **LIKE, client=client)["status"]["parts"] == 2
        check(tmp_path / "two")
        tasks = client.map
        monkeypatch.setattr(client, "map", lambda _, *words, **rest: tasks(_slow, *words, **rest))
        report = zarrs_cuda.reencode(old, tmp_path / "new", **LIKE, client=client, parts=5)
        assert report["status"]["is_complete"]
        assert (tmp_path / "new.killed").exists()
        check(tmp_path / "new")
        with pytest.raises(ValueError, match="leave out `part`"):
            zarrs_cuda.reencode(old, tmp_path / "new", client=client, part=(1, 2))
