"""Shards that are updated in place, and shards that many processes write."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import uuid
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zarrs_cuda
from conftest import OURS, THEIRS, create, opened
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zarr.codecs import (
    BytesCodec,
    Crc32cCodec,
    ShardingCodec,
    TransposeCodec,
    VLenBytesCodec,
    VLenUTF8Codec,
    ZstdCodec,
)
from zarr.core.array import _get_chunk_spec
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync as finished
from zarr.dtype import VariableLengthBytes
from zarr.storage import FsspecStore, LocalStore, LoggingStore, MemoryStore
from zarrs_cuda import _frames

KIND = {"shape": (16, 16), "chunks": (2, 2), "shards": (8, 8), "dtype": "uint16", "fill_value": 7}


def files(path: Path) -> set[str]:
    return {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}


def frames(path: Path) -> int:
    return sum(name.endswith(".chunk") for name in files(path))


def test_updates_in_place_leave_the_file_where_it_is(tmp_path: Path) -> None:
    create(tmp_path, **KIND)[...] = 1
    array = opened(tmp_path, OURS, shards="in_place")
    before = (tmp_path / "c/0/0").stat().st_ino
    array[2:4, 2:4] = 5
    array[0, 0] = 6
    assert (tmp_path / "c/0/0").stat().st_ino == before
    expected = np.ones((16, 16), "uint16")
    expected[2:4, 2:4], expected[0, 0] = 5, 6
    for pipeline in (OURS, THEIRS):
        np.testing.assert_array_equal(opened(tmp_path, pipeline)[...], expected)
    # A rewrite makes another file.
    opened(tmp_path, OURS)[0, 1] = 8
    assert (tmp_path / "c/0/0").stat().st_ino != before


def test_other_names_of_a_file_keep_what_they_have(tmp_path: Path) -> None:
    create(tmp_path / "a", **KIND)[...] = 1
    shard, copy = tmp_path / "a/c/0/0", tmp_path / "copy"
    shard.chmod(0o640)
    os.link(shard, copy)
    # A symbolic link is followed, and stays one.
    moved = tmp_path / "moved"
    (tmp_path / "a/c/0/1").rename(moved)
    (tmp_path / "a/c/0/1").symlink_to(moved)
    before, far = copy.read_bytes(), moved.stat().st_ino
    array = opened(tmp_path / "a", OURS, shards="in_place")
    array[0, 0] = 6
    array[0, 9] = 7
    assert copy.read_bytes() == before
    assert shard.stat().st_ino != copy.stat().st_ino
    assert shard.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "a/c/0/1").is_symlink()
    assert moved.stat().st_ino == far
    own = shard.stat().st_ino
    array[0, 1] = 8
    assert shard.stat().st_ino == own
    assert list(opened(tmp_path / "a", THEIRS)[0, [0, 1, 9]]) == [6, 8, 7]
    # A repair is a write, too.
    whole = shard.read_bytes()
    array[4:6, 4:6] = 12345
    shard.write_bytes(shard.read_bytes()[: len(whole) + 1])
    copy.unlink()
    os.link(shard, copy)
    torn = copy.read_bytes()
    zarrs_cuda.recover(array)
    assert copy.read_bytes() == torn
    assert list(opened(tmp_path / "a", THEIRS)[0, [0, 1, 9]]) == [6, 8, 7]


@pytest.mark.parametrize("shape", [(2**40,), (2**30, 2**30)])
def test_vast_arrays_are_looked_after_by_a_listing(shape: tuple[int, ...], tmp_path: Path) -> None:
    rank = len(shape)
    of = {"chunks": (2,) * rank, "shards": (8,) * rank, "dtype": "uint16", "fill_value": 7}
    create(tmp_path, shape=shape, **of)
    array = opened(tmp_path, OURS, shards="in_place")
    corner, far = (slice(0, 2),) * rank, tuple(slice(extent - 2, extent) for extent in shape)
    array[corner], array[far] = 1, 2
    for value in range(30):
        array[far] = value + 10
    assert zarrs_cuda.recover(array) == {}
    last = tuple(extent // 8 - 1 for extent in shape)
    seen = zarrs_cuda.inspect(array, last)
    assert seen is not None
    done = zarrs_cuda.compact(array)
    # The update of the first shard may leave bytes behind, too.
    assert set(done) <= {(0,) * rank, last}
    assert seen.live == seen.size or done[last] == (seen.size, seen.live)
    assert (array[far] == 39).all()
    # A shard that a larger array left is no part of it.
    document = json.loads((tmp_path / "zarr.json").read_text())
    (tmp_path / "zarr.json").write_text(json.dumps(document | {"shape": [8] * rank}))
    beyond = {path: (tmp_path / path).read_bytes() for path in files(tmp_path)}
    outside = tmp_path / "c" / "/".join(map(str, last))
    outside.write_bytes(b"torn")
    beyond[str(outside.relative_to(tmp_path))] = b"torn"
    assert zarrs_cuda.recover(array) == {}
    assert zarrs_cuda.compact(array) == {}
    assert {path: (tmp_path / path).read_bytes() for path in beyond} == beyond


def test_shards_that_grew_are_compacted(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    create(tmp_path, **KIND)[...] = 1
    array = opened(tmp_path, OURS, shards="in_place")
    for _ in range(20):
        array[2:4, 2:4] = rng.integers(0, 60000, (2, 2), dtype="uint16")
    before = array[...]
    seen = zarrs_cuda.inspect(array, (0, 0))
    assert seen is not None
    assert seen.live < seen.size
    assert "<svg" in seen._repr_html_()
    assert seen.state == "intact"
    assert sum(place is not None for place in seen.subchunks) == 16
    (done,) = zarrs_cuda.compact(array).items()
    assert done == ((0, 0), (seen.size, seen.live))
    np.testing.assert_array_equal(opened(tmp_path, THEIRS)[...], before)
    array[8:, 8:] = KIND["fill_value"]
    (tmp_path / "c/1/1").unlink(missing_ok=True)
    assert zarrs_cuda.inspect(array, (1, 1)) is None
    for nowhere in [(5, 5), (0,), (-1, 0)]:
        with pytest.raises(ValueError, match="grid of shards"):
            zarrs_cuda.inspect(array, nowhere)


def test_a_torn_update_is_recovered(tmp_path: Path) -> None:
    create(tmp_path, **KIND)[...] = 1
    array = opened(tmp_path, OURS, shards="in_place")
    array[0:2, 0:2] = 3
    shard = tmp_path / "c/0/0"
    whole = shard.read_bytes()
    states = set()
    array[4:6, 4:6] = 12345
    after = shard.read_bytes()
    # The index is written last: without it, the update was interrupted.
    shard.write_bytes(after[: len(whole)] if len(after) > len(whole) else after)
    for cut in range(len(whole), len(after)):
        shard.write_bytes(after[:cut])
        state = zarrs_cuda.recover(array)
        states.update(state.values())
        got = opened(tmp_path, THEIRS)[0:2, 0:2]
        assert (got == 3).all()
    assert zarrs_cuda.recover(array) == {}
    assert states <= {"undone", "completed"}


def temporary_of_a_killed_process(directory: Path) -> str:
    """The name of the file that a process wrote when the system killed it: it may write files of 16 bytes."""
    code = f"""
