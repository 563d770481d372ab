"""Functions that are told the progress of a writer, by threads of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class _Told:
    """The function, and what it raised. It does not know the writer: that would keep itself alive."""

    def __init__(self, progress: Callable[..., object]) -> None:
        self.progress = progress
        self.error: BaseException | None = None

    def __call__(self, *now: Any) -> None:
        # What it raised first is not hidden by what comes later.
        if self.error is None:
            try:
                self.progress(*now)
            except BaseException as error:
                self.error = error


class Telling:
    """A native writer that tells its progress to a function, whose exception ends the next call.

    Parameters
    ----------
    make
        Makes the native writer, and is given the function, or None.
    progress
        The function.
    """

    def __init__(
        self, make: Callable[[Callable[..., object] | None], Any], progress: Callable[..., object] | None
    ) -> None:
        self._told = None if progress is None else _Told(progress)
        self._writer = make(self._told)

    def check(self) -> None:
        """Raise what the function raised, once."""
        if self._told is None or self._told.error is None:
            return
        error, self._told.error = self._told.error, None
        error.add_note("It was raised by the function for `progress` of a writer")
        raise error

    def append(self, array: Any) -> int | None:
        """Append elements, unless the function raised.

        Returns
        -------
        int or None
            The slices of a shard that would be full in time, if this one takes long.
        """
        self.check()
        slow: int | None = self._writer.append(array)
        self.check()
        return slow

    def append_tensor(self, capsule: Any) -> None:
        """Append a tensor, unless the function raised."""
        self.check()
        self._writer.append_tensor(capsule)
        self.check()

    def flush(self) -> None:
        """Store whole shards."""
        self._writer.flush()
        self.check()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)
