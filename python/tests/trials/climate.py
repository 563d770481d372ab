"""A climate archive: xarray and Dask, day by day, by several processes that are killed in between.

Data sets of several variables (packed integers with `_FillValue`, dates, strings, numbers with NaN) are
written with shards, appended to along time, and written by region, in every mode of shards, by programs with
different hash seeds. Their elements are kept in memory. In the end plain zarr-python and xarray open the
store, with consolidated metadata and without, and must find it identical.
"""

from __future__ import annotations

import itertools
import signal
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
import numpy as np
import xarray as xr
import zarr
import zarrs_cuda
import zarrs_cuda.dask
from common import THEIRS, Notes, Programs, Round, WrongError, demand, opened, raised_by, run, same, settings
from zarrs_cuda.xarray import to_zarr

if TYPE_CHECKING:
    from collections.abc import Mapping

    type Encoding = dict[str, dict[str, Any]]

MODES = ("rewrite", "in_place", "shared")
# Formats of strings and dates, consolidated metadata, and strings in blocks are what is tried here.
warnings.filterwarnings("ignore", category=zarr.errors.UnstableSpecificationWarning)
warnings.filterwarnings("ignore", message="Consolidated metadata")
warnings.filterwarnings("ignore", category=xr.SerializationWarning)


def archive(of: Round, days: int) -> xr.Dataset:
    """Make a data set in memory, all of whose values survive their encoding."""
    rng, y, x = of.rng, of.some(3, 14), of.some(3, 18)

    def missing(values: Any, share: float = 0.1) -> Any:
        nothing = np.datetime64("NaT", "ns") if values.dtype.kind == "M" else np.nan
        return np.where(rng.random(values.shape) < share, nothing, values)

    steps = rng.integers(-4000, 4000, (days, y, x))
    seconds = rng.integers(0, 10**9, (days, y)).astype("timedelta64[s]")
    words = np.array(["", "rain", "snow", "Nebel über dem Fluß", "霧"], dtype=object)
    begin = np.datetime64("1999-12-01", "ns") + np.timedelta64(of.some(0, 20000), "D")
    return xr.Dataset(
        {
            "temperature": (
                ("time", "y", "x"),
                missing(steps / np.float32(8)).astype("float32"),
                {"units": "K"},
            ),
            "pressure": (
                ("time", "y", "x"),
                missing(steps * 0.25 + 1000.0),
                {"long_name": "pressure at sea level"},
            ),
            "rain": (("time", "y", "x"), missing(steps / 3, 0.5)),
            "cloudy": (("time", "y", "x"), steps > 0),
            "observed": (("time", "y"), missing(np.datetime64("2000-01-01", "ns") + seconds)),
            "remark": (("time", "y"), rng.choice(words, (days, y))),
            "elevation": (("y", "x"), rng.normal(size=(y, x)).round(3)),
        },
        {
            "time": begin + np.arange(days) * np.timedelta64(1, "D"),
            "y": np.linspace(-80, 80, y),
            "x": np.arange(x) * 2.5,
            "station": ("y", np.array([f"station {number}" for number in range(y)], dtype=object)),
        },
        {"title": "a trial", "numbers": [1, 2, 3]},
    )


def encoding_of(of: Round, data: xr.Dataset) -> Encoding:
    """Choose chunks and shards, and how values are stored."""
    chunk = {"time": of.some(1, 3), "y": of.some(1, 5), "x": of.some(1, 6)}
    shard = {dim: size * of.some(1, 4) for dim, size in chunk.items()}
    encoding: Encoding = {}
    for name, variable in data.data_vars.items():
        encoding[str(name)] = {
            "chunks": tuple(chunk[str(dim)] for dim in variable.dims),
            "shards": tuple(shard[str(dim)] for dim in variable.dims),
        }
    encoding["pressure"] |= {
        "dtype": "int16",
        "scale_factor": 0.25,
        "add_offset": 1000.0,
        "_FillValue": -32768,
    }
    encoding["rain"] |= {"_FillValue": -9999.0}
    encoding["observed"] |= {"units": "seconds since 2000-01-01", "dtype": "int64", "_FillValue": -1}
    encoding["time"] = {"units": "hours since 1900-01-01", "dtype": "int64", "chunks": (of.some(1, 50),)}
    return encoding


