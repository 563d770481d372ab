"""Where the library itself reads and writes the values of a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from zarr.core.config import config
from zarr.storage import LocalStore, ObjectStore

from zarrs_cuda._asked import Asked
from zarrs_cuda._native import native

if TYPE_CHECKING:
    from zarr.abc.store import Store

    from zarrs_cuda._internal import Objects

    type Place = str | Objects

# Stores that another module can make again: not `MemoryStore`, whose values are in obstore.
_KINDS = frozenset({"AzureStore", "GCSStore", "HTTPStore", "LocalStore", "S3Store"})
# How many stores of obstore are kept, with their connections.
_KEPT = 16
# Replaced as a whole, because a lock may be held for ever in a forked child.
_known: tuple[tuple[Any, int, Objects | None], ...] = ()


def place(store: Store) -> Place | None:
    """Find where the values of a store are.

    Parameters
    ----------
    store
        A store of zarr-python. Subclasses may read and write otherwise: they have no place.

    Returns
    -------
    str or Objects or None
        The directory of files, or the objects. None if the store itself has to be asked.
    """
    if type(store) is LocalStore:
        return str(store.root)
    if type(store) is ObjectStore:
        return _objects(store.store)
    return None


def place_of_shards(store: Store) -> Place:
    """Find where the values of a store are, which the library has to read and write itself.

    Raises
    ------
    ValueError
        If the store itself has to be asked.
    """
    found = place(store)
    if found is None:
        inner = f" of a {type(store.store).__name__}" if isinstance(store, ObjectStore) else ""
        msg = (
            f"the array is in a {type(store).__name__}{inner}, and must be in a `zarr.storage.LocalStore`, "
            "or in a `zarr.storage.ObjectStore` that is neither in memory nor has a credential provider"
        )
        raise ValueError(msg)
    return found


def place_of_slices(store: Store) -> Place | Asked:
    """Find where the values of a store are, or return the store, to be asked, if only Python writes it."""
    return place(store) or Asked(store)


def _objects(store: Any) -> Objects | None:
    """Return the objects of a store of obstore; those of an equal one, if they are known."""
    global _known
    requests = int(config.get("async.concurrency") or 1)
    for known, of_requests, objects in _known:
        if of_requests == requests and (known is store or known == store):
            return objects
    made = _made(store, requests)
    _known = ((store, requests, made), *_known)[:_KEPT]
    return made


def _made(store: Any, requests: int) -> Objects | None:
    kind = type(store)
    if kind.__module__ != "obstore.store" or kind.__name__ not in _KINDS:
        return None
    objects = native().Objects
    try:
        paths, settings = store.__getnewargs_ex__()
        if "credential_provider" in settings:
            # A function of Python, which may be one of an event loop.
            return None
        if kind.__name__ == "LocalStore" and paths[0] is not None and not Path(paths[0]).is_absolute():
            # The directory of the process may be another one by now.
            return None
        made: Objects = objects(store, requests)
    except Exception:
        # What another version of obstore says is not understood: zarr-python asks the store.
        return None
    return made
