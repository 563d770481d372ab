"""Arrays that are re-encoded: in parts, and as tasks of Dask, of which workers are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zarrs_cuda
from zarrs_cuda import _tasks

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
    with pytest.raises(RuntimeError, match=r"holds a Zarr group.*another `destination`.*`overwrite=True`"):
        zarrs_cuda.reencode(old, tmp_path / "new", **LIKE)
    zarrs_cuda.reencode(old, tmp_path / "new", **LIKE, overwrite=True)
    check(tmp_path / "new")


def test_an_unfinished_destination(old: Path, tmp_path: Path) -> None:
    zarrs_cuda.reencode(old, tmp_path / "new", **LIKE, part=(1, 2))
    said = "holds an unfinished run in 2 parts: 1 part is made.*`zarrs-cuda reencode .* --part 2/2`; or"
    with pytest.raises(RuntimeError, match=said):
        zarrs_cuda.reencode(old, tmp_path / "new", **LIKE, overwrite=True)
    zarrs_cuda.reencode(old, tmp_path / "new", **LIKE, part=(2, 2))
    report = zarrs_cuda.reencode(old, tmp_path / "new", **LIKE, resume=True, dry_run=True)
    assert [array["shards_kept"] for array in report["arrays"]] == [4, 4]
    assert report["is_complete"]


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
        ({"part": (4, 3)}, "there is no part 4 of 3"),
        ({"part": (-1, 3)}, "-1/3 is no part"),
        ({"part": 3}, "`part` is 3"),
        ({"part": (1, 2, 3)}, "the third of 16"),
        ({"part": (1, 2), "overwrite": True}, "`overwrite` replaces"),
        ({"part": (1, 2), "verify": True}, "`verify` reads"),
        ({"client": object(), "verify": True}, "`verify` reads"),
        ({"parts": 3}, "client"),
        ({"codec": "lzw"}, "lzw.*`codec`"),
        ({"keep_going": True, "overwrite": True}, "`keep_going=True` cannot be used with `overwrite=True`$"),
    ],
)
def test_wrong_arguments(old: Path, tmp_path: Path, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        zarrs_cuda.reencode(old, tmp_path / "new", **{**LIKE, **wrong})
    assert not (tmp_path / "new").exists()


def test_a_part_goes_on(old: Path, tmp_path: Path) -> None:
    for number in (1, 1, 2):
        zarrs_cuda.reencode(old, tmp_path / "new", **LIKE, part=(number, 2), resume=True)
    check(tmp_path / "new")
    (tmp_path / "new/a/c/1/1").unlink()
    report = zarrs_cuda.reencode(old, tmp_path / "new", **LIKE, resume=True, verify=True)
    assert (report["state"], report["shards_made_again"]) == ("mended", 1)
    check(tmp_path / "new")


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"cannot open .*none"):
        zarrs_cuda.reencode(tmp_path / "none", tmp_path / "new")


def _slow(words: list[str], **rest: Any) -> dict[str, Any]:
    """Do a part, and kill this worker the first time that the second part is begun."""
    mark = f"{words[2]}.killed"
    if "--part=2/5" in words:
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1)
    return _tasks.do_part(words, **rest)


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
        # A run with other workers was interrupted: this one goes on with its parts.
        zarrs_cuda.reencode(old, tmp_path / "three", **LIKE, part=(2, 3))
        report = zarrs_cuda.reencode(old, tmp_path / "three", **LIKE, client=client)
        assert report["status"]["parts"] == 3
        check(tmp_path / "three")
        # Complete, or to be replaced.
        assert zarrs_cuda.reencode(old, tmp_path / "three", **LIKE, client=client)["status"]["parts"] == 3
        again = zarrs_cuda.reencode(old, tmp_path / "three", **LIKE, client=client, overwrite=True)
        assert again["status"]["parts"] == 2
        with pytest.raises(RuntimeError, match="the number of parts is 2 there, and 4 here"):
            zarrs_cuda.reencode(old, tmp_path / "three", **LIKE, client=client, parts=4)
        with pytest.raises(ValueError, match="leave out `part`"):
            zarrs_cuda.reencode(old, tmp_path / "new", client=client, part=(1, 2))
        shards = {"shard": (16, 64), "client": client, "parts": 3, "threads": 1}
        assert zarrs_cuda.reshard(tmp_path / "new/a", tmp_path / "moved", **shards)["status"]["is_complete"]
        np.testing.assert_array_equal(zarr.open_array(tmp_path / "moved", mode="r")[...], VALUES)


def test_a_cluster_of_which_a_worker_is_killed(old: Path, tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples/many_machines/dask_cluster.py"
    arguments = ["shard=[32,32]", "subchunk=[8,8]"]
    command = [sys.executable, str(example), str(old), str(tmp_path / "new"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    killed, status = done.stdout.splitlines()
    assert killed.startswith("killed the worker")
    assert json.loads(status)["is_complete"]
    check(tmp_path / "new")


def test_of_a_group(old: Path, tmp_path: Path) -> None:
    shapes: dict[str, Any] = {
        "recursive": True,
        "include": ["deep/*"],
        "shape_for": {"**/b": ((32, 64), (16, 16)), "*": (32, 32)},
        "consolidate_metadata": True,
    }
    with pytest.raises(ValueError, match=r"`shape_for` \* is the path of no array"):
        zarrs_cuda.reencode(old, tmp_path / "new", **shapes)
    del shapes["shape_for"]["*"]
    dry = zarrs_cuda.reencode(old, tmp_path / "new", **shapes, dry_run=True, parts=2)
    assert [part["work"]["shards"] for part in dry["parts"]] == [1, 1]
    assert not (tmp_path / "new").exists()
    zarrs_cuda.reencode(old, tmp_path / "new", **shapes)
    group = zarr.open_consolidated(tmp_path / "new")
    assert [name for name, _ in group.members(max_depth=None)] == ["deep", "deep/b"]
    array = group["deep/b"]
    assert isinstance(array, zarr.Array)
    assert (array.shards, array.chunks) == ((32, 64), (16, 16))
    zarrs_cuda.reencode(old, tmp_path / "kept", recursive=True, keep_chunks=True)
    kept = zarr.open_array(tmp_path / "kept/a", mode="r")
    assert kept.chunks == (8, 8)
    np.testing.assert_array_equal(kept[...], VALUES)


def test_reshard(old: Path, tmp_path: Path) -> None:
    zarrs_cuda.reencode(old, tmp_path / "new", **LIKE)
    for number in (2, 1):
        report = zarrs_cuda.reshard(tmp_path / "new/a", tmp_path / "moved", shard=(16, 64), part=(number, 2))
    assert report["state"] == "completed"
    array = zarr.open_array(tmp_path / "moved", mode="r")
    assert array.shards == (16, 64)
    np.testing.assert_array_equal(array[...], VALUES)
    report = zarrs_cuda.reshard(tmp_path / "moved", tmp_path / "chunks", chunks=True)
    assert report["output"]["kind"] == "chunk"
    with pytest.raises(ValueError, match=r"what is `destination` to be\? Give `shard`"):
        zarrs_cuda.reshard(tmp_path / "moved", tmp_path / "other")


def test_pyramid(old: Path, tmp_path: Path) -> None:
    for name in ("whole", "parts"):
        zarr.create_group(tmp_path / name)
        zarrs_cuda.reencode(old / "a", tmp_path / name / "0", shard=(32, 32), subchunk=(8, 8))
    axes = [{"name": "y", "unit": "micrometer", "scale": 0.5}, {"name": "x", "factor": 2}]
    dry = zarrs_cuda.pyramid(tmp_path / "parts", levels=3, axes=axes, dry_run=True)
    assert [level["shape"] for level in dry["levels"]] == [[64, 64], [32, 32], [16, 16]]
    zarrs_cuda.pyramid(tmp_path / "whole", levels=3, axes=axes, reduction="maximum")
    for number in (2, 1):
        assert not (tmp_path / "parts/1").exists()
        report = zarrs_cuda.pyramid(
            tmp_path / "parts/0", levels=3, axes=axes, reduction="maximum", part=(number, 2)
        )
    assert report["state"] == "completed"
    for level in (1, 2):
        whole, parts = (
            zarr.open_array(tmp_path / name / str(level), mode="r") for name in ("whole", "parts")
        )
        np.testing.assert_array_equal(whole[...], parts[...])
    assert parts[-1, -1] == VALUES.max()


def test_names_that_look_like_options(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old.rename(tmp_path / "--verify")
    monkeypatch.chdir(tmp_path)
    zarrs_cuda.reencode("--verify", "-new", **LIKE)
    check(tmp_path / "-new")


def _elsewhere() -> None:
    os.chdir("/")


def test_clients_that_cannot_do_it(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import Client, LocalCluster

    like = {**LIKE, "threads": None, "parts": 3}
    with LocalCluster(
        n_workers=1, threads_per_worker=2, dashboard_address=None, resources={"memory": 5e9}
    ) as cluster:
        with Client(cluster) as client:
            for wrong, words in {
                "resources": ({"memory": 9e9}, "no worker has the `resources`"),
                "parts": (0, "parts count from 1"),
                "part": ((1, 2), "leave out `part`"),
            }.items():
                with pytest.raises(ValueError, match=words[1]):
                    zarrs_cuda.reencode(old, tmp_path / "new", **{**like, "client": client, wrong: words[0]})
            with monkeypatch.context() as patched:
                patched.setattr(_tasks, "_version", lambda: "99")
                with pytest.raises(
                    ValueError, match=r"worker tcp.* has zarrs-cuda .*: install zarrs-cuda 99"
                ):
                    zarrs_cuda.reencode(old, tmp_path / "new", **like, client=client)
            assert not (tmp_path / "new").exists()
            # Places are those of the client, and its task is given a share of the worker.
            client.run(_elsewhere)
            monkeypatch.chdir(tmp_path)
            zarrs_cuda.reencode("old", "new", **like, client=client, resources={"memory": 4e9})
            check(tmp_path / "new")
            shares = client.submit(_tasks._share, ["reencode", "--threads=7"], 3).result()
            limit = next(iter(client.scheduler_info(n_workers=-1)["workers"].values()))["memory_limit"]
            assert shares == [f"--memory={limit // 8}"]
        with pytest.raises(ValueError, match="is closed"):
            zarrs_cuda.reencode(old, tmp_path / "other", **like, client=client)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """An array of many chunks, which take seconds to re-encode to shards of two elements."""
    zarr.create_array(tmp_path / "large", data=np.arange(20000), chunks=1000, zarr_format=2)
    return tmp_path / "large"


def running(output: Path) -> list[int]:
    """Return the processes of the command that make an output."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"reencode" in words and str(output).encode() in words:
            found.append(int(path.parent.name))
    return found


