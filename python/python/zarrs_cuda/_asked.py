"""Stores that only Python can read and write, as the library asks them from its threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import cpu
from zarr.core.sync import sync

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest, Store


class Asked:
    """A store of zarr-python. Each call waits for zarr-python's event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, key: str, start: int, length: int | None, from_end: bool) -> bytes | None:
        """Return a value, or a part of it, which may be shorter at its end; None if there is none."""
        place: ByteRequest | None = None
        if from_end:
            place = SuffixByteRequest(length or 0)
        elif length is not None:
            place = RangeByteRequest(start, start + length)
        elif start:
            place = OffsetByteRequest(start)
        value = sync(self._store.get(key, cpu.buffer_prototype, place))
        return None if value is None else value.to_bytes()

    def size(self, key: str) -> int | None:
        """Return the size of a value in bytes; None if there is none."""
        try:
            return sync(self._store.getsize(key))
        except FileNotFoundError:
            return None

    def set(self, key: str, value: bytes) -> None:
        """Store a value."""
        sync(self._store.set(key, cpu.Buffer.from_bytes(value)))

    def erase(self, key: str) -> None:
        """Delete a value, if there is one."""
        sync(self._store.delete(key))

    def list_prefix(self, prefix: str) -> list[str]:
        """Return the keys of all values below a prefix; none of a store that lists nothing."""
        # Subchunks beside shards, which the library looks for, are in no store that lists nothing.
        if not self._store.supports_listing:
            return []

        async def listed() -> list[str]:
            return [key async for key in self._store.list_prefix(prefix)]

        return sync(listed())
