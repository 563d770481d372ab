"""The codec pipeline: what zarr-python calls to read and write chunks."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from zarr.abc.codec import CodecPipeline as _CodecPipeline
from zarr.abc.codec import GetResult
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.codecs._v2 import V2Codec
from zarr.core import sync
from zarr.core.array import AsyncArray
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.codec_pipeline import BatchedCodecPipeline, codecs_from_list
from zarr.core.common import concurrent_map
from zarr.core.config import config
from zarr.core.metadata.v3 import ArrayV3Metadata, RegularChunkGridMetadata
from zarr.storage import MemoryStore, StorePath

from zarrs_cuda import _devices, _frames, _gpu_reads, _gpu_writes, _settings, _strings, _turns
from zarrs_cuda._errors import FallbackWarning, FramesPending, ShardError
from zarrs_cuda._interrupts import on_thread
from zarrs_cuda._masks import check_mask
from zarrs_cuda._native import native
from zarrs_cuda._places import place
from zarrs_cuda._selections import Met, Runs, around, is_box, met, runs
from zarrs_cuda._supported import (
    UnsupportedError,
    check_fill_value,
    check_path,
    has_shards,
    is_raw,
    is_sharded,
    metadata_text,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from zarr.abc.codec import Codec
    from zarr.abc.store import ByteGetter, ByteSetter, Store
    from zarr.core.buffer import Buffer, NDBuffer
    from zarr.core.dtype.wrapper import TBaseDType, TBaseScalar, ZDType
    from zarr.core.indexing import SelectorTuple
    from zarr.core.metadata import ArrayMetadata
    from zarr.core.metadata.v3 import ChunkGridMetadata

    from zarrs_cuda._internal import Native
    from zarrs_cuda._places import Place
    from zarrs_cuda._settings import Mode

    Batch = list[tuple[Any, ArraySpec, SelectorTuple, SelectorTuple, bool]]

# Reads of so few chunks and bytes are done by the thread of zarr-python's event loop,
_FEW, _QUICK = 4, 512 << 10
# unless one took so many seconds: then other threads do the next ones, until so many were in time.
_LATE, _IN_TIME = 0.002, 4

# Of so many chunks elements that are no boxes are read together.
_TOGETHER = 16

# How often a shard is read that is replaced meanwhile.
_ATTEMPTS = 3

# The reasons that were warned of, and the process that was.
_warned: set[tuple[int, str]] = set()


@dataclass
class Counts:
    """How many reads and writes there were, of each pipeline."""

    ours: int = 0
    other: int = 0


# Of this process, for arrays of Zarr v3.
counts = Counts()


class CodecPipeline(_CodecPipeline):
    """Reads and writes the chunks of an array by the library zarrs_cuda.

    zarr-python makes one for each array, if it is told to::

        zarr.config.set({"codec_pipeline.path": "zarrs_cuda.CodecPipeline"})

    What this package cannot do is left to zarr-python's own pipeline, with a
    :class:`FallbackWarning` for each reason, or is an error with ``codec_pipeline.strict``.

    Parameters
    ----------
    metadata
        The metadata of the array. Its shape is not used: it may change while the pipeline lives.
    store
        The store of the array.
    mode
        How shards are written.
    """

    def __init__(
        self, metadata: ArrayMetadata, store: Store, mode: Mode, devices: _devices.Devices | None = None
    ) -> None:
        self._metadata = metadata
        self._store = store
        self._mode = mode
        self._devices = devices if devices is not None else _devices.settings()
        self._forget()

    def _forget(self) -> None:
        # The native half; where it finds values, and whether it syncs them.
        self._native: tuple[tuple[Place | None, bool], Native] | None = None
        self._unsupported: str | None = None
        self._other: BatchedCodecPipeline | None = None
        # Of an irregular grid of chunks, the pipelines of each shape.
        self._of_chunks: dict[tuple[int, ...], CodecPipeline] = {}
        # The process that has looked for subchunks beside shards, and when.
        self._looked: tuple[int, float] = (0, 0.0)
        # The process that has checked that the GPUs that were asked for can be used.
        self._checked: int | None = None
        # How many reads have to be in time until the event loop's thread does them again.
        self._slow = 0

    def __getstate__(self) -> tuple[ArrayMetadata, Store, Mode, _devices.Devices]:
        return self._metadata, self._store, self._mode, self._devices

    def __setstate__(self, state: tuple[ArrayMetadata, Store, Mode, _devices.Devices]) -> None:
        self._metadata, self._store, self._mode, self._devices = state
        self._forget()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CodecPipeline):
            return NotImplemented
        return self.__getstate__() == other.__getstate__()

    def __hash__(self) -> int:
        return hash((CodecPipeline, self._mode))

    def __repr__(self) -> str:
        return f"CodecPipeline(store={self._store!r}, mode={self._mode!r})"

    # What zarr-python makes pipelines by.

    @classmethod
    def from_array_metadata_and_store(cls, array_metadata: ArrayMetadata, store: Store) -> Self:
        """Make the pipeline of an array.

        Parameters
        ----------
        array_metadata
            The metadata of the array.
        store
            The store of the array.

        Returns
        -------
        CodecPipeline
            A pipeline that keeps the mode of ``codec_pipeline.shards``.

        Raises
        ------
        ValueError
            If a setting of this package has a wrong value, or a key is almost one of this package's.
        """
        if isinstance(array_metadata, ArrayV3Metadata):
            # The advice that zarr-python's own pipelines give.
            codecs_from_list(array_metadata.codecs)
        _settings.check()
        return cls(array_metadata, store, _settings.mode(), _devices.settings())

    @classmethod
    def from_codecs(cls, codecs: Iterable[Codec]) -> Self:
        """Make a pipeline without a store: one of zarr-python, for the codec of shards.

        Parameters
        ----------
        codecs
            The codecs, in the order of encoding.
        """
        return BatchedCodecPipeline.from_codecs(codecs)  # type: ignore[return-value]

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> Self:  # noqa: ARG002
        """Return the pipeline: it has the metadata already."""
        return self

    # What works without the store is zarr-python's.

    @property
    def other(self) -> BatchedCodecPipeline:
        """zarr-python's own pipeline for the array."""
        if self._other is None:
            self._other = _zarr_python(self._metadata)
        return self._other

    def __iter__(self) -> Iterator[Codec]:
        yield from self.other

    @property
    def supports_partial_decode(self) -> bool:
        """Whether parts of a chunk can be decoded."""
        return self.other.supports_partial_decode

    @property
    def supports_partial_encode(self) -> bool:
        """Whether parts of a chunk can be encoded."""
        return self.other.supports_partial_encode

    def validate(
        self,
        *,
        shape: tuple[int, ...],
        dtype: ZDType[TBaseDType, TBaseScalar],
        chunk_grid: ChunkGridMetadata,
    ) -> None:
        """Check that the codecs fit the array."""
        self.other.validate(shape=shape, dtype=dtype, chunk_grid=chunk_grid)

    def compute_encoded_size(self, byte_length: int, array_spec: ArraySpec) -> int:
        """Return the size of a chunk of ``byte_length`` bytes, encoded."""
        return self.other.compute_encoded_size(byte_length, array_spec)

    async def decode(
        self, chunk_bytes_and_specs: Iterable[tuple[Buffer | None, ArraySpec]]
    ) -> Iterable[NDBuffer | None]:
        """Decode chunks."""
        return await self.other.decode(chunk_bytes_and_specs)

    async def encode(
        self, chunk_arrays_and_specs: Iterable[tuple[NDBuffer | None, ArraySpec]]
    ) -> Iterable[Buffer | None]:
        """Encode chunks."""
        return await self.other.encode(chunk_arrays_and_specs)

    # Reading and writing.

    async def read(
        self,
        batch_info: Iterable[tuple[ByteGetter, ArraySpec, SelectorTuple, SelectorTuple, bool]],
        out: NDBuffer,
        drop_axes: tuple[int, ...] = (),
    ) -> tuple[GetResult, ...]:
        """Read chunks, or parts of them, into ``out``.

        Parameters
        ----------
        batch_info
            For each chunk: where it is stored, its spec, the selection in the chunk, the selection
            in ``out``, and whether it is all of the chunk.
        out
            Where the elements go.
        drop_axes
            The axes of chunks that ``out`` does not have.

        Returns
        -------
        tuple of GetResult
            Whether each chunk is there.

        Raises
        ------
        BackendUnavailable
            If the backend is ``"cuda"``, and no GPU can be used.
        ShardError
            If a chunk cannot be decoded.
        OSError
            If the store fails.
        """
        batch: Batch = list(batch_info)
        if not batch:
            return ()
        if self._is_irregular:
            found: list[GetResult] = [GetResult(status="missing")] * len(batch)
            for shape, positions in _by_shape(batch):
                items = [batch[position] for position in positions]
                results = await self.of_chunks(shape).read(items, out, drop_axes)
                for position, result in zip(positions, results, strict=True):
                    found[position] = result
            return tuple(found)
        ours = self._for(batch)
        if ours is None:
            return await self.other.read(batch, out, drop_axes)
        with _named(batch):
            there = await self._read_ours(ours, batch, out, drop_axes)
        _devices.warn_of_missing(self._devices, looks=ours.is_sharded)
        if ours.is_sharded and not ours.is_shared and self._is_to_look():
            await _frames.look(batch[0][0].store, ours.path_of(batch[0][0].path))
        return tuple(GetResult(status="present" if is_there else "missing") for is_there in there)

    def _is_to_look(self) -> bool:
        """Return whether subchunks beside shards are to be looked for, and note that they are."""
        process, now = os.getpid(), time.monotonic()
        if self._looked[0] == process and now - self._looked[1] < _frames.AGAIN:
            return False
        self._looked = process, now
        return True

    async def _read_ours(
        self, ours: Native, batch: Batch, out: NDBuffer, drop_axes: tuple[int, ...]
    ) -> list[bool]:
        """Read chunks. Returns whether each is there."""
        values = await _values_to_read(ours, batch)
        target = out.as_ndarray_like()
        on_gpu = None if drop_axes else _gpu_reads.into_array(ours, batch, target, self._devices)
        if on_gpu is not None and await on_thread(on_gpu):
            return [True] * len(batch)
        host = target if isinstance(target, np.ndarray) else np.empty(out.shape, out.dtype)
        is_quick = not ours.makes_requests and len(batch) <= _FEW and host.nbytes <= _QUICK
        begin = time.perf_counter()
        # Sooner done than a thread is woken. The loops of applications have other work.
        if is_quick and self._slow == 0 and asyncio.get_running_loop() is sync.loop[0]:
            there = _read(ours, batch, host, drop_axes, values)
        else:
            there = await asyncio.to_thread(_read, ours, batch, host, drop_axes, values)
        if is_quick:
            is_late = time.perf_counter() - begin > _LATE
            self._slow = _IN_TIME if is_late else max(self._slow - 1, 0)
        if host is not target:
            # A device's buffer is set from a host buffer, not from a numpy array.
            with _gpu_reads.current(target):
                out[...] = cpu.NDBuffer.from_numpy_array(host)
        return there

    async def write(
        self,
        batch_info: Iterable[tuple[ByteSetter, ArraySpec, SelectorTuple, SelectorTuple, bool]],
        value: NDBuffer,
        drop_axes: tuple[int, ...] = (),
    ) -> None:
        """Write ``value`` to chunks, or to parts of them.

        Parameters
        ----------
        batch_info
            For each chunk: where it is stored, its spec, the selection in the chunk, the selection
            in ``value``, and whether it is all of the chunk.
        value
            The elements.
        drop_axes
            The axes of chunks that ``value`` does not have.

        Raises
        ------
        FramesPending
            If subchunks are stored beside a shard.
        BackendUnavailable
            If the backend is ``"cuda"``, and no GPU can be used.
        ShardError
            If a chunk is changed in part and cannot be decoded.
        ValueError
            If elements are masked.
        OSError
            If the store fails.
        """
        batch: Batch = list(batch_info)
        if not batch:
            return
        check_mask(value.as_ndarray_like())
        # Elements on a GPU are copied once, and only if zarr-python does not write them: behind the work in
        # the stream of this thread, on another one, while the event loop goes on.
        copying = _gpu_writes.copying(value)
        copied: list[np.ndarray[Any, Any]] = []

        async def elements() -> np.ndarray[Any, Any]:
            if not copied:
                copied.append(value.as_numpy_array() if copying is None else await on_thread(copying))
            return copied[0]

        if not self._is_irregular:
            await self._write_regular(batch, value, elements, drop_axes)
            return
        for shape, positions in _by_shape(batch):
            items = [batch[position] for position in positions]
            await self.of_chunks(shape)._write_regular(items, value, elements, drop_axes)

    async def _write_regular(
        self,
        batch: Batch,
        value: NDBuffer,
        elements: Callable[[], Awaitable[np.ndarray[Any, Any]]],
        drop_axes: tuple[int, ...],
    ) -> None:
        """Write to chunks of one shape. ``elements`` returns the elements of ``value`` on the host."""
        ours = self._for(batch)
        if ours is None:
            await self.other.write(batch, value, drop_axes)
            return
        store = batch[0][0].store
        store._check_writable()
        await store._ensure_open()
        host = await elements()
        with _named(batch):
            try:
                values = await _values_to_change(ours, batch)
                changes = await _to_its_end(_write, ours, batch, host, drop_axes, values)
            except FramesPending as pending:
                pending.resized = await self._resized(store, pending.array)
                raise
            if changes:
                await _store(batch, changes)
        _devices.warn_of_missing(self._devices, looks=ours.is_sharded)

    async def _resized(self, store: Store, path: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return the shape that the array had when it was opened, and the stored one, if they differ.

        zarr-python resizes an array without asking its pipeline, which keeps the metadata from before.
        """
        before = tuple(self._metadata.shape)
        try:
            now = (await AsyncArray.open(StorePath(store, path))).shape
        except Exception:
            # The error that is about to be raised is the one to report.
            return None
        return None if now == before else (before, now)

    @property
    def _is_irregular(self) -> bool:
        metadata = self._metadata
        return isinstance(metadata, ArrayV3Metadata) and not isinstance(
            metadata.chunk_grid, RegularChunkGridMetadata
        )

    def of_chunks(self, shape: tuple[int, ...]) -> CodecPipeline:
        """Return the pipeline of the chunks of one shape. Chunks of an irregular grid have several shapes.

        Parameters
        ----------
        shape
            The shape of chunks, in elements.
        """
        known = self._of_chunks.get(shape)
        if known is None:
            grid = RegularChunkGridMetadata(chunk_shape=shape)
            # Another array for the native half: where chunks begin does not matter.
            metadata = replace(cast("ArrayV3Metadata", self._metadata), chunk_grid=grid)
            known = CodecPipeline(metadata, self._store, self._mode, self._devices)
            if self._mode == "shared" and is_sharded(metadata):
                known._unsupported = "its chunk grid is not regular"
            self._of_chunks[shape] = known
        return known

    def _for(self, batch: Batch) -> Native | None:
        """Return the native half for a batch, or None if zarr-python is to do it.

        Raises
        ------
        BackendUnavailable
            If the backend is ``"cuda"``, and no GPU can be used: no other half may do the work in silence.
        """
        if self._checked != os.getpid():
            _devices.check_backend(self._devices)
            self._checked = os.getpid()
        where = batch[0][0]
        if not isinstance(where, StorePath):
            self._fall_back(f"chunks are in a {type(where).__name__}, and not in a store")
            return None
        store = where.store
        found = place(store)
        key = found, _settings.syncs()
        known = self._native
        if known is None or known[0] != key:
            if self._unsupported is not None:
                self._fall_back(self._unsupported)
                return None
            try:
                check_path(where.path)
                known = key, native_for(self._metadata, found, self._mode, self._devices)
            except UnsupportedError as error:
                self._unsupported = str(error)
                self._fall_back(self._unsupported)
                return None
            self._native = known
        counts.ours += 1
        return known[1]

    def _fall_back(self, why: str) -> None:
        """Warn, or raise, because zarr-python's own pipeline is used."""
        if self._mode != "rewrite" and has_shards(self._metadata):
            msg = (
                f"shards of this array cannot be read and written as `codec_pipeline.shards` was set when "
                f"it was opened, {self._mode!r}: {why}"
            )
            raise ValueError(msg)
        if _settings.is_strict():
            msg = f"zarrs_cuda cannot read and write this array, and `codec_pipeline.strict` is set: {why}"
            raise ValueError(msg)
        if not isinstance(self._metadata, ArrayV3Metadata):
            return
        counts.other += 1
        key = os.getpid(), why
        if key in _warned:
            return
        _warned.add(key)
        warnings.warn(
            f"zarr-python's own pipeline reads and writes an array: {why}",
            FallbackWarning,
            stacklevel=3,
        )


@contextlib.contextmanager
def _named(batch: Batch) -> Iterator[None]:
    """Tell errors in which store the array is."""
    try:
        yield
    except (FramesPending, ShardError) as error:
        error.store = str(batch[0][0].store)
        raise


def _by_shape(batch: Batch) -> Iterable[tuple[tuple[int, ...], list[int]]]:
    """Return the positions of the items of each shape of chunks."""
    found: dict[tuple[int, ...], list[int]] = {}
    for position, item in enumerate(batch):
        found.setdefault(item[1].shape, []).append(position)
    return found.items()


def native_for(
    metadata: ArrayMetadata, found: Place | None, mode: Mode, devices: _devices.Devices | None = None
) -> Native:
    """Make the native half of a pipeline.

    Parameters
    ----------
    metadata
        The metadata of the array.
    found
        Where the values of the store are, if the library reads and writes them.
    mode
        How shards are written.
    devices
        The settings of devices with which the array was opened; None for calls that encode nothing.

    Raises
    ------
    UnsupportedError
        If it cannot read and write such arrays.
    """
    text = metadata_text(metadata)
    if mode == "shared" and is_sharded(metadata) and is_raw(metadata):
        msg = f"zarrs has no type {metadata.dtype!r}, as which others would see subchunks beside their shards"
        raise UnsupportedError(msg)
    try:
        ours: Native = native().Native(text, found, mode, devices, sync=_settings.syncs())
    except ValueError as error:
        raise UnsupportedError(str(error)) from error
    check_fill_value(metadata, ours.fill_value())
    return ours


def _zarr_python(metadata: ArrayMetadata) -> BatchedCodecPipeline:
    """Make the pipeline that zarr-python would make for an array."""
    if isinstance(metadata, ArrayV3Metadata):
        grid = metadata.chunk_grid
        shape = (1,) * len(metadata.shape)
        if isinstance(grid, RegularChunkGridMetadata):
            shape = grid.chunk_shape
        made = BatchedCodecPipeline.from_codecs(metadata.codecs)
        settings = ArrayConfig.from_dict({})
    else:
        shape = metadata.chunks
        v2 = V2Codec(filters=metadata.filters, compressor=metadata.compressor)
        made = BatchedCodecPipeline.from_codecs([v2])
        settings = ArrayConfig.from_dict({"order": metadata.order})
    spec = ArraySpec(
        shape=shape,
        dtype=metadata.dtype,
        fill_value=metadata.fill_value,
        config=settings,
        prototype=default_buffer_prototype(),
    )
    return made.evolve_from_array_spec(spec)


# What waits for the store, before and after the native call.


async def _values_to_read(ours: Native, batch: Batch) -> dict[str, Any] | None:
    """Get what a read needs of the values, by their keys; None if the library reads the store."""
    store = batch[0][0].store
    if not ours.takes_values:
        return None
    if type(store) is MemoryStore:
        return _in_memory(store, [item[0] for item in batch])
    read = _part if ours.is_sharded and not ours.decodes_whole else _whole
    values = await concurrent_map([(ours, item) for item in batch], read, config.get("async.concurrency"))
    return {item[0].path: value for item, value in zip(batch, values, strict=True)}


async def _values_to_change(ours: Native, batch: Batch) -> dict[str, Any] | None:
    """Get the values of which a write keeps a part, by their keys; None if the library reads the store."""
    store = batch[0][0].store
    if not ours.takes_values:
        return None
    if ours.is_sharded:
        await _check_frames(ours, store, [item[0].path for item in batch])
    # Of a shard, what is behind the end of the array is kept.
    wanted = [item for item in batch if not (_is_all(item) if ours.is_sharded else item[4])]
    if type(store) is MemoryStore:
        return _in_memory(store, [item[0] for item in wanted])
    values = await concurrent_map([(ours, item) for item in wanted], _whole, config.get("async.concurrency"))
    return {item[0].path: value for item, value in zip(wanted, values, strict=True)}


async def _check_frames(ours: Native, store: Store, shards: list[str]) -> None:
    """Check that no subchunks of shards are stored beside them: they would hide what is written."""
    if not _frames.may_have_frames(store) or not await _frames.is_marked(store, ours.path_of(shards[0])):
        return

    async def check(shard: str) -> None:
        async for name in store.list_dir(f"{shard}.frame"):
            if name.endswith(".chunk"):
                raise FramesPending(ours.path_of(shard), shard)

    await concurrent_map([(shard,) for shard in shards], check, config.get("async.concurrency"))


def _in_memory(store: MemoryStore, wanted: list[StorePath]) -> dict[str, Any]:
    prototype = cpu.buffer_prototype
    values = {where.path: store.get_sync(where.path, prototype=prototype) for where in wanted}
    return {key: None if value is None else value.as_numpy_array() for key, value in values.items()}


def _is_all(item: tuple[Any, ...]) -> bool:
    """Return whether an item selects all elements of its chunk, in order."""
    _, spec, selection, *_ = item
    return (
        isinstance(selection, tuple)
        and len(selection) == len(spec.shape)
        and all(
            isinstance(entry, slice) and entry.indices(extent) == (0, extent, 1)
            for entry, extent in zip(selection, spec.shape, strict=True)
        )
    )


async def _whole(_ours: Native, item: tuple[Any, ...]) -> Any:
    value = await item[0].get(prototype=cpu.buffer_prototype)
    return None if value is None else value.as_numpy_array()


async def _part(ours: Native, item: tuple[Any, ...]) -> Any:
    """Get the index of a shard, and the subchunks that an item selects."""
    where, spec, selection, *_ = item
    if _is_all(item):
        return await _whole(ours, item)
    # Elements without a fixed size are read by boxes.
    is_boxes = ours.is_variable or is_box(selection)
    subchunks = None if is_boxes else met(selection, spec.shape, ours.subchunk)
    if subchunks is not None:
        starts, shape = subchunks.starts, subchunks.shape
    else:
        box = around(selection, spec.shape)
        starts = [] if box is None else [[entry.start for entry in box[0]]]
        shape = () if box is None else box[2]
    is_at_end, length = ours.index_range()
    place = SuffixByteRequest(length) if is_at_end else RangeByteRequest(0, length)

    async def read_index() -> Any:
        index = await where.get(prototype=cpu.buffer_prototype, byte_range=place)
        return None if index is None else index.as_numpy_array()

    index = await read_index()
    for _ in range(_ATTEMPTS):
        if index is None:
            return None
        parts: list[tuple[int | None, Any]] = [(None if is_at_end else 0, index)]
        failure: Exception | None = None
        try:
            ranges = ours.ranges(where.path, index, starts, shape)
            if not ranges:
                return parts
            found = await _parts_of(where, spec, ranges)
            if found is None:
                return None
            parts += found
        except Exception as error:
            failure = error
        # Another shard may have come between the requests: what was read is of both.
        again = await read_index()
        if again is None:
            return None
        if np.array_equal(again, index):
            if failure is not None:
                raise failure
            return parts
        index = again
    msg = f"the shard {where.path!r} was replaced {_ATTEMPTS} times while it was read: read it again later"
    raise RuntimeError(msg)


async def _parts_of(
    where: StorePath, spec: ArraySpec, ranges: list[tuple[int, int]]
) -> list[tuple[int | None, Any]] | None:
    """Get ranges of a shard: where each begins, and its bytes; None if the shard was deleted."""
    parts: list[tuple[int | None, Any]] = []
    is_there = True
    try:
        async for group in where.store.get_ranges(
            where.path,
            [RangeByteRequest(*ends) for ends in ranges],
            prototype=cpu.buffer_prototype,
            max_gap_bytes=spec.config.sharding_coalesce_max_gap_bytes,
            max_coalesced_bytes=spec.config.sharding_coalesce_max_bytes,
        ):
            parts += [
                (ranges[number][0], value.as_numpy_array()) for number, value in group if value is not None
            ]
    except* FileNotFoundError:
        is_there = False
    return parts if is_there else None


async def _to_its_end[T](work: Callable[..., T], *arguments: Any) -> T:
    """Do work on a thread, and wait for it even if the caller is cancelled.

    What a cancelled write still stored would else come after a later write.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


async def _store(batch: Batch, changes: dict[str, Any]) -> None:
    """Store what a write changed."""
    store = batch[0][0].store
    buffers = {
        key: None if value is None else cpu.Buffer.from_array_like(value) for key, value in changes.items()
    }
    if type(store) is MemoryStore:
        for key, value in buffers.items():
            if value is None:
                store.delete_sync(key)
            else:
                store.set_sync(key, value)
        return

    async def put(where: StorePath) -> None:
        value = buffers[where.path]
        if value is None:
            await where.delete()
        else:
            await where.set(value)

    await concurrent_map(
        [(item[0],) for item in batch if item[0].path in buffers],
        put,
        config.get("async.concurrency"),
    )


# What runs on a thread, most of it without the GIL.


def _read(
    ours: Native,
    batch: Batch,
    out: Any,
    drop_axes: tuple[int, ...],
    values: dict[str, Any] | None,
) -> list[bool]:
    if ours.is_variable:
        return _strings.read(ours, batch, out, drop_axes, values)
    threads = _settings.threads()
    # What is of another type, or not in the order of this machine, numpy converts.
    dtype = batch[0][1].dtype.to_native_dtype()
    boxes = out.dtype == dtype and dtype.isnative and out.flags.writeable
    found, others = ours.read(batch, out, drop_axes, values, threads, boxes=boxes)
    sparse: list[tuple[int, Met]] = []
    boxes_around: list[tuple[int, tuple[Any, ...]]] = []
    for position in others:
        _, spec, selection, *_ = batch[position]
        subchunks = met(selection, spec.shape, ours.subchunk)
        if subchunks is not None:
            sparse.append((position, subchunks))
            continue
        box = around(selection, spec.shape)
        if box is not None:
            boxes_around.append((position, box))

    def put(position: int, selected: Any) -> None:
        out[batch[position][3]] = selected.squeeze(axis=drop_axes) if drop_axes else selected

    native = dtype.newbyteorder("=")
    for some in itertools.batched(sparse, _TOGETHER):
        wanted = [(batch[position][0].path, subchunks.starts) for position, subchunks in some]
        part = np.empty((sum(len(starts) for _, starts in wanted), *some[0][1].shape), native)
        are_there = ours.read_subchunks(wanted, part, values, threads)
        at = 0
        for (position, subchunks), is_there in zip(some, are_there, strict=True):
            found[position] = is_there
            of_chunk = part[at : at + len(subchunks.starts)]
            put(position, of_chunk[subchunks.index].reshape(subchunks.selected))
            at += len(subchunks.starts)
    # Requests wait together; files are sooner read one by one, in less memory.
    together = _TOGETHER if ours.makes_requests else 1
    for group in itertools.batched(boxes_around, together):
        shapes = [shape for _, (_, _, shape) in group]
        part = np.empty((len(group), *(max(extents) for extents in zip(*shapes, strict=True))), native)
        inside: list[tuple[Any, ...]] = [
            (number, *(slice(0, extent) for extent in shape)) for number, shape in enumerate(shapes)
        ]
        items = [
            (*batch[position][:2], box[0], of_part, False)
            for (position, box), of_part in zip(group, inside, strict=True)
        ]
        are_there, _ = ours.read(items, part, (), values, threads, boxes=True)
        for (position, box), of_part, is_there in zip(group, inside, are_there, strict=True):
            found[position] = is_there
            put(position, part[of_part][box[1]])
    return found


def _write(
    ours: Native,
    batch: Batch,
    value: Any,
    drop_axes: tuple[int, ...],
    values: dict[str, Any] | None,
) -> dict[str, Any]:
    if ours.is_variable:
        return _strings.write(ours, batch, value, drop_axes, values)
    threads = _settings.threads()
    # zarr-python converts no fields, and no byte order.
    value = value.astype(batch[0][1].dtype.to_native_dtype().newbyteorder("="), copy=False)
    # The library reads memory forwards.
    if any(stride < 0 for stride in value.strides):
        value = np.ascontiguousarray(value)
    store = str(batch[0][0].store)
    takes_turns = ours.is_sharded and not ours.is_shared
    turns = _turns.TURNS
    with turns.shared((store, item[0].path) for item in batch) if takes_turns else contextlib.nullcontext():
        changes, others = ours.write(batch, value, drop_axes, values, threads, boxes=True)
    for position in others:
        where, spec, selection, _, is_complete = batch[position]
        shard = store, where.path
        if takes_turns and not is_complete:
            # Elements between those that are selected are not read here and written again: another thread, or
            # process, may write them meanwhile.
            found = runs(selection, spec.shape)
            if found is not None:
                with turns.shared([shard]):
                    changes.update(_write_runs(ours, batch[position], found, value, drop_axes, values))
                continue
        # In shared shards, all of the box around them would overwrite what others write between them.
        subchunks = met(selection, spec.shape, ours.subchunk, most=1 if ours.is_shared else 0.5)
        with turns.alone(shard) if takes_turns else contextlib.nullcontext():
            if subchunks is not None:
                changes.update(_write_subchunks(ours, batch[position], subchunks, value, drop_axes, values))
            else:
                changes.update(_write_around(ours, batch[position], value, drop_axes, values))
    return changes


def _write_around(
    ours: Native,
    item: tuple[Any, ...],
    value: Any,
    drop_axes: tuple[int, ...],
    values: dict[str, Any] | None,
) -> dict[str, Any]:
    """Write the box around a selection."""
    where, spec, selection, out_selection, is_complete = item
    threads = _settings.threads()
    box = around(selection, spec.shape)
    if box is None:
        return {}
    if ours.is_shared:
        msg = f"elements selected by {selection!r} cannot be written to shared shards"
        raise ValueError(msg)
    of_chunk, inner, shape = box
    part = np.empty(shape, value.dtype)
    everything = (slice(None),) * len(shape)
    if not is_complete:
        ours.read([(where, spec, of_chunk, everything, False)], part, (), values, threads, boxes=True)
    part[inner] = _selected(value, out_selection, drop_axes, len(shape))
    whole = where, spec, of_chunk, everything, is_complete
    changes, _ = ours.write([whole], part, (), values, threads, boxes=True)
    return changes


def _selected(value: Any, out_selection: Any, drop_axes: tuple[int, ...], axes: int) -> Any:
    """Return the elements for one chunk, with the axes that ``value`` does not have."""
    if value.shape == ():
        return value
    selected = value[out_selection]
    if not drop_axes:
        return selected
    return selected[tuple(None if axis in drop_axes else slice(None) for axis in range(axes))]


def _write_runs(
    ours: Native,
    item: tuple[Any, ...],
    found: Runs,
    value: Any,
    drop_axes: tuple[int, ...],
    values: dict[str, Any] | None,
) -> dict[str, Any]:
    """Write the elements of a selection, and no others, by one change of their shard."""
    where, spec, _, out_selection, _ = item
    if not found.boxes:
        return {}
    selected = _selected(value, out_selection, drop_axes, len(spec.shape))
    if selected.shape == ():
        part = np.full(len(found.order), selected, value.dtype)
    else:
        part = np.ascontiguousarray(selected.reshape(-1)[found.order])
    boxes = [(where, spec, box, (end,), False) for box, end in zip(found.boxes, found.ends, strict=True)]
    changes, _ = ours.write(boxes, part, (), values, _settings.threads(), boxes=True)
    return changes


def _write_subchunks(
    ours: Native,
    item: tuple[Any, ...],
    subchunks: Met,
    value: Any,
    drop_axes: tuple[int, ...],
    values: dict[str, Any] | None,
) -> dict[str, Any]:
    """Write the subchunks that a selection meets, and no others."""
    where, spec, _, out_selection, _ = item
    threads = _settings.threads()
    part = np.empty((len(subchunks.starts), *subchunks.shape), value.dtype)
    ours.read_subchunks([(where.path, subchunks.starts)], part, values, threads)
    selected = _selected(value, out_selection, drop_axes, len(subchunks.shape))
    if selected.shape != ():
        selected = selected.reshape(np.broadcast_shapes(*(axis.shape for axis in subchunks.index)))
    part[subchunks.index] = selected
    boxes = []
    for number, start in enumerate(subchunks.starts):
        of_chunk = tuple(slice(s, s + size) for s, size in zip(start, subchunks.shape, strict=True))
        boxes.append((where, spec, of_chunk, (number,), False))
    changes, _ = ours.write(boxes, part, (), values, threads, boxes=True)
    return changes