import resource, signal
import zarr
zarr.config.set({{"codec_pipeline.path": {OURS!r}}})
array = zarr.create_array({str(directory)!r}, shape=(4096,), chunks=(4096,), dtype="uint8", compressors=None)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
array[:] = 1
"""
    killed = subprocess.run([sys.executable, "-c", code], check=False)
    assert killed.returncode == -signal.SIGXFSZ
    (left,) = (directory / "c").iterdir()
    assert left.stat().st_size < 4096
    return left.name


@pytest.mark.parametrize("shards", [(8, 8), None])
def test_temporaries_of_killed_writes_change_nothing(shards: Any, tmp_path: Path) -> None:
    root = zarr.create_group(tmp_path)
    with zarr.config.set({"codec_pipeline.path": OURS}):
        array = root.create_array("a", **(KIND | {"shards": shards}))
        other = root.create_array("b", **KIND)
    array[:8] = 1
    other[...] = 3
    before = array.nchunks_initialized, array.info_complete()._count_chunks_initialized
    ours = temporary_of_a_killed_process(tmp_path / "killed")
    names = [ours, f"1.{uuid.uuid4().hex}.partial", f"zarr.{uuid.uuid4().hex}.partial"]
    made = [tmp_path / "a/c/0" / names[0], tmp_path / "a/c/1" / names[1], tmp_path / "a" / names[2]]
    for path in made:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"not whole")
    assert (array.nchunks_initialized, array.info_complete()._count_chunks_initialized) == before
    assert set(zarr.open_group(tmp_path).array_keys()) == {"a", "b", "killed"}
    shutil.copytree(tmp_path, tmp_path / "copy")
    for pipeline in (OURS, THEIRS):
        for path in (tmp_path / "a", tmp_path / "copy/a"):
            got = opened(path, pipeline)
            assert (got[:8] == 1).all()
            assert (got[8:] == 7).all()
    if shards:
        shared = opened(tmp_path / "a", OURS, shards="shared")
        shared[9, 9] = 5
        assert shared[9, 9] == 5
        assert zarrs_cuda.consolidate(shared).shards == 1
    kept = tmp_path / "b/c/0" / names[0]
    kept.write_bytes(b"of another array")
    assert zarrs_cuda.recover(array) == {}
    assert not any(path.exists() for path in made)
    assert kept.exists()
    assert array[9, 9] == (5 if shards else 7)


def test_shared_writes_are_seen_after_consolidation(tmp_path: Path) -> None:
    create(tmp_path, **KIND)[...] = 1
    array = opened(tmp_path, OURS, shards="shared")
    array[0:2, 0:2] = 5
    array[2, 3] = 6
    expected = np.ones((16, 16), "uint16")
    expected[0:2, 0:2], expected[2, 3] = 5, 6
    np.testing.assert_array_equal(array[...], expected)
    assert array[2, 3] == 6
    assert frames(tmp_path) == 2
    # What was packed last.
    assert (opened(tmp_path, THEIRS)[...] == 1).all()
    with pytest.warns(zarrs_cuda.FramesWarning, match=r"1 shards of the array '/'.*consolidate"):
        assert (opened(tmp_path, OURS)[...] == 1).all()
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patched:
        # Once for each array and process, for a while.
        patched.setattr(_frames, "AGAIN", float("inf"))
        warnings.simplefilter("error", zarrs_cuda.FramesWarning)
        assert (opened(tmp_path, OURS, shards="in_place")[...] == 1).all()
        assert (zarrs_cuda.ArrayReader(opened(tmp_path, OURS)).read() == 1).all()
    done = zarrs_cuda.consolidate(array)
    assert (done.shards, done.subchunks, done.invalid, done.erased) == (1, 2, 0, 0)
    assert frames(tmp_path) == 0
    for pipeline in (OURS, THEIRS):
        np.testing.assert_array_equal(opened(tmp_path, pipeline)[...], expected)
    assert zarrs_cuda.consolidate(array).shards == 0


def test_subchunks_that_come_later_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session reads an array before another process shares its shards, as notebooks do."""
    monkeypatch.setattr(_frames, "AGAIN", 0.0)
    create(tmp_path, **KIND)[...] = 1
    read = opened(tmp_path, OURS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", zarrs_cuda.FramesWarning)
        assert (read[...] == 1).all()
    for value in (5, 6):
        shared = opened(tmp_path, OURS, shards="shared")
        shared[0, 0] = value
        with pytest.warns(zarrs_cuda.FramesWarning, match="1 shards"):
            assert read[0, 0] == (1 if value == 5 else 5)
        with pytest.warns(zarrs_cuda.FramesWarning, match="1 shards"):
            zarrs_cuda.ArrayReader(opened(tmp_path, OURS))
        zarrs_cuda.consolidate(shared)
        with warnings.catch_warnings():
            warnings.simplefilter("error", zarrs_cuda.FramesWarning)
            assert read[0, 0] == value


@pytest.mark.parametrize("mode", ["rewrite", "in_place"])
def test_other_writes_to_a_shard_with_a_frame_are_refused(mode: str, tmp_path: Path) -> None:
    create(tmp_path, **KIND)[...] = 1
    shared = opened(tmp_path, OURS, shards="shared")
    shared[0, 0] = 5
    other = opened(tmp_path, OURS, shards=mode)
    for selection in [(0, 1), (slice(0, 8), slice(0, 8))]:
        with pytest.raises(zarrs_cuda.FramesPending, match="consolidate") as error:
            other[selection] = 9
        assert error.value.shard == "c/0/0"
    # Through other stores, too.
    for store in (LoggingStore(LocalStore(tmp_path)), FsspecStore.from_url(f"file://{tmp_path}")):
        if mode == "rewrite":
            with pytest.raises(zarrs_cuda.FramesPending, match="consolidate") as error:
                opened(store, OURS)[0, 1] = 9
            assert error.value.shard == "c/0/0"
            opened(store, OURS)[8:, :] = 3
            assert (opened(store, OURS)[8:, :] == 3).all()
    other[8:, :] = 4
    zarrs_cuda.consolidate(other)
    other[0, 1] = 9
    assert list(other[0, :3]) == [5, 9, 1]


def test_plain_writes_before_consolidation_are_reported(tmp_path: Path) -> None:
    create(tmp_path, **KIND)[...] = 1
    shared = opened(tmp_path, OURS, shards="shared")
    shared[0:2, 0:2] = 5
    shared[8:10, 0:2] = 5
    (version,) = (tmp_path / "c/0/0.frame").iterdir()
    shard = tmp_path / "c/0/0"
    # The clock of a file system may stand for some milliseconds.
    while shard.stat().st_mtime_ns <= version.stat().st_mtime_ns:
        opened(tmp_path, THEIRS)[0:2, 0:4] = 8
    with pytest.raises(zarrs_cuda.ShardChanged, match=r"UTC.*UTC.*over_changed=True") as error:
        zarrs_cuda.consolidate(shared)
    assert error.value.shard == "c/0/0"
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)
    # The other shard was packed, and this one is as it was.
    assert list(opened(tmp_path, THEIRS)[0, :4]) == [8, 8, 8, 8]
    assert opened(tmp_path, THEIRS)[8, 0] == 5
    zarrs_cuda.consolidate(shared, over_changed=True)
    assert list(opened(tmp_path, THEIRS)[0, :4]) == [5, 5, 8, 8]
    assert not list((tmp_path / "c/0/0.frame").iterdir())


