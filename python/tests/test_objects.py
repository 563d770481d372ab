"""Arrays in zarr-python's `ObjectStore`: requested by the library, or by zarr-python where it cannot."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import obstore
import pytest
import zarr
import zarrs_cuda
from conftest import OURS, THEIRS, create, exit_code, opened
from obstore.store import HTTPStore
from obstore.store import LocalStore as LocalObjects
from obstore.store import MemoryStore as MemoryObjects
from s3 import Server
from zarr.storage import LoggingStore, ObjectStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KIND: dict[str, Any] = {
    "shape": (16, 16),
    "chunks": (2, 2),
    "shards": (8, 8),
    "dtype": "uint16",
    "fill_value": 7,
}
VALUES = np.arange(256, dtype="uint16").reshape(16, 16) + 300


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def is_by_the_library(store: ObjectStore[Any]) -> bool:
    array = opened(store, OURS)
    return "requests itself" in zarrs_cuda.explain(array).why


def test_which_stores_the_library_reads(tmp_path: Path, server: Server) -> None:
    class Mine(ObjectStore[Any]):
        pass

    local = LocalObjects(tmp_path)
    for store, expected in [
        (ObjectStore(local), True),
        (ObjectStore(server.store()), True),
        (ObjectStore(server.store(prefix="a/b")), True),
        (ObjectStore(local).with_read_only(False), True),
        (ObjectStore(MemoryObjects()), False),
        (Mine(local), False),
        (LoggingStore(ObjectStore(local)), False),
        (
            ObjectStore(
                server.store(credential_provider=lambda: {"access_key_id": "", "secret_access_key": ""})
            ),
            False,
        ),
    ]:
        array = zarr.create_array(store, name="x", overwrite=True, **KIND)
        del array
        with zarr.config.set({"codec_pipeline.path": OURS}):
            array = zarr.open_array(store, path="x")
        assert ("requests itself" in zarrs_cuda.explain(array).why) == expected, store
        array[...] = VALUES
        array[3, 4:9] = 5
        expected_values = VALUES.copy()
        expected_values[3, 4:9] = 5
        np.testing.assert_array_equal(array[...], expected_values)
        np.testing.assert_array_equal(zarr.open_array(store, path="x")[...], expected_values)


def test_a_relative_directory_stays_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b/data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a")
    store = ObjectStore(LocalObjects("data", mkdir=True))
    monkeypatch.chdir(tmp_path / "b")
    array = create(store, **KIND)
    array[...] = VALUES
    assert (tmp_path / "a/data/c/0/0").exists()
    assert not list((tmp_path / "b/data").iterdir())


def test_an_obstore_that_is_not_understood_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = LocalObjects(tmp_path)
    monkeypatch.setattr(
        LocalObjects, "__getnewargs_ex__", lambda _self: ((str(tmp_path),), {"since_version_99": 1})
    )
    store = ObjectStore(local)
    array = create(store, **KIND)
    assert not is_by_the_library(store)
    array[...] = VALUES
    np.testing.assert_array_equal(array[...], VALUES)


def test_requests_are_counted(server: Server) -> None:
    store = ObjectStore(server.store())
    array = create(store, **KIND)
    server.count()
    array[...] = VALUES
    kinds = Counter(kind for kind, key in server.count())
    # Subchunks beside a shard would hide what is written: one request before the write and one behind it say
    # that the array never had some.
    assert kinds == {"HEAD": 2, "PUT": 4}
    array[0, 0] = 1
    marker = ("HEAD", ".zarrs-cuda-frames")
    assert server.count() == [marker, ("GET", "c/0/0"), ("PUT", "c/0/0"), marker]
    # A shard that is read whole takes one request. The first read of an array looks for the marker of frames.
    array[...]
    shards = [("GET", f"c/{i}/{j}") for i in range(2) for j in range(2)]
    assert sorted(server.count()) == [*shards, ("HEAD", ".zarrs-cuda-frames")]
    array[...]
    assert sorted(server.count()) == shards
    array = opened(store, OURS)
    server.count()
    assert array[0, 0] == 1
    # Its index, the subchunk, and the index again: it may be replaced meanwhile.
    assert server.count() == [("GET", "c/0/0")] * 3
    assert array[5, 6] == VALUES[5, 6]
    # The index is kept.
    assert server.count() == [("GET", "c/0/0")] * 2
    other = ObjectStore(server.store(prefix="plain"))
    plain = create(other, shape=(8,), chunks=(2,), dtype="uint8")
    server.count()
    plain[...] = 1
    plain[1:5] = 2
    assert list(plain[...]) == [1, 2, 2, 2, 2, 1, 1, 1]
    kinds = Counter(kind for kind, key in server.count())
    assert kinds == {"PUT": 4 + 3, "GET": 2 + 4}


def test_parts_of_a_shard_are_read_in_part(server: Server) -> None:
    store = ObjectStore(server.store())
    create(store, shape=(512, 512), chunks=(32, 32), shards=(512, 512), dtype="uint32", compressors=None)[
        ...
    ] = 1
    reader = zarrs_cuda.ArrayReader(opened(store, OURS))
    assert (reader.read(slice(100, 101), slice(100, 101)) == 1).all()
    assert reader.metrics()["bytes_read"] < 512 * 512 * 4 / 10


def hang_up(_kind: str, _key: str) -> None:
    raise ConnectionError


def test_errors_are_those_of_zarr_python(server: Server) -> None:
    store = ObjectStore(server.store())
    create(store, **KIND)[...] = VALUES
    for status, expected in [
        (403, obstore.exceptions.PermissionDeniedError),
        (500, obstore.exceptions.GenericError),
    ]:
        server.fails = {"c/0/0": status}
        for pipeline in (OURS, THEIRS):
            array = opened(store, pipeline)
            assert (array[8:, 8:] == VALUES[8:, 8:]).all()
            for action in (
                lambda array=array: array[0, 0],
                lambda array=array: array[...],
                lambda array=array: array.__setitem__((slice(0, 8), slice(0, 8)), 1),
                lambda array=array: array.__setitem__((0, 0), 1),
            ):
                with pytest.raises(obstore.exceptions.BaseError) as error:
                    action()
                assert type(error.value) is expected
    server.fails = {"c/0/0": 404}
    for pipeline in (OURS, THEIRS):
        with pytest.raises(FileNotFoundError):
            opened(store, pipeline)[:8, :8] = 1
    server.fails = {}
    array = opened(store, OURS)
    np.testing.assert_array_equal(array[...], VALUES)
    server.before = hang_up
    with pytest.raises(obstore.exceptions.GenericError, match="c/0/0"):
        array[0, 0]


def test_the_reason_of_an_error_is_told(server: Server) -> None:
    array = create(ObjectStore(server.store()), **KIND)
    array[...] = VALUES
    # A server without TLS.
    store = server.store(url=f"https://127.0.0.1:{server.server_port}")
    object.__setattr__(array.async_array.store_path, "store", ObjectStore(store))
    with pytest.raises(obstore.exceptions.GenericError, match=r"c/0/0.*(?i:tls|corrupt|handshake|message)"):
        array[0, 0]


def test_missing_shards_and_empty_ones(server: Server) -> None:
    store = ObjectStore(server.store())
    array = create(store, **KIND)
    assert (array[...] == 7).all()
    array[0, 0] = 1
    array[0, 0] = 7
    assert [key for key in server.objects if key.startswith("c/")] == []
    array[:8, :8] = 1
    array[:8, :8] = 7
    assert [key for key in server.objects if key.startswith("c/")] == []
    array.attrs["a"] = 1
    # What was erased may be read by an index that was kept.
    array[...] = VALUES
    assert array[0, 0] == 300
    del server.objects["c/0/0"]
    assert array[0, 0] == 7


def test_long_values_are_sent_in_parts(server: Server) -> None:
    store = ObjectStore(server.store())
    array = create(
        store, shape=(9 << 23,), chunks=(1 << 23,), shards=(9 << 23,), dtype="uint8", compressors=None
    )
    array[...] = np.arange(9 << 23, dtype="uint64").astype("uint8")
    kinds = Counter(kind for kind, key in server.count() if key == "c/0")
    assert kinds["POST"] == 2
    assert kinds["PUT"] > 2
    assert list(array[-3:]) == [253, 254, 255]
    assert list(opened(store, THEIRS)[1000:1003]) == [232, 233, 234]

    def hang_up_on_parts(kind: str, _key: str) -> None:
        if kind == "PUT":
            raise ConnectionError

    server.before = hang_up_on_parts
    server.count()
    with pytest.raises(obstore.exceptions.GenericError, match="c/0"):
        array[...] = np.arange(9 << 23, dtype="uint64").astype("uint8") + np.uint8(1)
    # The upload is given up, and the object is what it was.
    assert [kind for kind, _ in server.count()].count("DELETE") == 1
    assert list(opened(store, THEIRS)[1000:1003]) == [232, 233, 234]


def test_pickles(server: Server) -> None:
    store = ObjectStore(server.store())
    array = create(store, **KIND)
    array[...] = VALUES
    copy = pickle.loads(pickle.dumps(array))
    np.testing.assert_array_equal(copy[...], VALUES)
    # The copies have connections together.
    assert copy.async_array.codec_pipeline._native[0] == array.async_array.codec_pipeline._native[0]


def work(array: Any, number: int) -> None:
    np.testing.assert_array_equal(array[:8], VALUES[:8])
    array[8:, 8 * number : 8 * number + 8] = number + 1
    assert (array[8:, 8 * number : 8 * number + 8] == number + 1).all()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("way", ["fork", "spawn"])
@pytest.mark.parametrize("shards", ["rewrite", "shared"])
def test_children_read_and_write(way: str, shards: str, server: Server) -> None:
    store = ObjectStore(server.store())
    create(store, **KIND)[...] = VALUES
    array = opened(store, OURS, shards=shards)
    np.testing.assert_array_equal(array[...], VALUES)
    context = multiprocessing.get_context(way)
    for number in range(2):
        child = context.Process(target=work, args=(array, number))
        child.start()
        child.join(60)
        if child.exitcode is None:
            child.kill()
        assert child.exitcode == 0
    assert (array[8:, 8:] == 2).all()
    assert (array[8:, :8] == 1).all()


@pytest.mark.parametrize("kind", ["files", "s3"])
def test_shared_shards(kind: str, tmp_path: Path, server: Server) -> None:
    store = ObjectStore(LocalObjects(tmp_path) if kind == "files" else server.store(prefix="some/where"))
    create(store, **KIND)[...] = 1
    array = opened(store, OURS, shards="shared")
    array[0:2, 0:2] = 5
    array[2, 3] = 6
    array[14:, :] = 9
    expected = np.ones((16, 16), "uint16")
    expected[0:2, 0:2], expected[2, 3], expected[14:] = 5, 6, 9
    np.testing.assert_array_equal(array[...], expected)
    assert array[2, 3] == 6
    np.testing.assert_array_equal(zarrs_cuda.ArrayReader(array).read(), expected)
    with pytest.warns(zarrs_cuda.FramesWarning, match=r"3 shards of the array '/'.*consolidate"):
        assert (opened(store, OURS)[...] == 1).all()
    with warnings.catch_warnings():
        # Once for each array and process.
        warnings.simplefilter("error", zarrs_cuda.FramesWarning)
        for pipeline in (OURS, THEIRS):
            assert (opened(store, pipeline)[...] == 1).all()
    other = opened(store, OURS)
    for selection in [(0, 1), (slice(0, 8), slice(0, 8))]:
        with pytest.raises(zarrs_cuda.FramesPending, match="consolidate") as error:
            other[selection] = 9
        assert error.value.shard == "c/0/0"
    other[:8, 8:] = 4
    expected[:8, 8:] = 4
    array.resize((16, 8))
    done = zarrs_cuda.consolidate(array)
    assert (done.shards, done.subchunks, done.erased) == (2, 6, 1)
    array.resize((16, 16))
    expected[:, 8:] = 7
    np.testing.assert_array_equal(array[...], expected)
    for pipeline in (OURS, THEIRS):
        np.testing.assert_array_equal(opened(store, pipeline)[...], expected)
    assert not [key for key in server.objects if ".frame" in key]
    assert not list(tmp_path.rglob("*.chunk"))
    other[0, 1] = 9
    assert list(other[0, :3]) == [5, 9, 1]


def test_one_call_lists_a_frame_twice(server: Server) -> None:
    store = ObjectStore(server.store())
    create(store, **KIND)
    array = opened(store, OURS, shards="shared")
    array[0, 0] = 1
    server.count()
    array[...] = VALUES
    kinds = Counter(kind for kind, key in server.count())
    # Four shards of 16 subchunks.
    assert kinds == {"LIST": 8, "PUT": 64}
    array[1:15, 1:15] = 0
    kinds = Counter(kind for kind, key in server.count())
    # Subchunks that are changed in part are read, after one more listing.
    assert kinds == {"LIST": 12, "PUT": 64, "GET": 28}
    expected = VALUES.copy()
    expected[1:15, 1:15] = 0
    np.testing.assert_array_equal(array[...], expected)
    server.count()
    assert zarrs_cuda.consolidate(array).subchunks == 64
    kinds = Counter(kind for kind, key in server.count())
    # 129 versions are got one by one, and erased together.
    assert kinds["GET"] >= 128
    assert kinds["DELETE"] < 20
    np.testing.assert_array_equal(opened(store, THEIRS)[...], expected)
    assert [key for key in server.objects if ".frame/" in key] == []


def test_strings_are_not_hidden_under_frames(server: Server) -> None:
    store = ObjectStore(server.store())
    create(store, shape=(8,), chunks=(2,), shards=(8,), dtype=str)[...] = "a"
    opened(store, OURS, shards="shared")[2] = "b"
    with pytest.raises(zarrs_cuda.FramesPending, match="consolidate"):
        opened(store, OURS)[2] = "c"


def test_a_shard_that_zarr_python_replaced_is_reported(server: Server) -> None:
    store = ObjectStore(server.store())
    create(store, **KIND)[...] = 1
    array = opened(store, OURS, shards="shared")
    array[0:2, 0:2] = 5
    array[8:10, 0:2] = 5
    opened(store, THEIRS)[0:2, 0:4] = 8
    server.times["c/0/0"] = 9
    with pytest.raises(zarrs_cuda.ShardChanged, match=r"00:00:09.*00:00:00.*over_changed=True") as error:
        zarrs_cuda.consolidate(array)
    assert error.value.shard == "c/0/0"
    # The other one was packed.
    assert opened(store, THEIRS)[8, 0] == 5
    assert list(opened(store, THEIRS)[0, :4]) == [8, 8, 8, 8]
    zarrs_cuda.consolidate(array, over_changed=True)
    assert list(opened(store, THEIRS)[0, :4]) == [5, 5, 8, 8]
    assert [key for key in server.objects if ".frame/" in key] == []


def test_stores_that_shards_cannot_be_shared_in(server: Server) -> None:
    base = f"http://127.0.0.1:{server.server_port}"
    memory = ObjectStore(MemoryObjects())
    create(memory, **KIND)
    http = ObjectStore(HTTPStore.from_url(base, client_options={"allow_http": True}))
    settings = {"codec_pipeline.path": OURS, "codec_pipeline.shards": "shared"}
    create(ObjectStore(server.store(prefix="x")), **KIND)
    with zarr.config.set(settings):
        for store in (memory, http):
            array = zarr.open_array(store, path="" if store is memory else "bucket/x", mode="r")
            with pytest.raises(ValueError, match="shared"):
                array[0, 0]
    with pytest.raises(ValueError, match="MemoryStore"):
        zarrs_cuda.consolidate(zarr.open_array(memory))
    with (
        zarr.config.set({**settings, "codec_pipeline.shards": "in_place"}),
        pytest.raises(ValueError, match="LocalStore"),
    ):
        zarr.open_array(ObjectStore(server.store(prefix="x")))[0, 0] = 1


def test_shards_are_looked_after(server: Server) -> None:
    store = ObjectStore(server.store())
    array = create(store, **KIND)
    array[...] = VALUES
    seen = zarrs_cuda.inspect(array, (0, 0))
    assert seen is not None
    assert seen.state == "intact"
    assert zarrs_cuda.compact(array) == {}
    assert zarrs_cuda.recover(array) == {}
    server.objects["c/0/0"] = server.objects["c/0/0"][:-3]
    with pytest.raises(zarrs_cuda.ShardError, match="c/0/0"):
        array[0, 0]
    with pytest.raises(zarrs_cuda.ShardError, match="c/0/0"):
        array[...]
    with pytest.raises(zarrs_cuda.ShardError, match="c/0/0"):
        array[0, 0] = 1


def test_streams(server: Server) -> None:
    store = ObjectStore(server.store())
    kind = {"shape": (0, 12, 10), "chunks": (2, 4, 5), "shards": (4, 8, 10), "dtype": "uint16"}
    array = create(store, **kind)
    values = np.arange(11 * 120, dtype="uint16").reshape(11, 12, 10)
    with zarrs_cuda.ArrayWriter(array) as writer:
        for frame in values:
            writer.append(frame)
    for pipeline in (OURS, THEIRS):
        np.testing.assert_array_equal(opened(store, pipeline)[...], values)
    boxes = zarrs_cuda.ArrayReader(opened(store, OURS)).read_boxes([[0, 0, 0], [8, 9, 7]], (3, 3, 3))
    np.testing.assert_array_equal(boxes[1], values[8:11, 9:12, 7:10])


def test_read_only_stores_raise_what_they_raise(tmp_path: Path) -> None:
    store = ObjectStore(LocalObjects(tmp_path))
    create(store, **KIND)[...] = 1
    errors = []
    for pipeline in (OURS, THEIRS):
        with zarr.config.set({"codec_pipeline.path": pipeline}):
            array = zarr.open_array(store.with_read_only(True), mode="r")
        assert array[1, 1] == 1
        with pytest.raises(ValueError, match="read-only") as error:
            array[...] = 2
        errors.append(str(error.value))
    assert errors[0] == errors[1]


def test_keys_that_are_not_plain(tmp_path: Path, server: Server) -> None:
    for store in (ObjectStore(LocalObjects(tmp_path)), ObjectStore(server.store())):
        for name in ("a b", "ü", "a~b#c", "100%25"):
            array = create(store, name=name, **KIND)
            array[...] = VALUES
            with zarr.config.set({"codec_pipeline.path": THEIRS}):
                np.testing.assert_array_equal(zarr.open_array(store, path=name)[...], VALUES)
            np.testing.assert_array_equal(array[...], VALUES)


def test_dask(server: Server) -> None:
    import dask.array as da
    import zarrs_cuda.dask

    store = ObjectStore(server.store())
    array = create(store, **KIND)
    zarrs_cuda.dask.store(da.from_array(VALUES, chunks=(4, 16)), array)
    np.testing.assert_array_equal(opened(store, THEIRS)[...], VALUES)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("kind", ["files", "s3"])
def test_a_fork_while_threads_read(kind: str, tmp_path: Path, server: Server) -> None:
    store = ObjectStore(LocalObjects(tmp_path) if kind == "files" else server.store())
    create(store, **KIND)[...] = VALUES
    array = opened(store, OURS)
    end = threading.Event()
    wrong = []

    def read() -> None:
        while not end.is_set():
            if not np.array_equal(array[...], VALUES):
                wrong.append(1)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(10):
            time.sleep(0.003 * (number % 4))
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    good = np.array_equal(array[...], VALUES)
                    array[:8, :8] = VALUES[:8, :8]
                    status = 0 if good else 2
                except RuntimeError:
                    status = 0
                finally:
                    os._exit(status)
            assert exit_code(child, 20) == 0
    finally:
        end.set()
        for thread in threads:
            thread.join()
    assert not wrong


def test_writers_of_shared_shards_in_processes(server: Server) -> None:
    store = ObjectStore(server.store())
    create(store, **KIND)
    array = opened(store, OURS, shards="shared")
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=write_interleaved, args=(array, n, 4)) for n in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    np.testing.assert_array_equal(array[...], VALUES)
    zarrs_cuda.consolidate(array)
    np.testing.assert_array_equal(opened(store, THEIRS)[...], VALUES)


def write_interleaved(array: Any, part: int, parts: int) -> None:
    for number in range(part, 64, parts):
        box = slice(2 * (number // 8), 2 * (number // 8) + 2), slice(2 * (number % 8), 2 * (number % 8) + 2)
        array[box] = VALUES[box]


@pytest.mark.parametrize("has_versions", [True, False])
@pytest.mark.parametrize("compressors", [None, "auto"])
def test_a_shard_that_is_replaced_while_it_is_read(
    compressors: Any, has_versions: bool, server: Server
) -> None:
    server.has_versions = has_versions
    kind: dict[str, Any] = {"shape": (16, 16), "chunks": (4, 4), "shards": (16, 16), "dtype": "uint32"}
    store = ObjectStore(server.store())
    shards, arrays = [], []
    for number in range(2):
        # Empty subchunks move the others.
        values = np.random.default_rng(number).integers(1, 1 << 30, (16, 16), "uint32")
        values[0:4, 0 : 4 + 4 * number] = 0
        create(store, overwrite=True, compressors=compressors, **kind)[...] = values
        shards.append(server.objects["c/0/0"])
        arrays.append(values)
    for after in (1, 2, 1, 2, 1, 2):
        array = opened(store, OURS)
        server.objects["c/0/0"] = shards[0]
        asked = 0

        def replace(kind: str, key: str, after: int = after) -> None:
            nonlocal asked
            if (kind, key) == ("GET", "c/0/0"):
                asked += 1
                if asked > after:
                    server.objects["c/0/0"] = shards[1]

        server.before = replace
        got = array[8:, 5:]
        server.before = lambda _kind, _key: None
        # Before or after, and no mixture.
        assert any(np.array_equal(got, values[8:, 5:]) for values in arrays)
        assert asked > after
        np.testing.assert_array_equal(array[8:, 5:], arrays[1][8:, 5:])


STREAM: dict[str, Any] = {"shape": (0, 6), "chunks": (2, 6), "shards": (4, 6), "dtype": "uint8"}


def of_command(script: str, *arguments: str) -> str:
    """Return what another process prints."""
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


EXTENDS = """
import sys, zarr, zarrs_cuda
from obstore.store import S3Store
from zarr.storage import ObjectStore

