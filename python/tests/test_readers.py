"""Readers of boxes: their arguments, other stores, other processes, and Ctrl-C."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import numpy as np
import obstore
import pytest
import zarr
import zarrs_cuda
from conftest import OURS, create, opened
from s3 import Server
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, WrapperStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KIND = {"shape": (9, 12), "chunks": (2, 4), "shards": (4, 8), "dtype": "uint16", "fill_value": 7}
VALUES = np.arange(108, dtype="uint16").reshape(9, 12)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        yield made


def array_in(store: Any) -> zarr.Array[Any]:
    array = create(store, **KIND)
    array[...] = VALUES
    return array


@pytest.mark.parametrize("kind", ["local", "memory", "fsspec", "wrapped", "objects in memory", "objects"])
def test_every_store_is_read(kind: str, tmp_path: Path, server: Server) -> None:
    store: Any = {
        "local": lambda: LocalStore(tmp_path),
        "memory": MemoryStore,
        "fsspec": lambda: FsspecStore.from_url(f"file://{tmp_path}", storage_options={"auto_mkdir": True}),
        "wrapped": lambda: WrapperStore(LocalStore(tmp_path)),
        "objects in memory": lambda: ObjectStore(obstore.store.MemoryStore()),
        "objects": lambda: ObjectStore(server.store()),
    }[kind]()
    array = array_in(store)
    reader = zarrs_cuda.ArrayReader(array)
    np.testing.assert_array_equal(reader.read(), VALUES)
    np.testing.assert_array_equal(reader.read(slice(3, 8), slice(-3, None)), VALUES[3:8, -3:])
    boxes = reader.read_boxes([[0, 0], [5, 7], [3, 3]], (4, 5))
    np.testing.assert_array_equal(boxes, [VALUES[0:4, 0:5], VALUES[5:9, 7:12], VALUES[3:7, 3:8]])
    assert ("through zarr-python" in reader.explain()) == (kind not in ("local", "objects"))
    with pytest.raises(ValueError, match="axis 0"):
        reader.read(slice(0, 10))
    array.resize((10, 12))
    assert reader.refresh() == (10, 12)
    assert (reader.read(slice(9, 10)) == 7).all()


@pytest.mark.parametrize("store", ["local", "memory"])
def test_boxes_that_leave_the_array_are_filled(store: str, tmp_path: Path) -> None:
    array = array_in(LocalStore(tmp_path) if store == "local" else MemoryStore())
    reader = zarrs_cuda.ArrayReader(array, fill=True, dtype="float32")
    padded = np.pad(VALUES.astype("float32"), 20, constant_values=7)
    rng = np.random.default_rng(1)
    for _ in range(60):
        start, size = rng.integers(-15, 16, 2), rng.integers(0, 14, 2)
        box = tuple(slice(int(a), int(a + n)) for a, n in zip(start, size, strict=True))
        inside = tuple(slice(int(a) + 20, int(a + n) + 20) for a, n in zip(start, size, strict=True))
        got = reader.read(*box)
        assert got.dtype == "float32"
        np.testing.assert_array_equal(got, padded[inside])
    origins = rng.integers(-12, 14, (50, 2))
    for origin, got in zip(origins, reader.read_boxes(origins, (5, 6)), strict=True):
        at = origin + 20
        np.testing.assert_array_equal(got, padded[at[0] : at[0] + 5, at[1] : at[1] + 6])
    # Anywhere, and larger than the array along one axis.
    for shape, reach in (((5, 6), 19), ((10, 3), 8), ((1, 1), 12), ((9, 12), 9), ((0, 2), 3)):
        for kind in ("int64", "int8"):
            origins = rng.integers(-reach, reach, (20, 2)).astype(kind)
            found = reader.read_boxes(origins, shape)
            for origin, got in zip(origins.astype(int) + 20, found, strict=True):
                part = padded[origin[0] : origin[0] + shape[0], origin[1] : origin[1] + shape[1]]
                np.testing.assert_array_equal(got, part)
    far = np.array([[2**64 - 1, 0], [2**63, 5], [3, 2**64 - 6]], "uint64")
    assert (reader.read_boxes(far, (2, 3)) == 7).all()
    assert (reader.read_boxes([[-(2**63), 0], [2**63 - 1, 3]], (2, 3)) == 7).all()
    np.testing.assert_array_equal(reader.read(), VALUES)


def test_boxes_that_leave_the_array_are_decoded_together(tmp_path: Path) -> None:
    reader = zarrs_cuda.ArrayReader(array_in(tmp_path), fill=True)
    for offset in (0, -1):
        before = reader.metrics()["subchunks_read"]
        reader.read_boxes([[offset, offset]] * 7, (4, 8))
        assert reader.metrics()["subchunks_read"] - before == 4


def test_a_box_outside_is_named(tmp_path: Path) -> None:
    reader = zarrs_cuda.ArrayReader(array_in(tmp_path))
    for read, said in (
        (lambda: reader.read(slice(0, 9), slice(3, 13)), r"3:13 along axis 1.*12 elements.*fill=True"),
        (lambda: reader.read(slice(-10, 9)), "-10:9 along axis 0"),
        (
            lambda: reader.read_boxes([[0, 0], [6, 0]], (4, 4)),
            r"box 1 \(counted from 0\) is 6:10 along axis 0",
        ),
        (lambda: reader.read_boxes([[0, 9], [6, 0]], (4, 4)), r"box 0 .* is 9:13 along axis 1"),
        (lambda: reader.read_boxes([[2**63 - 1, 0]], (4, 4)), r"box 0 .*along axis 0"),
        (lambda: reader.read_boxes([[0, -1]], (4, 4)), r"box 0 .*is negative along axis 1"),
    ):
        with pytest.raises(ValueError, match=said):
            read()


def test_an_array_that_has_grown_is_read_after_a_refresh(tmp_path: Path) -> None:
    array = array_in(tmp_path)
    reader = zarrs_cuda.ArrayReader(array)
    opened(tmp_path, OURS).append(VALUES)
    for read in (
        lambda: reader.read(slice(9, 18)),
        lambda: reader.read(slice(10, None)),
        lambda: reader.read_boxes([[9, 0]], (2, 2)),
    ):
        with pytest.raises(ValueError, match=r"\(18, 12\) by now: call `refresh\(\)`"):
            read()
    assert reader.refresh() == (18, 12)
    np.testing.assert_array_equal(reader.read(slice(9, 18)), VALUES)


def test_types(tmp_path: Path) -> None:
    array = array_in(tmp_path)
    reader = zarrs_cuda.ArrayReader(array, dtype="float32")
    out = np.empty((9, 12), "float32")
    assert reader.read(out=out) is out
    np.testing.assert_array_equal(out, VALUES)
    assert reader.read_boxes([[1, 1]], (2, 2)).dtype == "float32"
    with pytest.raises(ValueError, match="must be a writeable array"):
        reader.read(out=np.empty((9, 12), "uint16"))
    floats = create(tmp_path / "floats", **(KIND | {"dtype": "float64"}))
    zarrs_cuda.ArrayReader(floats, dtype="float32").read()
    with pytest.raises(TypeError, match="astype"):
        zarrs_cuda.ArrayReader(floats, dtype="int32")


def test_subchunks_are_kept_if_asked(tmp_path: Path) -> None:
    array = array_in(tmp_path)
    read = {}
    for cache in (0, 1 << 20):
        reader = zarrs_cuda.ArrayReader(array, subchunk_cache=cache)
        reader.read()
        reader.read()
        read[cache] = reader.metrics()["subchunks_read"]
    assert read[1 << 20] * 2 == read[0]
    with pytest.raises(ValueError, match="subchunk_cache"):
        zarrs_cuda.ArrayReader(array, subchunk_cache=-1)
    with pytest.raises(ValueError, match="shared shards"):
        zarrs_cuda.ArrayReader(array, subchunk_cache=1, shared=True)


def total(reader: zarrs_cuda.ArrayReader) -> int:
    return int(reader.read().sum())


def test_readers_are_pickled_by_their_array(tmp_path: Path) -> None:
    array_in(tmp_path)
    shared = opened(tmp_path, OURS, shards="shared")
    shared[0, 0] = 1000
    reader = zarrs_cuda.ArrayReader(shared, dtype="float64", fill=True)
    assert repr(tmp_path.name)[1:-1] in repr(reader)
    assert "shape=(9, 12), dtype=float64, shared=True" in repr(reader)
    again = pickle.loads(pickle.dumps(reader))
    assert repr(again) == repr(reader)
    assert again.read(slice(-1, 1), slice(0, 1)).tolist() == [[7.0], [1000.0]]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(total, reader).result() == VALUES.sum() + 1000


def test_paths_and_groups_are_no_arrays(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path)
    array = create(tmp_path / "inner", **KIND)
    calls = [
        zarrs_cuda.ArrayReader,
        zarrs_cuda.ArrayWriter,
        zarrs_cuda.MultiscaleWriter,
        zarrs_cuda.write_lower_levels,
        zarrs_cuda.explain,
        zarrs_cuda.compact,
        zarrs_cuda.recover,
        lambda given: zarrs_cuda.inspect(given, (0, 0)),
    ]
    for call in calls:
        for path in (str(tmp_path), tmp_path, array.store_path, array.store):
            with pytest.raises(TypeError, match=r"open it first, with `zarr.open_array"):
                call(path)
        with pytest.raises(TypeError, match=r"is a group.*\['inner'\]"):
            call(group)
        with pytest.raises(TypeError, match="ndarray"):
            call(np.zeros(3))
    for wrong in (str(tmp_path), np.zeros(3)):
        with pytest.raises(TypeError):
            zarrs_cuda.consolidate(wrong)


def test_a_group_is_consolidated(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path)
    group.create_group("deeper")
    group.create_array("flat", shape=(4,), chunks=(2,), dtype="u1")
    for name in ("a", "deeper/b", "deeper/c"):
        array = create(tmp_path / name, **KIND)
        with zarr.config.set({"codec_pipeline.shards": "shared"}):
            opened(tmp_path / name, OURS, shards="shared")[...] = VALUES
    # A damaged shard does not keep the others.
    opened(tmp_path / "a", OURS)
    done = zarrs_cuda.consolidate(group, (1, 2)), zarrs_cuda.consolidate(group, (2, 2))
    assert sum(part.shards for part in done) == 3 * 6
    assert zarrs_cuda.consolidate(group).shards == 0
    for name in ("a", "deeper/b", "deeper/c"):
        np.testing.assert_array_equal(opened(tmp_path / name, OURS)[...], VALUES)
        opened(tmp_path / name, OURS, shards="shared")[0, 0] = 1
    shard = tmp_path / "deeper/b/c/0/0"
    shard.write_bytes(b"\0" * len(shard.read_bytes()))
    with pytest.raises((zarrs_cuda.ShardError, RuntimeError)) as caught:
        zarrs_cuda.consolidate(group)
    assert any("deeper/b" in note for note in caught.value.__notes__)
    assert opened(tmp_path / "deeper/c", OURS)[0, 0] == 1
    assert array.shape == (9, 12)


@pytest.mark.parametrize("how", ["read", "read_boxes", "memory"])
def test_ctrl_c_reaches_a_reader_of_a_server_that_hangs(how: str, server: Server) -> None:
    array_in(ObjectStore(server.store()))
    release = threading.Event()
    server.before = lambda _kind, key: release.wait(60) if key.startswith("c/") else None
    code = f"""
        import sys, time, zarr, zarrs_cuda
        from obstore.store import S3Store
        from zarr.storage import ObjectStore, WrapperStore
        store = ObjectStore(S3Store("bucket", endpoint="http://127.0.0.1:{server.server_port}",
            region="us-east-1", skip_signature=True, client_options={{"allow_http": True}}))
        if {how!r} == "memory":
            store = WrapperStore(store)
        reader = zarrs_cuda.ArrayReader(zarr.open_array(store, mode="r"))
        print("begin", flush=True)
        try:
            reader.read() if {how!r} == "read" else reader.read_boxes([[0, 0], [4, 4]], (2, 2))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    child = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "begin\n"
    time.sleep(0.5)
    begin = time.monotonic()
    os.kill(child.pid, signal.SIGINT)
    try:
        assert child.stdout.readline() == "interrupted\n"
        assert time.monotonic() - begin < 1
        # The end of the process does not wait for the server either.
        assert child.wait(10) == 0
    finally:
        release.set()
        child.kill()


