"""Writers of slices."""

from __future__ import annotations

import atexit
import contextlib
import os
import warnings
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from zarr.core.array import Array, AsyncArray
from zarr.core.sync import sync

from zarrs_cuda import _settings
from zarrs_cuda._arrays import opened
from zarrs_cuda._masks import check_mask
from zarrs_cuda._native import native
from zarrs_cuda._places import place_of_slices
from zarrs_cuda._progress import Telling

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from zarr.storage import StorePath

    from zarrs_cuda._asked import Asked
    from zarrs_cuda._places import Place

    type AnyArray = Array[Any] | AsyncArray[Any]


# What DLPack calls the memory of a CUDA device.
_CUDA = 2


def _place(array: AnyArray) -> tuple[AsyncArray[Any], StorePath, Place | Asked]:
    asynchronous = opened(array)
    where = asynchronous.store_path
    return asynchronous, where, place_of_slices(where.store)


def writable_place(array: AnyArray) -> tuple[AsyncArray[Any], StorePath, Place | Asked]:
    """Return an array, and where its values are, which the library is to write.

    Raises
    ------
    ValueError
        If the store is read-only, or the array has elements that are objects of Python.
    """
    asynchronous, where, place = _place(array)
    where.store._check_writable()
    native_type(asynchronous)
    return asynchronous, where, place


def native_type(array: AsyncArray[Any]) -> np.dtype[Any]:
    """Return the type of the elements of an array, in the byte order of this machine.

    Raises
    ------
    ValueError
        If they are objects of Python.
    """
    dtype: np.dtype[Any] = array.metadata.dtype.to_native_dtype()
    if dtype.kind in "OTV":
        msg = f"elements of the type {dtype} have no writers and readers of their own: use the array itself"
        raise ValueError(msg)
    return dtype.newbyteorder("=")


# Those that may still have something to store.
_open_writers: weakref.WeakSet[SliceWriter] = weakref.WeakSet()


@atexit.register
def _abort_writers() -> None:
    """Abort writers that were never finished, while their threads can still call Python."""
    for writer in list(_open_writers):
        if writer._process != os.getpid():
            # It belongs to the process that this one was forked from.
            continue
        warnings.warn(
            f"`{type(writer).__name__}`: a writer was not finished, and what it had not stored is lost",
            ResourceWarning,
            stacklevel=1,
        )
        writer.abort()


class SliceWriter:
    """Appends slices along the first axis of an array: what all writers do."""

    def __init__(self, array: AsyncArray[Any], native_writer: Any) -> None:
        self._array = array
        self._dtype = native_type(array)
        self._slice = array.metadata.shape[1:]
        self._process = os.getpid()
        self._writer = native_writer
        _open_writers.add(self)

    def append(self, frames: Any) -> None:
        """Append elements; wait while the store is behind.

        Parameters
        ----------
        frames
            One slice, or several with an axis for them in front: a numpy array, what numpy makes an
            array of, or a tensor that has ``__dlpack__``. Elements are converted to the type of the
            array if numpy calls that safe. A tensor on a CUDA device is copied there: the writer must
            encode on that device, and the tensor be contiguous and of the type of the array.

        Raises
        ------
        TypeError
            If the elements cannot be converted.
        ValueError
            If their shape is not one of slices, or elements are masked, or the writer was finished, or
            cannot take a tensor from its device.
        OSError
            If a file cannot be written.
        """
        if not isinstance(frames, np.ndarray) and hasattr(frames, "__dlpack__"):
            if int(frames.__dlpack_device__()[0]) == _CUDA:
                self._append_tensor(frames)
                return
            frames = np.from_dlpack(frames)
        check_mask(frames)
        frames = np.asarray(frames)
        if frames.shape[-len(self._slice) or frames.ndim :] != self._slice or frames.ndim not in (
            len(self._slice),
            len(self._slice) + 1,
        ):
            msg = f"slices have the shape {self._slice}, and these elements {frames.shape}"
            raise ValueError(msg)
        if frames.dtype != self._dtype:
            frames = frames.astype(self._dtype, casting="safe")
        self._writer.append(np.ascontiguousarray(frames))

    def _append_tensor(self, tensor: Any) -> None:
        # The default stream, for which the library makes its own wait.
        capsule = tensor.__dlpack__(stream=1)
        self._writer.append_tensor(capsule, self._slice)

    def flush(self) -> None:
        """Store every whole shard that was appended, and the new shape."""
        self._writer.flush()
        self._refresh()

    def finish(self) -> str:
        """Store everything, and the new shape.

        Returns
        -------
        str
            What was done, for people.
        """
        done: str = self._writer.finish()
        _open_writers.discard(self)
        self._refresh()
        self._writer.check()
        return done

    def abort(self) -> int | None:
        """Forget what is not stored.

        Returns
        -------
        int or None
            How many slices of the array are stored; None if the writer was aborted before.
        """
        stored: int | None = self._writer.abort()
        _open_writers.discard(self)
        if stored is not None:
            self._refresh()
        return stored

    def _refresh(self) -> None:
        """Give the array the shape that is stored: with the old one, its next ``resize`` would cut it."""
        stored = sync(AsyncArray.open(self._array.store_path))
        for name in ("metadata", "_chunk_grid"):
            object.__setattr__(self._array, name, getattr(stored, name))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.abort()


