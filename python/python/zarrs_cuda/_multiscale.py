"""Images and their smaller levels, which viewers open first."""

from __future__ import annotations

import json
import math
import numbers
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from zarr.core.array import AsyncArray
from zarr.core.sync import sync
from zarr.storage import LocalStore, StorePath

from zarrs_cuda import _devices, _settings
from zarrs_cuda._asked import Asked
from zarrs_cuda._native import native
from zarrs_cuda._progress import Telling
from zarrs_cuda._writers import SliceWriter, appended_end, writable_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from zarr.core.array import Array

    from zarrs_cuda._places import Place

    type AnyArray = Array[Any] | AsyncArray[Any]

# What axes with these names usually are, in letters of either size.
_TYPES = {
    **dict.fromkeys(("t", "time", "frame", "frames", "timepoint"), "time"),
    **dict.fromkeys(("c", "channel", "channels"), "channel"),
    **dict.fromkeys("zyx", "space"),
}
# Short names of units, which OME-Zarr writes out.
_UNITS = {
    **{"pm": "picometer", "nm": "nanometer", "um": "micrometer", "µm": "micrometer", "μm": "micrometer"},
    **{"micron": "micrometer", "microns": "micrometer", "mm": "millimeter", "cm": "centimeter", "m": "meter"},
    **{
        "ns": "nanosecond",
        "us": "microsecond",
        "µs": "microsecond",
        "μs": "microsecond",
        "ms": "millisecond",
    },
    **{"s": "second", "sec": "second", "min": "minute", "h": "hour"},
}
# More would divide any axis to one element.
_MOST_LEVELS = 64


@dataclass(frozen=True)
class Axis:
    """An axis of an image.

    Attributes
    ----------
    name : str
        Its name, such as ``"y"``.
    type : str or None
        ``"space"``, ``"time"``, ``"channel"``, or another word. By default as the name says: time for
        ``t``, ``time`` and ``frame``, channel for ``c``, space for ``z``, ``y`` and ``x``, of either size;
        none for other names.
    unit : str or None
        The unit of the other numbers, such as ``"micrometer"`` or ``"second"``. Usual short names are written
        out: ``"um"`` becomes ``"micrometer"``.
    scale : float
        The distance of two elements of level 0.
    translation : float
        Where the first element of level 0 is.
    factor : int or None
        How many elements of a level become one of the level below: 1 or 2. By default 2 for axes of
        space, and 1 for others.
    """

    name: str
    type: str | None = None
    unit: str | None = None
    scale: float = 1.0
    translation: float = 0.0
    factor: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            msg = f"an axis has the name {self.name!r}, and needs one of letters, such as 'y'"
            raise ValueError(msg)
        if self.type is None:
            object.__setattr__(self, "type", _TYPES.get(self.name.lower()))
        if self.unit is not None:
            object.__setattr__(self, "unit", _UNITS.get(self.unit, self.unit))
        for name, number in (("scale", self.scale), ("translation", self.translation)):
            if not isinstance(number, numbers.Real) or not math.isfinite(number):
                msg = f"the {name} of the axis {self.name!r} is {number!r}, and must be a finite number"
                raise ValueError(msg)
        if self.scale <= 0:
            msg = (
                f"the scale of the axis {self.name!r} is {self.scale!r}, and must be more than 0: it is the "
                "distance of two elements. Leave it out if it is not known"
            )
            raise ValueError(msg)
        if self.factor not in (None, 1, 2):
            msg = (
                f"the factor of the axis {self.name!r} is {self.factor!r}, and must be 2, which halves it "
                "from level to level, or 1, which does not"
            )
            raise ValueError(msg)


@dataclass(frozen=True)
class _Pyramid:
    axes: list[Axis] | None
    levels: int | None
    reduction: str
    shapes: list[tuple[int, Sequence[int], Sequence[int]]]
    name: str | None
    omero: str | None
    start: int | Literal["resume"] | None


def _pyramid(
    axes: Iterable[Axis | Mapping[str, Any] | str] | None,
    levels: int | None,
    reduction: str,
    shapes: Mapping[int, tuple[Sequence[int], Sequence[int]]] | None,
    name: str | None,
    omero: Mapping[str, Any] | None,
    start: int | Literal["resume"] | None,
) -> _Pyramid:
    given = (shapes or {}).items()
    if levels is not None and not 1 <= levels <= _MOST_LEVELS:
        msg = f"`levels` is {levels}, and must be 1 to {_MOST_LEVELS}, with level 0"
        raise ValueError(msg)
    return _Pyramid(
        None if axes is None else [_axis(axis) for axis in axes],
        levels,
        reduction,
        [(level, list(chunks), list(shards)) for level, (chunks, shards) in given],
        name,
        None if omero is None else json.dumps(omero),
        start,
    )


