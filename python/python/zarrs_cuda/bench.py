"""Measure this package against its peers: ``python -m zarrs_cuda.bench``.

One table of one run: whole arrays and single subchunks are written and read through each
implementation that is installed, in turns. Nobody syncs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.metadata
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr

Array = np.ndarray[Any, Any]
# Reads and writes one array of files.
Peer = Callable[[Path], tuple[Callable[[Any], Array], Callable[[Any, Array], None]]]

CHAINS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "zstd-1": [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}],
}


def _zarr_python(path: str, **settings: Any) -> Peer:
    def opened(directory: Path) -> Any:
        named = {f"codec_pipeline.{key}": value for key, value in settings.items()}
        with zarr.config.set({"codec_pipeline.path": path, **named}):
            array: Any = zarr.open_array(directory, mode="r+")
        return array.__getitem__, array.__setitem__

    return opened


def _tensorstore(directory: Path) -> Any:
    import tensorstore as ts

    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{directory}/", "file_io_sync": False},
    }
    array = ts.open(spec).result()
    return (
        lambda selection: array[selection].read().result(),
        lambda selection, value: array[selection].write(value).result(),
    )


def _zarrista(directory: Path) -> Any:
    import zarrista

    array = zarrista.Array.open(zarrista.store.FilesystemStore(str(directory)))
    return (
        lambda selection: np.asarray(array.retrieve_array_subset(selection)),
        array.store_array_subset,
    )


PEERS: dict[str, tuple[str, Peer]] = {
    "zarr-python Batched": ("zarr", _zarr_python("zarr.core.codec_pipeline.BatchedCodecPipeline")),
    "zarr-python Fused": ("zarr", _zarr_python("zarr.core.codec_pipeline.FusedCodecPipeline")),
    "zarrs-python": ("zarrs", _zarr_python("zarrs.ZarrsCodecPipeline")),
    "zarrista": ("zarrista", _zarrista),
    "tensorstore": ("tensorstore", _tensorstore),
    "ours": ("zarrs-cuda", _zarr_python("zarrs_cuda.CodecPipeline")),
}
IN_PLACE = _zarr_python("zarrs_cuda.CodecPipeline", shards="in_place")


def image(shape: tuple[int, ...], seed: int = 0) -> Array:
    """Elements like those of a microscope: a smooth background, spots, and noise."""
    rng = np.random.default_rng(seed)
    axes = [np.linspace(0, 7, extent, dtype="float32") for extent in shape]
    grids = np.meshgrid(*axes, indexing="ij", sparse=True)
    smooth = sum(np.sin(grid + number) for number, grid in enumerate(grids)) + 3.5
    noise = rng.normal(0, 6, size=shape[1:]).astype("float32")
    return (100 + 60 * smooth + noise).astype("uint16")


def create(directory: Path, shape: Any, shard: Any, subchunk: Any, chain: str) -> None:
    """Create an array of uint16 on files."""
    codecs: list[Any] = [{"name": "bytes", "configuration": {"endian": "little"}}, *CHAINS[chain]]
    zarr.create_array(
        directory,
        shape=shape,
        chunks=shard,
        dtype="uint16",
        fill_value=0,
        serializer=zarr.codecs.ShardingCodec(chunk_shape=subchunk, codecs=codecs),
        compressors=None,
        overwrite=True,
    )


def measure(
    actions: dict[str, Callable[[], Any]],
    rounds: int,
    repeat: int = 1,
    before: Callable[[str], None] | None = None,
) -> dict[str, float]:
    """Time actions in turns, each ``repeat`` times. Returns the median of each, in seconds.

    ``before`` is called with the name of an action before its turn, and is not timed.
    """
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            if before is not None:
                before(name)
            gc.collect()
            for _ in range(repeat):
                begin = time.perf_counter()
                action()
                times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(measured) for name, measured in times.items()}


def whole(
    root: Path, chain: str, rounds: int, extent: int, peers: dict[str, Peer]
) -> dict[str, dict[str, float]]:
    """Write, overwrite and read a whole array: 256³ shards, 32³ subchunks. GB/s.

    To overwrite is work of another kind: ext4, for one, begins to write a file to the disk when it replaces
    another file.
    """
    shape, shard, subchunk = (extent, 256, 256), (256, 256, 256), (32, 32, 32)
    if extent < 256:
        shard = (extent, 256, 256)
    value = image(shape)
    writes: dict[str, Callable[[], Any]] = {}
    reads: dict[str, Callable[[], Any]] = {}
    everything = tuple(slice(0, extent) for extent in shape)
    directories = {name: root / name.replace(" ", "-") for name in peers}
    for name, peer in peers.items():
        create(directories[name], shape, shard, subchunk, chain)
        read, write = peer(directories[name])
        writes[name] = partial(write, everything, value)
        reads[name] = partial(read, everything)

    def erase(name: str) -> None:
        shutil.rmtree(directories[name] / "c")

    measure(writes, 1)
    took = {"write": measure(writes, rounds, before=erase), "overwrite": measure(writes, rounds)}
    for name, action in reads.items():
        if not np.array_equal(action(), value):
            msg = f"{name} reads something else than was written"
            raise AssertionError(msg)
    took["read"] = measure(reads, rounds)
    gigabytes = value.nbytes / 1e9
    return {work: {name: gigabytes / seconds for name, seconds in row.items()} for work, row in took.items()}


def _at(action: Callable[..., Any], place: Callable[[], Any], *arguments: Any) -> Any:
    return action(place(), *arguments)


def single(root: Path, chain: str, rounds: int, peers: dict[str, Peer]) -> Any:
    """Read and update one subchunk of 32³ in a shard of 256³. Milliseconds."""
    shape, subchunk = (256, 256, 256), (32, 32, 32)
    value = image(shape)
    reads: dict[str, Callable[[], Any]] = {}
    updates: dict[str, Callable[[], Any]] = {}
    one = image(subchunk, 1)

    def places() -> Callable[[], Any]:
        rng = np.random.default_rng(3)

        def place() -> tuple[slice, ...]:
            starts = rng.integers(0, 8, 3) * 32
            return tuple(slice(int(start), int(start) + 32) for start in starts)

        return place

    for name, peer in {**peers, "ours, in place": IN_PLACE}.items():
        directory = root / name.replace(" ", "-")
        create(directory, shape, shape, subchunk, chain)
        array = zarr.open_array(directory, mode="r+")
        array[...] = value
        read, write = peer(directory)
        place, other = places(), places()
        reads[name] = partial(_at, read, place)
        updates[name] = partial(_at, write, other, one)
    measure(reads, 2)
    took = measure(reads, rounds, 50)
    measure(updates, 1)
    changed = measure(updates, rounds, 5)
    return (
        {name: 1e3 * seconds for name, seconds in took.items() if name != "ours, in place"},
        {name: 1e3 * seconds for name, seconds in changed.items()},
    )


def overhead(root: Path) -> dict[str, float]:
    """Measure what a read of one subchunk costs above the native call, in microseconds."""
    from zarrs_cuda import _pipeline

    directory = root / "overhead"
    create(directory, (64, 64, 64), (64, 64, 64), (32, 32, 32), "none")
    array = zarr.open_array(directory, mode="r+")
    array[...] = image((64, 64, 64))
    with zarr.config.set({"codec_pipeline.path": "zarrs_cuda.CodecPipeline"}):
        ours = zarr.open_array(directory, mode="r+")
    box = (slice(0, 32),) * 3
    ours[box]
    native: list[float] = []
    read = _pipeline._read

    def timed(*args: Any) -> Any:
        begin = time.perf_counter()
        try:
            return read(*args)
        finally:
            native.append(time.perf_counter() - begin)

    class Nothing(_pipeline.CodecPipeline):
        async def read(self, *_args: Any, **_kwargs: Any) -> Any:
            await asyncio.sleep(0)
            return ()

    nothing = zarr.open_array(directory, mode="r+")
    pipeline = Nothing(nothing.metadata, nothing.store, "rewrite")
    object.__setattr__(nothing.async_array, "codec_pipeline", pipeline)
    _pipeline._read = timed  # type: ignore[assignment]
    try:
        took = measure({"ours": lambda: ours[box], "nothing": lambda: nothing[box]}, 20, 100)
    finally:
        _pipeline._read = read
    inner = statistics.median(native)
    return {
        "read": 1e6 * took["ours"],
        "native call": 1e6 * inner,
        "a pipeline that does nothing": 1e6 * took["nothing"],
        "above both": 1e6 * (took["ours"] - inner - took["nothing"]),
    }


def table(rows: dict[str, dict[str, float]], digits: int) -> str:
    """Make a table in Markdown: a row for each work, a column for each implementation."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for work, row in rows.items():
        values = (f"{row[name]:.{digits}f}" if name in row else "–" for name in names)
        lines.append(f"| {work} | {' | '.join(values)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark, and print its tables."""
    parser = argparse.ArgumentParser(prog="python -m zarrs_cuda.bench", description=__doc__)
    parser.add_argument(
        "--disk", type=Path, default=Path(tempfile.gettempdir()), help="a directory on a disk"
    )
    parser.add_argument("--tmpfs", type=Path, default=Path("/dev/shm"), help="a directory in memory")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--extent", type=int, default=512, help="of whole arrays, along the first axis")
    parser.add_argument("--work", default="whole,single,overhead", help="which to measure")
    parser.add_argument("--chain", default=",".join(CHAINS))
    arguments = parser.parse_args()
    # What zarr-python makes by itself, the arrays here among it, is no part of the measurement.
    zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"})
    peers, versions = {}, []
    for name, (package, peer) in PEERS.items():
        try:
            versions.append(f"{name} ({package} {importlib.metadata.version(package)})")
        except importlib.metadata.PackageNotFoundError:
            continue
        peers[name] = peer
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"{time.strftime('%Y-%m-%d')}, {cores} cores, Python {platform.python_version()}")
    print(f"{', '.join(versions)}\n")
    rates: dict[str, dict[str, float]] = {}
    times: dict[str, dict[str, float]] = {}
    works = arguments.work.split(",")
    for where, parent in (("tmpfs", arguments.tmpfs), ("disk", arguments.disk)):
        if not parent.is_dir():
            print(f"{parent} is no directory: no rows for {where}", file=sys.stderr)
            continue
        root = Path(tempfile.mkdtemp(prefix="zarrs-cuda-bench-", dir=parent))
        try:
            for chain in arguments.chain.split(","):
                if "whole" in works:
                    rows = whole(root, chain, arguments.rounds, arguments.extent, peers)
                    rates.update({f"{work}, {chain}, {where}": row for work, row in rows.items()})
                if "single" in works:
                    took, changed = single(root, chain, arguments.rounds, peers)
                    times[f"read, {chain}, {where}"] = took
                    times[f"update, {chain}, {where}"] = changed
            if "overhead" in works and where == "tmpfs":
                print("microseconds:", {k: round(v, 1) for k, v in overhead(root).items()}, "\n")
        finally:
            shutil.rmtree(root)
    if rates:
        print(f"Whole arrays of {arguments.extent}×256×256 uint16, GB/s:\n\n{table(rates, 2)}\n")
    if times:
        print(f"One subchunk of 32³ in a shard of 256³, ms:\n\n{table(times, 3)}")


if __name__ == "__main__":
    main()
