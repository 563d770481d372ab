"""Subchunks that are stored beside shards, where readers of shards do not see them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import warnings
from typing import TYPE_CHECKING

from zarr.storage import FsspecStore, LocalStore, ObjectStore, WrapperStore

from zarrs_cuda._errors import FramesWarning
from zarrs_cuda._native import native
from zarrs_cuda._places import place

if TYPE_CHECKING:
    from zarr.abc.store import Store

    from zarrs_cuda._places import Place

# The name of the file that the library puts beside the metadata of an array before it first stores
# subchunks beside shards.
MARKER = ".zarrs-cuda-frames"
# How many arrays are known.
_KEPT = 256
# The seconds after which a process looks again: another process may have stored subchunks since.
AGAIN = 2.0

# The process that looked, the path of the array, and the store behind its type: stores of different types may
# fail to compare. And when it looked. Replaced as a whole, because a lock may be held for ever in a forked
# child.
_looked: tuple[tuple[tuple[int, str, type[Store], Store], float], ...] = ()


def may_have_frames(store: Store) -> bool:
    """Return whether shards in a store may have subchunks beside them, and whether the store can be asked.

    No other store has had shards that are shared, and some would list everything they have.
    """
    inner = store
    while isinstance(inner, WrapperStore):
        inner = inner._store
    return isinstance(inner, LocalStore | ObjectStore | FsspecStore) and store.supports_listing


async def is_marked(store: Store, path: str) -> bool:
    """Return whether subchunks were ever stored beside the shards of the array at ``path``."""
    return await store.exists(f"{path}/{MARKER}" if path else MARKER)


async def look(store: Store, path: str) -> None:
    """Warn if subchunks are stored beside shards of the array at ``path``, which was read without them.

    Each process looks at an array at its first read, and again at a read :data:`AGAIN` seconds later. An
    array that was never shared costs one request.
    """
    if not _is_new(store, path):
        return
    # A user who may read shards may not always list them. The shards that were read are right.
    shards = 0
    with contextlib.suppress(Exception):
        found = place(store)
        if found is None:
            shards = await _count(store, path)
        else:
            shards = await asyncio.to_thread(native().frames, found, path)
    _tell(store, path, shards)


def look_at(found: Place, store: Store, path: str) -> None:
    """Do the same as :func:`look`, for a store that the library reads itself."""
    if not _is_new(store, path):
        return
    shards = 0
    with contextlib.suppress(Exception):
        shards = native().frames(found, path)
    _tell(store, path, shards)


def _is_new(store: Store, path: str) -> bool:
    """Return whether this process is to look at an array, and note that it does."""
    global _looked
    key, now = (os.getpid(), path, type(store), store), time.monotonic()
    recent = tuple(entry for entry in _looked if now - entry[1] < AGAIN)
    if any(known == key for known, _ in recent) or not may_have_frames(store):
        return False
    _looked = ((key, now), *recent)[:_KEPT]
    return True


def _tell(store: Store, path: str, shards: int) -> None:
    if shards:
        warnings.warn(
            f"subchunks of {shards} shards of the array {path or '/'!r} of {store} are stored beside them, "
            "and were not read: they are newer than the shards. Pack them with "
            '`zarrs_cuda.consolidate(array)`, or open the array with `codec_pipeline.shards` set to "shared"',
            FramesWarning,
            stacklevel=3,
        )


async def _count(store: Store, path: str) -> int:
    if not await is_marked(store, path):
        return 0
    shards = set()
    async for key in store.list_prefix(f"{path}/" if path else ""):
        shard, is_beside, name = key.rpartition(".frame/")
        if is_beside and name.endswith(".chunk"):
            shards.add(shard)
    return len(shards)
