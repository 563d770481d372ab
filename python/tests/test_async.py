"""Calls from event loops: many at once, with one thread, cancelled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from conftest import OURS, create, opened
from zarr.core.array import AsyncArray

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = ["local", "memory", "objects", "other"]


def filled(store: Any) -> np.ndarray[Any, Any]:
    values = np.arange(64 * 64, dtype="uint32").reshape(64, 64)
    create(store, shape=(64, 64), chunks=(4, 4), shards=(16, 16), dtype="uint32")[...] = values
    return values


@pytest.mark.parametrize("workers", [None, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_gathers_of_32(kind: str, workers: int | None, stores: Callable[[str], Any]) -> None:
    store = stores(kind)
    values = filled(store)

    async def work() -> None:
        array = opened_async
        parts = await asyncio.gather(*(array.getitem((slice(2 * n, 2 * n + 2),)) for n in range(32)))
        np.testing.assert_array_equal(np.concatenate(parts), values)
        await asyncio.gather(
            *(
                array.setitem(
                    (
                        slice(16 * (n % 4), 16 * (n % 4) + 16),
                        slice(16 * (n // 4), 16 * (n // 4) + 16),
                    ),
                    n,
                )
                for n in range(16)
            )
        )

    with zarr.config.set({"threading.max_workers": workers}):
        opened_async: AsyncArray[Any] = opened(store, OURS).async_array
        asyncio.run(asyncio.wait_for(work(), 60))
    got = opened(store, OURS)[...]
    for n in range(16):
        assert (got[16 * (n % 4) : 16 * (n % 4) + 16, 16 * (n // 4) : 16 * (n // 4) + 16] == n).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_read_leaves_the_next_ones_alone(kind: str, stores: Callable[[str], Any]) -> None:
    store = stores(kind)
    values = filled(store)

    async def work() -> None:
        array = opened(store, OURS).async_array
        for delay in [0, 0, 0.0001, 0.0005, 0.001, 0.002]:
            tasks = [asyncio.create_task(array.getitem((slice(None),))) for _ in range(8)]
            await asyncio.sleep(delay)
            for task in tasks[1:]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            np.testing.assert_array_equal(results[0], values)
            for result in results[1:]:
                if isinstance(result, np.ndarray):
                    np.testing.assert_array_equal(result, values)
                else:
                    assert isinstance(result, asyncio.CancelledError)

    asyncio.run(asyncio.wait_for(work(), 60))


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_write_does_not_go_on_after_its_end(kind: str, stores: Callable[[str], Any]) -> None:
    store = stores(kind)
    filled(store)

    async def work() -> None:
        array = opened(store, OURS).async_array
        for delay in [0, 0.0001, 0.0005, 0.001, 0.002]:
            task = asyncio.create_task(array.setitem((slice(None),), 7))
            await asyncio.sleep(delay)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await array.setitem((slice(None),), 1)
            await asyncio.sleep(0.05)
            assert (await array.getitem((slice(None),)) == 1).all()

    asyncio.run(asyncio.wait_for(work(), 60))
