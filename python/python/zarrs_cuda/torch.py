"""Crops of arrays as a data set of PyTorch."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from zarrs_cuda import _crops

try:
    import torch
    from torch import distributed
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as error:
    msg = (
        f"`zarrs_cuda.torch` needs PyTorch, which cannot be imported ({error}): install it (`pip install "
        "torch`), or use `zarrs_cuda.Crops`, whose batches are arrays of numpy"
    )
    raise ImportError(msg) from error

if TYPE_CHECKING:
    from collections.abc import Iterator


class Crops(_crops.Crops, IterableDataset):  # type: ignore[misc]
    """Batches of crops of an array as tensors, on the host: a data set for PyTorch's ``DataLoader``.

    The arguments are those of :class:`zarrs_cuda.Crops`. Give the batch to the crops, and none to the loader,
    so that a block of batches is read at once::

        crops = zarrs_cuda.torch.Crops(reader, origins, (64, 64, 64), batch_size=8)
        loader = DataLoader(crops, batch_size=None, num_workers=4)

    - Each worker of the loader has its share of the batches, and has its own threads and ``memory``.
      Without workers, the threads are in this process.
    - ``rank`` and ``world_size`` are by default those of ``torch.distributed``, if it is initialised when the
      crops are made.
    - :meth:`set_epoch` reaches workers that are kept (``persistent_workers=True``), too.
    - The tensors have the memory of numpy's arrays, without a copy.

    Raises
    ------
    TypeError
        If PyTorch has no type for the elements of a reader.
    """

    @functools.wraps(_crops.Crops.__init__)  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for reader in self._readers:
            try:
                torch.from_numpy(np.empty(0, reader.dtype))
            except (TypeError, ValueError) as error:
                msg = (
                    f"PyTorch {torch.__version__} has no type for elements of the type {reader.dtype}: let "
                    "the reader convert them, as `ArrayReader(array, dtype='float32')` does, or use "
                    "`zarrs_cuda.Crops`, whose batches are arrays of numpy"
                )
                raise TypeError(msg) from error
        # Processes of a loader see the epoch that is set in this one.
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()

    def _ranks(self) -> tuple[int, int]:
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return super()._ranks()

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator of the epoch that was set: of the worker's share, in a worker of a loader."""
        worker = get_worker_info()
        part, parts = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return self._iterated(part, parts)

    def _given(self, parts: list[Any]) -> Any:
        given = super()._given(parts)
        return tuple(map(_tensor, given)) if isinstance(given, tuple) else _tensor(given)


def _tensor(part: Any) -> Any:
    """Return the tensor of an array. The number of a single crop is a number."""
    return torch.from_numpy(part) if isinstance(part, np.ndarray) else int(part)
