"""Let the tasks of a Slurm array job write the same shards.

Two jobs; the second begins when all tasks of the first have ended::

    write=$(sbatch --parsable --array=0-7 --wrap "python slurm_shared.py write /scratch/volume")
    sbatch --dependency=afterok:$write --array=0-3 --wrap "python slurm_shared.py pack /scratch/volume"

The tasks of the first write interleaved subchunks. Those of the second pack the shards: shard *k* of the
grid, in C order, is packed by task *k* modulo the number of tasks.
"""

from __future__ import annotations

import os
import sys

import numpy as np
import zarr
import zarrs_cuda

SHAPE, SUBCHUNK, SHARD = (512, 512), (32, 32), (256, 256)


def main() -> None:
    """Do the part of this task."""
    what, path = sys.argv[1:]
    task = int(os.environ["SLURM_ARRAY_TASK_ID"])
    tasks = int(os.environ["SLURM_ARRAY_TASK_COUNT"])
    zarr.config.set({"codec_pipeline.path": "zarrs_cuda.CodecPipeline", "codec_pipeline.shards": "shared"})
    if what == "create":
        zarr.create_array(path, shape=SHAPE, chunks=SUBCHUNK, shards=SHARD, dtype="uint16")
        return
    array = zarr.open_array(path)
    if what == "pack":
        print(zarrs_cuda.consolidate(array, part=(task + 1, tasks)))
        return
    columns = SHAPE[1] // SUBCHUNK[1]
    for number in range(task, SHAPE[0] // SUBCHUNK[0] * columns, tasks):
        row, column = divmod(number, columns)
        box = tuple(
            slice(at * size, (at + 1) * size) for at, size in zip((row, column), SUBCHUNK, strict=True)
        )
        array[box] = np.full(SUBCHUNK, number + 1)


if __name__ == "__main__":
    main()