class ArrayWriter(SliceWriter):
    """Appends slices along the first axis of a sharded array, while they arrive.

    Finished shards are stored while the next ones fill, in bounded memory, and readers can follow.
    As a context manager it finishes at the end of the block, and abandons what is not stored if the
    block raises::

        with zarrs_cuda.ArrayWriter(array) as writer:
            for frame in camera:
                writer.append(frame)

    Parameters
    ----------
    array
        A sharded array of zarr-python. A ``LocalStore``, or an ``ObjectStore`` that is not in memory, is
        written by the library itself; other stores are asked through zarr-python, which is slower:
        finish such a writer before the process ends, when they cannot be asked any more.
        Nothing else may write it meanwhile, another writer neither. It has the new shape after ``flush``,
        ``finish`` and ``abort``; open other objects for the same array again.
    start
        The first slice to write; at the border of a shard. By default the end of the array. What the
        array has from there on is replaced shard by shard: elements of the last shard behind the last
        slice become fill values.
    progress
        A function to call with :meth:`progress` whenever a shard was stored. It is called by threads
        of the writer, which wait for it: it cannot use the writer itself. If it raises, the call of the
        writer that is at work raises that, or the next one, and the function is not called until then.

    Raises
    ------
    ValueError
        If the array cannot be written so: the message says why.
    FramesPending
        If subchunks are stored beside shards that would be written.
    """

    def __init__(
        self,
        array: AnyArray,
        *,
        start: int | None = None,
        progress: Callable[[dict[str, float]], object] | None = None,
    ) -> None:
        asynchronous, where, place = writable_place(array)
        self._last: dict[str, float] = {}
        make = partial(native().Writer, place, where.path, start, _settings.syncs())
        super().__init__(asynchronous, Telling(make, progress))

    def abort(self) -> int | None:
        """Forget what is not stored.

        Returns
        -------
        int or None
            How many slices of the array are stored; None if the writer was aborted before.
        """
        with contextlib.suppress(ValueError):
            self._last = self._writer.progress()
        stored = super().abort()
        if stored is not None:
            self._last |= {"finished_slices": stored, "covered_slices": stored}
        return stored

    def progress(self) -> dict[str, float]:
        """Return how far the writer is: counts of slices, shards and bytes, and times in seconds.

        After ``abort`` it is what was stored.
        """
        if self._last:
            return dict(self._last)
        now: dict[str, float] = self._writer.progress()
        return now
