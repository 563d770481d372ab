"""Writers of slices."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import sys
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from zarr.core.array import Array, AsyncArray
from zarr.core.sync import sync

from zarrs_cuda import _devices, _settings
from zarrs_cuda._arrays import opened
from zarrs_cuda._asked import Asked
from zarrs_cuda._masks import check_mask
from zarrs_cuda._native import native
from zarrs_cuda._places import place_of_slices
from zarrs_cuda._progress import Telling
from zarrs_cuda._words import by_python

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from zarr.storage import StorePath

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


# How long the end of a writer that was not finished may take, in seconds.
_LIMIT = 5.0


@atexit.register
def _stop_writers() -> None:
    """Store the complete shards of writers that were never finished.

    No code of Python is needed for that: threads of Python cannot be started any more.
    """
    end = time.monotonic() + _LIMIT
    for writer in list(_open_writers):
        if writer._process != os.getpid():
            # It belongs to the process that this one was forked from.
            continue
        # A store that only Python writes cannot be written any more.
        limit = 0.0 if writer._asks else max(end - time.monotonic(), 0.0)
        writer._stop(limit, refresh=False)
        writer._warn("the program ended")


def appended_end(progress: dict[str, float]) -> int:
    """Return the slice behind the last one that was appended."""
    return int(min(progress["finished_slices"], progress["covered_slices"]) + progress["at_risk"])


class SliceWriter:
    """Appends slices along the first axis of an array: what all writers do."""

    def __init__(self, array: AsyncArray[Any], native_writer: Any, *, asks: bool) -> None:
        self._asks = asks
        if asks:
            msg = (
                f"{type(array.store_path.store).__name__} is written by Python alone, and not while the "
                "program ends: finish the writer before, or use `with`; what is not stored then is lost"
            )
            warnings.warn(msg, RuntimeWarning, stacklevel=3)
        self._array = array
        self._dtype = native_type(array)
        self._slice = array.metadata.shape[1:]
        self._process = os.getpid()
        self._writer = native_writer
        self._is_open = True
        self._lost = 0
        self._told_slow = False
        _open_writers.add(self)

    def append(self, frames: Any) -> None:
        """Append elements; wait while the store is behind.

        Parameters
        ----------
        frames
            One slice, or several with an axis for them in front, or a part of a slice in C order: a numpy
            array, what numpy makes an array of, or a tensor that has ``__dlpack__``. For slices of the
            shape ``(c, y, x)``, parts are planes ``(y, x)`` and ``(n, y, x)``, rows ``(x,)`` and ``(n, x)``
            of one plane, and elements ``(n,)`` of one row. Elements are converted to the type of the
            array if numpy calls that safe. A tensor on a CUDA device is copied there: the writer must
            encode on that device, and the tensor be contiguous and of the type of the array.

        Raises
        ------
        TypeError
            If the elements cannot be converted.
        ValueError
            If their shape is not one of slices or parts, or does not continue the slice at
            :attr:`position`, or elements are masked, or the writer was finished, or cannot take a tensor
            from its device.
        OSError
            If a file cannot be written. The incomplete slice is forgotten then: append it from its start.
        """
        if not isinstance(frames, np.ndarray) and hasattr(frames, "__dlpack__"):
            if int(frames.__dlpack_device__()[0]) == _CUDA:
                self._append_tensor(frames)
                return
            frames = np.from_dlpack(frames)
        check_mask(frames)
        frames = np.asarray(frames)
        if frames.dtype != self._dtype:
            frames = frames.astype(self._dtype, casting="safe")
        slow = self._writer.append(np.asarray(frames, order="C"))
        if slow is not None and not self._told_slow:
            self._told_slow = True
            msg = (
                f"a shard of {self._shard_slices()} frames takes longer than 60 s to fill, and a kill loses "
                f"the frames in it: shards of {slow} frames would be full in time"
            )
            warnings.warn(msg, RuntimeWarning, stacklevel=2)

    def _append_tensor(self, tensor: Any) -> None:
        # The default stream, for which the library makes its own wait.
        capsule = tensor.__dlpack__(stream=1)
        self._writer.append_tensor(capsule)

    @property
    def position(self) -> tuple[int, ...]:
        """Where the next element goes in its slice, along each axis of a slice.

        All are 0 between two slices. For slices of the shape ``(2, 480, 640)``, ``(1, 20, 0)`` says that 460
        of the 480 rows of the last plane are missing.
        """
        if not self._is_open:
            return (0,) * len(self._slice)
        return tuple(self._writer.position())

    def discard_partial_slice(self) -> int:
        """Forget the elements of an incomplete slice.

        Returns
        -------
        int
            How many elements there were.

        Raises
        ------
        ValueError
            If the writer was closed.
        """
        discarded: int = self._writer.discard_partial_slice()
        return discarded

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

        Raises
        ------
        ValueError
            If the last slice is incomplete. The writer stays open: append the rest, or call
            :meth:`discard_partial_slice`.
        OSError
            If a file cannot be written.
        """
        done: str = self._writer.finish()
        self._closed()
        self._refresh()
        self._writer.check()
        return done

    def abort(self) -> int | None:
        """Store nothing more, and forget what is not stored.

        Returns
        -------
        int or None
            How many slices of the array are stored; None if the writer was closed before.
        """
        return self._close(self._writer.abort)

    def _stop(self, limit: float, *, refresh: bool = True) -> int | None:
        """Store complete shards, for ``limit`` seconds at most, and forget the rest.

        A second Ctrl-C gives up at once.
        """

        def stop() -> int | None:
            stored: int | None = self._writer.stop(limit)
            return stored

        try:
            return self._close(stop, refresh=refresh)
        except Exception as error:
            msg = f"`{type(self).__name__}`: the writer has ended with an error: {error}"
            warnings.warn(msg, RuntimeWarning, stacklevel=2)
            return None

    def _close(self, end: Callable[[], int | None], *, refresh: bool = True) -> int | None:
        """End the writer by ``end``, which returns how many slices are stored."""
        with contextlib.suppress(ValueError):
            self._keep(self._writer.progress())
        try:
            stored = end()
        finally:
            self._closed()
        if stored is not None:
            self._note(stored, refresh=refresh)
        return stored

    def _closed(self) -> None:
        self._is_open = False
        _open_writers.discard(self)

    def _keep(self, last: Any) -> None:
        """Keep the progress, for when the writer has ended."""
        raise NotImplementedError

    def _note(self, stored: int, *, refresh: bool) -> None:
        """Note how many slices are stored at the end."""
        raise NotImplementedError

    def _warn(self, why: str) -> None:
        """Warn that the writer has ended without ``finish``."""
        msg = f"`{type(self).__name__}`: {why}, and a writer was not finished"
        if self._lost:
            msg += f": the last {self._lost} slices are lost"
        warnings.warn(msg, RuntimeWarning if self._lost else ResourceWarning, stacklevel=3)

    def _shard_slices(self) -> int:
        shards = self._array.shards or self._array.chunks
        return int(shards[0])

    def _complete_shards(self) -> int:
        """Return how many complete shards are not stored."""
        shards = self._array.shards or self._array.chunks
        of_slice = math.prod(
            -(-extent // shard) for extent, shard in zip(self._slice, shards[1:], strict=True)
        )
        now = self.progress()
        top: dict[str, float] = now[0] if isinstance(now, list) else now
        return int(int(top["at_risk"]) // int(shards[0]) * of_slice)

    def explain(self) -> str:
        """Return what the writer does, and why, for people.

        The engine, the buffers, how the store takes shards and metadata, and whether the writer has a
        lease, so that a second writer that extends the array is refused. Of an image, for each level.

        Returns
        -------
        str
            Lines of text, which may be others in any release.
        """
        told = self._writer.explain()
        levels = [told] if isinstance(told, str) else [f"level {n}\n{text}" for n, text in enumerate(told)]
        levels = [by_python(level) for level in levels]
        if self._asks:
            name = type(self._array.store_path.store).__name__
            levels.append(f"store: {name} is asked through zarr-python's event loop, which takes longer")
        return "\n".join(levels)

    def progress(self) -> Any:
        """Return how far the writer is."""
        raise NotImplementedError

    def __del__(self) -> None:
        # One that could not be made is not open, and one of the process before a fork is not this one's.
        if getattr(self, "_is_open", False) and self._process == os.getpid():
            self._stop(_LIMIT, refresh=False)
            self._warn("it was deleted")

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
            try:
                self.finish()
            except KeyboardInterrupt as stopped:
                self._rescue(stopped)
                raise
        elif error is not None:
            self._rescue(error)

    def _rescue(self, error: BaseException) -> None:
        """Store complete shards after ``error``, to which a note says what is stored."""
        if not self._is_open:
            return
        try:
            if isinstance(error, KeyboardInterrupt) and (shards := self._complete_shards()):
                print(
                    f"zarrs_cuda: storing {shards} shards, at most {_LIMIT:.0f} s; Ctrl-C again to give up",
                    file=sys.stderr,
                    flush=True,
                )
            stored = self._stop(_LIMIT)
        except KeyboardInterrupt:
            stored = self._stop(0.0)
        if stored is not None:
            error.add_note(
                f"The writer has stored the slices below {stored}; {self._lost} behind them are lost."
            )


class ArrayWriter(SliceWriter):
    """Appends slices along the first axis of a sharded array, while they arrive.

    Finished shards are stored while the next ones fill, in bounded memory, and readers can follow.
    While the input rests, complete shards are stored. As a context manager it finishes at the end of the
    block. If the block raises, or by Ctrl-C, it stores complete shards, for at most five seconds, and a note
    on the exception says how many slices are stored. A writer that is deleted, or left at the end of the
    program, does the same and warns. ``os._exit``, signals without a handler and ``kill -9`` run nothing:
    then what a pause has stored is there::

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
        slice become fill values. Or ``"resume"``: behind the last slice of the array, also inside a
        shard. The slices of that shard are read back, and stored again with those that are appended; the
        old shard stays until then.
    progress
        A function to call with :meth:`progress` whenever a shard was stored. It is called by threads
        of the writer, which wait for it: it cannot use the writer itself. If it raises, the call of the
        writer that is at work raises that, or the next one, and the function is not called until then.
    flush_after
        For how many seconds a complete shard waits for others that are encoded with it. None: until there
        are enough of them, so that a kill may lose many shards. The stored bytes are the same.
    memory
        How much memory the buffers of all open writers of this process may take for this one to be made,
        and to be lent further buffers: bytes, or a text such as ``"2GiB"``. By default a quarter of what
        the machine, or its control group, has. Each writer reserves its smallest buffers when it is made.
    threads
        How many threads encode. By default ``codec_pipeline.max_workers``, else ``threading.max_workers``,
        else one for each core. The threads are those of the process: a writer that rests has none.
    device
        The number of a GPU to encode on, where that helps. By default that of :func:`configure`, and none if
        no GPU was asked for.

    Raises
    ------
    ValueError
        If the array cannot be written so: the message says why.
    FramesPending
        If subchunks are stored beside shards that would be written.
    MemoryError
        If the smallest buffers do not fit beside those of the other open writers.
    ShardError
        If the last shard is damaged, and was to be read back.
    """

    def __init__(
        self,
        array: AnyArray,
        *,
        start: int | Literal["resume"] | None = None,
        progress: Callable[[dict[str, float]], object] | None = None,
        flush_after: float | None = 1.0,
        memory: int | str | None = None,
        threads: int | None = None,
        device: int | None = None,
    ) -> None:
        settings = (*_settings.limits(memory, threads), flush_after, _devices.of_writer(device))
        asynchronous, where, place = writable_place(array)
        self._last: dict[str, float] = {}
        writer = Telling(
            lambda told: native().Writer(place, where.path, start, _settings.syncs(), told, settings),
            progress,
        )
        super().__init__(asynchronous, writer, asks=isinstance(place, Asked))
        _devices.warn_of_missing(settings[-1])

    def _keep(self, last: dict[str, float]) -> None:
        self._last = last

    def _note(self, stored: int, *, refresh: bool) -> None:
        last = self._last
        self._lost = appended_end(last) - stored
        last |= {"finished_slices": stored, "covered_slices": stored, "at_risk": self._lost}
        if refresh:
            self._refresh()

    def progress(self) -> dict[str, float]:
        """Return how far the writer is: counts of slices, shards and bytes, and times in seconds.

        ``at_risk`` counts the slices that a kill would lose. After the end it is what was stored, and what
        was lost.
        """
        if self._last:
            return dict(self._last)
        now: dict[str, float] = self._writer.progress()
        return now