def test_a_server_that_hangs_costs_one_timeout(server: Server) -> None:
    array_in(ObjectStore(server.store()))
    release = threading.Event()
    server.before = lambda _kind, key: release.wait(30) if key.startswith("c/") else None
    options = {"allow_http": True, "timeout": "1s"}
    store = ObjectStore(
        obstore.store.S3Store(
            "bucket",
            endpoint=f"http://127.0.0.1:{server.server_port}",
            region="us-east-1",
            skip_signature=True,
            client_options=options,
            retry_config={"max_retries": 0},
        )
    )
    array = opened(store, OURS)
    reader = zarrs_cuda.ArrayReader(array)
    for read in (
        lambda: reader.read(slice(0, 1), slice(0, 1)),
        lambda: reader.read_boxes([[0, 0], [4, 4]], (1, 1)),
        lambda: array[0, 0],
        lambda: array[...],
    ):
        begin = time.monotonic()
        with pytest.raises(obstore.exceptions.BaseError, match="c/"):
            read()
        assert 0.9 < time.monotonic() - begin < 1.9
    release.set()


@pytest.mark.parametrize("requests", [1, 3, 10])
def test_no_call_makes_more_requests_than_the_setting(requests: int, server: Server) -> None:
    store = ObjectStore(server.store())
    lock = threading.Lock()
    now = most = 0

    def before(_kind: str, _key: str) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.01)
        with lock:
            now -= 1

    with zarr.config.set({"async.concurrency": requests}):
        array = create(store, shape=(64, 64), chunks=(2, 2), shards=(16, 16), dtype="uint16")
        array[...] = 1
        server.before = before
        reader = zarrs_cuda.ArrayReader(array)
        origins = [[y, x] for y in range(0, 62, 7) for x in range(0, 62, 7)]
        for call in (
            lambda: array.__setitem__((slice(1, 63), slice(1, 63)), 2),
            lambda: array[1:63, 1:63],
            lambda: array[::7, ::7],
            lambda: reader.read(),
            lambda: reader.read_boxes(origins, (2, 2)),
        ):
            most = 0
            call()
            assert requests - 1 <= most <= requests or (requests == 10 and most > 4), most
            assert most <= requests


def test_a_fork_while_a_reader_was_interrupted(tmp_path: Path) -> None:
    """Its worker belongs to the process that made it."""
    array = create(tmp_path, shape=(1024, 1024), chunks=(64, 64), shards=(512, 512), dtype="uint16")
    array[...] = 3
    reader = zarrs_cuda.ArrayReader(array)
    assert (reader.read() == 3).all()
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        assert pool.submit(total, reader).result(30) == 3 * 1024 * 1024
    assert (reader.read() == 3).all()
