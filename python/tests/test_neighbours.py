"""Dask, xarray, iohub, and the examples."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zarrs_cuda
from conftest import OURS, THEIRS, create, opened

EXAMPLES = Path(__file__).parents[1] / "examples"
pytestmark = [
    pytest.mark.filterwarnings("ignore:Consolidated metadata"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def example(name: str, *arguments: Any, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_workers_that_share_shards_and_one_that_is_killed() -> None:
    # zarr-python loses something in at least one of five runs.
    for _ in range(5):
        found = re.search(
            r"lost (\d+) of 256 \(zarr-python: (\d+)\)", example("dask_shared.py", "--workers", 4)
        )
        assert found is not None
        assert found[1] == "0"
        if found[2] != "0":
            return
    pytest.fail("zarr-python lost nothing")


def test_tasks_of_slurm(tmp_path: Path) -> None:
    path = tmp_path / "volume"

    def task(what: str, number: int, count: int) -> str:
        return example(
            "slurm_shared.py",
            what,
            path,
            SLURM_ARRAY_TASK_ID=str(number),
            SLURM_ARRAY_TASK_COUNT=str(count),
        )

    task("create", 0, 1)
    for number in range(3):
        task("write", number, 3)
    assert "shards=2" in task("pack", 0, 2)
    assert "shards=2" in task("pack", 1, 2)
    expected = np.arange(1, 257, dtype="uint16").reshape(16, 16).repeat(32, 0).repeat(32, 1)
    np.testing.assert_array_equal(opened(path, THEIRS)[...], expected)


def test_ranks_of_mpi(tmp_path: Path) -> None:
    path = tmp_path / "volume"
    mpiexec = Path(sys.executable).with_name("mpiexec")
    command = [mpiexec, "-n", "3", sys.executable, EXAMPLES / "mpi_shared.py", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Consolidation(shards=") == 3
    expected = np.arange(1, 257, dtype="uint16").reshape(16, 16).repeat(32, 0).repeat(32, 1)
    np.testing.assert_array_equal(opened(path, THEIRS)[...], expected)


def test_an_acquisition_that_is_followed() -> None:
    found = re.search(
        r"saw (\d+) frames of 64 x 64 elements, (\d+) of them while .* at most ([\d.]+) pixels away",
        example("follow_acquisition.py", "--frames", 60),
    )
    assert found is not None
    assert int(found[1]) == 60
    assert int(found[2]) > 0
    # Half an element of the smallest level.
    assert float(found[3]) <= 4


def test_calls_of_a_worker_use_its_threads() -> None:
    from distributed import Client, LocalCluster
    from zarrs_cuda._settings import threads

    with (
        LocalCluster(n_workers=1, threads_per_worker=3, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        assert client.submit(threads, pure=False).result(60) == 3

        def limited() -> int:
            with zarr.config.set({"codec_pipeline.max_workers": 5}):
                return threads()

        assert client.submit(limited, pure=False).result(60) == 5
    assert threads() == len(os.sched_getaffinity(0))


def test_dask_stores_blocks_of_any_size(tmp_path: Path) -> None:
    import dask.array as da
    import zarrs_cuda.dask

    values = np.arange(30 * 20, dtype="uint16").reshape(30, 20)
    for blocks in [(2, 2), (3, 5), (7, 20), (30, 1), (30, 20)]:
        path = tmp_path / str(blocks)
        array = create(path, shape=(30, 20), chunks=(2, 3), shards=(8, 12), dtype="uint16")
        zarrs_cuda.dask.store(da.from_array(values, chunks=blocks), array)
        np.testing.assert_array_equal(opened(path, THEIRS)[...], values)
        assert not list(path.rglob("*.chunk"))
    plain = create(tmp_path / "plain", shape=(30, 20), chunks=(2, 3), dtype="uint16")
    for wrong, match in [
        (plain, "shards"),
        (create({}, shape=(30, 20), dtype="uint16"), "LocalStore"),
        (array[:2], ""),
    ]:
        if match:
            with pytest.raises(ValueError, match=match):
                zarrs_cuda.dask.store(da.from_array(values), wrong)
    with pytest.raises(ValueError, match="shape"):
        zarrs_cuda.dask.store(da.from_array(values[:2]), array)


def test_dask_to_zarr_with_shards(tmp_path: Path) -> None:
    import dask.array as da

    values = np.arange(32 * 24, dtype="uint16").reshape(32, 24)
    with zarr.config.set({"codec_pipeline.path": OURS}):
        array = zarr.create_array(tmp_path, shape=(32, 24), chunks=(4, 4), shards=(8, 8), dtype="uint16")
        da.to_zarr(da.from_array(values, chunks=(8, 8)), array)
        got = da.from_zarr(array)
        np.testing.assert_array_equal(got.compute(), values)
    np.testing.assert_array_equal(opened(tmp_path, THEIRS)[...], values)
    # An array that Dask creates. It does not make its blocks those of the shards.
    path = tmp_path / "made by dask"
    with zarr.config.set({"codec_pipeline.path": OURS}):
        blocks = da.from_array(values, chunks=(16, 8))
        da.to_zarr(blocks, path, chunks=(4, 4), shards=(8, 8))
    made = opened(path, THEIRS)
    assert (made.chunks, made.shards) == ((4, 4), (8, 8))
    np.testing.assert_array_equal(made[...], values)


def test_xarray_regions(tmp_path: Path) -> None:
    import xarray as xr

    values = np.arange(24 * 16, dtype="float32").reshape(24, 16)
    data = xr.Dataset({"v": (("y", "x"), values)})
    with zarr.config.set({"codec_pipeline.path": OURS}):
        empty = data.chunk({"y": 8, "x": 8})
        empty.to_zarr(tmp_path, compute=False, encoding={"v": {"chunks": (4, 4), "shards": (8, 8)}})
        for start in range(0, 24, 8):
            rows = slice(start, start + 8)
            data.isel(y=rows).to_zarr(tmp_path, region={"y": rows, "x": slice(0, 16)})
        with xr.open_zarr(tmp_path) as got:
            np.testing.assert_array_equal(got["v"].values, values)
            assert (
                type(zarr.open_array(tmp_path / "v").async_array.codec_pipeline).__name__ == "CodecPipeline"
            )
    with zarr.config.set({"codec_pipeline.path": THEIRS}):
        np.testing.assert_array_equal(zarr.open_array(tmp_path / "v")[...], values)


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_xarray_without_safe_chunks_loses_nothing_of_shared_shards(scheduler: str, tmp_path: Path) -> None:
    import dask
    import xarray as xr

    values = np.arange(1, 1 + 32 * 32, dtype="uint16").reshape(32, 32)
    times = np.datetime64("2026-01-01", "ns") + np.arange(32) * np.timedelta64(1, "s")
    names = np.array([f"row {number}" for number in range(32)], dtype=object)
    data = xr.Dataset({"v": (("y", "x"), values)}, {"y": names, "x": times})
    settings = {"codec_pipeline.path": OURS, "codec_pipeline.shards": "shared"}
    with zarr.config.set(settings), dask.config.set(scheduler=scheduler):
        # 64 blocks in 4 shards, each of one subchunk.
        blocks = data.chunk({"y": 4, "x": 4})
        encoding = {"v": {"chunks": (4, 4), "shards": (16, 16)}}
        blocks.to_zarr(tmp_path, encoding=encoding, safe_chunks=False, consolidated=False)
        shared = zarr.open_array(tmp_path / "v")
        np.testing.assert_array_equal(shared[...], values)
        assert zarrs_cuda.consolidate(shared).subchunks == 64
        part = {"y": slice(8, 24), "x": slice(4, 20)}
        more = (data.isel(part) + 1).drop_vars(["x", "y"]).chunk({"y": 4, "x": 4})
        more.to_zarr(tmp_path, region=part, safe_chunks=False, consolidated=False)
        assert zarrs_cuda.consolidate(shared).subchunks == 16
    values[8:24, 4:20] += 1
    for pipeline in (OURS, THEIRS):
        with (
            zarr.config.set({"codec_pipeline.path": pipeline}),
            xr.open_zarr(tmp_path, consolidated=False) as got,
        ):
            np.testing.assert_array_equal(got["v"].values, values)
            np.testing.assert_array_equal(got["x"].values, times)
            assert list(got["y"].values) == list(names)


def test_iohub_finds_and_repairs_a_torn_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from iohub.core import registry
    from iohub.ngff import open_ome_zarr
    from iohub.ngff.utils import process_single_position

    registry.get_implementation("zarrs-cuda")
    monkeypatch.setattr(registry, "_default", "zarrs-cuda")
    values = np.arange(1, 1 + 4 * 2 * 2 * 8 * 8, dtype="uint16").reshape(4, 2, 2, 8, 8)
    kind = {"shape": values.shape, "dtype": "uint16", "chunks": (1, 1, 1, 4, 4)}
    before = zarr.config.get("codec_pipeline.path")
    try:
        for name, filled in (("raw.zarr", True), ("done.zarr", False)):
            with open_ome_zarr(
                tmp_path / name, layout="fov", mode="w", channel_names=["a", "b"], version="0.5"
            ) as position:
                array = position.create_zeros("0", **kind, shards_ratio=(2, 1, 2, 2, 2))
                assert type(array.native.async_array.codec_pipeline) is zarrs_cuda.CodecPipeline
                if filled:
                    array[...] = values
        done: list[int] = []

        def process(czyx: Any) -> Any:
            done.append(int(czyx.flat[0]))
            return czyx + 1

        def run() -> list[int]:
            done.clear()
            process_single_position(process, tmp_path / "raw.zarr", tmp_path / "done.zarr", resume=True)
            return list(done)

        assert len(run()) == 8
        assert run() == []
        shards = sorted(path for path in (tmp_path / "done.zarr/0/c").rglob("*") if path.is_file())
        assert len(shards) == 4
        for number, torn in enumerate([shards[1].read_bytes()[:-5], b"", shards[3].read_bytes()[7:]]):
            shards[number + 1].write_bytes(torn)
            with open_ome_zarr(tmp_path / "done.zarr", mode="r") as position:
                # Each shard has both halves of the times, and one channel.
                time, channel = divmod(number + 1, 2)
                with pytest.raises(zarrs_cuda.ShardError, match="recover"):
                    position["0"][2 * time, channel, 0, 0, 0]
            # The two times of the shard, and nothing else, are done again.
            assert len(run()) == 2
            assert run() == []
        with open_ome_zarr(tmp_path / "done.zarr", mode="r") as position:
            np.testing.assert_array_equal(position["0"][...], values + 1)
    finally:
        zarr.config.set({"codec_pipeline.path": before})