def blocks(rng: np.random.Generator, data: xr.Dataset) -> xr.Dataset:
    """Divide some of the variables into blocks, whose borders have nothing to do with chunks."""
    if rng.random() < 0.4:
        return data
    return data.chunk({dim: int(rng.integers(1, size, endpoint=True)) for dim, size in data.sizes.items()})


def check(path: Path, expected: xr.Dataset, what: str) -> None:
    """Check that xarray and zarr-python find what was given, with consolidated metadata and without."""
    with settings(path=THEIRS):
        root = zarr.open_group(path, mode="r", use_consolidated=False)
        kept = [False] if root.metadata.consolidated_metadata is None else [False, True]
        is_consolidated = "consolidated_metadata" in (path / "zarr.json").read_text()
        for consolidated in {*kept, is_consolidated}:
            with xr.open_zarr(path, consolidated=consolidated) as found:
                try:
                    xr.testing.assert_identical(found.load(), expected)
                except AssertionError as error:
                    msg = f"{what}, consolidated={consolidated}: {error}"
                    raise WrongError(msg) from None
                for name in expected.variables:
                    wanted, got = expected[name].dtype, found[name].dtype
                    demand(
                        wanted.kind == got.kind or wanted.kind in "OT",
                        f"{what}: {name} is {got}, not {wanted}",
                    )


def packed(path: Path, mode: str) -> None:
    """Pack what was written beside shards, as the README says."""
    if mode == "shared":
        zarrs_cuda.consolidate(zarr.open_group(path, mode="r+", use_consolidated=False))


def day_by_day(of: Round) -> None:
    """Days are appended, and older ones are written again, in this process."""
    days, mode = of.some(4, 30), of.one_of(MODES)
    data, path = archive(of, days), of.root / "archive.zarr"
    first = of.some(1, days)
    with settings(shards=mode), dask.config.set(scheduler=of.one_of(["threads", "synchronous"])):
        to_zarr(blocks(of.rng, data.isel(time=slice(0, first))), path, encoding=encoding_of(of, data))
        now = first
        while now < days:
            if of.chance(0.3):
                packed(path, mode)
            if of.chance(0.5):
                data = rewritten(of, data, path, now)
            if mode == "rewrite" and of.chance(0.2):
                # xarray's own method, of elements in memory.
                data_now = data.isel(time=slice(now, now + 1))
                with settings(path="zarrs_cuda.CodecPipeline"):
                    data_now.to_zarr(path, append_dim="time", safe_chunks=False)
                now += 1
                continue
            if of.chance(0.2):
                failing(of, data.isel(time=slice(now, days)), path)
                packed(path, mode)
                check(path, data.isel(time=slice(0, now)), f"{now} days, {mode}, after an append that failed")
            count = of.some(1, min(3, days - now))
            part = blocks(of.rng, data.isel(time=slice(now, now + count)))
            to_zarr(part, path, append_dim="time", consolidated=of.one_of([None, True]))
            now += count
            of.counts[f"appends, {mode}"] += 1
    packed(path, mode)
    check(path, data, f"{days} days, {mode}")


def failing(of: Round, data: xr.Dataset, path: Path) -> None:
    """Append elements that cannot be computed."""

    def fail(_block: Any) -> Any:
        msg = "the input cannot be read"
        raise OSError(msg)

    name = of.one_of(["temperature", "observed", "cloudy"])
    broken = data[name].chunk({"time": of.some(1, 3)})
    broken = broken.copy(data=broken.data.map_blocks(fail, dtype=broken.dtype, meta=broken.data._meta))
    error = raised_by(lambda: to_zarr(data.assign({name: broken}), path, append_dim="time"), OSError)
    demand("cannot be read" in str(error), f"another error: {error!r}")
    of.counts["appends that failed"] += 1