def _axis(axis: Axis | Mapping[str, Any] | str) -> Axis:
    if isinstance(axis, Axis):
        return axis
    if isinstance(axis, str):
        return Axis(axis)
    names = [field.name for field in fields(Axis)]
    unknown = [name for name in axis if name not in names]
    if unknown or "name" not in axis:
        msg = f"an axis is {dict(axis)!r}, and must have the key 'name' and may have {names[1:]}"
        raise TypeError(msg)
    return Axis(**axis)


def _in_group(array: AnyArray) -> tuple[AsyncArray[Any], StorePath, Place | Asked]:
    """Return an array, and where it is in a store that has its group, too.

    ``zarr.open_array`` with the directory of an array makes a store that begins there.
    """
    opened, where, place = writable_place(array)
    store = where.store
    if where.path or not isinstance(store, LocalStore):
        return opened, where, place
    root = store.root.absolute()
    if not (root.parent / "zarr.json").exists():
        return opened, where, place
    return opened, StorePath(LocalStore(root.parent), root.name), str(root.parent)


class MultiscaleWriter(SliceWriter):
    """Appends slices along the first axis of an image, and writes all its levels in one pass.

    Each slice is reduced while it is in memory. Each level is an array beside the one above, which has
    half of its elements along some axes. The group has the description of them all by `OME-Zarr 0.5
    <https://ngff.openmicroscopy.org/0.5/>`_, from the beginning on. Otherwise it is like an
    :class:`ArrayWriter`: readers can follow each level, and a writer that was killed goes on::

        image = zarr.create_group("image.zarr")
        array = image.create_array("0", shape=(0, 512, 512), dimension_names=["t", "y", "x"], ...)
        with zarrs_cuda.MultiscaleWriter(array) as writer:
            for frame in camera:
                writer.append(frame)

    Parameters
    ----------
    array
        Level 0: a sharded array of zarr-python in a group, in any store (see :class:`ArrayWriter`). If its
        name is a number, the names of the other levels
        count on from there. Nothing else may write the levels meanwhile. The array has the new shape
        after ``flush``, ``finish`` and ``abort``; open other objects for the same array, and for the
        group, again: the group has new attributes. If the array has no dimension names, it gets those of
        the axes.
    axes
        The axes, in the order of the array's: an :class:`Axis` for each, or a dictionary with its
        attributes, or its name (``"tyx"`` for all). By default the axes of the stored description of
        the image, or else the dimension names of the array, if each has a usual type (see :class:`Axis`).
        OME-Zarr allows two to five axes: time, then channels or another type, then two or three of
        space.
    levels
        How many levels there are, with level 0. By default as many as it takes until one chunk covers a
        slice of the last one along the axes that are halved.
    reduction
        What becomes of a window of elements: ``"mean"``, ``"minimum"``, ``"maximum"``, ``"median"``,
        ``"mode"`` (for labels) or ``"decimate"`` (the first). At the end of an odd extent a window has
        the elements that exist. Means of integers are rounded to the nearest, half to even.
    shapes
        For some levels from 1 on the shapes of their chunks and of their shards, ``{1: (chunks,
        shards)}``. By default those of level 0, clipped to the level.
    name
        The name of the image. By default the name that it has.
    omero
        How viewers show the channels: the `omero metadata
        <https://ngff.openmicroscopy.org/0.5/#omero-md>`_.
    start
        The first slice of level 0 to write; at the border of a shard. By default the end of the array.
        All levels end there then. Or ``"resume"``: behind the last slice of level 0, also inside a shard.
    progress
        A function to call with the number of a level and its :meth:`progress` whenever a shard of it
        was stored. It is called by threads of the writer, which wait for it: it cannot use the writer
        itself. What it raises, a call of the writer raises.
    flush_after
        For how many seconds complete shards of all levels wait: see :class:`ArrayWriter`.
    memory, threads, device
        What the writers of all levels may use: see :class:`ArrayWriter`.

    Raises
    ------
    ValueError
        If the array cannot be written so, or OME-Zarr does not allow the image: the message says why.
    FramesPending
        If subchunks are stored beside shards of a level.
    ShardError
        If a stored shard, of which a lower level lacks a part, is damaged.
    OSError
        If a file cannot be read or written.
    MemoryError
        If the smallest buffers of all levels do not fit beside those of the other open writers.
    """

    def __init__(
        self,
        array: AnyArray,
        *,
        axes: Iterable[Axis | Mapping[str, Any] | str] | None = None,
        levels: int | None = None,
        reduction: str = "mean",
        shapes: Mapping[int, tuple[Sequence[int], Sequence[int]]] | None = None,
        name: str | None = None,
        omero: Mapping[str, Any] | None = None,
        start: int | Literal["resume"] | None = None,
        progress: Callable[[int, dict[str, float]], object] | None = None,
        flush_after: float | None = 1.0,
        memory: int | str | None = None,
        threads: int | None = None,
        device: int | None = None,
    ) -> None:
        settings = (*_settings.limits(memory, threads), flush_after, _devices.of_writer(device))
        opened, where, place = _in_group(array)
        pyramid = _pyramid(axes, levels, reduction, shapes, name, omero, start)
        self._last: list[dict[str, float]] = []
        writer = Telling(
            lambda told: native().MultiscaleWriter(
                place, where.path, pyramid, _settings.syncs(), told, settings
            ),
            progress,
        )
        self._levels = [StorePath(where.store, path) for path in writer.paths]
        super().__init__(opened, writer, asks=isinstance(place, Asked))
        _devices.warn_of_missing(settings[-1])
        self._refresh()

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the arrays of all levels in their store, from level 0 on.

        They are in the group if level 0 was opened by itself.
        """
        return tuple(level.path for level in self._levels)

    def _keep(self, last: list[dict[str, float]]) -> None:
        self._last = last

    def _note(self, stored: int, *, refresh: bool) -> None:
        top = self._last[0]
        self._lost = appended_end(top) - stored
        top |= {"finished_slices": stored, "covered_slices": stored, "at_risk": self._lost}
        if not refresh:
            return
        self._refresh()
        for where, last in zip(self._levels[1:], self._last[1:], strict=True):
            length = sync(AsyncArray.open(where)).metadata.shape[0]
            lost = appended_end(last) - length
            last |= {"finished_slices": length, "covered_slices": length, "at_risk": lost}

    def progress(self) -> list[dict[str, float]]:
        """Return how far each level is: counts of slices, shards and bytes, and times in seconds.

        ``at_risk`` counts the slices that a kill would lose. After the end it is what was stored, and what
        was lost.
        """
        if self._last:
            return [dict(of_level) for of_level in self._last]
        now: list[dict[str, float]] = self._writer.progress()
        return now


def write_lower_levels(
    array: AnyArray,
    *,
    axes: Iterable[Axis | Mapping[str, Any] | str] | None = None,
    levels: int | None = None,
    reduction: str = "mean",
    shapes: Mapping[int, tuple[Sequence[int], Sequence[int]]] | None = None,
    name: str | None = None,
    omero: Mapping[str, Any] | None = None,
    start: int | None = None,
    part: tuple[int, int] | None = None,
) -> str:
    """Write the levels below an array that is there, which stays as it is.

    What is there of the levels is kept. After a kill, or Ctrl-C, another call goes on there. A part is
    made again as a whole.

    Parameters
    ----------
    array
        Level 0: a sharded array of zarr-python in a group, in any store (see :class:`ArrayWriter`).
        Nothing may write it, or the levels, meanwhile.
    axes, levels, reduction, shapes, name, omero
        As for :class:`MultiscaleWriter`.
    start
        The slice of level 0 from which on the levels are made again. By default what is there is kept.
    part
        Do part ``i`` of ``n``, ``(i, n)``, which counts from 1. Processes with different parts write at the
        same time: each makes its whole shards of all levels, also those that are there.

    Returns
    -------
    str
        What was done, for people.

    Raises
    ------
    ValueError
        If the array cannot have such levels, or OME-Zarr does not allow the image, or the part is none:
        the message says why.
    FramesPending
        If subchunks are stored beside shards of a level: :func:`consolidate` it first.
    ShardError
        If a shard of the array is damaged.
    OSError
        If a file cannot be read or written.
    """
    if part is not None and not 1 <= part[0] <= part[1]:
        msg = f"`part` is {part}, and must be (i, n) with 1 <= i <= n"
        raise ValueError(msg)
    if part is not None and start is not None:
        msg = "a part of the levels is made as a whole: give `part` or `start`, not both"
        raise ValueError(msg)
    _, where, place = _in_group(array)
    pyramid = _pyramid(axes, levels, reduction, shapes, name, omero, start)
    devices = _devices.settings()
    this = None if part is None else (part[0] - 1, part[1])
    done: str = native().write_lower_levels(place, where.path, pyramid, _settings.syncs(), this, devices)
    _devices.warn_of_missing(devices)
    return done
