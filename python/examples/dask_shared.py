"""Let the workers of a Dask cluster write the same shards, and kill one of them on the way.

``python dask_shared.py --workers 8`` stores an array whose blocks are single subchunks, once through
``zarrs_cuda.dask.store`` and once through zarr-python, and counts the subchunks that were lost.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import zarr
import zarrs_cuda.dask
from distributed import Client, LocalCluster

EXTENT, SUBCHUNK, SHARD = 256, 16, 128
PLAIN = "zarr.core.codec_pipeline.BatchedCodecPipeline"


def value(block_id: tuple[int, int] | None = None) -> np.ndarray[Any, Any]:
    """Make a block: its number, plus 1. It takes a moment, as if it were computed."""
    time.sleep(0.01)
    row, column = block_id or (0, 0)
    number = row * (EXTENT // SUBCHUNK) + column + 1
    return np.full((SUBCHUNK, SUBCHUNK), number, dtype="uint32")


def create(path: Path) -> zarr.Array[Any]:
    """Create an array of four shards of 64 subchunks."""
    return zarr.create_array(
        path,
        shape=(EXTENT, EXTENT),
        chunks=(SUBCHUNK, SUBCHUNK),
        shards=(SHARD, SHARD),
        dtype="uint32",
        overwrite=True,
    )


def lost(path: Path) -> int:
    """Count the subchunks that plain zarr-python does not read as they were written."""
    with zarr.config.set({"codec_pipeline.path": PLAIN}):
        got = zarr.open_array(path, mode="r")[...]
    count = EXTENT // SUBCHUNK
    expected = np.arange(1, count * count + 1, dtype="uint32").reshape(count, count)
    expected = expected.repeat(SUBCHUNK, 0).repeat(SUBCHUNK, 1)
    wrong = (got != expected).reshape(count, SUBCHUNK, count, SUBCHUNK).any(axis=(1, 3))
    return int(wrong.sum())


def kill_one(client: Client, after: float) -> None:
    """Kill a worker after so many seconds."""
    pids = list(client.run(os.getpid).values())

    def kill() -> None:
        time.sleep(after)
        os.kill(pids[0], signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--directory", type=Path, default=None, help="by default a temporary one")
    arguments = parser.parse_args()
    x = da.map_blocks(
        value,
        chunks=((SUBCHUNK,) * (EXTENT // SUBCHUNK),) * 2,
        dtype="uint32",
        meta=np.empty((0, 0), "uint32"),
    )
    with (
        tempfile.TemporaryDirectory(dir=arguments.directory) as directory,
        LocalCluster(
            n_workers=arguments.workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
    ):
        ours, theirs = Path(directory) / "ours", Path(directory) / "theirs"
        kill_one(client, 0.3)
        zarrs_cuda.dask.store(x, create(ours))
        # zarr-python on its own: a block writes its part of a shard.
        da.store(x, create(theirs), lock=False)
        count = x.numblocks[0] * x.numblocks[1]
        print(f"lost {lost(ours)} of {count} (zarr-python: {lost(theirs)})")


if __name__ == "__main__":
    main()
