"""Copies arrays of CuPy to the host, to write them."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from zarrs_cuda._errors import BackendUnavailable
from zarrs_cuda._gpu_reads import cupy_of, current, stream_for_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zarr.core.buffer import NDBuffer

# The bytes of each of the two pieces of pinned memory through which elements are copied.
PIECE = 16 << 20

# Pinned memory that a GPU may still write, because a copy there failed, and the wait for it, too.
_lost: list[Any] = []


def copying(value: NDBuffer) -> Callable[[], np.ndarray[Any, Any]] | None:
    """Return how elements on a GPU are copied to the host, on another thread; None for those on the host.

    Call this function on the thread whose current stream of this GPU orders the use of the elements: they
    are copied behind the work in that stream. The returned function returns the elements, which are
    complete.

    Raises
    ------
    BackendUnavailable
        If the elements cannot be copied. The returned function raises it, too.
    """
    values: Any = value.as_ndarray_like()
    cupy = cupy_of(values)
    if cupy is None:
        return None
    number = int(values.device.id)

    def refused(error: Exception) -> BackendUnavailable:
        msg = (
            f"cannot copy the elements to write, an array of CuPy of shape {values.shape} and type "
            f"{values.dtype} on GPU {number}, to the memory of the host: {type(error).__name__}: {error}"
        )
        remedy = (
            "None of them was written. Copy them to the host (`cupy.asnumpy`), and write these; if that "
            "fails, too, start a new process, because no GPU that has failed is used again in this one"
        )
        return BackendUnavailable(msg, remedy)

    try:
        stream = stream_for_thread(cupy, number)
    except Exception as error:
        raise refused(error) from error

    def on_host() -> np.ndarray[Any, Any]:
        try:
            with current(values):
                return _copied(cupy, values, stream)
        except MemoryError:
            raise
        except Exception as error:
            raise refused(error) from error

    return on_host


def _copied(cupy: Any, values: Any, stream: Any) -> np.ndarray[Any, Any]:
    """Copy an array of the current GPU through two pieces of pinned memory, in ``stream``."""
    made = np.empty(values.shape, values.dtype)
    most = max(PIECE // made.itemsize, 1)
    pieces = list(_pieces(made.shape, most))
    size = min(most, made.size) * made.itemsize
    try:
        pinned = [cupy.cuda.alloc_pinned_memory(size) for _ in pieces[:2]]
    except Exception:
        # There is too little of it: CuPy copies slower then, and says what else is wrong.
        with stream:
            return np.asarray(cupy.asnumpy(values))
    before: tuple[Any, Any] | None = None
    is_on_its_way = False
    try:
        with stream:
            for piece, memory in zip(pieces, itertools.cycle(pinned)):
                if is_on_its_way:
                    # The piece before is there, and its memory is read while this one is copied.
                    stream.synchronize()
                    is_on_its_way = False
                # The GPU gathers elements that lie apart. There may be no memory for them.
                part = cupy.ascontiguousarray(values[piece])
                is_on_its_way = True
                part.data.copy_to_host_async(memory.ptr, part.nbytes, stream)
                if before is not None:
                    _take(made, *before)
                before = piece, memory
            stream.synchronize()
            is_on_its_way = False
    except BaseException:
        if is_on_its_way:
            try:
                stream.synchronize()
            except BaseException:
                _lost.append(pinned)
        raise
    if before is not None:
        _take(made, *before)
    return made


def _take(made: np.ndarray[Any, Any], piece: Any, memory: Any) -> None:
    """Copy a piece out of pinned memory."""
    to = made[piece]
    to[...] = np.frombuffer(memory, made.dtype, to.size).reshape(to.shape)


def _pieces(shape: tuple[int, ...], most: int) -> Iterator[tuple[Any, ...]]:
    """Cut an array into boxes of ``most`` elements at most, each of which is contiguous in C order."""
    if not shape:
        yield (...,)
    if not shape or 0 in shape:
        return
    # The first axis whose indices have few enough elements. Axes before it are cut into single indices.
    axis = next(axis for axis in range(len(shape)) if math.prod(shape[axis + 1 :]) <= most)
    rows = most // math.prod(shape[axis + 1 :])
    for first in itertools.product(*map(range, shape[:axis])):
        for begin in range(0, shape[axis], rows):
            yield (*first, slice(begin, begin + rows), ...)
