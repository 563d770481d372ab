"""Readers of boxes."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Never, overload

import numpy as np
from zarr.core.array import Array, AsyncArray
from zarr.core.common import concurrent_map
from zarr.core.config import config
from zarr.core.sync import sync

from zarrs_cuda import _devices, _frames, _gpu_reads, _settings
from zarrs_cuda._arrays import opened
from zarrs_cuda._interrupts import interruptible
from zarrs_cuda._native import native
from zarrs_cuda._pipeline import CodecPipeline
from zarrs_cuda._places import place, place_of_shards
from zarrs_cuda._supported import has_shards
from zarrs_cuda._words import by_python
from zarrs_cuda._writers import native_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from zarrs_cuda._internal import DeviceTensor

    type AnyArray = Array[Any] | AsyncArray[Any]
    type Elements = np.ndarray[Any, Any]

# A read of files of so few bytes and boxes ends before Ctrl-C is noticed.
_QUICK, _FEW = 64 << 10, 16


class ArrayReader:
    """Reads boxes of an array straight to their place, many at once.

    A reader can be pickled, by its array: the other process makes a reader of its own. Ctrl-C raises
    ``KeyboardInterrupt`` at once. What was being read then goes on in a thread to its end, and ``out`` may
    still change until then.

    Parameters
    ----------
    array
        An array of zarr-python. Arrays in a ``LocalStore``, or in an ``ObjectStore`` that is not in memory,
        are read by the library itself. Those in other stores are read through zarr-python and
        :class:`CodecPipeline`, which is slower: each box by itself. :meth:`explain` says which.
    shared
        Whether to see the subchunks that are stored beside their shards. By default as the array does
        that was opened with ``codec_pipeline.shards`` set to ``"shared"``.
    dtype
        The type of the elements that are returned. By default that of the array, in the byte order of
        this machine.
    subchunk_cache
        How many bytes of decoded subchunks are kept for the next calls. Use it for shards that do not change.
        None of shared shards, and of arrays that are read through zarr-python.
    fill
        Whether a box may leave the array: its elements there are the fill value. The bounds of slices count
        from the first element of the array then, and may be negative or behind its end.

    Raises
    ------
    BackendUnavailable
        If the backend is ``"cuda"``, and no GPU can be used.
    TypeError
        If it is no array, or numpy does not convert its elements to ``dtype`` by the rule "same_kind".
    ValueError
        If the array cannot be read so: the message says why.
    """

    def __init__(
        self,
        array: AnyArray,
        *,
        shared: bool | None = None,
        dtype: npt.DTypeLike | None = None,
        subchunk_cache: int = 0,
        fill: bool = False,
    ) -> None:
        self._array = opened(array)
        if shared is None:
            mode = getattr(self._array.codec_pipeline, "_mode", "rewrite")
            shared = mode == "shared" and has_shards(self._array.metadata)
        if subchunk_cache < 0 or (shared and subchunk_cache):
            msg = (
                f"`subchunk_cache` is {subchunk_cache}, and must be "
                f"{'0 for shared shards, which change' if shared else 'a number of bytes'}"
            )
            raise ValueError(msg)
        self._shared, self._cache, self._fill = shared, subchunk_cache, fill
        self._stored_type = native_type(self._array)
        self._dtype = self._stored_type if dtype is None else np.dtype(dtype)
        if not np.can_cast(self._stored_type, self._dtype, "same_kind"):
            msg = (
                f"elements of the type {self._stored_type} are not read as {self._dtype}, which is of "
                "another kind: read them as they are, and convert them (`astype`)"
            )
            raise TypeError(msg)
        pipeline = self._array.codec_pipeline
        self._devices = pipeline._devices if isinstance(pipeline, CodecPipeline) else _devices.settings()
        _devices.check_backend(self._devices)
        self._reader = self._made()

    def _made(self) -> Any:
        where = self._array.store_path
        found = place_of_shards(where.store) if self._shared else place(where.store)
        self._is_quick = isinstance(found, str)
        if found is None:
            return _Asked(self._array)
        if not self._shared and has_shards(self._array.metadata):
            _frames.look_at(found, where.store, where.path)
        threads = _settings.threads()
        return native().Reader(
            found, where.path, threads, self._devices, shared=self._shared, subchunk_cache=self._cache
        )

    def __getstate__(self) -> dict[str, Any]:
        return {
            "array": self._array,
            "shared": self._shared,
            "dtype": self._dtype,
            "subchunk_cache": self._cache,
            "fill": self._fill,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        ArrayReader.__init__(self, state.pop("array"), **state)

    def __repr__(self) -> str:
        shared = ", shared=True" if self._shared else ""
        return (
            f"ArrayReader({str(self._array.store_path)!r}, shape={self.shape}, dtype={self._dtype}{shared})"
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the array had when the reader was made, or by the last :meth:`refresh`."""
        return tuple(self._reader.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements that are returned."""
        return self._dtype

    @property
    def _shard(self) -> tuple[int, ...]:
        """The shape of a shard, or of a chunk if the array has no shards."""
        return self._array.shards or self._array.chunks

    @property
    def _bytes_of_element(self) -> int:
        """How many bytes a read takes, at most, for each element that it returns."""
        stored = 0 if self._dtype == self._stored_type else self._stored_type.itemsize
        return self._dtype.itemsize + stored

    def refresh(self) -> tuple[int, ...]:
        """Read the shape of the array again, and forget what is kept of its shards.

        Returns
        -------
        tuple of int
            The shape that the array has now.
        """
        # A new array: the caller's own keeps its shape.
        self._array = _again(self._array)
        self._reader = self._made()
        return self.shape

    @overload
    def read(self, *box: slice, out: Elements | None = None, device: None = None) -> Elements: ...

    @overload
    def read[T](self, *box: slice, out: T, device: Any = None, stream: Any = None) -> T: ...

    @overload
    def read(self, *box: slice, device: Any) -> Elements | DeviceTensor: ...

    def read(self, *box: slice, out: Any = None, device: Any = None, stream: Any = None) -> Any:
        """Read a box.

        Parameters
        ----------
        *box
            A slice for each axis, without a step. Axes that are left out are read whole.
        out
            Where the elements go; by default a new array. It is a numpy array, or memory of a GPU that can be
            written: what has ``__dlpack__``, such as arrays of CuPy and tensors of PyTorch, or
            ``__cuda_array_interface__`` alone. Its axes may be strided.
        device
            The GPU to whose memory the elements go: its number, a name such as ``"cuda:1"``, or ``"cuda"``
            for the first one that was asked for. It must be one that :func:`configure` or the environment
            asked for when the array was opened. The elements have the type of the array, and the box is
            inside of the array. ``"cpu"`` is the same as None: the memory of the host. An ``out`` on a GPU
            needs no ``device``, unless it has no ``__dlpack__``.
        stream
            The stream that orders the use of an ``out`` on a GPU: a handle, or a stream of CuPy or PyTorch.
            By default the legacy default stream, as theirs are, or the stream that an ``out`` without
            ``__dlpack__`` names. Only the current stream of the library of ``out``, on the current GPU, is
            waited for: work of other streams on the memory has to be complete. The elements are written
            behind the work that is in this stream now, and before work that is enqueued there later. The call
            returns when they are right and their copies are enqueued. Work in other streams has to wait for
            this one. The stream belongs to the GPU's primary context, as those of CuPy and PyTorch do.

        Returns
        -------
        numpy.ndarray, DeviceTensor or object
            The elements: ``out``, if it was given, and a tensor on a GPU, if one was named. A tensor is
            complete: no stream has to wait for it.

        Raises
        ------
        ValueError
            If the box is not in the array, or ``out`` does not fit it, or the array is not one that is read
            into the memory of a GPU.
        BackendUnavailable
            If nothing can be read into the memory of the GPU: the message says why. If it says
            that the GPU may still write an ``out``, do not use it again before the process ends.
        ShardError
            If a shard cannot be decoded.
        OSError
            If a file cannot be read, or a shard cannot be decoded although its bytes may be right.
        MemoryError
            If there is no memory.
        """
        shape = self.shape
        are_slices = all(isinstance(entry, slice) and entry.step in (None, 1) for entry in box)
        if len(box) > len(shape) or not are_slices:
            msg = f"a box has up to {len(shape)} slices without steps, and this is {box}"
            raise ValueError(msg)
        box = box + (slice(None),) * (len(shape) - len(box))
        ends = [self._ends(axis, entry) for axis, entry in enumerate(box)]
        start = [begin for begin, _ in ends]
        extents = tuple(max(stop - begin, 0) for begin, stop in ends)
        if self._is_elsewhere(out, device, stream):
            leaves = any(
                begin < 0 or begin + size > extent
                for begin, size, extent in zip(start, extents, shape, strict=True)
            )
            wanted = _gpu_reads.Wanted([start], extents, many=False, leaves=leaves)
            found = _gpu_reads.read(self, wanted, out, device, stream)
            if found is not None:
                return found
        out = self._output(out, extents)
        self._run(out, 1, lambda: self._into(out, lambda part: self._read_box(start, part)))
        return out

    def _ends(self, axis: int, entry: slice) -> tuple[int, int]:
        extent = self.shape[axis]
        if self._fill:
            return (
                0 if entry.start is None else int(entry.start),
                extent if entry.stop is None else int(entry.stop),
            )
        least = -extent
        for bound in (entry.start, entry.stop):
            if bound is not None and not least <= bound <= extent:
                raise ValueError(self._outside(f"the box is {_told(entry)} along axis {axis}", axis))
        start, stop, _ = entry.indices(extent)
        return start, stop

    def _outside(self, what: str, axis: int) -> str:
        """Return a message about a box that leaves the array, which may have grown."""
        message = f"{what}, and the array has {self.shape[axis]} elements there"
        try:
            now = _again(self._array).shape
        except Exception:
            # The box is what is wrong.
            now = self.shape
        if now == self.shape:
            return f"{message}; with `fill=True` a reader fills what is outside"
        return (
            f"{message}, as this reader knows it. Its shape is {now} by now: call `refresh()` of the reader"
        )

    @overload
    def read_boxes(
        self,
        origins: Sequence[Sequence[int]] | Elements,
        shape: Sequence[int],
        out: Elements | None = None,
        *,
        device: None = None,
    ) -> Elements: ...

    @overload
    def read_boxes[T](
        self,
        origins: Sequence[Sequence[int]] | Elements,
        shape: Sequence[int],
        out: T,
        *,
        device: Any = None,
        stream: Any = None,
    ) -> T: ...

    @overload
    def read_boxes(
        self, origins: Sequence[Sequence[int]] | Elements, shape: Sequence[int], *, device: Any
    ) -> Elements | DeviceTensor: ...

    def read_boxes(
        self,
        origins: Sequence[Sequence[int]] | Elements,
        shape: Sequence[int],
        out: Any = None,
        *,
        device: Any = None,
        stream: Any = None,
    ) -> Any:
        """Read many boxes of one shape. Each subchunk is read and decoded once.

        Boxes that are larger than the array, with ``fill``, are read one by one.

        Parameters
        ----------
        origins
            The first element of each box, for each axis.
        shape
            The shape of a box.
        out
            Where the elements go, as of :meth:`read`; by default a new array.
        device
            The GPU to whose memory the elements go, as of :meth:`read`.
        stream
            The stream that orders the use of an ``out`` on a GPU, as of :meth:`read`.

        Returns
        -------
        numpy.ndarray, DeviceTensor or object
            The elements, with an axis for the boxes in front: ``out``, if it was given, and a tensor on a
            GPU, if one was named.

        Raises
        ------
        ValueError
            If a box is not in the array, or ``out`` does not fit, or the array is not one that is read into
            the memory of a GPU.
        BackendUnavailable
            If nothing can be read into the memory of the GPU: the message says why. If it says
            that the GPU may still write an ``out``, do not use it again before the process ends.
        ShardError
            If a shard cannot be decoded.
        OSError
            If a file cannot be read, or a shard cannot be decoded although its bytes may be right.
        MemoryError
            If there is no memory.
        """
        places, leaves = self._places(origins, shape)
        if self._is_elsewhere(out, device, stream):
            wanted = _gpu_reads.Wanted(places.tolist(), tuple(shape), many=True, leaves=bool(leaves.any()))
            found = _gpu_reads.read(self, wanted, out, device, stream)
            if found is not None:
                return found
        out = self._output(out, (len(places), *shape))
        crossing = leaves.any(axis=1)

        def read(part: Elements) -> None:
            starts: list[list[int]] = places.tolist()
            if any(map(operator.gt, shape, self.shape)):
                for start, box in zip(starts, part, strict=True):
                    self._read_box(start, box)
                return
            # The next boxes that are in the array, whose elements are then moved.
            last = [extent - size for extent, size in zip(self.shape, shape, strict=True)]
            inside = list(starts)
            for number in np.flatnonzero(crossing):
                inside[number] = [
                    min(max(at, 0), most) for at, most in zip(starts[number], last, strict=True)
                ]
            self._reader.read_boxes_into(inside, part)
            for number in np.flatnonzero(crossing):
                self._move(part[number], list(map(operator.sub, starts[number], inside[number])))

        self._run(out, len(places), lambda: self._into(out, read))
        return out

    def _places(
        self, origins: Sequence[Sequence[int]] | Elements, shape: Sequence[int]
    ) -> tuple[Elements, Elements]:
        """Return the origins of boxes as an array, and where boxes leave the array, after checks."""
        places = np.asarray(origins)
        if not places.size:
            places = np.empty((0, len(self.shape)), np.int64)
        if len(shape) != len(self.shape):
            msg = f"boxes of {len(self.shape)} axes are asked for with {len(shape)} extents, {tuple(shape)}"
            raise ValueError(msg)
        if any(extent < 0 for extent in shape):
            msg = f"boxes of the shape {tuple(shape)} are asked for, and no extent is below 0"
            raise ValueError(msg)
        if places.ndim != 2 or places.shape[1] != len(self.shape) or places.dtype.kind not in "iu":
            msg = (
                f"each box begins at {len(self.shape)} integers, and these origins have the type "
                f"{places.dtype} and the shape {places.shape}"
            )
            raise ValueError(msg)
        # No origin is wrapped around, and no sum.
        beyond = places > np.array(self.shape, np.int64) - np.array(shape, np.int64)
        leaves = (places < 0) | beyond
        if leaves.any() and not self._fill:
            number, axis = (int(at) for at in np.argwhere(leaves)[0])
            origin = places[number].tolist()
            if origin[axis] < 0:
                msg = f"the origin of box {number} (counted from 0), {origin}, is negative along axis {axis}"
                raise ValueError(msg)
            bounds = f"{origin[axis]}:{origin[axis] + shape[axis]}"
            what = f"box {number} (counted from 0) is {bounds} along axis {axis}"
            raise ValueError(self._outside(what, axis))
        return places, leaves

    def _read_box(self, start: Sequence[int], out: Elements) -> None:
        """Read the box that begins at ``start``, and may leave the array, to ``out``."""
        axes = list(zip(start, out.shape, self.shape, strict=True))
        inner = tuple(
            slice(max(-begin, 0), max(min(extent - begin, size), 0)) for begin, size, extent in axes
        )
        if any(entry.start >= entry.stop for entry in inner):
            out[...] = self._array.metadata.fill_value
            return
        if any(entry != slice(0, size) for entry, size in zip(inner, out.shape, strict=True)):
            out[...] = self._array.metadata.fill_value
        self._reader.read_into([max(begin, 0) for begin, _, _ in axes], out[inner])

    def _move(self, box: Elements, distance: Sequence[int]) -> None:
        """Let the elements of ``box`` be those that many elements further; outside of it, the fill value."""
        # Python's integers: an origin may be any number.
        axes = list(zip(distance, box.shape, strict=True))
        to = tuple(slice(min(max(-by, 0), size), max(min(size - by, size), 0)) for by, size in axes)
        source = tuple(slice(max(by, 0), max(size + min(by, 0), 0)) for by, size in axes)
        kept = box[source].copy()
        box[...] = self._array.metadata.fill_value
        if kept.size:
            box[to] = kept

    @staticmethod
    def _is_elsewhere(out: Any, device: Any, stream: Any) -> bool:
        """Return whether elements may go to the memory of a GPU."""
        is_of_host = out is None or isinstance(out, np.ndarray)
        return not is_of_host or device is not None or stream is not None

    def _into(self, out: Elements, read: Any) -> None:
        """Read to ``out``, by way of elements of the array's type if it has another."""
        if out.dtype == self._stored_type:
            read(out)
            return
        part = np.empty(out.shape, self._stored_type)
        read(part)
        np.copyto(out, part, casting="same_kind")

    def _run(self, out: Elements, boxes: int, work: Any) -> None:
        if self._is_quick and out.nbytes <= _QUICK and boxes <= _FEW:
            work()
        else:
            interruptible(work)

    def metrics(self) -> dict[str, float]:
        """Return the counts of the work of this reader: bytes, requests, and times in seconds.

        They are empty if the array is read through zarr-python.
        """
        now: dict[str, float] = self._reader.metrics()
        return now

    def explain(self) -> str:
        """Say how the reader reads, and why."""
        return by_python(self._reader.explain())

    def _output(self, out: Elements | None, shape: tuple[int, ...]) -> Elements:
        if out is None:
            return np.empty(shape, self._dtype)
        if not isinstance(out, np.ndarray):
            msg = f"`out` is a {type(out).__name__}, and must be a numpy array, or memory of a GPU"
            raise TypeError(msg)
        if out.shape != shape or out.dtype != self._dtype or not out.flags.writeable:
            msg = (
                f"`out` has the shape {out.shape} and the type {out.dtype}, and must be a writeable array of "
                f"the shape {shape} and the type {self._dtype}"
            )
            raise ValueError(msg)
        return out


class _Asked:
    """Reads boxes through the pipeline: the store itself has to be asked for values."""

    def __init__(self, array: AsyncArray[Any]) -> None:
        current = _again(array)
        self._array = AsyncArray(metadata=current.metadata, store_path=array.store_path, config=array.config)
        pipeline = CodecPipeline(current.metadata, array.store_path.store, "rewrite")
        object.__setattr__(self._array, "codec_pipeline", pipeline)
        self.shape = tuple(current.shape)

    def read_into(self, start: Sequence[int], out: Elements) -> None:
        sync(self._read(start, out))

    def read_boxes_into(self, origins: Sequence[Sequence[int]], out: Elements) -> None:
        boxes = list(zip(origins, out, strict=True))
        sync(concurrent_map(boxes, self._read, config.get("async.concurrency")))

    def read_device(self, *_: Any) -> Never:
        msg = (
            f"the library does not read a {type(self._array.store_path.store).__name__} itself, and "
            "zarr-python reads into the memory of the host: read there, and copy the elements"
        )
        raise ValueError(msg)

    read_boxes_device = read_into_device = read_device

    async def _read(self, start: Sequence[int], out: Elements) -> None:
        box = tuple(slice(begin, begin + size) for begin, size in zip(start, out.shape, strict=True))
        out[...] = await self._array.getitem(box)

    def metrics(self) -> dict[str, float]:
        return {}

    def explain(self) -> str:
        return (
            f"each box is read through zarr-python and its pipeline, because the library does not read a "
            f"{type(self._array.store_path.store).__name__} itself"
        )


def _again(array: AsyncArray[Any]) -> AsyncArray[Any]:
    """Return an array as it is stored now, with the pipeline that it has."""
    now = sync(AsyncArray.open(array.store_path))
    again = AsyncArray(metadata=now.metadata, store_path=array.store_path, config=array.config)
    object.__setattr__(again, "codec_pipeline", array.codec_pipeline)
    return again


def _told(entry: slice) -> str:
    return ":".join("" if bound is None else str(bound) for bound in (entry.start, entry.stop))
