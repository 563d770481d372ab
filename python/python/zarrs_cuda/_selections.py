"""Selections that are no boxes: the box around them, the subchunks that they meet, or runs of neighbours."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Up to so many runs and elements, a write of runs takes some milliseconds longer than that of the box around.
_MOST_RUNS = 1 << 12
_MOST_ELEMENTS = 1 << 16


@dataclass(frozen=True)
class Met:
    """The subchunks that a selection meets.

    Attributes
    ----------
    starts : list of list of int
        Where each begins.
    shape : tuple of int
        The shape of one.
    index : tuple
        What selects the elements from an array of these subchunks, which has an axis for them in front.
    selected : tuple of int
        The shape of what is selected.
    """

    starts: list[list[int]]
    shape: tuple[int, ...]
    index: tuple[Any, ...]
    selected: tuple[int, ...]


def met(
    selection: Any, shape: tuple[int, ...], subchunk: Sequence[int] | None, most: float = 0.5
) -> Met | None:
    """Find the subchunks that a selection meets, if they are few of those in the box around it.

    Parameters
    ----------
    selection
        What numpy would be given to select from an array of ``shape``.
    shape
        The shape of the array.
    subchunk
        The shape of subchunks; None if they are not read by themselves.
    most
        The largest part of those in the box.

    Returns
    -------
    Met or None
        The subchunks; None if they are more of those in the box, or nothing is selected, or the selection has
        another form than zarr-python's.
    """
    if subchunk is None:
        return None
    numbers, selected = _numbers(selection, shape)
    if numbers is None or any(not axis.size for axis in numbers):
        return None
    places = [axis // size for axis, size in zip(numbers, subchunk, strict=True)]
    around = math.prod(int(axis.max() - axis.min()) + 1 for axis in places)
    counts = [-(-extent // size) for extent, size in zip(shape, subchunk, strict=True)]
    if math.prod(axis.size for axis in places) == math.prod(np.broadcast_shapes(*(p.shape for p in places))):
        # Every combination of what is selected along the axes.
        each = [np.unique(axis, return_inverse=True) for axis in places]
        found = [unique for unique, _ in each]
        if math.prod(len(unique) for unique in found) > most * around:
            return None
        order = np.zeros((), np.intp)
        for (unique, inverse), axis in zip(each, places, strict=True):
            order = order * len(unique) + inverse.reshape(axis.shape)
        grid = list(np.meshgrid(*found, indexing="ij"))
    else:
        flat = np.zeros((), np.intp)
        for axis, count in zip(places, counts, strict=True):
            flat = flat * count + axis
        unique, inverse = np.unique(flat, return_inverse=True)
        if len(unique) > most * around:
            return None
        order = inverse.reshape(flat.shape)
        grid = list(np.unravel_index(unique, counts))
    starts = np.stack([axis.ravel() * size for axis, size in zip(grid, subchunk, strict=True)], axis=1)
    within = [axis % size for axis, size in zip(numbers, subchunk, strict=True)]
    if selected is None:
        selected = order.shape
    return Met(starts.tolist(), tuple(subchunk), (order, *within), selected)


@dataclass(frozen=True)
class Runs:
    """The selected elements of an array, as runs of neighbours along the last axis.

    Attributes
    ----------
    boxes : list of tuple
        What selects each run from the array.
    ends : list of slice
        Where the elements of each run are among those of all runs.
    order : numpy.ndarray
        The numbers of the elements among those that are selected, in the order of the runs. Of several
        elements for one place, it is the last.
    selected : tuple of int
        The shape of what is selected.
    """

    boxes: list[tuple[Any, ...]]
    ends: list[slice]
    order: np.ndarray[Any, Any]
    selected: tuple[int, ...]


def runs(selection: Any, shape: tuple[int, ...]) -> Runs | None:
    """Find the runs of neighbours of a selection.

    Parameters
    ----------
    selection
        What numpy would be given to select from an array of ``shape``.
    shape
        The shape of the array, which has an axis at least.

    Returns
    -------
    Runs or None
        The runs; None if there are too many of them, or of their elements, to be given to the library one by
        one, or the selection has another form than zarr-python's.
    """
    numbers, _ = _numbers(selection, shape)
    if numbers is None:
        entries = selection if isinstance(selection, tuple) else (selection,)
        mask = entries[0]
        if (
            len(entries) != 1
            or not isinstance(mask, np.ndarray)
            or mask.dtype.kind != "b"
            or mask.shape != shape
        ):
            return None
        numbers = list(np.nonzero(mask))
    selected = np.broadcast_shapes(*(axis.shape for axis in numbers))
    if math.prod(selected) > _MOST_ELEMENTS:
        return None
    flat = np.zeros(selected, np.intp)
    for axis, extent in zip(numbers, shape, strict=True):
        flat = flat * extent + axis
    flat = flat.ravel()
    order = np.argsort(flat, kind="stable")
    flat = flat[order]
    last = np.ones(len(flat), bool)
    last[:-1] = flat[1:] != flat[:-1]
    order, flat = order[last], flat[last]
    begins = np.ones(len(flat), bool)
    begins[1:] = (np.diff(flat) != 1) | (flat[1:] % shape[-1] == 0)
    starts = np.flatnonzero(begins)
    if len(starts) > _MOST_RUNS:
        return None
    stops = np.append(starts[1:], len(flat))[: len(starts)]
    places = np.stack(np.unravel_index(flat[starts], shape), axis=1).tolist()
    lengths = (stops - starts).tolist()
    boxes = [
        (*place[:-1], slice(place[-1], place[-1] + length))
        for place, length in zip(places, lengths, strict=True)
    ]
    ends = [slice(start, stop) for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    return Runs(boxes, ends, order, selected)


def is_box(selection: Any) -> bool:
    """Return whether a selection is a box for sure, without a look at its numbers."""
    entries = selection if isinstance(selection, tuple) else (selection,)
    return all(
        entry.step in (None, 1) if isinstance(entry, slice) else isinstance(entry, int) for entry in entries
    )


def _numbers(
    selection: Any, shape: tuple[int, ...]
) -> tuple[list[np.ndarray[Any, Any]] | None, tuple[int, ...] | None]:
    """Return the selected numbers along each axis, which are broadcast together, and the shape of all.

    The numbers are None if the selection has another form than zarr-python's; the shape is None if it is that
    to which the numbers are broadcast.
    """
    entries = selection if isinstance(selection, tuple) else (selection,)
    entries = entries + (slice(None),) * (len(shape) - len(entries))
    arrays = [isinstance(entry, np.ndarray) and entry.ndim > 0 for entry in entries]
    if len(entries) != len(shape):
        return None, None
    if all(arrays) and all(entry.dtype != bool for entry in entries):
        return [
            np.where(entry < 0, entry + extent, entry) for entry, extent in zip(entries, shape, strict=True)
        ], None
    # One array among slices, or none. More mean something else for numpy.
    if sum(arrays) > 1 or (
        any(arrays) and not all(a or isinstance(e, slice) for a, e in zip(arrays, entries, strict=True))
    ):
        return None, None
    numbers, selected = [], []
    for axis, (entry, extent) in enumerate(zip(entries, shape, strict=True)):
        if isinstance(entry, slice):
            along = np.arange(*entry.indices(extent))
        elif arrays[axis]:
            if entry.ndim > 1:
                return None, None
            along = np.arange(extent)[entry]
        else:
            along = np.array([int(entry)])
            along = np.where(along < 0, along + extent, along)
        if isinstance(entry, slice) or arrays[axis]:
            selected.append(len(along))
        numbers.append(along.reshape([-1 if a == axis else 1 for a in range(len(shape))]))
    return numbers, tuple(selected)


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
