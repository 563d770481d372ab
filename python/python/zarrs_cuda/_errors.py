"""Errors and warnings."""


class FallbackWarning(UserWarning):
    """zarr-python's own pipeline reads and writes an array: the message says why."""


class ShardError(RuntimeError):
    """A shard, or a chunk, cannot be decoded.

    Attributes
    ----------
    array : str
        The path of the array in its store.
    shard : str
        The key of the shard in the store.
    """

    def __init__(self, array: str, shard: str, why: str) -> None:
        super().__init__(array, shard, why)
        self.array = array
        self.shard = shard
        self._why = why

    def __str__(self) -> str:
        return (
            f"the array {self.array or '/'!r} has a damaged shard, {self.shard!r}: {self._why}. "
            "Write the shard again, or delete its object to read it as fill values."
        )
