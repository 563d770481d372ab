"""What reads and writes an array, and why."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zarrs_cuda import _devices, _settings
from zarrs_cuda._arrays import opened
from zarrs_cuda._errors import BackendUnavailable
from zarrs_cuda._pipeline import CodecPipeline, native_for
from zarrs_cuda._places import place
from zarrs_cuda._supported import UnsupportedError, check_path
from zarrs_cuda._words import by_python

if TYPE_CHECKING:
    from zarr.core.array import Array, AsyncArray


@dataclass(frozen=True)
class Explanation:
    """What reads and writes an array, and why.

    Attributes
    ----------
    pipeline : str
        The class of the pipeline that reads and writes.
    mode : str or None
        How shards are written; None if another pipeline writes them.
    why : str
        Why that pipeline.
    stages : str
        What happens to a chunk, and where; empty if another pipeline does it.
    one_by_one : int
        How many elements go through Python one by one when all of the array is read or written: all strings
        and byte strings of variable length. 0 if another pipeline does it.
    """

    pipeline: str
    mode: str | None
    why: str
    stages: str
    one_by_one: int = 0

    def __str__(self) -> str:
        mode = "" if self.mode is None else f", shards: {self.mode}"
        objects = f"\n{self.one_by_one} elements go through Python one by one" if self.one_by_one else ""
        return f"{self.pipeline}{mode}: {self.why}{objects}\n{self.stages}".rstrip()


def explain(array: Array[Any] | AsyncArray[Any]) -> Explanation:
    """Say what reads and writes an array, and why.

    Parameters
    ----------
    array
        An array of zarr-python.

    Returns
    -------
    Explanation
        For people: the text may change in any release.
    """
    asynchronous = opened(array)
    pipeline = asynchronous.codec_pipeline
    name = f"{type(pipeline).__module__}.{type(pipeline).__qualname__}"
    if not isinstance(pipeline, CodecPipeline):
        why = "`codec_pipeline.path` was not `zarrs_cuda.CodecPipeline` when the array was opened"
        return Explanation(name, None, why, "")
    found = place(asynchronous.store_path.store)
    metadata = asynchronous.metadata
    if pipeline._is_irregular:
        # Chunks of every shape are read and written alike.
        first = asynchronous._chunk_grid[(0,) * asynchronous.ndim]
        metadata = pipeline.of_chunks(
            (1,) * asynchronous.ndim if first is None else first.codec_shape
        )._metadata
    try:
        _devices.check_backend(pipeline._devices)
        refused = None
    except BackendUnavailable as error:
        refused = f"every read and every write is refused: {error}"
    try:
        check_path(asynchronous.store_path.path)
        ours = native_for(metadata, found, pipeline._mode, pipeline._devices)
    except UnsupportedError as error:
        other = type(pipeline.other)
        return Explanation(f"{other.__module__}.{other.__qualname__}", None, str(error), refused or "")
    match found:
        case None:
            where = "its values are given to the library, and taken from it"
        case str():
            where = "its values are files"
        case _:
            where = "its values are objects, which the library requests itself"
    stages = by_python(ours.explain(asynchronous.store_path.path, _settings.threads()))
    _devices.warn_of_missing(pipeline._devices, looks=ours.is_sharded)
    if ours.mode != "in_place":
        # The library says how it would update shards where they are.
        stages = re.sub(r"(?m)^partial writes:.*\n?", "", stages)
    if ours.mode == "shared":
        # The library says what it would do with whole shards.
        stages = re.sub(r"(?m)^(engine|estimated to|whole shards|the first shard).*\n?", "", stages)
        stages = f"subchunks are written and read one by one, on the host, whatever the backend\n{stages}"
    stages = refused or stages
    objects = asynchronous.size if ours.is_variable else 0
    return Explanation(name, ours.mode, where, stages, objects)
