"""What the native module can do, and why not."""

import json
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
from zarr.abc.codec import Codec
from zarr.codecs import BytesCodec, ShardingCodec
from zarr.codecs import numcodecs as _numcodecs
from zarr.core.buffer import cpu
from zarr.core.metadata import ArrayMetadata, ArrayV3Metadata
from zarr.core.metadata.v3 import RegularChunkGridMetadata
from zarr.dtype import NullTerminatedBytes, RawBytes, Struct, Structured, VariableLengthBytes

# The codecs that zarr-python and zarrs both have: each reads what the other writes. Of the others, zarrs has
# no such names (`numcodecs.blosc`, `crc32c`, `gzip`, `zstd`), other results (`fixedscaleoffset`, which it
# computes in 32 bits; `fletcher32` of an odd number of bytes), or nothing.
_CODECS = frozenset(
    {
        "Adler32",
        "BZ2",
        "BitRound",
        "BloscCodec",
        "BytesCodec",
        "Crc32cCodec",
        "GzipCodec",
        "PCodec",
        "ShardingCodec",
        "Shuffle",
        "TransposeCodec",
        "VLenBytesCodec",
        "VLenUTF8Codec",
        "Zlib",
        "ZstdCodec",
    }
)
# The kinds of numpy's types for which zarrs and numcodecs store the same bytes. zarrs rounds integers and
# compresses dates, too. Its `adler32` reads behind the end of a part of a shard with strings.
_KINDS: dict[type[Codec], str] = {
    _numcodecs.Adler32: "biufcmMUSV",
    _numcodecs.BitRound: "f",
    _numcodecs.PCodec: "iuf",
}


class UnsupportedError(Exception):
    """The native module cannot read and write an array: the message says why."""


def metadata_text(metadata: ArrayMetadata) -> bytes:
    """Return the text of the metadata for zarrs.

    It is what zarr-python stores. Types of which zarrs knows only the size are raw bytes in it.

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
    dtype = metadata.data_type.to_native_dtype()
    _check_codecs(metadata.codecs, dtype)
    text = metadata.to_buffer_dict(prototype=cpu.buffer_prototype)["zarr.json"].to_bytes()
    if not is_raw(metadata):
        if dtype.kind == "f" and np.isnan(metadata.fill_value):
            # zarr-python reads any NaN, and writes all of them as the same.
            bits = np.asarray(metadata.fill_value, dtype.newbyteorder(">")).tobytes().hex()
            return json.dumps(json.loads(text) | {"fill_value": f"0x{bits}"}).encode()
        return text
    if dtype.itemsize == 0 or not _keeps_bytes(metadata):
        msg = f"its elements are of the type {metadata.data_type!r}"
        raise UnsupportedError(msg)
    raw = {"data_type": f"r{8 * dtype.itemsize}", "fill_value": list(_fill_value(metadata))}
    return json.dumps(json.loads(text) | raw).encode()


def check_path(path: str) -> None:
    """Check that the library takes a path: of an array, or of one of its values.

    Raises
    ------
    UnsupportedError
        If it has a name that the specification of Zarr keeps for itself. xarray gives such a name to an array
        that has none.
    """
    if "__" in path and any(name.startswith("__") for name in path.split("/")):
        msg = f"a name of its path begins with `__`, which Zarr reserves: {path!r}"
        raise UnsupportedError(msg)


def is_raw(metadata: ArrayMetadata) -> bool:
    """Return whether zarrs has no such type, and takes its elements for raw bytes."""
    return isinstance(metadata.dtype, RawBytes | NullTerminatedBytes | Structured)


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
    if _fill_value(metadata) != fill_value:
        msg = f"zarrs has another fill value than {metadata.fill_value!r}"
        raise UnsupportedError(msg)


def _fill_value(metadata: ArrayMetadata) -> bytes:
    dtype = metadata.dtype.to_native_dtype()
    value: Any = metadata.fill_value
    if dtype.kind == "T":
        return str(value).encode()
    if isinstance(metadata.dtype, VariableLengthBytes):
        return bytes(value)
    return np.asarray(value, dtype=dtype).astype(dtype.newbyteorder("=")).tobytes()


def _keeps_bytes(metadata: ArrayV3Metadata) -> bool:
    """Whether elements are stored as this machine has them in memory."""
    kind = metadata.data_type
    if not isinstance(kind, Structured) or not kind.has_multi_byte_fields():
        return True
    # Of fields, zarrs knows no byte order; of the older `structured`, zarr-python stores none.
    orders = {codec.endian for codec in _all(metadata.codecs) if isinstance(codec, BytesCodec)}
    return type(kind) is Struct and orders <= {sys.byteorder}


def _all(codecs: Iterable[Codec]) -> Iterable[Codec]:
    """Return codecs, and those of the subchunks of shards: not those of indices."""
    for codec in codecs:
        yield codec
        if isinstance(codec, ShardingCodec):
            yield from _all(codec.codecs)


def _check_codecs(codecs: Iterable[Codec], dtype: np.dtype[Any]) -> None:
    for codec in codecs:
        kind = type(codec)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if not kind.__module__.startswith("zarr.codecs") or kind.__name__ not in _CODECS:
            msg = f"its codec {name} is not one of zarrs"
            raise UnsupportedError(msg)
        # numcodecs takes a size of 0 for 1.
        is_odd = isinstance(codec, _numcodecs.Shuffle) and codec.codec_config.get("elementsize") == 0
        if is_odd or dtype.kind not in _KINDS.get(kind, dtype.kind):
            msg = f"zarrs does something else with its codec {name} and elements of the type {dtype}"
            raise UnsupportedError(msg)
        if isinstance(codec, ShardingCodec):
            _check_codecs(codec.codecs, dtype)
            _check_codecs(codec.index_codecs, np.dtype("u8"))
