"""tensorstore's part of the benchmark of levels; levels.py says how it is called.

It writes level 0 in layers of shards, and then each level through its `downsample` driver, which reads
the level above.
"""

import numpy as np
from create import tensorstore
from levels import serve


def write(request, frames):
    import tensorstore as ts

    metadata, factors = request["metadata"], request["factors"]
    level = tensorstore(metadata, f"{request['path']}/0")
    depth = frames.shape[0]
    for epoch in range(request["epochs"]):
        part = level[epoch * depth : (epoch + 1) * depth]
        part.write(frames, can_reference_source_data_indefinitely=True).result()
    for number in range(1, request["levels"]):
        smaller = ts.downsample(level, downsample_factors=factors, method="mean")
        below = {**metadata, "shape": [int(extent) for extent in smaller.shape]}
        clip(below)
        array = tensorstore(below, f"{request['path']}/{number}")
        depth = below["chunk_grid"]["configuration"]["chunk_shape"][0]
        for start in range(0, smaller.shape[0], depth):
            part = slice(start, min(start + depth, smaller.shape[0]))
            array[part].write(smaller[part]).result()
        level = array


def clip(metadata):
    """Clips shards and subchunks to the shape, as zarrs_cuda does."""
    sharding = metadata["codecs"][0]
    configuration = dict(sharding["configuration"])
    shape = metadata["shape"]
    subchunk = np.array(configuration["chunk_shape"])
    shard = np.array(metadata["chunk_grid"]["configuration"]["chunk_shape"])
    for axis in range(1, len(shape)):
        if shape[axis] < subchunk[axis]:
            subchunk[axis] = shard[axis] = shape[axis]
        else:
            whole = -(-shape[axis] // subchunk[axis]) * subchunk[axis]
            shard[axis] = min(shard[axis], whole)
    configuration["chunk_shape"] = subchunk.tolist()
    grid = {"name": "regular", "configuration": {"chunk_shape": shard.tolist()}}
    metadata["chunk_grid"] = grid
    metadata["codecs"] = [{**sharding, "configuration": configuration}]


serve(write)
