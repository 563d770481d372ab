"""Memory of arrays, which is used again when no array refers to it any more."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

# Where the first element of an array may be, in bytes.
_STEP = 64


class Memory:
    """Pieces of memory, each of several arrays. Fresh memory would be slow: the system clears its pages.

    Parameters
    ----------
    kept
        How many pieces are kept for the next arrays.
    size
        How many bytes a piece has, at least. Those that are never written to take no memory.
    """

    def __init__(self, kept: int, size: int) -> None:
        self._kept, self._size = kept, size
        # Calls of a list's methods are atomic: any thread may let the last array go.
        self._spare: list[np.ndarray[Any, Any]] = []

    def __reduce__(self) -> tuple[type[Memory], tuple[int, int]]:
        return Memory, (self._kept, self._size)

    def parts(self, kinds: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> list[np.ndarray[Any, Any]]:
        """Return arrays of these shapes and types, in C order, whose elements are anything.

        The memory is used again when all of them, and all arrays that are views of them, are gone.
        """
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in kinds]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + -(-size // _STEP) * _STEP)
        piece = self._piece(max(starts[-1], 1))
        # The views of an array that has no array below it refer to it, and not to what is below.
        lease = np.frombuffer(memoryview(piece), np.uint8)
        weakref.finalize(lease, self._back, piece).atexit = False
        return [
            lease[start : start + size].view(dtype).reshape(shape)
            for start, size, (shape, dtype) in zip(starts, sizes, kinds, strict=False)
        ]

    def _piece(self, size: int) -> np.ndarray[Any, Any]:
        while self._spare:
            try:
                piece = self._spare.pop()
            except IndexError:
                break
            if len(piece) >= size:
                return piece
        return np.empty(max(size, self._size), np.uint8)

    def _back(self, piece: np.ndarray[Any, Any]) -> None:
        if len(self._spare) < self._kept:
            self._spare.append(piece)
