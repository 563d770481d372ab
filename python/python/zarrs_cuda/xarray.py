"""Write data sets of xarray: what can go wrong is found before anything is changed."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import xarray as xr
import zarr
from zarr.core.config import config
from zarr.core.metadata.v3 import ArrayV3Metadata, RegularChunkGridMetadata
from zarr.core.sync import sync
from zarr.errors import ContainsArrayError, GroupNotFoundError
from zarr.storage import FsspecStore

from zarrs_cuda import _settings
from zarrs_cuda._blocks import moved
from zarrs_cuda._errors import FramesPending
from zarrs_cuda._explain import explain
from zarrs_cuda._pipeline import native_for
from zarrs_cuda._places import place
from zarrs_cuda._supported import UnsupportedError, has_shards, is_sharded
from zarrs_cuda._threads import ended_threads

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    type _Region = Mapping[Any, slice | str] | str | None


def to_zarr(
    data: xr.Dataset | xr.DataArray,
    store: Any,
    *,
    group: str | None = None,
    mode: str | None = None,
    encoding: Mapping[Any, Any] | None = None,
    append_dim: Hashable | None = None,
    region: _Region = None,
    safe_chunks: bool = True,
    compute: bool = True,
    storage_options: dict[str, Any] | None = None,
    **more: Any,
) -> Any:
    """Write a data set, or an array, of xarray through this package.

    It does what xarray's own method does, and these besides:

    - It looks before it changes anything. Subchunks that are stored beside shards, arrays that an append
      would leave with other lengths than the rest, and arrays that cannot be written as
      ``codec_pipeline.shards`` says are errors, and the data set stays as it was.
    - Borders between Dask's blocks are moved, for each variable by itself, so that no two blocks write the
      same chunk: to borders of subchunks in the mode ``"shared"``, else to those of shards, or of chunks
      of arrays that have no shards. Blocks become larger if they have to.
    - If an append fails, the arrays get the shapes from before, and the data set can still be opened.
    - An error, and Ctrl-C, are raised when Dask's threads have ended: no block is stored after that.

    In the mode ``"shared"`` call ``zarrs_cuda.consolidate(group)`` when all processes have written.

    Parameters
    ----------
    data
        The data set, or the array.
    store
        A path, or a store of zarr-python.
    group, mode, encoding, append_dim, storage_options, **more
        As for ``xarray.Dataset.to_zarr``.
    region
        As for ``xarray.Dataset.to_zarr``.
    safe_chunks
        Whether a region must begin and end at borders of what one process alone may write (see above), in
        every variable, unless ``mode`` is ``"a"``. Unset it if no other process writes the data set
        meanwhile. Blocks are moved in any case. Where ``codec_pipeline.shards`` is ``"in_place"`` in all
        processes, which are of one machine, any region of an array with shards will do.
    compute
        Whether to write the elements now. Otherwise what is returned does it. If it fails then, the arrays
        keep their new shapes.

    Returns
    -------
    ZarrStore or Delayed
        As from ``xarray.Dataset.to_zarr``.

    Raises
    ------
    TypeError
        If ``data`` is no data set and no array.
    FramesPending
        If subchunks are stored beside shards that would be written.
    ValueError
        If a region is not at borders, or an append would leave arrays of different lengths, or an array
        cannot be written in this mode: the message names the variable and the remedy.
    """
    dataset = _dataset(data)
    if mode is None:
        mode = "a" if append_dim is not None else "r+" if region is not None else "w-"
    with config.set({"codec_pipeline.path": "zarrs_cuda.CodecPipeline"}):
        stored = {} if mode.startswith("w") else _stored(store, group, storage_options)
        found = _found(dataset, stored, region)
        written = {
            name: variable
            for name, variable in dataset.variables.items()
            # xarray writes no index of a region, and in this mode nothing that is not longer then.
            if not (found is not None and name in dataset.indexes)
            and not (
                mode == "a-" and append_dim is not None and append_dim not in variable.dims and name in stored
            )
        }
        if append_dim is not None:
            _check_lengths(append_dim, written, stored)
        replaced = {}
        for name, variable in written.items():
            array = stored.get(str(name))
            if array is None:
                new = _aligned_new(variable, (encoding or {}).get(name, variable.encoding))
            else:
                starts = _starts(array, append_dim, found)
                step, shards = _step(array, name)
                # In place, processes take turns at shards.
                if safe_chunks and mode == "r+" and shards != "in_place":
                    _check_borders(name, array, variable, found or {}, step, shards)
                _check_frames(array, _box(array, variable, starts))
                new = _aligned(variable, dict(zip(_dims(array), step, strict=True)), starts)
            if new is not None:
                replaced[name] = new
        for name, variable in replaced.items():
            put = dataset.assign_coords if name in dataset.coords else dataset.assign
            dataset = put({name: variable})
        lengthened = {} if append_dim is None else {n: a for n, a in stored.items() if append_dim in _dims(a)}
        with _shapes_kept(lengthened), contextlib.ExitStack() as stack:
            if compute and any(_is_of_dask(variable) for variable in dataset.variables.values()):
                keywords = stack.enter_context(ended_threads()) | (
                    more.get("chunkmanager_store_kwargs") or {}
                )
                more["chunkmanager_store_kwargs"] = keywords
            return dataset.to_zarr(  # type: ignore[call-overload,misc]
                store,
                group=group,
                mode=mode,
                encoding=encoding,
                append_dim=append_dim,
                region=found,
                safe_chunks=False,
                compute=compute,
                storage_options=storage_options,
                **more,
            )


def _is_of_dask(variable: xr.Variable) -> bool:
    return variable.chunks is not None and hasattr(variable.data, "__dask_graph__")


def _dataset(data: Any) -> xr.Dataset:
    if isinstance(data, xr.Dataset):
        return data
    if not isinstance(data, xr.DataArray):
        msg = (
            f"`data` is a {type(data).__name__}, and must be an `xarray.Dataset` or an `xarray.DataArray`; "
            "write the data sets of a tree one by one, with `group`"
        )
        raise TypeError(msg)
    # As `xarray.DataArray.to_zarr` names it.
    from xarray.backends.api import DATAARRAY_NAME, DATAARRAY_VARIABLE

    if data.name is not None and data.name not in data.coords and data.name not in data.dims:
        return data.to_dataset()
    dataset = data.to_dataset(name=DATAARRAY_VARIABLE)
    if data.name is not None:
        dataset.attrs[DATAARRAY_NAME] = data.name
    return dataset


def _stored(store: Any, group: str | None, options: dict[str, Any] | None) -> dict[str, zarr.Array[Any]]:
    """Return the arrays of the group, as they are stored now."""
    try:
        opened = zarr.open_group(
            store, path=group or "", mode="r+", use_consolidated=False, storage_options=options
        )
    except (GroupNotFoundError, FileNotFoundError, ContainsArrayError):
        # xarray makes the group, or says what is wrong.
        return {}
    return dict(opened.arrays())


def _dims(array: zarr.Array[Any]) -> tuple[Any, ...]:
    names: Any = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    names = tuple(names or ())
    # Without names nothing is known of the axes: xarray says so.
    return names if len(names) == len(array.shape) else tuple(range(len(array.shape)))


def _found(
    dataset: xr.Dataset, stored: dict[str, zarr.Array[Any]], region: _Region
) -> dict[Any, slice] | None:
    """Return the region with a slice for each of its axes."""
    if region is None:
        return None
    wanted = dict.fromkeys(dataset.dims, "auto") if isinstance(region, str) else dict(region)
    found: dict[Any, slice] = {}
    for dim, entry in wanted.items():
        if isinstance(entry, slice):
            found[dim] = entry
            continue
        if dim not in dataset.indexes or str(dim) not in stored:
            found[dim] = slice(0, dataset.sizes.get(dim, 0))
            continue
        with xr.open_zarr(
            stored[str(dim)].store_path.store,
            group=stored[str(dim)].path.rpartition("/")[0] or None,
            consolidated=False,
            chunks=None,
        ) as there:
            at = there.indexes[dim].get_indexer(dataset.indexes[dim])
        if not len(at) or at[0] < 0 or (at != range(at[0], at[0] + len(at))).any():
            msg = (
                f"`region` asks for the place of {dim!r} in the store, and the labels of the data are not "
                f"{len(at)} labels there that follow each other: give a slice"
            )
            raise ValueError(msg)
        found[dim] = slice(int(at[0]), int(at[-1]) + 1)
    return found


def _check_lengths(
    append_dim: Hashable, written: dict[Hashable, xr.Variable], stored: dict[str, zarr.Array[Any]]
) -> None:
    """Check that all arrays with an axis get the same length: else the data set cannot be opened."""
    lengths = {
        name: array.shape[_dims(array).index(append_dim)]
        for name, array in stored.items()
        if append_dim in _dims(array)
    }
    if not lengths:
        return
    shortest = min(lengths.values())
    if len(set(lengths.values())) > 1:
        longer = sorted(name for name, length in lengths.items() if length > shortest)
        msg = (
            f"the arrays of the store have different lengths along {append_dim!r}, {lengths}: an append was "
            f"interrupted. Make {longer} as short as the others, {shortest} along that axis "
            "(`array.resize(shape)`), and append again"
        )
        raise ValueError(msg)
    missing = sorted(set(lengths) - {str(name) for name in written})
    if missing:
        msg = (
            f"an append along {append_dim!r} would leave the arrays {missing} of the store as they are, with "
            f"{shortest} elements along it, and the data set could not be opened: add them to the data"
        )
        raise ValueError(msg)
    new = sorted(str(n) for n, v in written.items() if append_dim in v.dims and str(n) not in lengths)
    if new and shortest > 0:
        msg = (
            f"an append along {append_dim!r} would make new arrays of {new}, without the {shortest} elements "
            "that the others have already, and the data set could not be opened: write these first, for all "
            "of the axis, or leave them out (`data.drop_vars`)"
        )
        raise ValueError(msg)


def _starts(
    array: zarr.Array[Any],
    append_dim: Hashable | None,
    region: dict[Any, slice] | None,
) -> dict[Any, int]:
    """Return where the variable begins in the stored array, along each axis."""
    starts = {}
    for dim, extent in zip(_dims(array), array.shape, strict=True):
        begin = 0
        if dim == append_dim:
            begin = extent
        elif region is not None and dim in region:
            begin = region[dim].indices(extent)[0]
        starts[dim] = begin
    return starts


def _box(array: zarr.Array[Any], variable: xr.Variable, starts: dict[Any, int]) -> list[tuple[int, int]]:
    """Return where the variable begins and ends in the stored array, along each axis."""
    return [(starts[dim], starts[dim] + variable.sizes.get(dim, 0)) for dim in _dims(array)]


def _step(array: zarr.Array[Any], name: Hashable) -> tuple[tuple[int | None, ...], str | None]:
    """Return the shape of what one block alone may write, and how shards are written.

    The shape has None along axes that are not divided regularly.
    """
    seen = explain(array)
    if seen.mode is None and has_shards(array.metadata) and _settings.mode() != "rewrite":
        msg = (
            f"the variable {name!r} cannot be written with `codec_pipeline.shards` set to "
            f"{_settings.mode()!r}: {seen.why}"
        )
        raise ValueError(msg)
    if isinstance(array.metadata, ArrayV3Metadata) and not isinstance(
        array.metadata.chunk_grid, RegularChunkGridMetadata
    ):
        return (None,) * array.ndim, seen.mode
    return array.chunks if seen.mode == "shared" else array.shards or array.chunks, seen.mode


def _check_borders(
    name: Hashable,
    array: zarr.Array[Any],
    variable: xr.Variable,
    region: dict[Any, slice],
    step: tuple[int | None, ...],
    shards: str | None,
) -> None:
    for axis, (dim, extent, size) in enumerate(zip(_dims(array), array.shape, step, strict=True)):
        if dim not in region or dim not in variable.dims:
            continue
        start, stop, _ = region[dim].indices(extent)
        if size is None:
            is_border = (start, stop) == (0, extent)
            every = "the whole axis"
        else:
            is_border = start % size == 0 and (stop % size == 0 or stop == extent)
            every = f"multiples of {size}"
        if not is_border:
            msg = (
                f"the region {start}:{stop} of {dim!r} shares chunks of the variable {name!r} with its "
                f"neighbours, and processes that write such regions at the same time lose elements of each "
                f"other: begin and end it at {every}{_modes(array, axis, shards)}, or write {name!r} by "
                "itself (`data.drop_vars`), or pass `safe_chunks=False` if no other process writes meanwhile"
            )
            raise ValueError(msg)


def _modes(array: zarr.Array[Any], axis: int, shards: str | None) -> str:
    """Return the modes that take more regions along an axis."""
    if not is_sharded(array.metadata):
        return ""
    words = (
        ', or set `codec_pipeline.shards` to "in_place" in all these processes, which takes any region of a '
        "`LocalStore` on one machine"
    )
    if shards != "shared" and isinstance(array.metadata.chunk_grid, RegularChunkGridMetadata):
        words += f', or to "shared", which takes multiples of {array.chunks[axis]}'
    return words


def _check_frames(array: zarr.Array[Any], box: list[tuple[int, int]]) -> None:
    """Check that no subchunks are stored beside the shards that a box of the array meets."""
    metadata = array.metadata
    if not is_sharded(metadata) or not isinstance(metadata.chunk_grid, RegularChunkGridMetadata):
        return
    if explain(array).mode == "shared" or any(start >= stop for start, stop in box):
        return
    met = [
        range(start // size, -(-stop // size))
        for (start, stop), size in zip(box, metadata.chunk_grid.chunk_shape, strict=True)
    ]
    for shard in _pending(array):
        if all(index in indices for index, indices in zip(shard, met, strict=True)):
            pending = FramesPending(
                array.path, f"{array.path}/{metadata.encode_chunk_key(shard)}".lstrip("/")
            )
            pending.store = str(array.store_path.store)
            raise pending


def _pending(array: zarr.Array[Any]) -> Iterator[tuple[int, ...]]:
    """Return the shards that have subchunks beside them."""
    store = array.store_path.store
    found = place(store)
    if found is not None:
        with contextlib.suppress(UnsupportedError):
            # What cannot be shared has nothing beside its shards.
            yield from map(tuple, native_for(array.metadata, found, "shared").pending(array.path))
        return
    if not isinstance(store, FsspecStore) or not store.supports_listing:
        return

    async def listed() -> set[str]:
        return {key async for key in store.list_prefix(f"{array.path}/" if array.path else "")}

    keys = {key.rpartition("/")[0] for key in sync(listed()) if key.endswith(".chunk")}
    if keys:
        counts = (-(-e // c) for e, c in zip(array.shape, array.shards or array.chunks, strict=True))
        for shard in itertools.product(*map(range, counts)):
            key = f"{array.path}/{array.metadata.encode_chunk_key(shard)}.frame".lstrip("/")
            if key in keys:
                yield shard


def _aligned(
    variable: xr.Variable, step: dict[Any, int | None], starts: Mapping[Any, int]
) -> xr.Variable | None:
    """Return the variable with its blocks at borders of chunks; None if they are there already."""
    chunks = variable.chunks
    if chunks is None:
        return None
    new = {}
    for dim, sizes in zip(variable.dims, chunks, strict=True):
        size = step.get(dim)
        new[dim] = (sum(sizes),) if size is None else moved(sizes, size, starts.get(dim, 0))
    if tuple(new.values()) == chunks:
        return None
    return variable.chunk(new)


def _aligned_new(variable: xr.Variable, encoding: Mapping[str, Any]) -> xr.Variable | None:
    """As `_aligned`, of a variable that gets a new array."""
    if variable.chunks is None:
        return None

    def shape(key: str) -> tuple[int, ...] | None:
        given: Any = encoding.get(key)
        if isinstance(given, int):
            return (given,) * variable.ndim
        is_shape = isinstance(given, tuple | list) and len(given) == variable.ndim
        # xarray says what is wrong with others.
        return tuple(given) if is_shape and all(isinstance(size, int) for size in given) else None

    chunks, shards = shape("chunks"), shape("shards")
    step = chunks if shards is None or (_settings.mode() == "shared" and chunks is not None) else shards
    if step is None:
        # Chunks become what Dask's blocks are.
        return None
    return _aligned(variable, dict(zip(variable.dims, step, strict=True)), {})


@contextlib.contextmanager
def _shapes_kept(arrays: dict[str, zarr.Array[Any]]) -> Iterator[None]:
    """Give arrays the shapes that they have now if what is done with them fails."""
    before = {name: array.shape for name, array in arrays.items()}
    try:
        yield
    except BaseException as error:
        for name, array in arrays.items():
            try:
                now = zarr.open_array(array.store_path, mode="r+")
                if now.shape == before[name]:
                    continue
                longer = now.shape
                now.resize(before[name])
                error.add_note(f"the variable {name!r} was resized from {longer} back to {before[name]}")
                if _settings.mode() == "shared" and is_sharded(now.metadata):
                    error.add_note(f"call `zarrs_cuda.consolidate` for {name!r} before the next append")
            except Exception as again:
                error.add_note(
                    f"the variable {name!r} may have another shape than {before[name]}, which it had: {again}"
                    ". Resize it to that"
                )
        try:
            if arrays:
                # They are of one group.
                _renew_consolidated(next(iter(arrays.values())).store_path.store)
        except Exception as again:
            error.add_note(
                f"the consolidated metadata may have other shapes than the variables: {again}. Call "
                "`zarr.consolidate_metadata` for the store"
            )
        raise


def _renew_consolidated(store: Any) -> None:
    """Store the consolidated metadata again, if there are any: xarray stores them before the elements."""
    with contextlib.suppress(GroupNotFoundError):
        root = zarr.open_group(store, mode="r+")
        if root.metadata.consolidated_metadata is not None:
            zarr.consolidate_metadata(store, zarr_format=root.metadata.zarr_format)
