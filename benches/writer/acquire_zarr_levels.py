"""acquire-zarr's part of the benchmark of levels; levels.py says how it is called.

It makes the levels while it writes. It has no zstd without Blosc: for `zstd-1` it compresses with Blosc's
zstd at level 1. An axis of space along which it appends must have a known length (0.10 dies by SIGFPE
otherwise), and is divided until it fits one subchunk.
"""

import acquire_zarr as aqz
from levels import serve

COMPRESSION = {
    "none": None,
    "zstd-1": (aqz.CompressionCodec.BLOSC_ZSTD, 1),
    "blosc-lz4": (aqz.CompressionCodec.BLOSC_LZ4, 5),
}


def write(request, frames):
    metadata, factors = request["metadata"], request["factors"]
    shard = metadata["chunk_grid"]["configuration"]["chunk_shape"]
    subchunk = metadata["codecs"][0]["configuration"]["chunk_shape"]
    # The first axis is divided if it is one of space.
    kinds = [aqz.DimensionType.SPACE if factors[0] == 2 else aqz.DimensionType.TIME]
    kinds += [aqz.DimensionType.SPACE] * 2
    dimensions = [
        aqz.Dimension(
            name=name,
            kind=kind,
            array_size_px=0 if kind == aqz.DimensionType.TIME else metadata["shape"][axis],
            chunk_size_px=subchunk[axis],
            shard_size_chunks=shard[axis] // subchunk[axis],
        )
        for axis, (name, kind) in enumerate(zip("zyx", kinds))
    ]
    settings = {
        "dimensions": dimensions,
        "data_type": aqz.DataType.UINT16,
        "downsampling_method": aqz.DownsamplingMethod.MEAN,
        "max_levels": request["levels"],
    }
    if compression := COMPRESSION[request["chain"]]:
        codec, level = compression
        settings["compression"] = aqz.CompressionSettings(
            compressor=aqz.Compressor.BLOSC1, codec=codec, level=level, shuffle=1
        )
    arrays = [aqz.ArraySettings(**settings)]
    stream = aqz.ZarrStream(
        aqz.StreamSettings(store_path=f"{request['path']}/image.zarr", arrays=arrays, overwrite=True)
    )
    for _ in range(request["epochs"]):
        for frame in frames:
            stream.append(frame)
    stream.close()


serve(write)