def rewritten(of: Round, data: xr.Dataset, path: Path, now: int) -> xr.Dataset:
    """Write a region again with other values. Returns the data set with them."""
    first = of.some(0, now - 1)
    box = {"time": slice(first, of.some(first + 1, now))}
    if of.chance(0.5):
        begin = of.some(0, data.sizes["x"] - 1)
        box["x"] = slice(begin, of.some(begin + 1, data.sizes["x"]))
    names = ["temperature", "pressure", "cloudy"]
    new = data[names].isel(box)
    new = new.assign(
        temperature=-new["temperature"],
        pressure=(new["pressure"] + 1).assign_attrs(new["pressure"].attrs),
        cloudy=~new["cloudy"],
    )
    new["temperature"].attrs = data["temperature"].attrs
    to_zarr(blocks(of.rng, new.drop_vars(list(new.coords))), path, region=box, safe_chunks=False)
    of.counts["regions"] += 1
    data = data.copy(deep=True)
    for name in names:
        data[name][box] = new[name].values
    return data


def append_days(path: Path, data: xr.Dataset, mode: str, seed: int, notes: Notes) -> None:
    """Append the days that are not stored yet: the program that is killed."""
    rng = np.random.default_rng(seed)
    with settings(shards=mode), dask.config.set(scheduler="threads"):
        now = int(zarr.open_group(path, mode="r", use_consolidated=False)["time"].shape[0])
        notes.write(stored=now)
        while now < data.sizes["time"]:
            count = min(int(rng.integers(1, 3)), data.sizes["time"] - now)
            to_zarr(blocks(rng, data.isel(time=slice(now, now + count))), path, append_dim="time")
            now += count
            notes.write(stored=now)


def killed_while_appending(of: Round) -> None:
    """Appends are killed, and repaired as the documentation says: what was acknowledged stays."""
    days, mode = of.some(6, 20), of.one_of(["rewrite", "shared"])
    data, path = archive(of, days), of.root / "archive.zarr"
    with settings(shards=mode):
        to_zarr(data.isel(time=slice(0, 2)), path, encoding=encoding_of(of, data))
    stored = 2
    with Programs(of.root) as programs:
        for attempt in range(of.some(2, 5)):
            notes = Notes(of.root / f"append{attempt}.notes")
            seed = of.some(0, 1 << 30)
            program = programs.start(append_days, path, data, mode, seed, notes, hash_seed=of.some(0, 1000))
            program.until(lambda notes=notes: notes.last("stored") is not None, "beginning")
            time.sleep(of.rng.exponential(0.3))
            program.signal(signal.SIGKILL)
            if program.ended(0, -signal.SIGKILL) == 0:
                break
            of.counts[f"kills, {mode}"] += 1
            stored = notes.last("stored", stored)
            group: Any = zarr.open_group(path, mode="r+", use_consolidated=False)
            zarrs_cuda.consolidate(group, discard_invalid=True)
            for name, array in sorted(group.arrays()):
                if "time" in array.metadata.dimension_names:
                    demand(
                        array.shape[0] >= stored, f"{name} has {array.shape[0]} days, {stored} were appended"
                    )
                    array.resize((stored, *array.shape[1:]))
                # Temporary files, also of arrays without shards.
                zarrs_cuda.recover(zarr.open_array(path / name, mode="r+"))
            zarr.consolidate_metadata(path)
            check(path, data.isel(time=slice(0, stored)), f"{mode}: {stored} days after a kill")
        notes = Notes(of.root / "append.notes")
        programs.start(append_days, path, data, mode, 0, notes, hash_seed=of.some(0, 1000)).ended()
    packed(path, mode)
    check(path, data, f"{mode}: all {days} days")
    left = [file for file in path.rglob("*") if file.name.endswith((".partial", ".chunk"))]
    demand(not left, f"files are left: {left[:3]}")


def write_part(path: Path, data: xr.Dataset, box: Mapping[str, slice], mode: str, seed: int) -> None:
    """Write a region that no other program writes: one of several programs."""
    rng = np.random.default_rng(seed)
    with settings(shards=mode), dask.config.set(scheduler=["threads", "processes"][seed % 2], num_workers=2):
        to_zarr(blocks(rng, data.isel(box)), path, region=dict(box))


