"""zarr-python's part of the interoperability test; interop.py says how it is called."""

import zarr
from zarr.core.metadata import ArrayV3Metadata

from interop import run, unsupported

SNAPPY = ("blosc_snappy_noshuffle", "blosc_snappy_shuffle", "blosc_snappy_bitshuffle")

CANNOT_READ = unsupported(
    "the C-Blosc in numcodecs is built without snappy", "error during blosc decompression", *SNAPPY
)

CANNOT_WRITE = (
    unsupported(
        "the C-Blosc in numcodecs is built without snappy", "compressor not supported", *SNAPPY
    )
    | unsupported(
        "leaves out a subchunk of any NaN where the fill value is one",
        "wrong values",
        "float32_near_nan",
        "float32_near_nan_blosc",
        "float64_near_nan",
        "float64_near_nan_blosc",
        "complex64_near_nan",
        "complex64_near_nan_blosc",
    )
    | unsupported(
        "tells zeros of different sign apart in real numbers, not in complex ones",
        "wrong values",
        "complex64_near_zero",
        "complex64_near_zero_blosc",
    )
    | unsupported(
        "writes every NaN into the metadata as \"NaN\"",
        "wrong values",
        "float32_nan_payload",
        "float32_nan_payload_blosc",
    )
)


def read(case):
    array = zarr.open_array(case.path, mode="r", zarr_format=3)
    case.compare(array.__getitem__)


def write(case):
    metadata = ArrayV3Metadata.from_dict(dict(case.metadata))
    array = zarr.create(
        store=case.path,
        shape=metadata.shape,
        chunks=metadata.chunk_grid.chunk_shape,
        dtype=metadata.data_type,
        fill_value=metadata.fill_value,
        codecs=metadata.codecs,
        zarr_format=3,
        config={"write_empty_chunks": False},
    )
    for slab in case.slabs():
        array[slab] = case.values[slab]
    read(case)


run(read=(read, CANNOT_READ), write=(write, CANNOT_WRITE))