@pytest.mark.parametrize("kind", ["files", "logged", "fsspec"])
def test_readers_are_told_of_subchunks_beside_shards(kind: str, tmp_path: Path) -> None:
    def stores(path: Path) -> Any:
        if kind == "files":
            return path
        return LoggingStore(LocalStore(path)) if kind == "logged" else FsspecStore.from_url(f"file://{path}")

    for name in "read", "reader", "packed":
        create(tmp_path / name, **KIND)[...] = 1
        shared = opened(tmp_path / name, OURS, shards="shared")
        assert not (tmp_path / name / ".zarrs-cuda-frames").exists()
        shared[0:2, 0:2] = 5
        assert (tmp_path / name / ".zarrs-cuda-frames").exists()
    with pytest.warns(zarrs_cuda.FramesWarning, match="1 shards"):
        assert opened(stores(tmp_path / "read"), OURS)[0, 0] == 1
    with pytest.warns(zarrs_cuda.FramesWarning, match="1 shards"):
        assert zarrs_cuda.ArrayReader(opened(stores(tmp_path / "reader"), OURS)).read()[0, 0] == 1
    zarrs_cuda.consolidate(opened(tmp_path / "packed", OURS))
    with warnings.catch_warnings():
        warnings.simplefilter("error", zarrs_cuda.FramesWarning)
        assert opened(stores(tmp_path / "packed"), OURS)[0, 0] == 5
        # A marker that was left does not hold up writes.
        opened(stores(tmp_path / "packed"), OURS)[0, 0] = 6
        assert opened(tmp_path / "packed", OURS, shards="shared")[0, 0] == 6


