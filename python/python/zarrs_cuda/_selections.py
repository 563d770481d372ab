"""Selections that are no boxes: the box around them, and the selection in it."""

from typing import Any

import numpy as np


def around(
    selection: Any, shape: tuple[int, ...]
) -> tuple[tuple[slice, ...], tuple[Any, ...], tuple[int, ...]] | None:
    """Find the smallest box that has all elements of a selection.

    Parameters
    ----------
    selection
        What numpy would be given to select from an array of ``shape``.
    shape
        The shape of the array.

    Returns
    -------
    tuple or None
        The box, the selection in the box, and the shape of the box. None if nothing is selected.
    """
    entries = selection if isinstance(selection, tuple) else (selection,)
    if any(isinstance(entry, np.ndarray) and entry.ndim > 1 and entry.dtype == bool for entry in entries):
        # It selects along several axes at once.
        return tuple(slice(0, extent) for extent in shape), entries, shape
    entries = entries + (slice(None),) * (len(shape) - len(entries))
    box: list[slice] = []
    inner: list[Any] = []
    for entry, extent in zip(entries, shape, strict=True):
        found = _one(entry, extent)
        if found is None:
            return None
        start, stop, rest = found
        box.append(slice(start, stop))
        inner.append(rest)
    return tuple(box), tuple(inner), tuple(entry.stop - entry.start for entry in box)


def _one(entry: Any, extent: int) -> tuple[int, int, Any] | None:
    """Return the first element, the one behind the last, and the entry counted from the first."""
    if isinstance(entry, slice):
        numbers = range(*entry.indices(extent))
        if not numbers:
            return None
        if numbers.step > 0:
            return numbers[0], numbers[-1] + 1, slice(0, None, numbers.step)
        return numbers[-1], numbers[0] + 1, slice(None, None, numbers.step)
    if isinstance(entry, np.ndarray) and entry.ndim:
        if entry.dtype == bool:
            numbers_ = np.flatnonzero(entry)
            if not len(numbers_):
                return None
            start, stop = int(numbers_[0]), int(numbers_[-1]) + 1
            return start, stop, entry[start:stop]
        if not entry.size:
            return None
        entry = np.where(entry < 0, entry + extent, entry)
        start, stop = int(entry.min()), int(entry.max()) + 1
        return start, stop, entry - start
    number = int(entry)
    number += extent if number < 0 else 0
    return number, number + 1, 0
