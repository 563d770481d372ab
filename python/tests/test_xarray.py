"""Data sets of xarray: what would break them is found before anything is changed."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
import zarrs_cuda
import zarrs_cuda.dask
from conftest import OURS, THEIRS, create, opened
from zarr.storage import FsspecStore, LocalStore, MemoryStore
from zarrs_cuda._blocks import moved
from zarrs_cuda.xarray import to_zarr

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore:Consolidated metadata"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]
NAMES = "abcde"
SHARDED = {"chunks": (2, 4), "shards": (4, 8)}


def climate(start: int, count: int, names: str = NAMES) -> xr.Dataset:
    values = np.arange(start * 8, (start + count) * 8, dtype="float64").reshape(count, 8)
    variables = {name: (("t", "x"), values + 1000 * number) for number, name in enumerate(names)}
    return xr.Dataset(variables, {"t": np.arange(start, start + count)})


def of(path: Any, *, consolidated: bool = False) -> xr.Dataset:
    """Read a data set by zarr-python alone."""
    with (
        zarr.config.set({"codec_pipeline.path": THEIRS}),
        xr.open_zarr(path, consolidated=consolidated) as got,
    ):
        return got.load()


def stored(path: Path, **more: Any) -> None:
    to_zarr(climate(0, 8), path, encoding=dict.fromkeys(NAMES, SHARDED), **more)


def frame(path: Path, name: str, row: int) -> None:
    """Leave a subchunk beside a shard, which may be outside of the array."""
    array = opened(path / name, OURS, shards="shared")
    shape = array.shape
    if row >= shape[0]:
        array.resize((row + 1, *shape[1:]))
    array[row, 5] = 1
    array.resize(shape)


def everything(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("seed", range(6))
def test_an_append_over_frames_changes_nothing(seed: int, tmp_path: Path) -> None:
    """xarray writes variables in an order that the hash seed decides."""
    stored(tmp_path)
    frame(tmp_path, "c", 9)
    before = everything(tmp_path)
    code = """
        import sys, xarray, numpy as np, zarrs_cuda
        from zarrs_cuda.xarray import to_zarr
        data = xarray.open_zarr(sys.argv[1], consolidated=False).load().assign_coords(t=np.arange(8, 16))
        try:
            to_zarr(data, sys.argv[1], append_dim="t")
        except zarrs_cuda.FramesPending as error:
            assert error.shard == "c/c/2/0", error
            assert sys.argv[1] in str(error)
        else:
            raise AssertionError
        """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), str(tmp_path)],
        env={"PYTHONHASHSEED": str(seed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert everything(tmp_path) == before
    zarrs_cuda.consolidate(opened(tmp_path / "c", OURS))
    to_zarr(climate(8, 8), tmp_path, append_dim="t")
    assert of(tmp_path).identical(climate(0, 16))


def test_the_message_says_what_was_resized(tmp_path: Path) -> None:
    """zarr-python resizes without a question, and the message has the way back."""
    stored(tmp_path)
    frame(tmp_path, "c", 9)
    data = climate(8, 8)
    with zarr.config.set({"codec_pipeline.path": OURS}), pytest.raises(zarrs_cuda.FramesPending) as caught:
        data.to_zarr(tmp_path, append_dim="t", consolidated=False)
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.resized == ((8, 8), (16, 8))
    for word in ("from (8, 8) to (16, 8)", "consolidate", "resize", "append again"):
        assert word in str(error)
    # As it says.
    for name in "abcdet":
        array = opened(tmp_path / name, OURS)
        if array.ndim == 2:
            zarrs_cuda.consolidate(array)
        array.resize((8, *array.shape[1:]))
    to_zarr(data, tmp_path, append_dim="t")
    assert of(tmp_path).identical(climate(0, 16))
    # Without a resize nothing is said of one.
    frame(tmp_path, "c", 0)
    with pytest.raises(zarrs_cuda.FramesPending) as plain:
        opened(tmp_path / "c", OURS)[0, 0] = 1
    assert plain.value.resized is None
    assert "resized" not in str(plain.value)


@pytest.mark.parametrize("kind", ["local", "fsspec"])
@pytest.mark.parametrize("how", ["region", "all"])
def test_other_writes_over_frames_change_nothing(kind: str, how: str, tmp_path: Path) -> None:
    stored(tmp_path)
    frame(tmp_path, "d", 6)
    store = LocalStore(tmp_path) if kind == "local" else FsspecStore.from_url(f"file://{tmp_path}")
    before = everything(tmp_path)
    if how == "region":
        part = {"t": slice(4, 8)}
        with pytest.raises(zarrs_cuda.FramesPending, match="d/c/1/0"):
            to_zarr(climate(4, 4), store, region=part)
        assert everything(tmp_path) == before
        # The other shard is free.
        to_zarr(climate(0, 4) + 1, store, region={"t": slice(0, 4)})
        assert (of(tmp_path)["d"][:4] == climate(0, 4)["d"] + 1).all()
    else:
        with pytest.raises(zarrs_cuda.FramesPending, match="d/c/1/0"):
            to_zarr(climate(0, 8), store, mode="a")
        assert everything(tmp_path) == before


@pytest.mark.parametrize("shards", ["rewrite", "in_place", "shared"])
@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_no_variable_loses_elements(scheduler: str, shards: str, tmp_path: Path) -> None:
    """Blocks are smaller than chunks and shards, and no two of them write the same one."""
    count = 64
    data = climate(0, count, "ab").assign(
        # Neither has shards; the chunks of one are larger than blocks, and those of the other are one.
        flat=("t", np.arange(count) + 1.0),
        whole=(("t", "x"), np.arange(1.0, count * 8 + 1).reshape(count, 8)),
    )
    encoding = {
        "a": SHARDED,
        "b": {"chunks": (8, 2), "shards": (16, 8)},
        "flat": {"chunks": (32,)},
        "whole": {"chunks": (7, 8)},
    }
    blocks = data.chunk({"t": 3, "x": 3})
    with zarr.config.set({"codec_pipeline.shards": shards}), dask.config.set(scheduler=scheduler):
        to_zarr(blocks, tmp_path, encoding=encoding)
        to_zarr(blocks.assign_coords(t=data.t + count), tmp_path, append_dim="t")
        part = {"t": slice(9, 42), "x": slice(1, 8)}
        more = (data.isel(part) + 5).drop_vars(["t", "flat"]).chunk({"t": 5, "x": 2})
        to_zarr(more, tmp_path, region=part, safe_chunks=False)
        to_zarr((data[["flat"]].isel(t=part["t"]) + 5).drop_vars("t").chunk({"t": 5}), tmp_path,
                region={"t": part["t"]}, safe_chunks=False)  # fmt: skip
        for name in "ab":
            done = zarrs_cuda.consolidate(opened(tmp_path / name, OURS))
            assert (done.subchunks > 0) == (shards == "shared")
    expected = xr.concat([data, data.assign_coords(t=data.t + count)], "t")
    for name in ("a", "b", "whole", "flat"):
        values = expected[name].values.copy()
        values[tuple(part[dim] for dim in expected[name].dims)] += 5
        np.testing.assert_array_equal(of(tmp_path)[name].values, values, err_msg=name)
    # Chunks are as they were asked for.
    assert opened(tmp_path / "b", THEIRS).shards == (16, 8)
    assert opened(tmp_path / "whole", THEIRS).chunks == (7, 8)


@pytest.mark.parametrize("shards", ["rewrite", "shared"])
def test_regions_end_at_borders(shards: str, tmp_path: Path) -> None:
    data = climate(0, 8, "a").assign(flat=("t", np.arange(8.0)))
    encoding = {"a": SHARDED, "flat": {"chunks": (8,)}}
    to_zarr(data, tmp_path, encoding=encoding)
    part = {"t": slice(2, 4)}
    rows = data.isel(part).drop_vars("t") + 1
    with zarr.config.set({"codec_pipeline.shards": shards}):
        for blocks in (rows, rows.chunk({"t": 1})):
            with pytest.raises(ValueError, match=r"2:4 of 't'.*safe_chunks=False"):
                to_zarr(blocks, tmp_path, region=part)
        # Modes help where there are shards.
        with pytest.raises(ValueError, match=r"'flat'.*multiples of 8, or write 'flat' by itself"):
            to_zarr(rows[["flat"]], tmp_path, region=part)
        narrow = {"t": slice(2, 3)}
        with pytest.raises(ValueError, match=r"2:3 of 't'.*'a'.*\"in_place\" in all") as caught:
            to_zarr(data.isel(narrow)[["a"]].drop_vars("t"), tmp_path, region=narrow)
        assert ('or to "shared", which takes multiples of 2' in str(caught.value)) == (shards == "rewrite")
        if shards == "shared":
            # A border of subchunks will do.
            to_zarr(rows[["a"]], tmp_path, region=part)
            assert zarrs_cuda.consolidate(opened(tmp_path / "a", OURS)).subchunks == 2
        else:
            with pytest.raises(ValueError, match="multiples of 4"):
                to_zarr(rows[["a"]], tmp_path, region=part)
            to_zarr(rows[["a"]], tmp_path, region=part, mode="a")
        to_zarr(rows, tmp_path, region=part, safe_chunks=False)
        zarrs_cuda.consolidate(opened(tmp_path / "a", OURS))
        # The end of the array is a border.
        to_zarr(data.isel(t=slice(4, 8))[["a"]].drop_vars("t"), tmp_path, region={"t": slice(4, 8)})
        zarrs_cuda.consolidate(opened(tmp_path / "a", OURS))
        # A place that xarray finds by labels.
        to_zarr(data.isel(t=slice(4, 8))[["a"]] + 1, tmp_path, region={"t": "auto"})
        zarrs_cuda.consolidate(opened(tmp_path / "a", OURS))
        to_zarr(data.isel(t=slice(4, 8))[["a"]] + 2, tmp_path, region="auto")
        zarrs_cuda.consolidate(opened(tmp_path / "a", OURS))
        with pytest.raises(ValueError, match="labels"):
            to_zarr(data.isel(t=[0, 2])[["a"]], tmp_path, region={"t": "auto"})
    values = data["a"].values.copy()
    values[2:4] += 1
    values[4:8] += 2
    np.testing.assert_array_equal(of(tmp_path)["a"].values, values)


ROWS, COLUMNS, PROCESSES = 24, 1 << 16, 3
OF_A_PROCESS = """
import sys, numpy as np, xarray as xr, zarr
from zarrs_cuda.xarray import to_zarr
zarr.config.set({"codec_pipeline.shards": "in_place"})
path, number, rows, columns, processes = sys.argv[1], *map(int, sys.argv[2:])
print("ready", flush=True)
sys.stdin.readline()
for row in range(number, rows, processes):
    # First the fill value: the shard goes if it has nothing else.
    for value in (0.0, row + 1.0):
        for x in (slice(0, columns // 3), slice(columns // 3, columns)):
            values = np.full((1, x.stop - x.start), value)
            to_zarr(xr.Dataset({"a": (("t", "x"), values)}), path, region={"t": slice(row, row + 1), "x": x})
"""


def test_processes_lose_nothing_of_any_regions_in_place(tmp_path: Path) -> None:
    """Each process writes rows and columns of subchunks that others write, too, at first in no shard."""
    create(
        tmp_path / "a",
        shape=(ROWS, COLUMNS),
        chunks=(4, COLUMNS // 4),
        shards=(ROWS, COLUMNS),
        dtype="float64",
        fill_value=0,
        dimension_names=["t", "x"],
    )
    zarr.open_group(tmp_path, mode="a")
    command = [sys.executable, "-W", "ignore", "-c", OF_A_PROCESS, str(tmp_path)]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    started = [
        subprocess.Popen([*command, *map(str, (number, ROWS, COLUMNS, PROCESSES))], **pipes)
        for number in range(PROCESSES)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    for process in started:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()
    got = of(tmp_path)["a"].values
    np.testing.assert_array_equal(got, np.broadcast_to(np.arange(1.0, ROWS + 1)[:, None], got.shape))


def test_appends_that_would_leave_other_lengths_are_refused(tmp_path: Path) -> None:
    stored(tmp_path)
    before = everything(tmp_path)
    with pytest.raises(ValueError, match=r"\['b'\].*could not be opened"):
        to_zarr(climate(8, 4).drop_vars("b"), tmp_path, append_dim="t")
    with pytest.raises(ValueError, match=r"new arrays of \['new'\]"):
        to_zarr(climate(8, 4).assign(new=("t", np.zeros(4))), tmp_path, append_dim="t")
    assert everything(tmp_path) == before
    opened(tmp_path / "e", OURS).resize((12, 8))
    with pytest.raises(ValueError, match=r"\['e'\].*8 along that axis"):
        to_zarr(climate(8, 4), tmp_path, append_dim="t")


@pytest.mark.parametrize("shards", ["rewrite", "shared"])
def test_an_append_that_fails_leaves_a_data_set_that_opens(shards: str, tmp_path: Path) -> None:
    stored(tmp_path)

    def fail(_block: Any) -> Any:
        raise OSError("the disk of the input")

    data = climate(8, 8)
    broken = da.from_array(data["c"].values, chunks=(4, 8)).map_blocks(
        fail, dtype="f8", meta=np.empty((0, 0))
    )
    with zarr.config.set({"codec_pipeline.shards": shards}):
        with pytest.raises(OSError, match="the disk of the input") as caught:
            to_zarr(data.assign(c=(("t", "x"), broken)), tmp_path, append_dim="t")
        assert any("back to (8, 8)" in note for note in caught.value.__notes__)
        for consolidated in (False, True):
            assert of(tmp_path, consolidated=consolidated).identical(climate(0, 8))
        for name in NAMES:
            zarrs_cuda.consolidate(opened(tmp_path / name, OURS))
        to_zarr(data, tmp_path, append_dim="t")
        for name in NAMES:
            zarrs_cuda.consolidate(opened(tmp_path / name, OURS))
    assert of(tmp_path).identical(climate(0, 16))


@pytest.mark.parametrize("how", ["append", "dask"])
def test_no_block_is_stored_after_a_call_has_failed(how: str, tmp_path: Path) -> None:
    """Dask raises the error of a block while other threads compute, and store, their blocks."""
    began, failed, ended = threading.Event(), threading.Event(), threading.Event()

    def compute(block: Any, block_info: Any) -> Any:
        if block_info[0]["chunk-location"][0] == 0:
            assert began.wait(60)
            failed.set()
            raise OSError("the disk of the input")
        began.set()
        assert failed.wait(60)
        # This block takes longer than the error.
        time.sleep(1)
        ended.set()
        return block

    stored(tmp_path)
    blocks = da.zeros((8, 8), chunks=(4, 8)).map_blocks(compute, dtype="f8", meta=np.empty((0, 0)))
    data = climate(8, 8).assign(c=(("t", "x"), blocks))
    array = opened(tmp_path / "c", OURS)
    calls = {
        "append": lambda: to_zarr(data, tmp_path, append_dim="t"),
        "dask": lambda: zarrs_cuda.dask.store(blocks, array),
    }
    with dask.config.set(scheduler="threads", num_workers=2), pytest.raises(OSError, match="the disk of the"):
        calls[how]()
    assert ended.is_set()


def test_arrays_that_cannot_be_shared_are_refused_before_an_append() -> None:
    data = climate(0, 8, "a")
    store = MemoryStore()
    to_zarr(data, store, encoding={"a": SHARDED})
    with (
        zarr.config.set({"codec_pipeline.shards": "shared"}),
        pytest.raises(ValueError, match=r"'a'.*LocalStore"),
    ):
        to_zarr(climate(8, 8, "a"), store, append_dim="t")
    assert of(store).identical(data)


@pytest.mark.parametrize("name", ["a", None, "t"])
@pytest.mark.filterwarnings("default::zarrs_cuda.FallbackWarning")
def test_arrays_and_groups_that_fall_back_without_a_name(name: str | None, tmp_path: Path) -> None:
    # xarray names the array of the others `__xarray_dataarray_variable__`, which zarrs refuses.
    array = climate(0, 8, "a")["a"].rename(name)
    delayed = to_zarr(array.chunk({"t": 3}), tmp_path, group="one/two", compute=False, mode="w")
    delayed.compute()
    with xr.open_dataarray(tmp_path, group="one/two", engine="zarr") as got:
        xr.testing.assert_identical(got.load(), array)
    with pytest.raises(TypeError, match="DataTree"):
        to_zarr(xr.DataTree(), tmp_path)  # type: ignore[arg-type]


def test_dask_takes_arrays_of_xarray(tmp_path: Path) -> None:
    kind = {"shape": (32, 16), "chunks": (4, 4), "shards": (16, 16), "dtype": "f8"}
    values = np.arange(1.0, 513).reshape(32, 16)
    array = create(tmp_path / "named", **kind, dimension_names=["y", "x"])
    data = xr.DataArray(values, dims=("y", "x"))
    for one in (data, data.transpose("x", "y"), data.chunk({"y": 3}).transpose("x", "y")):
        array[...] = 0
        zarrs_cuda.dask.store(one, array)
        np.testing.assert_array_equal(opened(tmp_path / "named", THEIRS)[...], values)
    with pytest.raises(ValueError, match="rename"):
        zarrs_cuda.dask.store(data.rename(x="z"), array)
    bare = create(tmp_path / "bare", **kind)
    zarrs_cuda.dask.store(data.chunk({"x": 5}), bare)
    np.testing.assert_array_equal(opened(tmp_path / "bare", THEIRS)[...], values)


def test_masked_elements_are_refused(tmp_path: Path) -> None:
    kind = {"shape": (8, 4), "chunks": (2, 2), "shards": (4, 4), "dtype": "f8"}
    masked = np.ma.masked_equal(np.arange(32.0).reshape(8, 4), 5.0)
    array = create(tmp_path / "array", **kind)
    other = create(tmp_path / "other", **kind)
    plain = create(tmp_path / "plain", shape=(8, 4), chunks=(2, 2), dtype="f8")
    stream = create(tmp_path / "stream", **(kind | {"shape": (0, 4)}))
    writer = zarrs_cuda.ArrayWriter(stream)
    for write in (
        lambda: array.__setitem__(..., masked),
        lambda: array.__setitem__(slice(0, 3), masked[:3]),
        lambda: plain.__setitem__(..., masked),
        lambda: zarrs_cuda.dask.store(da.from_array(masked, chunks=(4, 4)), other),
        lambda: writer.append(masked),
    ):
        with pytest.raises(ValueError, match=r"masked.*filled"):
            write()
    assert (opened(tmp_path / "array", THEIRS)[...] == 0).all()
    # A mask that hides nothing, and what was filled.
    full = np.ma.masked_array(np.ones((8, 4)))
    array[...] = full
    writer.append(masked.filled(-1))
    writer.append(full)
    writer.finish()
    assert (opened(tmp_path / "array", THEIRS)[...] == 1).all()
    assert opened(tmp_path / "stream", THEIRS)[1, 1] == -1


@pytest.mark.parametrize(
    ("sizes", "step", "offset", "expected"),
    [
        ((3, 3, 3), 4, 0, (4, 4, 1)),
        ((3, 3, 3), 4, 2, (6, 3)),
        ((4, 4), 4, 0, (4, 4)),
        ((1, 1, 1), 100, 7, (3,)),
        ((0, 5), 2, 1, (5,)),
    ],
)
def test_borders_are_moved(sizes: Any, step: int, offset: int, expected: Any) -> None:
    found = moved(sizes, step, offset)
    assert sum(found) == sum(sizes)
    assert all((offset + end) % step == 0 for end in np.cumsum(found)[:-1])
    if expected != (5,):
        assert found == expected