@pytest.mark.parametrize("step", [2, 3, 16])
def test_shared_writes_touch_no_subchunk_that_has_no_element_of_theirs(step: int, tmp_path: Path) -> None:
    shape = {"shape": (64, 4), "chunks": (1, 2), "shards": (32, 4), "dtype": "uint16"}
    create(tmp_path, **shape)[...] = 1
    array = opened(tmp_path, OURS, shards="shared")
    rows = np.arange(0, 64, step)
    array[::step, 0] = 2
    assert frames(tmp_path) == len(rows)
    array.oindex[rows, [1]] = 3
    array.vindex[rows, rows % 2] = 4
    array.set_mask_selection(np.arange(64 * 4).reshape(64, 4) % (4 * step) == 0, 5)
    got = array[...]
    for row in range(64):
        expected = [5, 3 if row % 2 == 0 else 4, 1, 1] if row % step == 0 else [1, 1, 1, 1]
        assert list(got[row]) == expected, row
    touched = {int(name.split("/")[-1].split(".")[0], 16) for name in files(tmp_path) if ".frame/" in name}
    assert len(touched) == len({(row % 32) * 2 for row in rows})


def test_shared_writes_between_those_of_another_process(tmp_path: Path) -> None:
    create(tmp_path, shape=(256, 4), chunks=(1, 4), shards=(256, 4), dtype="uint16")
    code = f"""
import sys, zarr
zarr.config.set({{"codec_pipeline.path": {OURS!r}, "codec_pipeline.shards": "shared"}})
array = zarr.open_array({str(tmp_path)!r}, mode="r+")
first = int(sys.argv[1])
for row in range(first, 128, 2):
    array.oindex[[row, row + 128]] = row + 1
"""
    writers = [subprocess.Popen([sys.executable, "-c", code, str(first)]) for first in range(2)]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    got = opened(tmp_path, OURS, shards="shared")[...]
    assert (got == np.tile(np.arange(1, 129), 2)[:, None]).all()


def test_appends_while_another_process_packs(tmp_path: Path) -> None:
    create(tmp_path, shape=(0, 4), chunks=(1, 4), shards=(4, 4), dtype="uint16", fill_value=0)
    code = f"""
import numpy as np, zarr
zarr.config.set({{"codec_pipeline.path": {OURS!r}, "codec_pipeline.shards": "shared"}})
array = zarr.open_array({str(tmp_path)!r}, mode="r+")
for row in range(200):
    array.append(np.full((1, 4), row + 1, "uint16"))
"""
    array = opened(tmp_path, OURS, shards="shared")
    writer = subprocess.Popen([sys.executable, "-c", code])
    while writer.poll() is None:
        zarrs_cuda.consolidate(array)
    assert writer.returncode == 0
    assert zarrs_cuda.consolidate(array).erased == 0
    np.testing.assert_array_equal(opened(tmp_path, THEIRS)[:, 0], np.arange(1, 201))


def test_a_damaged_shard_does_not_keep_others_from_being_packed(tmp_path: Path) -> None:
    create(tmp_path, **KIND)[...] = 1
    array = opened(tmp_path, OURS, shards="shared")
    array[::8, ::8] = 5
    shard = tmp_path / "c/0/0"
    times = shard.stat()
    shard.write_bytes(b"torn")
    # A shard that was changed later than its frame is reported as such.
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(zarrs_cuda.ShardError) as error:
        array[3, 3] = 6
    assert error.value.shard == "c/0/0"
    with pytest.raises(zarrs_cuda.ShardError) as error:
        zarrs_cuda.consolidate(array)
    assert error.value.shard == "c/0/0"
    assert frames(tmp_path) == 1
    assert opened(tmp_path, THEIRS)[8, 8] == 5


def test_objects_that_are_not_whole_are_discarded_if_asked(tmp_path: Path) -> None:
    create(tmp_path, **KIND)[...] = 1
    array = opened(tmp_path, OURS, shards="shared")
    array[0, 0] = 5
    (whole,) = (tmp_path / "c/0/0.frame").iterdir()
    array[0, 0] = 6
    for path in (tmp_path / "c/0/0.frame").iterdir():
        if path != whole:
            # As after a power failure.
            path.write_bytes(b"")
    done = zarrs_cuda.consolidate(array)
    assert (done.shards, done.subchunks, done.invalid) == (1, 1, 1)
    other = opened(tmp_path, OURS)
    with pytest.raises(zarrs_cuda.FramesPending, match="discard_invalid"):
        other[1, 1] = 8
    assert zarrs_cuda.consolidate(array, discard_invalid=True).invalid == 0
    other[1, 1] = 8
    assert (other[0, 0], other[1, 1]) == (5, 8)


@pytest.mark.parametrize("mode", ["rewrite", "in_place"])
def test_nothing_is_written_if_one_of_the_shards_has_a_frame(mode: str, tmp_path: Path) -> None:
    create(tmp_path, **KIND)[...] = 1
    opened(tmp_path, OURS, shards="shared")[15, 15] = 5
    with pytest.raises(zarrs_cuda.FramesPending):
        opened(tmp_path, OURS, shards=mode)[...] = 9
    assert (opened(tmp_path, THEIRS)[...] == 1).all()