def wait_for(is_so: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


CALLS = """
import sys, zarrs_cuda
zarrs_cuda.reencode(sys.argv[1], sys.argv[2], shard=(2,), subchunk=(1,), threads=1)
"""


@pytest.mark.parametrize("with_signal", [signal.SIGKILL, signal.SIGINT])
def test_the_command_ends_with_its_caller(large: Path, tmp_path: Path, with_signal: signal.Signals) -> None:
    new = tmp_path / "new"
    caller = subprocess.Popen([sys.executable, "-c", CALLS, str(large), str(new)], stderr=subprocess.DEVNULL)
    wait_for(lambda: any(new.glob("c/*")))
    assert running(new)
    caller.send_signal(with_signal)
    caller.wait(30)
    wait_for(lambda: not running(new), 30)
    assert not (new / "zarr.json").exists()
    assert len(list(new.glob("c/*"))) < 10000


def test_tasks_end_when_their_run_is_stopped(large: Path, tmp_path: Path) -> None:
    from distributed import Client, Event, LocalCluster

    new = tmp_path / "new"
    words = ["reencode", str(large), str(new), "--shard=2", "--subchunk=1", "--part=1/1"]
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        stop = Event("stop")
        task = client.submit(_tasks.do_part, words, at_once=1, stop=stop)
        wait_for(lambda: any(new.glob("c/*")))
        stop.set()
        with pytest.raises(RuntimeError, match="the run was stopped"):
            task.result(timeout=60)
        assert not running(new)
    assert not (new / "zarr.json").exists()