server = S3Store(
    "bucket", endpoint=sys.argv[1], region="us-east-1", skip_signature=True,
    client_options={"allow_http": True}, retry_config={"max_retries": 0},
)
try:
    writer = zarrs_cuda.ArrayWriter(zarr.open_array(ObjectStore(server)))
    print("begun", "held" in writer.explain())
    import os
    sys.stdout.flush()
    os._exit(0)
except OSError as error:
    print("refused", error)
"""


def test_one_writer_extends_an_array(server: Server) -> None:
    store = ObjectStore(server.store())
    array = create(store, **STREAM)
    url = f"http://127.0.0.1:{server.server_port}"
    values = np.arange(48, dtype="uint8").reshape(8, 6)
    lease = ".zarrs-cuda-writers/all"
    with zarrs_cuda.ArrayWriter(array) as writer:
        assert "lease: held" in writer.explain()
        writer.append(values[:4])
        said = of_command(EXTENDS, url)
        assert said.startswith("refused")
        assert f"process {os.getpid()}" in said
        assert lease in server.objects
        for change in (zarrs_cuda.compact, zarrs_cuda.recover):
            with pytest.raises(OSError, match="has the lease"):
                change(array)
        writer.append(values[4:])
    assert lease not in server.objects
    np.testing.assert_array_equal(opened(store, THEIRS)[...], values)
    # A process that was killed leaves its lease, which is taken over at once.
    assert of_command(EXTENDS, url) == "begun True\n"
    assert lease in server.objects
    begin = time.monotonic()
    with zarrs_cuda.ArrayWriter(opened(store, OURS)) as writer:
        writer.append(values)
    assert time.monotonic() - begin < 8
    assert lease not in server.objects
    np.testing.assert_array_equal(opened(store, THEIRS)[8:], values)


@pytest.mark.parametrize("conditions", ["ignored", "refused"])
def test_servers_without_conditions_have_no_leases(conditions: str, server: Server) -> None:
    server.conditions = conditions
    store = ObjectStore(server.store())
    array = create(store, **STREAM)
    values = np.arange(24, dtype="uint8").reshape(4, 6)
    with zarrs_cuda.ArrayWriter(array) as writer:
        assert "lease: none" in writer.explain()
        assert not [key for key in server.objects if ".zarrs-cuda-writer" in key]
        writer.append(values)
    for change in (zarrs_cuda.compact, zarrs_cuda.recover):
        with pytest.warns(UserWarning, match="no lease"):
            change(array)
    np.testing.assert_array_equal(opened(store, THEIRS)[...], values)


def test_no_change_of_metadata_is_lost(server: Server) -> None:
    store = ObjectStore(server.store())
    array = create(store, **STREAM)
    values = np.arange(24, dtype="uint8").reshape(4, 6)
    writer = zarrs_cuda.ArrayWriter(array)
    writer.append(values)
    is_edited = threading.Event()

    def edit(kind: str, key: str) -> None:
        # Between the moment in which the writer reads the metadata and the one in which it stores them.
        if (kind, key) == ("PUT", "zarr.json") and not is_edited.is_set():
            is_edited.set()
            edited = json.loads(server.objects["zarr.json"])
            edited["attributes"] = {"by": "another process"}
            server.objects["zarr.json"] = json.dumps(edited).encode()

    server.before = edit
    writer.flush()
    assert is_edited.is_set()
    metadata = json.loads(server.objects["zarr.json"])
    assert metadata["attributes"] == {"by": "another process"}
    assert metadata["shape"] == [4, 6]
    # zarr-python's `append` makes the array longer first.
    opened(store, THEIRS).append(values)
    writer.append(values)
    with pytest.raises(OSError, match="another process resizes"):
        writer.flush()
    writer.abort()
    np.testing.assert_array_equal(opened(store, THEIRS)[4:], values)