@pytest.mark.parametrize("mode", ["shared", "in_place"])
def test_shards_inside_other_codecs_are_refused(mode: str, tmp_path: Path) -> None:
    codec = ShardingCodec(chunk_shape=(2, 2), codecs=[BytesCodec()])
    kind = {"shape": (8, 8), "chunks": (4, 4), "dtype": "uint16"}
    create(tmp_path / "wrapped", **kind, serializer=codec, compressors=[Crc32cCodec()])
    array = opened(tmp_path / "wrapped", OURS, shards=mode)
    for use in (lambda: array[...], lambda: array.__setitem__(0, 1)):
        with pytest.raises(ValueError, match="other codecs"):
            use()
    create(tmp_path / "plain", **kind)
    plain = opened(tmp_path / "plain", OURS, shards=mode)
    plain[...] = 3
    assert zarrs_cuda.explain(plain).mode == "rewrite"
    assert (zarrs_cuda.ArrayReader(plain).read() == 3).all()


@pytest.mark.parametrize("start", [None, 0, 8])
def test_writers_of_slices_over_frames_are_refused(start: int | None, tmp_path: Path) -> None:
    create(tmp_path, **KIND)[...] = 1
    array = opened(tmp_path, OURS, shards="shared")
    array[15, 15] = 5
    if start is None:
        array.resize((8, 16))
    with pytest.raises(zarrs_cuda.FramesPending):
        zarrs_cuda.ArrayWriter(opened(tmp_path, OURS), start=start)
    zarrs_cuda.consolidate(array)
    zarrs_cuda.ArrayWriter(opened(tmp_path, OURS), start=start).abort()


def test_parts_pack_disjoint_shards(tmp_path: Path) -> None:
    array = create(tmp_path, **KIND)
    array = opened(tmp_path, OURS, shards="shared")
    array[...] = np.arange(256).reshape(16, 16)
    done = [zarrs_cuda.consolidate(array, part=(n, 3)).shards for n in (1, 2, 3)]
    assert done == [2, 1, 1]
    np.testing.assert_array_equal(opened(tmp_path, THEIRS)[...], np.arange(256).reshape(16, 16))
    for part in [(4, 3), (0, 2), (1, 0)]:
        with pytest.raises(ValueError, match="part"):
            zarrs_cuda.consolidate(array, part=part)


def test_frames_and_shapes_that_change(tmp_path: Path) -> None:
    create(tmp_path, **KIND)
    array = opened(tmp_path, OURS, shards="shared")
    array[...] = 1
    for _ in range(3):
        array.append(np.full((4, 16), 2, "uint16"))
    assert array.shape == (28, 16)
    assert (array[16:] == 2).all()
    array.resize((8, 16))
    assert (array[...] == 1).all()
    done = zarrs_cuda.consolidate(array)
    assert done.erased == 6
    assert frames(tmp_path) == 0
    array.resize((32, 16))
    assert (array[:8] == 1).all()
    assert (array[8:] == 7).all()
    array[31, 15] = 3
    assert array[31, 15] == 3
    zarrs_cuda.consolidate(array)
    got = opened(tmp_path, THEIRS)
    assert got[31, 15] == 3
    assert got.nchunks_initialized == 3 * 16


@pytest.mark.parametrize("kind", ["array", "group"])
@pytest.mark.filterwarnings("error::UserWarning")
def test_writers_that_share_no_shards_are_told(kind: str, tmp_path: Path) -> None:
    """One of the two settings alone does nothing, wherever it is set."""
    for name in "ab":
        create(tmp_path / name, **KIND)[...] = 1
    zarr.open_group(tmp_path, mode="a")

    def there() -> Any:
        return zarr.open_group(tmp_path)["a"] if kind == "array" else zarr.open_group(tmp_path)

    def write() -> None:
        zarr.open_group(tmp_path)["a"][0, 0] = 5

    with zarr.config.set({"codec_pipeline.path": THEIRS}):
        with zarr.config.set({"codec_pipeline.shards": "shared"}):
            write()
            array = there()
        # As a reader of a snippet would.
        for settings in ({}, {"codec_pipeline.shards": "shared"}):
            with (
                zarr.config.set(settings),
                pytest.warns(UserWarning, match="nothing is stored beside the shards of '/?a?'") as caught,
            ):
                assert zarrs_cuda.consolidate(array).shards == 0
            assert caught[0].filename == __file__
    with zarr.config.set({"codec_pipeline.path": OURS}):
        # Nothing is said of an array that nobody has written since.
        zarrs_cuda.consolidate(there())
        with zarr.config.set({"codec_pipeline.shards": "shared"}):
            write()
    with zarr.config.set({"codec_pipeline.path": THEIRS}):
        assert zarrs_cuda.consolidate(there()).subchunks == 1
        with zarr.config.set({"codec_pipeline.path": OURS, "codec_pipeline.shards": "shared"}):
            write()
        with (
            zarr.config.set({"codec_pipeline.shards": "shared"}),
            pytest.warns(UserWarning, match=r"`codec_pipeline.shards` is set, and does nothing"),
        ):
            assert zarrs_cuda.consolidate(there()).subchunks == 1


def test_nchunks_initialized_and_consolidated_metadata_with_frames(tmp_path: Path) -> None:
    root = zarr.create_group(tmp_path)
    with zarr.config.set({"codec_pipeline.path": OURS, "codec_pipeline.shards": "shared"}):
        array = root.create_array("a", **KIND)
    array[0, 0] = 1
    assert array.nchunks_initialized == 0
    zarr.consolidate_metadata(tmp_path)
    zarrs_cuda.consolidate(array)
    assert array.nchunks_initialized == 16
    assert list(zarr.open_group(tmp_path)["a"][0, :2]) == [1, 7]


