"""Let the ranks of an MPI job write the same shards: ``mpiexec -n 8 python mpi_shared.py /scratch/volume``.

The barrier between writing and packing is needed: a shard is packed when all of its writers have ended.
"""

from __future__ import annotations

import sys

import numpy as np
import zarr
import zarrs_cuda
from mpi4py import MPI

SHAPE, SUBCHUNK, SHARD = (512, 512), (32, 32), (256, 256)


def main() -> None:
    """Do the part of this rank."""
    (path,) = sys.argv[1:]
    ranks = MPI.COMM_WORLD
    zarr.config.set({"codec_pipeline.path": "zarrs_cuda.CodecPipeline", "codec_pipeline.shards": "shared"})
    if ranks.rank == 0:
        zarr.create_array(path, shape=SHAPE, chunks=SUBCHUNK, shards=SHARD, dtype="uint16")
    ranks.Barrier()
    array = zarr.open_array(path)
    columns = SHAPE[1] // SUBCHUNK[1]
    for number in range(ranks.rank, SHAPE[0] // SUBCHUNK[0] * columns, ranks.size):
        row, column = divmod(number, columns)
        box = tuple(
            slice(at * size, (at + 1) * size) for at, size in zip((row, column), SUBCHUNK, strict=True)
        )
        array[box] = np.full(SUBCHUNK, number + 1)
    ranks.Barrier()
    print(ranks.rank, zarrs_cuda.consolidate(array, part=(ranks.rank + 1, ranks.size)))


if __name__ == "__main__":
    main()
