"""Crops for training: which are read, in which order, by which processes, and what goes wrong.

PyTorch is used if it is installed; otherwise `without_torch` stands in for it.
"""

from __future__ import annotations

import gc
import importlib.util
import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
import zarrs_cuda
from conftest import create, exit_code
from s3 import Server
from zarr.storage import LocalStore, MemoryStore, ObjectStore

if importlib.util.find_spec("torch") is None:
    # Spawned workers have the paths of their parent.
    sys.path.append(str(Path(__file__).parent / "without_torch"))

import torch
import zarrs_cuda.torch
from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from collections.abc import Iterable

SHAPE, CROP = (24, 30, 36), (5, 6, 7)
KIND = {"shape": SHAPE, "chunks": (4, 5, 6), "shards": (8, 10, 12), "dtype": "uint16"}
COUNT = 101
VALUES = np.arange(np.prod(SHAPE), dtype="uint16").reshape(SHAPE)
ORIGINS = np.random.default_rng(3).integers(0, np.subtract(SHAPE, CROP), (COUNT, 3), endpoint=True)
BYTES = int(np.prod(CROP)) * 2
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


def reader_in(store: Any, **kwargs: Any) -> zarrs_cuda.ArrayReader:
    array = create(store, **KIND)
    array[...] = VALUES
    return zarrs_cuda.ArrayReader(array, **kwargs)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> zarrs_cuda.ArrayReader:
    return reader_in(tmp_path_factory.mktemp("array"))


def expected(numbers: Any, values: Any = VALUES, origins: Any = ORIGINS) -> np.ndarray[Any, Any]:
    boxes = [tuple(slice(a, a + n) for a, n in zip(origins[k], CROP, strict=True)) for k in numbers]
    return np.stack([values[box] for box in boxes]) if boxes else np.empty((0, *CROP), values.dtype)


def checked(batches: Iterable[Any], origins: Any = ORIGINS) -> list[tuple[int, ...]]:
    """Compare batches that have numbers with the truth. Returns the numbers of each."""
    seen = []
    for elements, numbers in batches:
        numbers = tuple(np.asarray(numbers).tolist())
        np.testing.assert_array_equal(np.asarray(elements), expected(numbers, origins=origins))
        seen.append(numbers)
    return seen