def test_a_missing_shard_with_a_frame_is_present(tmp_path: Path) -> None:
    create(tmp_path, **KIND, config={"read_missing_chunks": False})
    array = opened(tmp_path, OURS, shards="shared")
    object.__setattr__(
        array.async_array,
        "config",
        zarr.core.array_spec.ArrayConfig.from_dict({"read_missing_chunks": False}),
    )
    array[0, 0] = 1
    assert list(array[0, :3]) == [1, 7, 7]
    with pytest.raises(zarr.errors.ChunkNotFoundError):
        array[8:, :]


@pytest.mark.parametrize("mode", ["in_place", "shared"])
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_modes_agree_with_numpy(
    mode: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = LocalStore(tmp_path_factory.mktemp("store"))
    shape = tuple(data.draw(st.integers(1, 9)) for _ in range(2))
    chunks = tuple(data.draw(st.integers(1, 3)) for _ in range(2))
    create(
        store,
        shape=shape,
        chunks=chunks,
        shards=tuple(2 * size for size in chunks),
        dtype="int16",
        fill_value=data.draw(st.sampled_from([0, -1])),
        compressors=data.draw(st.sampled_from([None, "auto"])),
        config={"write_empty_chunks": data.draw(st.booleans())},
    )
    array = opened(store, OURS, shards=mode)
    expected = np.full(shape, array.fill_value, "int16")
    for _ in range(data.draw(st.integers(1, 6))):
        box = []
        for extent in shape:
            start = data.draw(st.integers(0, extent - 1))
            box.append(
                slice(
                    start,
                    data.draw(st.integers(start + 1, extent)),
                    data.draw(st.sampled_from([1, 1, 2])),
                )
            )
        value = data.draw(st.integers(-1, 2))
        array[tuple(box)] = value
        expected[tuple(box)] = value
        np.testing.assert_array_equal(array[...], expected)
        np.testing.assert_array_equal(array[tuple(box)], expected[tuple(box)])
        if mode == "shared" and data.draw(st.booleans()):
            zarrs_cuda.consolidate(array)
            np.testing.assert_array_equal(array[...], expected)
    if mode == "shared":
        zarrs_cuda.consolidate(array)
    np.testing.assert_array_equal(opened(store, THEIRS)[...], expected)


@pytest.mark.parametrize("mode", ["in_place", "shared"])
@pytest.mark.parametrize("dtype", ["str", VariableLengthBytes()], ids=["str", "bytes"])
def test_strings_in_shards(mode: str, dtype: Any, tmp_path: Path) -> None:
    def of(*words: str) -> Any:
        return [word if dtype == "str" else word.encode() for word in words]

    create(tmp_path, shape=(8,), chunks=(2,), shards=(4,), dtype=dtype, fill_value=of("a")[0])
    array = opened(tmp_path, OURS, shards=mode)
    # Together, the bytes of a subchunk and of a shard look like the fill value.
    array[0:2] = np.array(of("aa", ""), dtype=object)
    array[4:8] = np.array(of("aaa", "a", "", ""), dtype=object)
    array[3] = np.array(of("b" * 70000), dtype=object)[0]
    expected = of("aa", "", "a", "b" * 70000, "aaa", "a", "", "")
    assert list(array[:]) == expected
    array[3], expected[3] = expected[2], expected[2]
    array[5], expected[5] = of("ä")[0], of("ä")[0]
    assert list(array[1:7:2]) == expected[1:7:2]
    if mode == "shared":
        assert zarrs_cuda.consolidate(array).shards == 2
        assert frames(tmp_path) == 0
    for pipeline in (OURS, THEIRS):
        assert list(opened(tmp_path, pipeline)[:]) == expected


TRANSPOSED = TransposeCodec(order=(1, 0))


@pytest.mark.parametrize("dtype", ["str", VariableLengthBytes()], ids=["str", "bytes"])
@pytest.mark.parametrize(
    ("mode", "around"),
    # Other modes are refused for shards inside other codecs.
    [
        *itertools.product(("rewrite", "memory"), ("crc32c", "zstd", "transposed", "transposed twice")),
        *itertools.product(
            ("rewrite", "memory", "in_place", "shared"), ("transposed subchunks", "nested", "chunks")
        ),
    ],
)
def test_strings_with_codecs_around_shards(mode: str, around: str, dtype: Any, tmp_path: Path) -> None:
    """zarrs' decoders of parts panic on some of these, or are wrong."""
    one = VLenUTF8Codec() if dtype == "str" else VLenBytesCodec()
    shards = ShardingCodec(chunk_shape=(2, 4), codecs=[one, ZstdCodec()])
    flipped = ShardingCodec(chunk_shape=(2, 4), codecs=[TRANSPOSED, one, ZstdCodec()])
    kind: dict[str, Any] = {
        "crc32c": {"serializer": shards, "compressors": [Crc32cCodec()]},
        "zstd": {"serializer": shards, "compressors": [ZstdCodec()]},
        "transposed": {"filters": [TRANSPOSED], "serializer": shards, "compressors": None},
        "transposed subchunks": {"serializer": flipped, "compressors": None},
        "transposed twice": {"filters": [TRANSPOSED], "serializer": flipped, "compressors": [Crc32cCodec()]},
        "nested": {
            "serializer": ShardingCodec(chunk_shape=(4, 8), codecs=[flipped, Crc32cCodec()]),
            "compressors": None,
        },
        "chunks": {"filters": [TRANSPOSED], "serializer": one, "compressors": [ZstdCodec()]},
    }[around]
    store = MemoryStore() if mode == "memory" else LocalStore(tmp_path)
    create(store, shape=(16, 16), chunks=(8, 8), dtype=dtype, **kind)
    array = opened(store, OURS, shards="rewrite" if mode == "memory" else mode)
    expected = np.full((16, 16), "" if dtype == "str" else b"", dtype=object)
    rng = np.random.default_rng(3)
    for number in range(40):
        start, size = rng.integers(0, 15, 2), rng.integers(1, 9, 2)
        box = tuple(slice(int(a), min(int(a + n), 16)) for a, n in zip(start, size, strict=True))
        if number % 3 == 0:
            words = [f"{value}" * int(value % 5) for value in rng.integers(0, 1000, expected[box].size)]
            values = np.array(words if dtype == "str" else [word.encode() for word in words], dtype=object)
            array[box] = expected[box] = values.reshape(expected[box].shape)
        assert array[box].tolist() == expected[box].tolist()
    if mode == "shared" and around != "chunks":
        zarrs_cuda.consolidate(array)
    assert opened(store, THEIRS)[...].tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", ["S3", "V3", np.dtype([("a", "u1"), ("b", "<i4")])], ids=str)
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_types_that_zarrs_does_not_have(dtype: Any, tmp_path: Path) -> None:
    create(tmp_path, shape=(8,), chunks=(2,), shards=(8,), dtype=dtype)
    array = opened(tmp_path, OURS, shards="in_place")
    expected = np.zeros(8, dtype)
    value = np.frombuffer(b"abcde"[: expected.itemsize], dtype)[0]
    for selection in (slice(1, 6), 7):
        array[selection] = value
        expected[selection] = value
    for pipeline in (OURS, THEIRS):
        np.testing.assert_array_equal(opened(tmp_path, pipeline)[:], expected)
    shared = opened(tmp_path, OURS, shards="shared")
    for use in (lambda: shared[:], lambda: shared.set_basic_selection(0, value)):
        with pytest.raises(ValueError, match="zarrs has no type"):
            use()
    with pytest.raises(ValueError, match="zarrs has no type"):
        zarrs_cuda.consolidate(shared)


SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void note(const char *what, const char *path) {
    int log = open(getenv("SYNCS"), O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (dprintf(log, "%s %s\\n", what, path) < 0) abort();
    close(log);
}
int fsync(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    path[len < 0 ? 0 : len] = 0;
    note("sync", path);
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}
int rename(const char *from, const char *to) {
    note("from", from);
    note("to", to);
    return ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename"))(from, to);
}
int unlink(const char *path) {
    note("remove", path);
    return ((int (*)(const char *))dlsym(RTLD_NEXT, "unlink"))(path);
}
"""
ACTIONS = {
    "rewrite": ("rewrite", "array[0, 0] = 5; array[8, 8] = 5; array[8:, :8] = 7"),
    "in_place": ("in_place", "array[0, 0] = 5; array[8, 8] = 5"),
    "shared": ("shared", "array[0, 0] = 5; array[8, 8] = 5"),
    "consolidate": ("shared", "array[0, 0] = 5; zarrs_cuda.consolidate(array)"),
    "compact": ("in_place", "array[:8, :8] = np.arange(64).reshape(8, 8); zarrs_cuda.compact(array)"),
    "stream": ("rewrite", "w = zarrs_cuda.ArrayWriter(array, start=0); w.append(array[:8]); w.finish()"),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_files_are_synced_only_if_asked(action: str, tmp_path: Path) -> None:
    (tmp_path / "shim.c").write_text(SHIM)
    shim = tmp_path / "shim.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, tmp_path / "shim.c", "-ldl"], check=True)
    mode, statements = ACTIONS[action]
    logs = {}
    for sync in (False, True):
        root, log = tmp_path / f"array{sync}", tmp_path / f"log{sync}"
        create(root, **KIND)[:8] = 1
        log.touch()
        code = f"""
import numpy as np, zarr, zarrs_cuda
zarr.config.set({{"codec_pipeline.path": {OURS!r}, "codec_pipeline.shards": {mode!r}}})
array = zarr.open_array({str(root)!r})
{statements}
"""
        environment = {
            **os.environ,
            "LD_PRELOAD": str(shim),
            "SYNCS": str(log),
            "ZARR_CODEC_PIPELINE__SYNC": str(sync),
        }
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)
        lines = [line.split(" ", 1) for line in log.read_text().splitlines()]
        logs[sync] = [(what, path) for what, path in lines if path.startswith(str(root))]
    assert not [entry for entry in logs[False] if entry[0] == "sync"]
    assert logs[True]
    synced: set[str] = set()
    for number, (what, path) in enumerate(logs[True]):
        before, after = logs[True][:number], logs[True][number:]
        above = ("sync", str(Path(path).parent))
        match what:
            case "sync":
                synced.add(path)
            case "from":
                assert path in synced, (path, logs[True])
            case "to":
                synced.add(path)
                assert above in after, (path, logs[True])
            case "remove" if path.endswith(".chunk"):
                # The shard that has it now is on the disk.
                shard = Path(path).parent.with_suffix("")
                to = before.index(("to", str(shard)))
                assert ("sync", str(shard.parent)) in before[to:]
                assert above in after
    if mode != "rewrite":
        # Every directory that is new, and the one above it.
        for directory in [path for path in root.rglob("*") if path.is_dir()]:
            if directory.name == "1" or directory.suffix == ".frame":
                assert str(directory) in synced
                assert str(directory.parent) in synced


@pytest.mark.parametrize("mode", ["rewrite", "in_place", "shared"])
def test_want_of_memory_is_no_damage(mode: str, tmp_path: Path) -> None:
    code = f"""
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np, zarr, zarrs_cuda
zarr.config.set({{"codec_pipeline.path": {OURS!r}, "codec_pipeline.shards": {mode!r}}})
size = 192 << 20
kind = {{"shape": (2 * size,), "chunks": (size,), "shards": (2 * size,), "dtype": "u1"}}
array = zarr.create_array({str(tmp_path)!r}, **kind)
array[0] = 1
zarrs_cuda.consolidate(array)
reader = zarrs_cuda.ArrayReader(array)
before = Path({str(tmp_path)!r}, "c/0").read_bytes()
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20),) * 2)
for call in (
    lambda: array[3],
    lambda: array.__setitem__(9, 4),
    lambda: array.__setitem__(slice(size, 2 * size), 4),
    lambda: reader.read(slice(3, 4)),
    lambda: zarrs_cuda.recover(array),
):
    try:
        call()
    except MemoryError as error:
        assert "out of memory" in str(error), error
    else:
        raise AssertionError
