"""The parts of PyTorch that `zarrs_cuda.torch` and its tests use, for machines without it."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np

__version__ = "of the tests"
int64 = np.dtype("int64")
KINDS = "?bhilqBHILQefdFD"


class Tensor:
    """An array, which has its own memory or that of a file."""

    def __init__(self, array: np.ndarray[Any, Any], file: Any = None) -> None:
        self.array, self.file = array, file
        self.shape, self.dtype = array.shape, array.dtype

    def share_memory_(self) -> Tensor:
        file = tempfile.NamedTemporaryFile()  # noqa: SIM115
        file.write(self.array.tobytes())
        file.flush()
        return shared(file.name, self.shape, self.dtype, file)

    def __reduce__(self) -> Any:
        return (
            (Tensor, (self.array,))
            if self.file is None
            else (shared, (self.file.name, self.shape, self.dtype))
        )

    def __getitem__(self, at: int) -> Any:
        return self.array[at]

    def __setitem__(self, at: int, value: Any) -> None:
        self.array[at] = value

    def __len__(self) -> int:
        return len(self.array)

    def numpy(self) -> np.ndarray[Any, Any]:
        return self.array

    def tolist(self) -> Any:
        return self.array.tolist()

    def to(self, device: str, non_blocking: bool = False) -> Tensor:
        assert device
        assert non_blocking in (False, True)
        return self

    def float(self) -> Tensor:
        return Tensor(self.array.astype("float32"))


def shared(path: str, shape: Any, dtype: Any, file: Any = None) -> Tensor:
    """Return the tensor that is in a file."""
    return Tensor(np.memmap(path, dtype, "r+", shape=shape), file)


def zeros(count: int, dtype: Any) -> Tensor:
    return Tensor(np.zeros(count, dtype))


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    if array.dtype.char not in KINDS:
        msg = f"can't convert np.ndarray of type {array.dtype}"
        raise TypeError(msg)
    return Tensor(array)