def programs_share_regions(of: Round) -> None:
    """Programs write regions of one store at the same time; some are killed, and run again."""
    days, mode = of.some(6, 24), of.one_of(["rewrite", "shared", "shared"])
    data, path = archive(of, days), of.root / "archive.zarr"
    encoding = encoding_of(of, data)
    with settings(shards=mode):
        empty = data.chunk()
        to_zarr(empty, path, encoding=encoding, compute=False)
        to_zarr(data[["elevation", "station"]].drop_vars(["y", "x"]), path, mode="r+")
        packed(path, mode)
    sharing = data.drop_vars(["elevation", *data.coords])
    step = encoding["temperature"]["chunks" if mode == "shared" else "shards"][0]
    count = of.some(2, 4)
    borders = [min(-(-days * number // count // step) * step, days) for number in range(count + 1)]
    boxes = [{"time": slice(begin, end)} for begin, end in itertools.pairwise(borders) if begin < end]
    with Programs(of.root) as programs:
        pending = list(boxes)
        while pending:
            running = []
            for box in pending:
                seed = of.some(0, 1 << 30)
                program = programs.start(
                    write_part, path, sharing, box, mode, seed, hash_seed=of.some(0, 1000)
                )
                running.append((program, box))
            if of.chance(0.7):
                victim, _ = of.one_of(running)
                victim.until(lambda: any(path.glob("temperature/c/*")), "writing")
                time.sleep(of.rng.exponential(0.2))
                victim.signal(signal.SIGKILL)
            pending = [box for program, box in running if program.ended(0, -signal.SIGKILL) != 0]
            of.counts["regions by programs"] += len(running) - len(pending)
            of.counts["programs that were killed"] += len(pending)
    group = zarr.open_group(path, mode="r+", use_consolidated=False)
    if mode == "shared":
        for part in (1, 2):
            zarrs_cuda.consolidate(group, (part, 2))
        zarrs_cuda.consolidate(group, discard_invalid=True)
    check(path, data, f"{mode}: regions {boxes}")


def dask_blocks(of: Round) -> None:
    """Dask arrays are stored, with blocks of any size, and read into arrays of other shards."""
    ndim = of.some(1, 3)
    dtype = of.one_of(["uint8", "int32", "float64", "bool", "datetime64[s]", "complex64"])
    shape = tuple(of.some(1, (200, 60, 24)[ndim - 1]) for _ in range(ndim))
    values = of.rng.integers(0, 100, shape).astype(dtype)

    def created(name: str) -> zarr.Array[Any]:
        chunks = tuple(of.some(1, max(extent // 2, 1)) for extent in shape)
        shards = tuple(size * of.some(1, 4) for size in chunks)
        compressors = of.one_of(["auto", None])
        kind = {
            "shape": shape,
            "chunks": chunks,
            "shards": shards,
            "dtype": dtype,
            "compressors": compressors,
        }
        with settings(path="zarrs_cuda.CodecPipeline"):
            return zarr.create_array(of.root / name, **kind)

    scheduler = of.one_of(["threads", "synchronous", "processes"])
    with dask.config.set(scheduler=scheduler, num_workers=2):
        first, second = created("first"), created("second")
        zarrs_cuda.dask.store(da.from_array(values, chunks=cut(of, shape)), first)
        same(
            opened(of.root / "first", THEIRS)[...],
            values,
            f"dask, {scheduler}, {first.chunks}, {first.shards}",
        )
        again = da.from_array(first, chunks=cut(of, shape)).rechunk(cut(of, shape))
        zarrs_cuda.dask.store(again, second)
        same(opened(of.root / "second", THEIRS)[...], values, f"rechunked, {scheduler}, {second.shards}")
        # Over what is there.
        reverse = tuple(slice(None, None, -1) for _ in shape)
        zarrs_cuda.dask.store(da.from_array(values[reverse], chunks=cut(of, shape)), second)
    same(opened(of.root / "second", THEIRS)[...], values[reverse], f"over, {scheduler}, {second.shards}")
    left = list(of.root.rglob("*.chunk"))
    demand(not left, f"subchunks are left beside shards: {left[:3]}")


def cut(of: Round, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Cut each axis into up to six blocks."""
    found = []
    for extent in shape:
        ends = {extent, *(of.some(1, extent) for _ in range(of.some(0, 5)))}
        found.append(tuple(np.diff([0, *sorted(ends)]).tolist()))
    return tuple(found)


if __name__ == "__main__":
    run(
        "climate",
        __doc__,
        [day_by_day, killed_while_appending, programs_share_regions, dask_blocks],
    )