assert Path({str(tmp_path)!r}, "c/0").read_bytes() == before
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mode", ["rewrite", "in_place", "shared", "memory", "wrapped"])
def test_values_in_any_order_are_written(mode: str, tmp_path: Path) -> None:
    """Values that numpy has backwards, transposed, with steps, or repeated."""
    store = {"memory": MemoryStore(), "wrapped": LoggingStore(LocalStore(tmp_path))}.get(mode, tmp_path)
    create(store, **KIND)
    array = opened(store, OURS, shards=mode if mode in ("rewrite", "in_place", "shared") else "rewrite")
    expected = np.full((16, 16), 7, "uint16")
    rng = np.random.default_rng(1)
    values = rng.integers(0, 2**16, (32, 32), "uint16")
    for box, of_values in [
        ((slice(0, 16), slice(0, 16)), values[15::-1, :16]),
        ((slice(0, 16), slice(0, 16)), values[:16, 31:15:-1]),
        ((slice(1, 15), slice(3, 11)), values[3:11, 1:15].T),
        ((slice(1, 15), slice(3, 11)), values[::-2, ::-4][:14, :8]),
        ((slice(0, 8), slice(0, 8)), np.broadcast_to(values[:1, :8], (8, 8))),
        ((slice(0, 16), slice(0, 16)), np.broadcast_to(values[:16, 3:4], (16, 16))),
        ((slice(0, 16), slice(0, 16)), values[:16, :16].astype(">u2")),
        ((slice(5, 6), slice(0, 16)), values[4:5, ::2]),
        ((slice(0, 16), 5), values[::2, 4]),
    ]:
        array[box], expected[box] = of_values, of_values
        np.testing.assert_array_equal(array[...], expected)
    if mode == "shared":
        zarrs_cuda.consolidate(array)
    np.testing.assert_array_equal(opened(store, THEIRS)[...], expected)


