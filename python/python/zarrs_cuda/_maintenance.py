"""Looking after shards: packing, compacting, repairing and describing them."""

from __future__ import annotations

import html
import json
import os
import re
import warnings
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zarr.core.array import Array, AsyncArray
from zarr.core.group import AsyncGroup, Group
from zarr.core.metadata.v3 import ArrayV3Metadata
from zarr.core.sync import sync
from zarr.storage import LocalStore

from zarrs_cuda import _settings
from zarrs_cuda._arrays import opened
from zarrs_cuda._native import native
from zarrs_cuda._pipeline import CodecPipeline, native_for
from zarrs_cuda._places import place_of_shards
from zarrs_cuda._supported import UnsupportedError, check_path, is_sharded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zarrs_cuda._internal import Native
    from zarrs_cuda._settings import Mode

    type AnyArray = Array[Any] | AsyncArray[Any]

# The temporaries of zarr-python, which do not say which process writes them.
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.partial$")


@dataclass(frozen=True)
class Consolidation:
    """What a consolidation did.

    Attributes
    ----------
    shards : int
        Shards that were packed.
    subchunks : int
        Subchunks that were written or erased since the shards were packed last.
    versions : int
        Objects that held these subchunks. They are deleted.
    invalid : int
        Objects that are not whole: their writers died, or are at work. They stay, unless they were
        to be discarded.
    erased : int
        Shards outside of the shape of the array that had such objects. These are deleted.
    """

    shards: int
    subchunks: int
    versions: int
    invalid: int
    erased: int


def consolidate(
    array: AnyArray | Group | AsyncGroup,
    part: tuple[int, int] = (1, 1),
    *,
    discard_invalid: bool = False,
    over_changed: bool = False,
) -> Consolidation:
    """Pack the subchunks that were written beside shards into the shards.

    Other processes may write meanwhile, with ``codec_pipeline.shards`` set to ``"shared"``; what they
    write is kept. But let one process at a time pack a shard, and do not make the array smaller
    meanwhile. If the process dies, nothing is lost: call it again. A shard that is damaged does not
    keep the others from being packed.

    Parameters
    ----------
    array
        An array of zarr-python in a ``LocalStore``, or in an ``ObjectStore`` that is not in memory; or a
        group: then all arrays below it that have shards which can be shared. One that cannot be packed does
        not keep the others from being packed.
    part
        Do part ``i`` of ``n``, ``(i, n)``, which counts from 1: every ``n``th shard of the grid, in C
        order. Processes with different parts pack at the same time. Part 1 deletes the subchunks of
        shards that are outside of the shape of the array.
    discard_invalid
        Delete objects that are not whole, which a writer that died left behind. No process may write
        meanwhile.
    over_changed
        Pack shards, too, that another program has replaced since subchunks were stored beside them, such as
        zarr-python's own pipeline. The subchunks win over what that program wrote.

    Returns
    -------
    Consolidation
        What was done; of a group, the sums.

    Raises
    ------
    ValueError
        If the array has no shards, or is in another store, or the part is none.
    ShardChanged
        If another program has replaced a shard since subchunks were stored beside it. The others were packed.
    ShardError
        If a shard is damaged. The others were packed.
    OSError
        If a file cannot be read or written. For objects, the exceptions of obstore.

    Warns
    -----
    UserWarning
        If nothing is stored beside the shards of an array that another pipeline opened: processes that
        wrote it so may have lost elements. Or if ``codec_pipeline.shards`` is set, and
        ``codec_pipeline.path`` is not this package's.
    """
    number, parts = part
    if not 1 <= number <= parts:
        msg = f"`part` is {part}, and must be (i, n) with 1 <= i <= n"
        raise ValueError(msg)
    if isinstance(array, Group | AsyncGroup):
        done, is_unshared = _consolidate_all(array, part, discard_invalid, over_changed)
    else:
        done, is_unshared = _consolidate_one(array, part, discard_invalid, over_changed)
    if is_unshared:
        warnings.warn(
            f"nothing is stored beside the shards of {array.path or '/'!r} of {array.store_path.store}, and "
            "another pipeline than this package's opened it. Processes that write parts of one shard so lose "
            "elements of each other: in each of them set `codec_pipeline.path` to "
            "'zarrs_cuda.CodecPipeline' and `codec_pipeline.shards` to 'shared' before arrays are opened",
            UserWarning,
            stacklevel=2,
        )
    elif why := _settings.unused():
        warnings.warn(why, UserWarning, stacklevel=2)
    return done


def _consolidate_one(
    array: AnyArray, part: tuple[int, int], discard_invalid: bool, over_changed: bool
) -> tuple[Consolidation, bool]:
    """Pack an array, and return whether nothing was beside its shards, and another pipeline opened it."""
    number, parts = part
    ours, path, _ = _opened(array, "shared", writes=True)
    pending = ours.pending(path)
    # After the listing: an array is made larger first, and then written to.
    grid = _grid(_stored_metadata(array))
    threads = _settings.threads()
    this = (number - 1, parts)
    done = ours.consolidate(
        path, pending, grid, this, threads, discard_invalid=discard_invalid, over_changed=over_changed
    )
    is_ours = isinstance(opened(array).codec_pipeline, CodecPipeline)
    return Consolidation(*done), not pending and not is_ours


