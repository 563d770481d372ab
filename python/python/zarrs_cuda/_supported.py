"""What the native module can do, and why not."""

from collections.abc import Iterable

import numpy as np
from zarr.abc.codec import Codec
from zarr.codecs import ShardingCodec
from zarr.core.buffer import cpu
from zarr.core.metadata import ArrayMetadata, ArrayV3Metadata
from zarr.core.metadata.v3 import RegularChunkGridMetadata

# The codecs that zarr-python and zarrs both have, with the same bytes.
_CODECS = frozenset(
    {
        "BloscCodec",
        "BytesCodec",
        "Crc32cCodec",
        "GzipCodec",
        "ShardingCodec",
        "TransposeCodec",
        "ZstdCodec",
    }
)


class UnsupportedError(Exception):
    """The native module cannot read and write an array: the message says why."""


def metadata_text(metadata: ArrayMetadata) -> bytes:
    """Return the text of the metadata, as zarr-python stores it.

    Raises
    ------
    UnsupportedError
        If the array is of another version of the format, or has codecs of other packages.
    """
    if not isinstance(metadata, ArrayV3Metadata):
        msg = "it is an array of Zarr v2"
        raise UnsupportedError(msg)
    if not isinstance(metadata.chunk_grid, RegularChunkGridMetadata):
        msg = "its chunk grid is not regular"
        raise UnsupportedError(msg)
    _check_codecs(metadata.codecs)
    dtype = metadata.data_type.to_native_dtype()
    if dtype.kind in "OTV":
        msg = f"its elements are of the type {metadata.data_type!r}"
        raise UnsupportedError(msg)
    text = metadata.to_buffer_dict(prototype=cpu.buffer_prototype)["zarr.json"]
    return text.to_bytes()


def is_sharded(metadata: ArrayMetadata) -> bool:
    """Return whether chunks are plain shards."""
    codecs = metadata.codecs if isinstance(metadata, ArrayV3Metadata) else ()
    return len(codecs) == 1 and isinstance(codecs[0], ShardingCodec)


def has_shards(metadata: ArrayMetadata) -> bool:
    """Return whether chunks are shards, perhaps with codecs around them."""
    codecs = metadata.codecs if isinstance(metadata, ArrayV3Metadata) else ()
    return any(isinstance(codec, ShardingCodec) for codec in codecs)


def check_fill_value(metadata: ArrayMetadata, fill_value: bytes) -> None:
    """Check that zarrs has the same fill value as numpy.

    Raises
    ------
    UnsupportedError
        If it has another one.
    """
    dtype = metadata.dtype.to_native_dtype()
    ours = np.asarray(metadata.fill_value, dtype=dtype).astype(dtype.newbyteorder("="))
    if ours.tobytes() != fill_value:
        msg = f"zarrs has another fill value than {metadata.fill_value!r}"
        raise UnsupportedError(msg)


def _check_codecs(codecs: Iterable[Codec]) -> None:
    for codec in codecs:
        kind = type(codec)
        if not kind.__module__.startswith("zarr.codecs") or kind.__name__ not in _CODECS:
            msg = f"its codec {kind.__module__}.{kind.__qualname__} is not one of zarrs"
            raise UnsupportedError(msg)
        if isinstance(codec, ShardingCodec):
            _check_codecs(codec.codecs)
            _check_codecs(codec.index_codecs)
