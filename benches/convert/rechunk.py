"""Times how a data set of Zarr v2 becomes sharded arrays of Zarr v3, by this command and by others.

    python benches/convert/rechunk.py FOLDER --command target/release/zarrs-cuda [--others zarrs_reencode] [--gib 4]

It needs numpy, zarr and dask of the Python that runs it. FOLDER gets the data set, and one output at a time. Each row is
the time until all bytes are durable, `sync` included, the time of all processors, and the largest memory of a process.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

VARIABLES = 10
CHUNK, SHARD, SUBCHUNK = (1, 160, 160), (256, 320, 320), (64, 32, 32)
MEMORY = 1 << 30
# The codec of subchunks: for this command, for zarr-python, and as metadata.
CODECS = {
    "zstd": ("zstd:3", "ZstdCodec(level=3)", {"name": "zstd", "configuration": {"level": 3, "checksum": False}}),
    "blosc": (
        "blosc-lz4:5:shuffle",
        "BloscCodec(cname='lz4', clevel=5, shuffle='shuffle', typesize=4)",
        {"name": "blosc", "configuration": {
            "cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0}},
    ),
}

DASK = """
import sys, dask, dask.array, zarr
source, out, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
shard, subchunk = {shard}, {subchunk}
root = zarr.create_group(out)
with dask.config.set(scheduler="threads", num_workers=threads):
    for name, array in zarr.open_group(source, mode="r").arrays():
        made = root.create_array(name, shape=array.shape, dtype=array.dtype, chunks=subchunk, shards=shard,
                                 compressors=zarr.codecs.{compressor}, fill_value=array.fill_value)
        dask.array.from_zarr(array).rechunk(shard).store(made, lock=False)
"""

ZARR = """
import sys, itertools, zarr
from concurrent.futures import ThreadPoolExecutor
source, out, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
shard, subchunk = {shard}, {subchunk}
root = zarr.create_group(out)
with ThreadPoolExecutor(threads) as pool:
    for name, array in zarr.open_group(source, mode="r").arrays():
        made = root.create_array(name, shape=array.shape, dtype=array.dtype, chunks=subchunk, shards=shard,
                                 compressors=zarr.codecs.{compressor}, fill_value=array.fill_value)
        def copy(start):
            box = tuple(slice(a, a + s) for a, s in zip(start, shard))
            made[box] = array[box]
        list(pool.map(copy, itertools.product(*(range(0, n, s) for n, s in zip(array.shape, shard)))))
"""


def create(path: Path, gib: float) -> None:
    """Makes the data set: smooth fields with noise in the last bits, as of a model, with blosc."""
    import numcodecs
    import numpy as np
    import zarr

    if path.exists():
        return
    edge = 320
    times = max(1, round(gib * (1 << 30) / VARIABLES / edge / edge / 4))
    root = zarr.create_group(path.with_suffix(".part"), zarr_format=2)
    random = np.random.default_rng(1)
    y, x = np.meshgrid(np.linspace(0, 6, edge), np.linspace(0, 9, edge), indexing="ij")
    for number in range(VARIABLES):
        array = root.create_array(
            f"variable{number}", shape=(times, edge, edge), chunks=CHUNK, dtype="f4", fill_value=-9999.0,
            compressors=numcodecs.Blosc("lz4", clevel=5, shuffle=1),
        )
        for first in range(0, times, 64):
            t = np.arange(first, min(first + 64, times))[:, None, None]
            field = 280 + 20 * np.sin(y + t / 40 + number) * np.cos(x - t / 60)
            noise = random.normal(0, 0.01, field.shape)
            array[first : first + len(t)] = np.round((field + noise) * 256).astype("f4") / 256
    path.with_suffix(".part").rename(path)


def timed(commands: list[list[str]]) -> dict:
    """Runs the commands at once. Returns seconds, seconds of processors, and the largest memory of a process in MiB."""
    os.sync()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    largest = 0
    for process in running:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{process.args} ended with {process.returncode}")
        largest = max(largest, usage.ru_maxrss)
    os.sync()
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processors = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "processors": processors, "mib": largest / 1024}


def main() -> None:
    """Prints a line for each contender and round, and then the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--command", required=True)
    parser.add_argument("--others", help="the program zarrs_reencode of zarrs_tools")
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--codec", choices=CODECS, default="zstd")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    args.folder.mkdir(exist_ok=True)
    source, out = args.folder / "in.zarr", args.folder / "out.zarr"
    # In a process of its own: the memory of this one counts for its children, until they run another program.
    if os.fork() == 0:
        create(source, args.gib)
        os._exit(0)
    if os.wait()[1]:
        sys.exit("the data set could not be made")
    threads = len(os.sched_getaffinity(0))
    shard, subchunk = (",".join(map(str, shape)) for shape in (SHARD, SUBCHUNK))
    codec, compressor, metadata = CODECS[args.codec]
    ours = [args.command, "reencode", str(source), str(out), "--recursive", "--shard", shard, "--subchunk", subchunk,
            "--codec", codec]
    shapes = {"shard": SHARD, "subchunk": SUBCHUNK, "compressor": compressor}
    script = [str(source), str(out), str(threads)]
    contenders = {
        "one process": [[[*ours, "--memory", str(MEMORY)]]],
        "four parts": [
            [[*ours, "--memory", str(MEMORY), "--threads", "1", "--part", f"{part}/4"] for part in range(1, 5)]
        ],
        "dask": [[[sys.executable, "-c", DASK.format(**shapes), *script]]],
        "zarr-python": [[[sys.executable, "-c", ZARR.format(**shapes), *script]]],
    }
    if args.others:
        codecs = json.dumps([metadata])
        contenders["zarrs_tools"] = [
            [[args.others, "-c", subchunk, "-s", shard, "--bytes-to-bytes-codecs", codecs,
              str(source / f"variable{n}"), str(out / f"variable{n}")]]
            for n in range(VARIABLES)
        ]
    rows: dict[str, list[dict]] = {}
    for round_ in range(args.rounds):
        for name, steps in contenders.items():
            if args.only and name not in args.only:
                continue
            shutil.rmtree(out, ignore_errors=True)
            done = [timed(commands) for commands in steps]
            row = {
                "seconds": sum(step["seconds"] for step in done),
                "processors": sum(step["processors"] for step in done),
                "mib": max(step["mib"] for step in done),
                "stored": sum(file.stat().st_size for file in out.rglob("*") if file.is_file()) / (1 << 20),
            }
            rows.setdefault(name, []).append(row)
            print(round_, name, {key: round(value, 1) for key, value in row.items()}, flush=True)
    print(f"{'':12} {'seconds':>9} {'of processors':>14} {'MiB of memory':>14} {'MiB stored':>11}")
    for name, found in rows.items():
        median = {key: sorted(row[key] for row in found)[len(found) // 2] for key in found[0]}
        print(f"{name:12} {median['seconds']:9.1f} {median['processors']:14.1f} {median['mib']:14.0f} {median['stored']:11.0f}")


if __name__ == "__main__":
    main()