def _consolidate_all(
    group: Group | AsyncGroup, part: tuple[int, int], discard_invalid: bool, over_changed: bool
) -> tuple[Consolidation, bool]:
    """Pack the arrays of a group, and return whether :func:`_consolidate_one` returns true for each."""
    where = group.store_path
    # Consolidated metadata may be of before, and lack arrays.
    stored = Group(sync(AsyncGroup.open(where, use_consolidated=False)))
    done = Consolidation(0, 0, 0, 0, 0)
    failed: Exception | None = None
    unshared = []
    for _, array in sorted(stored.members(max_depth=None)):
        if not isinstance(array, Array) or not is_sharded(array.metadata):
            continue
        try:
            _opened(array, "shared")
        except ValueError:
            # What cannot be shared has nothing beside its shards.
            continue
        try:
            one, is_unshared = _consolidate_one(array, part, discard_invalid, over_changed)
        except Exception as error:
            error.add_note(f"It is of the array {array.path!r}; the other arrays of the group were packed")
            failed = failed or error
            continue
        unshared.append(is_unshared)
        done = Consolidation(*(a + b for a, b in zip(astuple(done), astuple(one), strict=True)))
    if failed is not None:
        raise failed
    return done, bool(unshared) and all(unshared)


@contextmanager
def _alone(ours: Native, path: str) -> Iterator[None]:
    """Have the lease of the array at ``path``, and warn if there is none."""
    with closing(ours.lease(path)) as lease:
        if not lease.is_held:
            warnings.warn(
                f"no lease of {path!r}: the store takes no conditional requests, or this process may not "
                "write. See to it that nothing else changes the array meanwhile",
                stacklevel=4,
            )
        yield


def compact(array: AnyArray) -> dict[tuple[int, ...], tuple[int, int]]:
    """Store the shards without unused bytes, which updates in place leave behind.

    Nothing else may write the shards meanwhile. Each is replaced at once. The stored shards are found by
    a listing, however large the array is; those outside of its shape, which a larger array left, are
    left alone.

    The new file belongs to the user of this process, and its rights are those of new files. A symbolic
    link to a shard is replaced by the file. Other names of the old file (hard links) keep its bytes.

    Parameters
    ----------
    array
        An array of zarr-python in a ``LocalStore``, or in an ``ObjectStore`` that is not in memory.

    Returns
    -------
    dict
        The shards that became smaller, by their position in the grid: their size before and after, in
        bytes.

    Raises
    ------
    ValueError
        If the array has no shards, or is in another store.
    RuntimeError
        If an update of a shard was interrupted: :func:`recover` it first.
    OSError
        If a file cannot be read or written, or if a writer extends the array now, or another process
        compacts or repairs it: then nothing was changed. For objects, the exceptions of obstore.

    Warns
    -----
    UserWarning
        If other processes are not refused meanwhile, because the array can have no lease: the store takes no
        conditional requests, or this process may not write.
    """
    ours, path, grid = _opened(array, "rewrite", writes=True)
    with _alone(ours, path):
        done = {tuple(shard): ours.compact(path, shard) for shard in ours.stored(path, grid)}
    return {shard: sizes for shard, sizes in done.items() if sizes is not None and sizes[0] != sizes[1]}


def recover(array: AnyArray) -> dict[tuple[int, ...], str]:
    """Repair what processes left that were killed while they wrote.

    Shards whose last update in place was interrupted are completed, or as they were before. They are found
    by a listing; shards outside of the shape of the array are left alone. A file with several names (hard
    links) is not written to: the repaired shard is a new file, and the other names keep the torn one.
    Temporary files are deleted: those of zarr-python, those of arrays without shards, too, and those of
    processes of this package and machine that have ended. Nothing else may write the array meanwhile.

    Parameters
    ----------
    array
        An array of zarr-python in a ``LocalStore``, or in an ``ObjectStore`` that is not in memory.

    Returns
    -------
    dict
        The shards that were not intact, by their position in the grid: ``"undone"``, ``"completed"``,
        ``"erased"`` (it was never complete), or ``"unrecoverable"``.

    Raises
    ------
    ValueError
        If the array is in another store, or another pipeline reads and writes it.
    OSError
        If a file cannot be read or written, or if a writer extends the array now, or another process
        compacts or repairs it: then nothing was changed. For objects, the exceptions of obstore.

    Warns
    -----
    UserWarning
        If other processes are not refused meanwhile, because the array can have no lease: the store takes no
        conditional requests, or this process may not write.
    """
    ours, path, grid = _opened(array, "rewrite", writes=True, shards=False)
    threads = _settings.threads()
    store = opened(array).store_path.store
    with _alone(ours, path):
        shards = ours.stored(path, grid) if ours.is_sharded else []
        found = {tuple(shard): ours.recover(path, shard, threads)[0] for shard in shards}
        if isinstance(store, LocalStore):
            for directory, _, names in os.walk(store.root / path):
                for name in names:
                    if _TEMPORARY.search(name) or native().is_left(name):
                        (Path(directory) / name).unlink(missing_ok=True)
    return {shard: state for shard, state in found.items() if state not in ("absent", "intact")}


