"""Strings and byte strings: numpy has each of them as an object, so they go one by one through Python."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from zarrs_cuda import _settings
from zarrs_cuda._selections import around

if TYPE_CHECKING:
    from zarrs_cuda._internal import Native

    Item = tuple[Any, ...]


class _Boxes:
    """The items of a batch that select something, each as the smallest box around its selection.

    A box with ``whole`` of its chunk, or more, becomes all of it. Chunks without shards are decoded whole.
    """

    def __init__(self, ours: Native, batch: list[Any], *, whole: float) -> None:
        self.ours = ours
        # Their positions in the batch, and what each selects in its box, which has a shape.
        self.positions: list[int] = []
        self.selected: list[tuple[Any, ...]] = []
        self.shapes: list[tuple[int, ...]] = []
        self.items: list[Item] = []
        for position, (where, spec, selection, _, is_complete) in enumerate(batch):
            box = around(selection, spec.shape)
            if box is None:
                continue
            of_chunk, inner, shape = box
            if not ours.is_sharded and math.prod(shape) >= whole * math.prod(spec.shape):
                of_chunk, inner, shape = tuple(map(slice, spec.shape)), selection, spec.shape
            self.positions.append(position)
            self.selected.append(inner)
            self.shapes.append(shape)
            self.items.append((where, spec, of_chunk, (), is_complete))

    def read(self, wanted: list[int], values: dict[str, Any] | None) -> list[tuple[bool, Any]]:
        """Read the boxes with the numbers ``wanted``: whether its chunk is there, and its elements."""
        if not wanted:
            return []
        dtype = self.items[0][1].dtype.to_native_dtype()
        found, lists = self.ours.read_elements(
            [self.items[number] for number in wanted], values, _settings.threads(), dtype.kind != "O"
        )
        return [
            (is_there, _as_array(elements, dtype).reshape(self.shapes[number]))
            for number, is_there, elements in zip(wanted, found, lists, strict=True)
        ]


def _as_array(elements: list[Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return an array of one axis."""
    if dtype.kind == "O":
        return np.fromiter(elements, dtype, len(elements))
    return np.array(elements, dtype)


def read(
    ours: Native, batch: list[Any], out: Any, drop_axes: tuple[int, ...], values: dict[str, Any] | None
) -> list[bool]:
    """Read a batch into ``out``. Returns, for each item, whether its chunk is there."""
    boxes = _Boxes(ours, batch, whole=0.5)
    found = [False] * len(batch)
    done = boxes.read(list(range(len(boxes.items))), values)
    for position, inner, (is_there, part) in zip(boxes.positions, boxes.selected, done, strict=True):
        found[position] = is_there
        selected = part[inner]
        if drop_axes:
            selected = selected.squeeze(axis=drop_axes)
        out[batch[position][3]] = selected
    return found


def write(
    ours: Native, batch: list[Any], value: Any, drop_axes: tuple[int, ...], values: dict[str, Any] | None
) -> dict[str, Any]:
    """Write ``value`` to a batch. Returns the new values of the store, by their keys."""
    boxes = _Boxes(ours, batch, whole=0)
    parts: list[Any] = []
    kept: list[int] = []
    for number, (position, inner) in enumerate(zip(boxes.positions, boxes.selected, strict=True)):
        shape = boxes.shapes[number]
        _, spec, _, _, is_complete = boxes.items[number]
        parts.append(np.full(shape, spec.fill_value, spec.dtype.to_native_dtype()))
        if not is_complete and not _is_all(inner, shape):
            kept.append(number)
    for number, (_, part) in zip(kept, boxes.read(kept, values), strict=True):
        parts[number] = part
    for position, inner, part in zip(boxes.positions, boxes.selected, parts, strict=True):
        selected = value[()] if value.shape == () else value[batch[position][3]]
        if drop_axes and value.shape != ():
            axes = (None if axis in drop_axes else slice(None) for axis in range(part.ndim))
            selected = selected[tuple(axes)]
        # numpy would store the array as an object.
        part[inner] = selected[()] if isinstance(selected, np.ndarray) and not selected.ndim else selected
    elements = [part.ravel().tolist() for part in parts]
    return ours.write_elements(boxes.items, elements, values, _settings.threads(), _settings.syncs())


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
