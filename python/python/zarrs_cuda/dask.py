"""Store Dask arrays in shards that many workers write."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from zarr.core.array import Array, AsyncArray

from zarrs_cuda import _settings
from zarrs_cuda._arrays import opened
from zarrs_cuda._blocks import moved
from zarrs_cuda._maintenance import consolidate
from zarrs_cuda._masks import check_mask
from zarrs_cuda._pipeline import CodecPipeline, native_for
from zarrs_cuda._places import place_of_shards
from zarrs_cuda._supported import is_sharded
from zarrs_cuda._threads import ended_threads

if TYPE_CHECKING:
    from dask.array import Array as DaskArray
    from dask.delayed import Delayed
    from xarray import DataArray


def store(x: DaskArray | DataArray, z: Array[Any], *, compute: bool = True) -> Delayed | None:
    """Store a Dask array in a sharded array of zarr-python.

    Each task writes one block, of one subchunk or more, beside the shards; blocks need not be aligned
    with shards, and workers may be in any number of processes. When all blocks of a shard are
    written, one task packs the shard. What a worker that dies had to do is done again by another. An error
    of a block is raised when Dask's threads have ended: none of them stores a block after that.

    Parameters
    ----------
    x
        The elements: an array of Dask, or a DataArray of xarray, whose axes are put in the order of the
        array's by their names. Borders of blocks that are within a subchunk are moved to the next one.
    z
        A sharded array of the same shape, in a ``LocalStore`` or an ``ObjectStore`` that all workers
        reach. Nothing else may write it meanwhile.
    compute
        Whether to do it now.

    Returns
    -------
    Delayed or None
        What does it when it is computed, unless ``compute`` is set.

    Raises
    ------
    ValueError
        If the shapes differ, or the array has no shards, or is in another store, or axes have other names.
        A block with masked elements is an error when it is stored.
    """
    from dask.delayed import delayed

    array = _shared(z)
    elements = _blocks_of(x, array)
    if elements.shape != array.shape:
        msg = f"the Dask array has the shape {elements.shape}, and the array of zarr-python {array.shape}"
        raise ValueError(msg)
    subchunk, shard = array.chunks, array.shards
    if shard is None:
        msg = "the array has no shards"
        raise ValueError(msg)
    elements = elements.rechunk(
        tuple(moved(sizes, step) for sizes, step in zip(elements.chunks, subchunk, strict=True))
    )
    starts = [np.concatenate([[0], np.cumsum(sizes)]) for sizes in elements.chunks]
    write, pack = delayed(_write, pure=False), delayed(_pack, pure=False)
    of_shard: dict[tuple[int, ...], list[Delayed]] = {}
    blocks = elements.to_delayed()
    for number in np.ndindex(blocks.shape):
        box = tuple(
            slice(int(edges[at]), int(edges[at + 1])) for edges, at in zip(starts, number, strict=True)
        )
        written = write(array, box, blocks[number])
        touched = (
            range(entry.start // size, -(-entry.stop // size)) for entry, size in zip(box, shard, strict=True)
        )
        for indices in itertools.product(*touched):
            of_shard.setdefault(indices, []).append(written)
    packed = [pack(array, indices, written) for indices, written in of_shard.items()]
    done = delayed(_done, pure=False)(array, packed)
    if compute:
        with ended_threads() as keywords:
            done.compute(**keywords)
        return None
    return done


def _blocks_of(x: Any, array: Array[Any]) -> Any:
    """Return the Dask array of a DataArray of xarray, in the order of the axes of the array."""
    if hasattr(x, "to_dataset") and hasattr(x, "dims"):
        names = getattr(array.metadata, "dimension_names", None)
        if names and all(names) and set(names) == set(x.dims):
            x = x.transpose(*names)
        elif names and all(names):
            msg = (
                f"the axes of the DataArray are {x.dims}, and those of the array of zarr-python {names}: "
                "rename or select them first, or give `x.data` to store it by the order of its axes"
            )
            raise ValueError(msg)
        x = x.data
    if not hasattr(x, "to_delayed"):
        from dask.array import from_array

        x = from_array(x, chunks=array.shards)
    return x


def _shared(z: Array[Any]) -> Array[Any]:
    """Return the array with shared shards."""
    asynchronous = opened(z)
    where = asynchronous.store_path
    place_of_shards(where.store)
    if not is_sharded(asynchronous.metadata):
        msg = "the array has no shards, or codecs around them"
        raise ValueError(msg)
    where.store._check_writable()
    shared = AsyncArray(metadata=asynchronous.metadata, store_path=where, config=asynchronous.config)
    pipeline = CodecPipeline(asynchronous.metadata, where.store, "shared")
    object.__setattr__(shared, "codec_pipeline", pipeline)
    return Array(shared)


def _write(array: Array[Any], box: tuple[slice, ...], block: Any) -> None:
    check_mask(block)
    array[box] = block


def _pack(array: Array[Any], indices: tuple[int, ...], _written: list[None]) -> None:
    where = array.async_array.store_path
    ours = native_for(array.metadata, place_of_shards(where.store), "shared")
    ours.consolidate_shard(where.path, list(indices), _settings.threads())


def _done(array: Array[Any], _packed: list[None]) -> None:
    """Pack what blocks wrote that were written again because a worker died."""
    consolidate(array)
