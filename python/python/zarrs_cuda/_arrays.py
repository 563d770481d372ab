"""What callers may give where an array is asked for."""

from __future__ import annotations

import os
from typing import Any

from zarr.abc.store import Store
from zarr.core.array import Array, AsyncArray
from zarr.core.group import AsyncGroup, Group
from zarr.storage import StorePath


def opened(array: Any) -> AsyncArray[Any]:
    """Return the asynchronous array of an array.

    Raises
    ------
    TypeError
        If it is none: a path, a store, a group, or anything else.
    """
    if isinstance(array, Array):
        return array.async_array
    if isinstance(array, AsyncArray):
        return array
    if isinstance(array, str | os.PathLike | Store | StorePath):
        kind = "path" if isinstance(array, str | os.PathLike) else "store"
        msg = f"{array!r} is a {kind}, and not an array: open it first, with `zarr.open_array(…, mode='r+')`"
    elif isinstance(array, Group | AsyncGroup):
        names = (
            sorted(Group(array).array_keys()) if isinstance(array, AsyncGroup) else sorted(array.array_keys())
        )
        msg = f"{array!r} is a group, and not an array: choose one of its arrays, {names}, as `group[name]`"
    else:
        msg = f"an array of zarr-python is asked for, and this is a {type(array).__name__}"
    raise TypeError(msg)