def threads_end() -> None:
    gc.collect()
    deadline = time.monotonic() + 10
    while any(thread.name == "zarrs_cuda crops" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "threads of an iterator have not ended"
        time.sleep(0.01)


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_crop_comes_once_in_an_epoch(shuffle: bool, reader: zarrs_cuda.ArrayReader) -> None:
    rng = np.random.default_rng()
    for _ in range(30):
        world, size = int(rng.integers(1, 9)), int(rng.choice([1, 2, 7, 200]))
        settings = {
            "batch_size": size,
            "shuffle": shuffle,
            "seed": int(rng.integers(1 << 40)),
            "shards_in_flight": int(rng.integers(1, 40)),
            "prefetch": int(rng.integers(1, 4)),
            "memory": int(rng.integers(0, 60 * BYTES)),
            "world_size": world,
        }
        print(settings)
        for drops in (False, True):
            seen = []
            for rank in range(world):
                crops = zarrs_cuda.Crops(
                    reader, ORIGINS, CROP, rank=rank, drop_last=drops, with_numbers=True, **settings
                )
                found = checked(crops)
                assert len(found) == len(crops), settings
                assert all(len(batch) == size for batch in (found if drops else found[:-1])), settings
                seen.append(list(itertools.chain(*found)))
            together = list(itertools.chain(*seen))
            counts = np.bincount(together, minlength=COUNT)
            # Ranks wait for each other: each has as many crops.
            assert len({len(one) for one in seen}) == 1, settings
            if drops:
                assert counts.max() <= 1, settings
                assert len(seen[0]) == COUNT // world // size * size, settings
            else:
                assert counts.min() == 1, settings
                assert counts.sum() == -(-COUNT // world) * world, settings
            if not shuffle:
                steps = {after - before for one in seen for before, after in itertools.pairwise(one)}
                assert steps <= {1, 1 - COUNT}, settings
    threads_end()


def test_single_crops_have_no_axis_of_a_batch(reader: zarrs_cuda.ArrayReader) -> None:
    crops = zarrs_cuda.Crops(reader, ORIGINS, CROP, with_numbers=True, memory=9 * BYTES)
    found = list(crops)
    assert len(found) == len(crops) == COUNT
    assert sorted(int(number) for _, number in found) == list(range(COUNT))
    for crop, number in found:
        np.testing.assert_array_equal(crop, expected([number])[0])
    assert next(iter(zarrs_cuda.Crops(reader, ORIGINS, CROP))).shape == CROP


def test_an_order_is_of_its_seed_and_epoch(reader: zarrs_cuda.ArrayReader) -> None:
    def order(seed: int, epoch: int, **kwargs: Any) -> list[tuple[int, ...]]:
        given = {"memory": 30 * BYTES} | kwargs
        crops = zarrs_cuda.Crops(reader, ORIGINS, CROP, batch_size=4, seed=seed, with_numbers=True, **given)
        crops.set_epoch(epoch)
        return checked(crops)

    orders = [order(seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(one) for one in orders}) == 4
    assert order(0, 1) == orders[1]
    # Memory and threads change nothing of it.
    for memory, prefetch in ((0, 1), (200, 1), (200, 5)):
        assert order(0, 0, memory=memory * BYTES, prefetch=prefetch) == orders[0]
    assert order(0, 0, shards_in_flight=9) != orders[0]


def test_crops_of_a_shard_follow_each_other_and_are_decoded_once(tmp_path: Path) -> None:
    reader = reader_in(tmp_path)
    # Two crops in each subchunk of 27 shards.
    corners = np.stack(np.meshgrid(*map(np.arange, (6, 6, 6)), indexing="ij"), -1).reshape(-1, 3)
    origins = np.repeat(corners * (4, 5, 6), 2, axis=0) + np.tile([[0, 0, 0], [1, 1, 1]], (216, 1))
    shards = np.ravel_multi_index((origins // (8, 10, 12)).T, (3, 3, 3))
    crops = zarrs_cuda.Crops(
        reader, origins, (3, 4, 5), batch_size=4, shards_in_flight=3, with_numbers=True, memory=3 * 48 * 120
    )
    before = reader.metrics()["subchunks_read"]
    order = np.concatenate([numbers for _, numbers in crops])
    assert reader.metrics()["subchunks_read"] - before == 216
    groups = shards[order].reshape(9, 3 * 16)
    assert all(len(set(group.tolist())) == 3 for group in groups)
    # Shards and crops are at random.
    assert (np.diff(groups[:, 0]) < 0).any()
    assert any((np.diff(group) != 0).sum() > 3 for group in groups)


@pytest.mark.parametrize("store", ["local", "memory", "objects"])
@pytest.mark.parametrize("way", ["fork", "spawn", "none"])
def test_loaders(store: str, way: str, tmp_path: Path) -> None:
    if store == "memory" and way == "spawn":
        pytest.skip("memory has one process")
    with Server() as server:
        kind = {"local": lambda: LocalStore(tmp_path), "memory": MemoryStore}
        reader = reader_in(kind[store]() if store in kind else ObjectStore(server.store()))
        assert reader.read().any()
        crops = zarrs_cuda.torch.Crops(
            reader, ORIGINS, CROP, batch_size=4, with_numbers=True, memory=30 * BYTES
        )
        # Threads of the parent do not exist in its children.
        parent = iter(crops)
        next(parent)
        orders: dict[int, set[Any]] = {}
        # A spawned worker takes a second to start.
        for workers in {"fork": (1, 2), "spawn": (2,), "none": (0,)}[way]:
            for epoch in (0, 1):
                crops.set_epoch(epoch)
                loader = DataLoader(
                    crops,
                    batch_size=None,
                    num_workers=workers,
                    multiprocessing_context=None if way == "none" else way,
                )
                found = checked(loader)
                assert len(found) == len(loader) == 26
                assert sorted(itertools.chain(*found)) == list(range(COUNT))
                # The same batches, in whichever order workers have them.
                assert orders.setdefault(epoch, set(found)) == set(found)
        assert orders[0] != orders[1]
        assert len(checked(parent)) == 25


def test_an_epoch_reaches_workers_that_are_kept(reader: zarrs_cuda.ArrayReader) -> None:
    crops = zarrs_cuda.torch.Crops(reader, ORIGINS, CROP, batch_size=9, with_numbers=True)
    loader = DataLoader(
        crops, batch_size=None, num_workers=2, multiprocessing_context="fork", persistent_workers=True
    )
    orders = []
    for epoch in (0, 5, 0):
        crops.set_epoch(epoch)
        orders.append(checked(loader))
    assert orders[0] == orders[2] != orders[1]


def test_tensors(tmp_path: Path) -> None:
    reader = reader_in(tmp_path / "native")
    batch = next(iter(zarrs_cuda.torch.Crops(reader, ORIGINS, CROP, batch_size=3)))
    assert type(batch).__name__ == "Tensor"
    assert tuple(batch.shape) == (3, *CROP)
    assert batch.numpy().dtype == "uint16"
    elements, number = next(iter(zarrs_cuda.torch.Crops(reader, ORIGINS, CROP, with_numbers=True)))
    assert type(number) is int
    np.testing.assert_array_equal(elements.numpy(), expected([number])[0])
    big = zarr.create_array(tmp_path / "big", **(KIND | {"dtype": ">i4"}))
    big[...] = VALUES
    checked(
        zarrs_cuda.torch.Crops(zarrs_cuda.ArrayReader(big), ORIGINS, CROP, batch_size=3, with_numbers=True)
    )
    times = zarr.create_array(tmp_path / "times", **(KIND | {"dtype": "datetime64[s]", "fill_value": 0}))
    with pytest.raises(TypeError, match=r"no type for elements of the type datetime64.*dtype="):
        zarrs_cuda.torch.Crops(zarrs_cuda.ArrayReader(times), ORIGINS, CROP)
    assert next(iter(zarrs_cuda.Crops(zarrs_cuda.ArrayReader(times), ORIGINS, CROP))).dtype == "datetime64[s]"


def test_ranks_are_those_of_the_process_group(
    reader: zarrs_cuda.ArrayReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    seen = []
    for rank in range(3):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        crops = zarrs_cuda.torch.Crops(reader, ORIGINS, CROP, batch_size=2, with_numbers=True)
        seen += itertools.chain(*checked(crops))
    assert len(seen) == 102
    assert set(seen) == set(range(COUNT))


def test_it_is_said_that_pytorch_is_missing() -> None:
    code = "import sys; sys.modules['torch'] = None; import zarrs_cuda.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: `zarrs_cuda.torch` needs PyTorch" in done.stderr
    assert "use `zarrs_cuda.Crops`" in done.stderr


def test_places_of_a_number_of_crops(reader: zarrs_cuda.ArrayReader) -> None:
    places = []
    for epoch in (0, 1, 0):
        found = []
        for rank in (0, 1):
            crops = zarrs_cuda.Crops(
                reader, 50, CROP, batch_size=8, rank=rank, world_size=2, with_numbers=True, seed=7
            )
            crops.set_epoch(epoch)
            origins, _, _ = crops._ordered(epoch)
            found += itertools.chain(*checked(crops, origins))
        assert sorted(found) == list(range(50))
        places.append(origins)
    assert (places[0] == places[2]).all()
    assert (places[0] != places[1]).any()
    assert (places[0] + CROP <= SHAPE).all()


def test_images_with_labels_and_boxes_that_leave_the_array(tmp_path: Path) -> None:
    image = reader_in(tmp_path / "image", fill=True, dtype="float32")
    labels = create(tmp_path / "labels", **(KIND | {"dtype": "uint8", "shards": (24, 30, 36)}))
    labels[...] = VALUES % 251
    origins = ORIGINS - 3
    pad = [(9, 9)] * 3
    truths = [np.pad(VALUES.astype("float32"), pad), np.pad((VALUES % 251).astype("uint8"), pad)]
    crops = zarrs_cuda.Crops(
        (image, zarrs_cuda.ArrayReader(labels, fill=True)),
        origins,
        CROP,
        batch_size=5,
        with_numbers=True,
        memory=200 * BYTES,
    )
    seen = []
    for x, y, numbers in crops:
        for found, truth in zip((x, y), truths, strict=True):
            assert found.dtype == truth.dtype
            np.testing.assert_array_equal(found, expected(numbers, truth, origins + 9))
        seen += numbers.tolist()
    assert sorted(seen) == list(range(COUNT))


def test_a_batch_that_is_kept_stays_as_it_is(reader: zarrs_cuda.ArrayReader) -> None:
    crops = zarrs_cuda.Crops(reader, ORIGINS, CROP, batch_size=2, with_numbers=True, memory=30 * BYTES)
    kept = list(crops) + list(crops)
    # A part of a batch, of which nothing else is left.
    parts = [(elements[1:, 1], numbers[1:]) for elements, numbers in itertools.chain(crops, crops)]
    assert len(checked(kept)) == 2 * 51
    for elements, numbers in parts:
        np.testing.assert_array_equal(elements, expected(numbers)[:, 1])


def test_memory_is_bounded(tmp_path: Path) -> None:
    array = create(tmp_path, shape=(256, 64, 64), chunks=(16, 16, 16), shards=(64, 64, 64), dtype="uint16")
    array[...] = 1
    reader = zarrs_cuda.ArrayReader(array)
    crop = 16**3 * 2
    for prefetch, memory in ((1, 40), (3, 40), (2, 0)):
        crops = zarrs_cuda.Crops(
            reader, 1000, (16, 16, 16), batch_size=4, prefetch=prefetch, memory=memory * crop
        )
        tracemalloc.start()
        try:
            most = 0
            for number, batch in enumerate(crops):
                assert batch.shape == (4, 16, 16, 16)
                if number % 50 == 0:
                    time.sleep(0.02)
                most = max(most, tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        # The origins, the order and the objects of Python have some of it.
        assert most < max(memory, 4 * (prefetch + 1)) * crop + (256 << 10), (prefetch, memory)
        # Nothing of it is pickled.
        assert len(pickle.dumps(crops)) < 50_000


def test_a_damaged_shard_fails_the_batches_that_need_it(tmp_path: Path) -> None:
    reader = reader_in(tmp_path)
    shard = tmp_path / "c/1/1/1"
    shard.write_bytes(b"\0" * len(shard.read_bytes()))
    # All in one block: only the fourth batch has elements of that shard.
    origins = np.zeros((20, 3), int)
    origins[14] = 9, 11, 13
    crops = zarrs_cuda.Crops(reader, origins, CROP, batch_size=4, shuffle=False)
    batches = iter(crops)
    for _ in range(3):
        np.testing.assert_array_equal(next(batches), [VALUES[:5, :6, :7]] * 4)
    with pytest.raises(zarrs_cuda.ShardError) as caught:
        next(batches)
    assert caught.value.__notes__ == ["It was to be batch 3, the crops [12, 13, 14, 15] (counted from 0)"]
    with pytest.raises(StopIteration):
        next(batches)
    del caught
    threads_end()
    loader = DataLoader(
        zarrs_cuda.torch.Crops(reader, origins, CROP, batch_size=4, shuffle=False),
        batch_size=None,
        num_workers=1,
        multiprocessing_context="fork",
    )
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    with pytest.raises(Exception, match="c/1/1/1"):
        next(batches)


def test_iterators_that_are_dropped_end_their_threads(reader: zarrs_cuda.ArrayReader) -> None:
    crops = zarrs_cuda.Crops(reader, ORIGINS, CROP, prefetch=3, memory=9 * BYTES)
    never = iter(crops)
    assert not any(thread.name == "zarrs_cuda crops" for thread in threading.enumerate())
    for stop in (1, 7, 50):
        batches = iter(crops)
        for _ in range(stop):
            next(batches)
        del batches
    for _ in crops:
        break

    def fails() -> None:
        for _ in crops:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    threads_end()
    del never


@pytest.mark.parametrize("how", ["in the middle", "a server that hangs", "Ctrl-C"])
def test_the_end_of_the_process(how: str) -> None:
    release = threading.Event()
    with Server() as server:
        reader_in(ObjectStore(server.store()))
        if how != "in the middle":
            server.before = lambda _kind, key: release.wait(60) if key.startswith("c/2") else None
        code = f"""
            import zarr, zarrs_cuda, sys
            from obstore.store import S3Store
            from zarr.storage import ObjectStore
            store = ObjectStore(S3Store("bucket", endpoint="http://127.0.0.1:{server.server_port}",
                region="us-east-1", skip_signature=True, client_options={{"allow_http": True}}))
            reader = zarrs_cuda.ArrayReader(zarr.open_array(store, mode="r"))
            origins = [[k % 20, 0, 0] for k in range(20)]
            crops = zarrs_cuda.Crops(reader, origins, {CROP}, shuffle=False, memory=0, prefetch=4)
            batches = iter(crops)
            try:
                for _, batch in zip(range({20 if how == "Ctrl-C" else 10}), batches):
                    print("begin", flush=True)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        """
        child = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "begin\n"
            begin = time.monotonic()
            if how == "Ctrl-C":
                time.sleep(1)
                begin = time.monotonic()
                os.kill(child.pid, signal.SIGINT)
            out = child.stdout.read()
            assert child.wait(30) == 0
            assert ("interrupted" in out) == (how == "Ctrl-C")
            assert time.monotonic() - begin < 10
        finally:
            release.set()
            child.kill()


def test_a_child_that_was_forked_in_the_middle(reader: zarrs_cuda.ArrayReader) -> None:
    crops = zarrs_cuda.Crops(reader, ORIGINS, CROP, batch_size=3, with_numbers=True, memory=30 * BYTES)
    batches = iter(crops)
    first = next(batches)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for batch in batches:
                checked([batch])
        except RuntimeError as error:
            status = 2 if "make a new one" in str(error) else 3
        try:
            del batches
            if status == 2 and len(checked(crops)) == len(crops):
                status = 0
        finally:
            os._exit(status)
    assert exit_code(child, 30) == 0
    assert len(checked([first, *batches])) == len(crops)


def test_a_state_goes_on(reader: zarrs_cuda.ArrayReader) -> None:
    def made(**kwargs: Any) -> zarrs_cuda.Crops:
        given = {"batch_size": 3, "with_numbers": True, "memory": 30 * BYTES, "seed": 5} | kwargs
        return zarrs_cuda.Crops(reader, ORIGINS, CROP, **given)

    whole = made()
    whole.set_epoch(2)
    all_of_it = checked(whole)
    for stop in (0, 1, 5, 33, 34):
        crops = made()
        crops.set_epoch(2)
        batches = iter(crops)
        for _ in range(stop):
            next(batches)
        state = pickle.loads(pickle.dumps(crops.state_dict()))
        again = made()
        again.load_state_dict(state)
        assert checked(again) == all_of_it[stop:]
        assert again.epoch == 2
        # The next one begins at the start.
        assert checked(again) == all_of_it
    crops.load_state_dict(state)
    crops.set_epoch(3)
    assert len(checked(crops)) == len(crops)
    for other in ({"batch_size": 4}, {"seed": 6}, {"rank": 0, "world_size": 2}):
        with pytest.raises(ValueError, match="the state is of crops"):
            made(**other).load_state_dict(state)


def test_crops_can_be_pickled(reader: zarrs_cuda.ArrayReader) -> None:
    crops = zarrs_cuda.Crops(reader, ORIGINS, CROP, batch_size=3, with_numbers=True)
    crops.set_epoch(3)
    order = checked(crops)
    again = pickle.loads(pickle.dumps(crops))
    assert checked(again) == order
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(checked, (crops,)) == order


def test_no_crops(reader: zarrs_cuda.ArrayReader) -> None:
    for origins in (0, [], np.empty((0, 3), int), ORIGINS[:1]):
        crops = zarrs_cuda.Crops(reader, origins, CROP, batch_size=2, drop_last=True)
        assert len(crops) == 0
        assert list(crops) == []
    empty = zarrs_cuda.Crops(reader, ORIGINS[:3], (0, 1, 1), batch_size=2)
    assert [batch.shape for batch in empty] == [(2, 0, 1, 1), (1, 0, 1, 1)]
    # More ranks than crops.
    few = [zarrs_cuda.Crops(reader, ORIGINS[:2], CROP, rank=rank, world_size=5) for rank in range(5)]
    assert [len(list(crops)) for crops in few] == [1] * 5


def test_arguments_that_are_wrong(reader: zarrs_cuda.ArrayReader) -> None:
    outside = [*ORIGINS, [0, 25, 0]]
    for error, said, arguments, settings in (
        (TypeError, "an `ArrayReader`", (VALUES, ORIGINS, CROP), {}),
        (TypeError, "and this is a str", ("array.zarr", ORIGINS, CROP), {}),
        (ValueError, "is empty", ((), ORIGINS, CROP), {}),
        (ValueError, r"box 101 \(counted from 0\) is 25:31 along axis 1", (reader, outside, CROP), {}),
        (ValueError, "negative along axis 0", (reader, [[-1, 0, 0]], CROP), {}),
        (ValueError, "asked for with 2 extents", (reader, ORIGINS, (5, 6)), {}),
        (ValueError, "begins at 3 integers", (reader, ORIGINS[:, :2], CROP), {}),
        (ValueError, "begins at 3 integers", (reader, ORIGINS * 0.5, CROP), {}),
        (ValueError, "no crop of the shape", (reader, 5, (5, 6, 37)), {}),
        (ValueError, "no crop of the shape", (reader, 5, (5, 6)), {}),
        (ValueError, "the number of crops is -1", (reader, -1, CROP), {}),
        (TypeError, "must be an integer", (reader, 1.5, CROP), {}),
        (ValueError, "`batch_size` is 0", (reader, ORIGINS, CROP), {"batch_size": 0}),
        (TypeError, "`prefetch` is 1.0", (reader, ORIGINS, CROP), {"prefetch": 1.0}),
        (ValueError, "`seed` is -1", (reader, ORIGINS, CROP), {"seed": -1}),
        (ValueError, "`rank` is 2, and must be less", (reader, ORIGINS, CROP), {"rank": 2, "world_size": 2}),
        (ValueError, "give both", (reader, ORIGINS, CROP), {"rank": 0}),
        (ValueError, "at least 1", (reader, ORIGINS, CROP), {"shards_in_flight": 0}),
    ):
        with pytest.raises(error, match=said):
            zarrs_cuda.Crops(*arguments, **settings)
