"""Writes the arrays of this folder: shards of other implementations, for tests of what a device decodes.

Run with the packages of tests/interop/requirements.txt: `python tests/foreign/write.py`.

An element is 3 z + 5 y + x, but the fill value where a subchunk or a shard is absent.
"""

import pathlib
import shutil

import numpy as np
import tensorstore as ts
import zarr
from zarr.core.metadata import ArrayV3Metadata

HERE = pathlib.Path(__file__).parent
SHAPE = (8, 20, 28)
FILL = 7


def elements():
    z, y, x = np.indices(SHAPE, dtype=np.uint16)
    found = 3 * z + 5 * y + x
    found[:, :16, 16:] = FILL  # a shard
    found[:, 16:, 8:16] = FILL  # a subchunk
    return found


def blosc(cname, shuffle, level=5, typesize=2):
    configuration = {"cname": cname, "clevel": level, "shuffle": shuffle, "typesize": typesize, "blocksize": 0}
    return {"name": "blosc", "configuration": configuration}


BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
CRC = {"name": "crc32c"}
TRANSPOSE = {"name": "transpose", "configuration": {"order": [2, 0, 1]}}


def zstd(level=3):
    return {"name": "zstd", "configuration": {"level": level, "checksum": False}}


def gzip(level=6):
    return {"name": "gzip", "configuration": {"level": level}}


CASES = {
    "none": [BYTES],
    "none_crc32c": [BYTES, CRC],
    "none_big_transposed": [TRANSPOSE, BIG],
    "zstd": [BYTES, zstd()],
    "zstd_crc32c": [BYTES, zstd(), CRC],
    "gzip": [BYTES, gzip()],
    "blosc_zstd": [BYTES, blosc("zstd", "shuffle")],
    "blosc_lz4": [BYTES, blosc("lz4", "shuffle")],
    "blosc_lz4_noshuffle": [BYTES, blosc("lz4", "noshuffle")],
    "blosc_zstd_bitshuffle": [BYTES, blosc("zstd", "bitshuffle")],
    "blosc_lz4_bitshuffle": [BYTES, blosc("lz4", "bitshuffle")],
    "zstd_1": [BYTES, zstd(1)],
    "zstd_19": [BYTES, zstd(19)],
    "zstd_big": [BIG, zstd()],
    "zstd_transposed": [TRANSPOSE, BYTES, zstd()],
    "gzip_1": [BYTES, gzip(1)],
    "gzip_9": [BYTES, gzip(9)],
    "gzip_crc32c": [BYTES, gzip(), CRC],
    "gzip_big_transposed": [TRANSPOSE, BIG, gzip()],
    "blosc_zstd_noshuffle": [BYTES, blosc("zstd", "noshuffle")],
    "blosc_zstd_9": [BYTES, blosc("zstd", "shuffle", 9)],
    "blosc_zstd_crc32c": [BYTES, blosc("zstd", "shuffle"), CRC],
    "blosc_lz4_1": [BYTES, blosc("lz4", "shuffle", 1)],
    "blosc_lz4_crc32c": [BYTES, blosc("lz4", "shuffle"), CRC],
    "blosc_lz4_big_transposed": [TRANSPOSE, BIG, blosc("lz4", "shuffle")],
}


def metadata(codecs, location):
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(SHAPE),
        "data_type": "uint16",
        "fill_value": FILL,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 16, 16]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [
            {
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": [8, 8, 8],
                    "codecs": codecs,
                    "index_codecs": [BYTES, CRC],
                    "index_location": location,
                },
            }
        ],
        "attributes": {},
    }


def by_zarr_python(path, description):
    parsed = ArrayV3Metadata.from_dict(description)
    array = zarr.create(
        store=path,
        shape=parsed.shape,
        chunks=parsed.chunk_grid.chunk_shape,
        dtype=parsed.data_type,
        fill_value=parsed.fill_value,
        codecs=parsed.codecs,
        zarr_format=3,
        config={"write_empty_chunks": False},
    )
    array[:] = elements()


def by_tensorstore(path, description):
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}, "metadata": description}
    ts.open(spec, create=True).result().write(elements()).result()


def main():
    for writer, write in (("zarr_python", by_zarr_python), ("tensorstore", by_tensorstore)):
        shutil.rmtree(HERE / writer, ignore_errors=True)
        for number, (name, codecs) in enumerate(CASES.items()):
            location = ("end", "start")[number % 2 if writer == "tensorstore" else number // 2 % 2]
            path = HERE / writer / name
            path.parent.mkdir(exist_ok=True)
            write(path, metadata(codecs, location))


main()