@pytest.mark.parametrize("kind", ["files", "memory"])
@pytest.mark.parametrize("mode", ["rewrite", "in_place", "shared"])
def test_the_last_of_several_values_for_one_place_is_kept(mode: str, kind: str, tmp_path: Path) -> None:
    if kind == "memory" and mode != "rewrite":
        pytest.skip("only files are written like this")
    store = MemoryStore() if kind == "memory" else LocalStore(tmp_path)
    create(store, **KIND)[...] = 1
    array = opened(store, OURS, shards=mode)
    expected = np.ones((16, 16), "uint16")
    inner = array.async_array
    spec = _get_chunk_spec(
        inner.metadata, inner._chunk_grid, (0, 0), inner.config, default_buffer_prototype()
    )
    values = np.arange(3 * 36, dtype="uint16").reshape(3, 6, 6)
    batch = []
    for number, start in enumerate((0, 2, 1)):
        box = (slice(start, start + 6), slice(start, start + 6))
        batch.append((inner.store_path / "c/0/0", spec, box, number, False))
        expected[box] = values[number]
    finished(inner.codec_pipeline.write(batch, cpu.NDBuffer.from_numpy_array(values)))
    np.testing.assert_array_equal(array[...], expected)
    if mode == "shared":
        zarrs_cuda.consolidate(array)
    np.testing.assert_array_equal(opened(store, THEIRS)[...], expected)


@pytest.mark.parametrize("mode", ["rewrite", "in_place", "shared"])
def test_threads_that_write_parts_of_one_shard_lose_nothing(mode: str, tmp_path: Path) -> None:
    create(tmp_path, **KIND)
    # Arrays that were opened apart, as by threads that know nothing of each other.
    arrays = [opened(tmp_path, OURS, shards=mode) for _ in range(4)]

    def write(number: int) -> None:
        for value in range(10):
            arrays[number][2 * number : 2 * number + 2, :] = 100 * number + value

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    if mode == "shared":
        zarrs_cuda.consolidate(arrays[0])
    expected = np.full((16, 16), 7, "uint16")
    for number in range(4):
        expected[2 * number : 2 * number + 2] = 100 * number + 9
    np.testing.assert_array_equal(opened(tmp_path, THEIRS)[...], expected)
