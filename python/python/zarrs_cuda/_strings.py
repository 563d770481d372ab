"""Strings and byte strings: numpy has each of them as an object, so they go one by one through Python."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zarrs_cuda import _settings
from zarrs_cuda._selections import around

if TYPE_CHECKING:
    from zarrs_cuda._internal import Native


class _Box(NamedTuple):
    """A box of a chunk that has all elements that an item of a batch selects."""

    # Which item of the batch it is.
    position: int
    # The item, with the box as its selection.
    item: tuple[Any, ...]
    # What the item selects of the box.
    selected: Any
    shape: tuple[int, ...]


def read(
    ours: Native, batch: list[Any], out: Any, drop_axes: tuple[int, ...], values: dict[str, Any] | None
) -> list[bool]:
    """Read a batch into ``out``. Returns, for each item, whether its chunk is there."""
    boxes = _boxes(ours, batch, 0.5)
    found = [False] * len(batch)
    for box, (is_there, part) in zip(boxes, _read_boxes(ours, boxes, values), strict=True):
        found[box.position] = is_there
        selected = part[box.selected]
        if drop_axes:
            selected = selected.squeeze(axis=drop_axes)
        out[batch[box.position][3]] = selected
    return found


def write(
    ours: Native, batch: list[Any], value: Any, drop_axes: tuple[int, ...], values: dict[str, Any] | None
) -> dict[str, Any]:
    """Write ``value`` to a batch. Returns the new values of the store, by their keys."""
    # Parts of shards are written by themselves, parts of other chunks are not.
    boxes = _boxes(ours, batch, 0)
    parts: list[Any] = []
    for box in boxes:
        spec = box.item[1]
        parts.append(np.full(box.shape, spec.fill_value, spec.dtype.to_native_dtype()))
    kept = [
        number for number, box in enumerate(boxes) if not box.item[4] and not _is_all(box.selected, box.shape)
    ]
    read = _read_boxes(ours, [boxes[number] for number in kept], values)
    for number, (_, part) in zip(kept, read, strict=True):
        parts[number] = part
    for box, part in zip(boxes, parts, strict=True):
        selected = value[()] if value.shape == () else value[batch[box.position][3]]
        if drop_axes and value.shape != ():
            axes = (None if axis in drop_axes else slice(None) for axis in range(part.ndim))
            selected = selected[tuple(axes)]
        # numpy would store the array as an object.
        part[box.selected] = (
            selected[()] if isinstance(selected, np.ndarray) and not selected.ndim else selected
        )
    elements = [part.ravel().tolist() for part in parts]
    return ours.write_elements([box.item for box in boxes], elements, values, _settings.threads())


def _boxes(ours: Native, batch: list[Any], whole: float) -> list[_Box]:
    """Return the boxes of the items that select something.

    A box with the share ``whole`` of its chunk, or more, becomes all of it: chunks without shards are
    decoded and encoded whole.
    """
    boxes = []
    for position, (where, spec, selection, _, is_complete) in enumerate(batch):
        found = around(selection, spec.shape)
        if found is None:
            continue
        of_chunk, selected, shape = found
        if not ours.is_sharded and math.prod(shape) >= whole * math.prod(spec.shape):
            of_chunk, selected, shape = tuple(map(slice, spec.shape)), selection, spec.shape
        boxes.append(_Box(position, (where, spec, of_chunk, (), is_complete), selected, shape))
    return boxes


def _read_boxes(ours: Native, boxes: list[_Box], values: dict[str, Any] | None) -> list[tuple[bool, Any]]:
    """Return, for each box, whether its chunk is there, and its elements."""
    if not boxes:
        return []
    dtype = boxes[0].item[1].dtype.to_native_dtype()
    items = [box.item for box in boxes]
    found, lists = ours.read_elements(items, values, _settings.threads(), dtype.kind != "O")
    arrays = [_as_array(elements, dtype) for elements in lists]
    return [
        (is_there, array.reshape(box.shape))
        for box, is_there, array in zip(boxes, found, arrays, strict=True)
    ]


def _as_array(elements: list[Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return an array of one axis."""
    if dtype.kind == "O":
        return np.fromiter(elements, dtype, len(elements))
    return np.array(elements, dtype)


def _is_all(selection: Any, shape: tuple[int, ...]) -> bool:
    """Whether slices and numbers select all of an array."""
    if not isinstance(selection, tuple) or len(selection) != len(shape):
        return False
    return all(
        entry == 0 and extent == 1
        if isinstance(entry, int)
        else isinstance(entry, slice) and entry.indices(extent) == (0, extent, 1)
        for entry, extent in zip(selection, shape, strict=True)
    )
