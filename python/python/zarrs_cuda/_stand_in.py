"""Copies the metadata of a hierarchy, as of arrays without codecs, so that the command plans for them."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import zarr
from numcodecs.registry import get_codec
from zarr.core.array import AsyncArray
from zarr.core.buffer import default_buffer_prototype
from zarr.core.metadata.v2 import ArrayV2Metadata
from zarr.core.sync import sync
from zarr.storage._common import make_store_path

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from zarr.storage import StorePath

_FILES = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")

# Filters of numcodecs that encode texts. zarr-python 3 has no data type for such arrays.
_OF_TEXT = ("json2", "msgpack2", "categorize")
# Filters of objects that zarr-python 3 opens.
_KNOWN = ("vlen-utf8", "vlen-bytes")

_LITTLE: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "little"}}
_V3_CODECS = {
    "string": {"name": "vlen-utf8"},
    "bytes": {"name": "vlen-bytes"},
    "variable_length_bytes": {"name": "vlen-bytes"},
}


class RefusedError(Exception):
    """An array that cannot be read, and why."""


class Nodes(NamedTuple):
    """The arrays of a hierarchy by their paths, those that cannot be read, and what is no node."""

    arrays: dict[str, zarr.Array[Any]]
    refused: dict[str, str]
    strangers: list[str]


class _Texts:
    """A filter that decodes objects. Each object has to be a text."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.codec_id = str(config["id"])
        self._codec = get_codec(config)

    def decode(self, encoded: Any) -> Any:
        objects = self._codec.decode(encoded)
        for found in np.asarray(objects, dtype=object).flat:
            # numpy would make texts of all other objects without a word.
            if not isinstance(found, str):
                raise RefusedError(
                    f"an element that `{self.codec_id}` decodes is of the type {type(found).__name__}, and "
                    "only texts have a data type of Zarr v3"
                )
        return objects


def open_input(source: str | os.PathLike[str]) -> StorePath:
    """Return the place of a hierarchy, which zarr-python reads."""
    return sync(make_store_path(source, mode="r"))


def write(source: StorePath, folder: Path, *, recursive: bool) -> Nodes:
    """Write stand-ins of the array or the group at `source` below `folder`.

    Parameters
    ----------
    source
        A Zarr array or group, of v2 or v3.
    folder
        A directory that is not there.
    recursive
        Whether the nodes below a group are written, too.

    Returns
    -------
    Nodes
        The arrays, opened by the pipeline that `zarr.config` names. Those that cannot be read are not
        written.

    Raises
    ------
    RefusedError
        If `source` is no node.
    """
    nodes = Nodes({}, {}, [])
    files = sync(_metadata(source))
    if not _is_node(files):
        raise RefusedError("it has neither a zarr.json, nor a .zarray or .zgroup")
    level = [("", files)]
    while level:
        groups = []
        for path, files in level:
            try:
                array = _text_of_array(files)
                if array is None:
                    _store(folder / path, files)
                    groups.append(path)
                    continue
                nodes.arrays[path] = _open(source / path, array)
                _store(folder / path, {**files, array: _stand_in(array, files[array])})
            except Exception as error:  # codecs of any package raise anything
                nodes.arrays.pop(path, None)
                nodes.refused[path] = " ".join(str(error).split()) or type(error).__name__
        level = []
        for path in groups if recursive else []:
            for child, files in sync(_children(source, path)):
                if _is_node(files):
                    level.append((child, files))
                else:
                    nodes.strangers.append(child)
    return nodes


async def _metadata(place: StorePath) -> dict[str, bytes]:
    prototype = default_buffer_prototype()
    try:
        found = await asyncio.gather(*((place / name).get(prototype) for name in _FILES))
    except NotADirectoryError:
        return {}
    return {name: value.to_bytes() for name, value in zip(_FILES, found, strict=True) if value is not None}


