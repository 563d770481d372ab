"""Errors and warnings."""

from zarrs_cuda._words import by_python


class FallbackWarning(UserWarning):
    """zarr-python's own pipeline reads and writes an array: the message says why."""


class FramesWarning(UserWarning):
    """Subchunks are stored beside the shards of an array, and were not read: the message says what to do."""


class BackendUnavailable(RuntimeError):  # noqa: N818
    """A read or a write is refused, because no GPU can do it: the message says why.

    The backend is ``"cuda"``, or the elements should go to the memory of a GPU.
    """

    def __str__(self) -> str:
        why, *remedies = self.args
        remedy = (
            remedies[0]
            if remedies
            else "`zarrs_cuda.configure(backend='auto')`, before the array is opened, uses the host instead"
        )
        return f"{by_python(why)}. `zarrs_cuda.doctor()` says what this machine has. {remedy}"


class _OfShardError(RuntimeError):
    """An error of one shard, or of one chunk.

    Attributes
    ----------
    array : str
        The path of the array in its store.
    shard : str
        The key of the shard in the store.
    store : str or None
        The store, if it is known.
    """

    def __init__(self, array: str, shard: str, *why: str) -> None:
        # All arguments, so that the error can be pickled.
        super().__init__(array, shard, *why)
        self.array = array
        self.shard = shard
        self.store: str | None = None

    @property
    def _where(self) -> str:
        path = repr(self.array or "/")
        return path if self.store is None else f"{path} of {self.store}"


class FramesPending(_OfShardError):  # noqa: N818
    """Subchunks of a shard are stored beside it, and would hide what is written.

    Attributes
    ----------
    array : str
        The path of the array in its store.
    shard : str
        The key of the shard in the store.
    store : str or None
        The store, if it is known.
    resized : tuple or None
        The shape that the array had when it was opened, and the shape that is stored now, if they differ.
    """

    resized: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def __str__(self) -> str:
        message = (
            f"the array {self._where} has subchunks beside its shard {self.shard!r}, written with "
            "`codec_pipeline.shards` set to 'shared'. They would hide what is written otherwise: call "
            "`zarrs_cuda.consolidate(array)` first, when no other process writes. If it says that some are "
            "not whole, `zarrs_cuda.consolidate(array, discard_invalid=True)` deletes these"
        )
        if self.resized is None:
            return message
        before, now = self.resized
        return (
            f"{message}. This call wrote nothing to the array, but it was resized from {before} to {now} "
            "after it was opened, and other arrays of its group may have been resized, too. Call "
            "`zarrs_cuda.consolidate(array)` for each, then `array.resize(shape)` with the shape from before "
            f"(of this array {before}), and then append again. `zarrs_cuda.xarray.to_zarr` looks for such "
            "subchunks before it resizes anything"
        )


class ShardChanged(_OfShardError):  # noqa: N818
    """Another program has replaced a shard since subchunks were stored beside it: it was not packed.

    Attributes
    ----------
    array : str
        The path of the array in its store.
    shard : str
        The key of the shard in the store.
    store : str or None
        The store, if it is known.
    """

    def __str__(self) -> str:
        return (
            f"the shard {self.shard!r} of the array {self._where} was not packed: {self.args[2]}. "
            "`zarrs_cuda.consolidate(array, over_changed=True)` packs the subchunks over such shards"
        )


class ShardError(_OfShardError):
    """A shard, or a chunk, cannot be decoded.

    Attributes
    ----------
    array : str
        The path of the array in its store.
    shard : str
        The key of the shard in the store.
    store : str or None
        The store, if it is known.
    """

    def __str__(self) -> str:
        return (
            f"the array {self._where} has a damaged shard, {self.shard!r}: {self.args[2]}. "
            "If another process may be writing it in place, try again. If such an update was interrupted, "
            "`zarrs_cuda.recover(array)` repairs it. Otherwise delete its object, which reads as fill "
            "values then, and write the shard again"
        )