@dataclass(frozen=True)
class Inspection:
    """What a shard holds, and where. Sizes and offsets are in bytes.

    Attributes
    ----------
    size : int
        The size of the shard.
    live : int
        How many bytes the index and the subchunks use.
    grid : tuple of int
        The number of subchunks along each axis.
    index : tuple of int or None
        Where the index begins and ends; None if the shard is shorter.
    subchunks : list
        For each subchunk, in C order, where it begins and its size; None for an empty one.
    problem : str or None
        What is wrong with the index.
    state : str
        What :func:`recover` would return, or ``"intact"``.
    """

    size: int
    live: int
    grid: tuple[int, ...]
    index: tuple[int, int] | None
    subchunks: list[tuple[int, int] | None]
    problem: str | None
    state: str
    _text: str

    def __str__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        """Draw the shard: what its bytes are used for, from the first to the last."""
        width, height = 800, 40
        scale = width / max(self.size, 1)

        def box(start: int, size: int, colour: str, name: str) -> str:
            return (
                f'<rect x="{start * scale:.2f}" width="{max(size * scale, 0.5):.2f}" height="{height}" '
                f'fill="{colour}"><title>{html.escape(name)}</title></rect>'
            )

        drawn = [box(0, self.size, "#ddd", "unused")]
        for number, place in enumerate(self.subchunks):
            if place is not None:
                colour = ("#4c78a8", "#72a0cf")[number % 2]
                drawn.append(box(*place, colour, f"subchunk {number}: {place[1]} bytes"))
        if self.index is not None:
            start, end = self.index
            drawn.append(box(start, end - start, "#e45756", f"index: {end - start} bytes"))
        summary = (
            f"{self.size} bytes, {self.size - self.live} unused; "
            f"{sum(place is not None for place in self.subchunks)} of {len(self.subchunks)} subchunks; "
            f"{self.problem or self.state}"
        )
        return (
            f'<svg width="{width}" height="{height}" xmlns="http://www.w3.org/2000/svg">'
            f"{''.join(drawn)}</svg><div>{html.escape(summary)}</div>"
        )


def inspect(array: AnyArray, shard: tuple[int, ...]) -> Inspection | None:
    """Describe a shard. Nothing is decoded, and nothing is changed.

    Parameters
    ----------
    array
        An array of zarr-python in a ``LocalStore``, or in an ``ObjectStore`` that is not in memory.
    shard
        The position of the shard in the grid of shards.

    Returns
    -------
    Inspection or None
        What it holds; None if there is no such shard.

    Raises
    ------
    ValueError
        If the array has no shards, or not this one, or is in another store.
    OSError
        If the file cannot be read.
    """
    ours, path, grid = _opened(array, "rewrite")
    if len(shard) != len(grid) or not all(0 <= at < count for at, count in zip(shard, grid, strict=True)):
        msg = f"there is no shard {shard}: the grid of shards has the shape {tuple(grid)}"
        raise ValueError(msg)
    found = ours.inspect(path, list(shard))
    if found is None:
        return None
    described, text = found
    values = json.loads(described)
    return Inspection(
        size=values["size"],
        live=values["live"],
        grid=tuple(values["grid"]),
        index=None if values["index"] is None else tuple(values["index"]),
        subchunks=[None if place is None else tuple(place) for place in values["subchunks"]],
        problem=values["problem"],
        state=values["state"],
        _text=text,
    )


def _opened(
    array: AnyArray, mode: Mode, *, writes: bool = False, shards: bool = True
) -> tuple[Native, str, list[int]]:
    """Return the native half for the shards of an array, its path, and its grid of shards."""
    asynchronous = opened(array)
    where = asynchronous.store_path
    found = place_of_shards(where.store)
    if writes:
        where.store._check_writable()
    if not isinstance(asynchronous.metadata, ArrayV3Metadata):
        msg = "it is an array of Zarr v2, which has no shards"
        raise ValueError(msg)
    metadata = _stored_metadata(asynchronous)
    try:
        check_path(where.path)
        ours = native_for(metadata, found, mode)
    except UnsupportedError as error:
        raise ValueError(str(error)) from error
    if shards and not ours.is_sharded:
        msg = "the array has no shards, or codecs around them"
        raise ValueError(msg)
    return ours, where.path, _grid(metadata)


def _stored_metadata(array: AnyArray) -> Any:
    """Return the metadata of an array as they are stored: its shape may have changed since it was opened."""
    return sync(AsyncArray.open(array.store_path)).metadata


def _grid(metadata: Any) -> list[int]:
    """Return the shape of the grid of shards."""
    chunk = metadata.chunk_grid.chunk_shape
    return [-(-extent // size) for extent, size in zip(metadata.shape, chunk, strict=True)]