async def _children(source: StorePath, path: str) -> list[tuple[str, dict[str, bytes]]]:
    below = (source / path).path
    names = sorted([name.rstrip("/") async for name in source.store.list_dir(below)])
    paths = [f"{path}/{name}" if path else name for name in names if name not in _FILES]
    found: list[tuple[str, dict[str, bytes]]] = []
    # As many requests at once as one call of zarr-python makes.
    for first in range(0, len(paths), 10):
        some = paths[first : first + 10]
        found += zip(some, await asyncio.gather(*(_metadata(source / child) for child in some)), strict=True)
    return found


def _is_node(files: dict[str, bytes]) -> bool:
    return any(name in files for name in ("zarr.json", ".zarray", ".zgroup"))


def _text_of_array(files: dict[str, bytes]) -> str | None:
    """Return the name of the metadata of an array; None for a group."""
    if "zarr.json" in files:
        if ".zarray" in files or ".zgroup" in files:
            raise RefusedError(
                "a node of Zarr v2 and one of v3 have the same path: delete the metadata of one"
            )
        document = json.loads(files["zarr.json"])
        is_array = isinstance(document, dict) and document.get("node_type") == "array"
        return "zarr.json" if is_array else None
    return ".zarray" if ".zarray" in files else None


def _store(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_bytes(text)


def _stand_in(name: str, text: bytes) -> bytes:
    """Return the metadata of an array that is the same but for its codecs."""
    document = json.loads(text)
    if name == ".zarray":
        document["compressor"] = None
        document["order"] = "C"
        document["filters"] = _objects_filter(document)
    else:
        document["codecs"] = _v3_codecs(document)
    return json.dumps(document).encode()


def _objects_filter(document: dict[str, Any]) -> list[dict[str, Any]] | None:
    if document["dtype"] != "|O":
        return None
    first = document["filters"][0]["id"]
    return [{"id": first if first in _KNOWN else "vlen-utf8"}]


def _v3_codecs(document: dict[str, Any]) -> list[dict[str, Any]]:
    data_type = document["data_type"]
    codecs = [_V3_CODECS.get(data_type, _LITTLE) if isinstance(data_type, str) else _LITTLE]
    outer = document["codecs"][0]
    if isinstance(outer, dict) and outer.get("name") == "sharding_indexed":
        # The shape of subchunks is what `--keep-chunks` keeps.
        index = [_LITTLE, {"name": "crc32c"}]
        shape = outer["configuration"]["chunk_shape"]
        inner = {"chunk_shape": shape, "codecs": codecs, "index_codecs": index}
        return [{"name": "sharding_indexed", "configuration": inner}]
    return codecs


def _open(place: StorePath, name: str) -> zarr.Array[Any]:
    """Open an array, and decode one of its chunks: some codecs fail only then."""
    if name == ".zarray":
        text = sync((place / name).get(default_buffer_prototype()))
        if text is None:
            raise RefusedError("its .zarray is gone")
        array = _open_v2(place, json.loads(text.to_bytes()))
    else:
        array = zarr.open_array(place, mode="r", zarr_format=3)
    if math.prod(array.shape):
        array[(0,) * array.ndim]
    return array


def _open_v2(place: StorePath, document: dict[str, Any]) -> zarr.Array[Any]:
    filters = document.get("filters") or []
    ids = [codec["id"] for codec in [*filters, document.get("compressor")] if codec]
    if "pickle" in ids:
        raise RefusedError("its filter `pickle` would run any code that the chunks hold: it is never decoded")
    if document["dtype"] != "|O" or (ids and ids[0] in _KNOWN):
        return zarr.open_array(place, mode="r", zarr_format=2)
    if not ids or ids[0] not in _OF_TEXT:
        raise RefusedError(
            f"its elements are Python objects ({ids[0] if ids else 'no filter'}), and no texts or bytes"
        )
    document = {**document, "filters": [{"id": "vlen-utf8"}], "attributes": {}}
    if not isinstance(document["fill_value"], str):
        document["fill_value"] = ""
    metadata = ArrayV2Metadata.from_dict(document)
    decoders = (_Texts(filters[0]), *(get_codec(config) for config in filters[1:]))
    metadata = replace(metadata)
    # The constructor takes only codecs that encode, too.
    object.__setattr__(metadata, "filters", decoders)
    return zarr.Array(AsyncArray(metadata=metadata, store_path=place))
