"""Appending slices, and reading boxes."""

from __future__ import annotations

import contextlib
import errno
import math
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import obstore
import pytest
import zarr
import zarrs_cuda
from conftest import OURS, THEIRS, create, opened
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, WrapperStore

if TYPE_CHECKING:
    from collections.abc import Iterator

KIND = {"shape": (0, 12, 10), "chunks": (2, 4, 5), "shards": (4, 8, 10), "dtype": "uint16"}


def frames(count: int) -> np.ndarray[Any, Any]:
    return np.arange(count * 120, dtype="uint16").reshape(count, 12, 10)


def test_frames_become_an_array(tmp_path: Path) -> None:
    array = create(tmp_path, **KIND)
    told: list[dict[str, float]] = []
    values = frames(11)
    with zarrs_cuda.ArrayWriter(array, progress=told.append) as writer:
        writer.append(values[0])
        writer.append(values[1:7])
        writer.append(np.asfortranarray(values[7:10]))
        writer.append(values[10].astype("uint8") if values[10].max() < 256 else values[10])
        assert writer.progress()["appended_slices"] == 11
    assert told
    assert told[-1]["shards_stored"] > 0
    for pipeline in (OURS, THEIRS):
        np.testing.assert_array_equal(opened(tmp_path, pipeline)[...], values)
    # And more, behind the last whole shard.
    more = opened(tmp_path, OURS)
    writer = zarrs_cuda.ArrayWriter(more, start=8)
    writer.append(values[8:10] + 1)
    assert "slices" in writer.finish()
    assert writer.progress()["appended_slices"] == 2
    with pytest.raises(ValueError, match="finished"):
        writer.append(values[0])


@pytest.mark.parametrize("session", [1, 3])
def test_sessions_go_on_inside_a_shard(tmp_path: Path, session: int) -> None:
    create(tmp_path / "sessions", **KIND)
    values = frames(11)
    for begin in range(0, 11, session):
        array = opened(tmp_path / "sessions", OURS)
        with zarrs_cuda.ArrayWriter(array, start="resume") as writer:
            writer.append(values[begin : begin + session])
            assert writer.progress()["appended_slices"] == len(values[begin : begin + session])
        assert array.shape[0] == min(begin + session, 11)
    whole = create(tmp_path / "whole", **KIND)
    with zarrs_cuda.ArrayWriter(whole) as writer:
        writer.append(values)
    for pipeline in (OURS, THEIRS):
        np.testing.assert_array_equal(opened(tmp_path / "sessions", pipeline)[...], values)

    def stored(path: Path) -> dict[str, bytes]:
        return {
            str(file.relative_to(path)): file.read_bytes() for file in path.glob("c/**/*") if file.is_file()
        }

    assert stored(tmp_path / "sessions") == stored(tmp_path / "whole")
    # Without a frame, nothing is stored.
    before = stored(tmp_path / "whole")
    with zarrs_cuda.ArrayWriter(opened(tmp_path / "whole", OURS), start="resume"):
        pass
    zarrs_cuda.ArrayWriter(opened(tmp_path / "whole", OURS), start="resume").abort()
    assert stored(tmp_path / "whole") == before


def test_a_start_that_is_none(tmp_path: Path) -> None:
    array = create(tmp_path, **KIND)
    with pytest.raises(ValueError, match=r"`start` is \"end\".*\"resume\""):
        zarrs_cuda.ArrayWriter(array, start="end")  # type: ignore[arg-type]
    with zarrs_cuda.ArrayWriter(array) as writer:
        writer.append(frames(5))
    with pytest.raises(ValueError, match=r'`start="resume"`'):
        zarrs_cuda.ArrayWriter(opened(tmp_path, OURS))


def test_tensors_with_dlpack(tmp_path: Path) -> None:
    class Tensor:
        def __init__(self, values: Any) -> None:
            self.values = values

        def __dlpack__(self, **kwargs: Any) -> Any:
            return self.values.__dlpack__(**kwargs)

        def __dlpack_device__(self) -> Any:
            return self.values.__dlpack_device__()

    array = create(tmp_path, **KIND)
    with zarrs_cuda.ArrayWriter(array) as writer:
        writer.append(Tensor(frames(4)))
    np.testing.assert_array_equal(opened(tmp_path, THEIRS)[...], frames(4))


OF_PARTS = {"chunks": (1, 1, 2, 3), "shards": (2, 2, 4, 6), "dtype": "uint16"}


def parts_of(slices: np.ndarray[Any, Any], random: np.random.Generator) -> Iterator[np.ndarray[Any, Any]]:
    """Cut slices into arrays that a writer takes, one after the other."""
    of_slice, flat = slices.shape[1:], slices.ravel()
    at = 0
    while at < flat.size:
        # The number of elements that one step along each axis has, from the axis of slices on.
        steps = [math.prod(slices.shape[axis:]) for axis in range(1, slices.ndim + 1)]
        axis = random.choice([axis for axis, step in enumerate(steps) if at % step == 0])
        left = slices.shape[axis] - at // steps[axis] % slices.shape[axis]
        some = int(random.integers(1, left + 1))
        end = at + some * steps[axis]
        part = flat[at:end].reshape(some, *of_slice[axis:])
        yield part[0] if some == 1 and axis < len(of_slice) else part
        at = end


@pytest.mark.parametrize("kind", [zarrs_cuda.ArrayWriter, zarrs_cuda.MultiscaleWriter])
def test_parts_of_slices_are_taken_in_c_order(kind: type[Any], tmp_path: Path) -> None:
    class Tensor:
        def __init__(self, values: Any) -> None:
            self.values = values

        def __dlpack__(self, **kwargs: Any) -> Any:
            return self.values.__dlpack__(**kwargs)

        def __dlpack_device__(self) -> Any:
            return self.values.__dlpack_device__()

    seed = time.time_ns() % 2**32
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    for case in range(20):
        shape = tuple(int(extent) for extent in random.integers(1, 6, 4))
        slices = random.integers(0, 2**16, shape, "uint16")
        zarr.create_group(tmp_path / f"{case}")
        place = tmp_path / f"{case}" / "0"
        names = ["t", "c", "y", "x"]
        array = create(place, shape=(0, *shape[1:]), dimension_names=names, **OF_PARTS)
        appended = 0
        with kind(array) as writer:
            for part in parts_of(slices, random):
                how = random.integers(3)
                writer.append(np.asfortranarray(part) if how == 0 else Tensor(part) if how == 1 else part)
                appended += part.size
                expected = np.unravel_index(appended % slices[0].size, shape[1:])
                assert writer.position == tuple(int(index) for index in expected)
        assert writer.position == (0, 0, 0)
        np.testing.assert_array_equal(opened(place, THEIRS)[...], slices)


@pytest.mark.parametrize("kind", [zarrs_cuda.ArrayWriter, zarrs_cuda.MultiscaleWriter])
def test_parts_that_do_not_continue_a_slice_are_refused(kind: type[Any], tmp_path: Path) -> None:
    zarr.create_group(tmp_path)
    place = tmp_path / "0"
    array = create(place, shape=(0, 2, 5, 3), dimension_names=["t", "c", "y", "x"], **OF_PARTS)
    slices = np.arange(60, dtype="uint16").reshape(2, 2, 5, 3)
    writer = kind(array)
    for wrong in (np.zeros((6, 3)), np.zeros(4), np.zeros((3, 5, 3)), np.zeros((5, 2)), np.zeros(())):
        with pytest.raises(ValueError, match="slices have the shape"):
            writer.append(wrong.astype("uint16"))
    writer.append(slices[0, 0])
    writer.append(slices[0, 1, :2])
    assert writer.position == (1, 2, 0)
    # A slice, slices, a plane, more rows than the plane lacks.
    for wrong in (slices[0], slices, slices[0, 0], slices[0, :1], slices[0, 0, :4]):
        with pytest.raises(ValueError, match="9 of its 30 elements are missing"):
            writer.append(wrong)
    writer.append(slices[0, 1, 2, :1])
    with pytest.raises(ValueError, match="8 of its 30 elements are missing"):
        writer.append(slices[0, 1, 3])
    with pytest.raises(ValueError, match="8 of its 30 elements are missing"):
        writer.append(slices[0, 1, 2])
    writer.append(slices[0, 1, :0])
    assert writer.position == (1, 2, 1)
    assert writer.progress() is not None
    with pytest.raises(
        ValueError, match=r"slice 0 has 22 of its 30 elements.*\[1, 2, 1\].*discard_partial_slice"
    ):
        writer.finish()
    # The writer takes the rest.
    writer.append(slices[0, 1, 2, 1:])
    writer.append(slices[0, 1, 3:])
    writer.append(slices[1, 0, 0])
    assert writer.discard_partial_slice() == 3
    assert writer.discard_partial_slice() == 0
    assert writer.position == (0, 0, 0)
    writer.append(slices[1])
    writer.append(slices[1, 0])
    writer.discard_partial_slice()
    writer.finish()
    with pytest.raises(ValueError, match="finished"):
        writer.append(slices[0, 0])
    np.testing.assert_array_equal(opened(place, THEIRS)[...], slices)


def test_a_block_that_ends_within_a_slice_is_an_error(tmp_path: Path) -> None:
    array = create(tmp_path, **KIND)
    values = frames(5)
    writer = zarrs_cuda.ArrayWriter(array)

    def record() -> None:
        with writer:
            writer.append(values[:4])
            writer.append(values[4, :7])

    with pytest.raises(ValueError, match="slice 4 has 70 of its 120 elements"):
        record()
    writer.append(values[4, 7:])
    writer.finish()
    np.testing.assert_array_equal(opened(tmp_path, THEIRS)[...], values)


@pytest.mark.parametrize("kind", [zarrs_cuda.ArrayWriter, zarrs_cuda.MultiscaleWriter])
def test_tensors_on_a_device_are_not_touched_by_the_host(kind: type[Any], tmp_path: Path) -> None:
    """A tensor of a library for devices, as far as there is one without a device."""
    import ctypes

    class Described(ctypes.Structure):
        _fields_ = [
            ("data", ctypes.c_void_p),
            ("device_type", ctypes.c_int32),
            ("device_id", ctypes.c_int32),
            ("ndim", ctypes.c_int32),
            ("code", ctypes.c_uint8),
            ("bits", ctypes.c_uint8),
            ("lanes", ctypes.c_uint16),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.POINTER(ctypes.c_int64)),
            ("byte_offset", ctypes.c_uint64),
            ("context", ctypes.c_void_p),
            ("deleter", ctypes.c_void_p),
        ]

    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    freed: list[int] = []
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(freed.append)

    class Tensor:
        def __init__(self, *shape: int, device: int = 2, code: int = 1, name: bytes = b"dltensor") -> None:
            self.name = name
            self.shape = (ctypes.c_int64 * len(shape))(*shape)
            # An address that nobody can read.
            self.described = Described(
                0x10, device, 0, len(shape), code, 16, 1, self.shape, None, 0, None,
                ctypes.cast(free, ctypes.c_void_p),
            )  # fmt: skip

        def __dlpack__(self, *, stream: int | None = None) -> Any:
            assert stream == 1
            return new(ctypes.addressof(self.described), self.name, None)

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    place = tmp_path / "0"
    zarr.create_group(tmp_path)
    with kind(create(place, dimension_names=["t", "y", "x"], **KIND)) as writer:
        for number, tensor in enumerate((Tensor(12, 10), Tensor(3, 12, 10))):
            with pytest.raises(ValueError, match=r"device|host"):
                writer.append(tensor)
            assert len(freed) == number + 1
        for tensor in (Tensor(12, 11), Tensor(), Tensor(1, 1, 12, 10)):
            with pytest.raises(ValueError, match="shape"):
                writer.append(tensor)
        assert len(freed) == 5
        assert writer.position == (0, 0)
        # The capsule keeps what is not taken.
        for tensor in (Tensor(12, 10, device=99), Tensor(12, 10, code=77)):
            with pytest.raises(BufferError, match="host"):
                writer.append(tensor)
        with pytest.raises(TypeError, match="capsule"):
            writer.append(Tensor(12, 10, name=b"dltensor_versioned"))
        assert len(freed) == 5
        writer.append(frames(2))
    np.testing.assert_array_equal(opened(place, THEIRS)[...], frames(2))


def test_a_block_that_raises_abandons(tmp_path: Path) -> None:
    array = create(tmp_path, **KIND)

    def camera() -> Iterator[Any]:
        yield from frames(6)
        raise KeyError

    def record(writer: zarrs_cuda.ArrayWriter) -> None:
        with writer:
            for frame in camera():
                writer.append(frame)

    writer = zarrs_cuda.ArrayWriter(array)
    with pytest.raises(KeyError):
        record(writer)
    with pytest.raises(ValueError, match="closed"):
        writer.append(frames(1))
    assert not [path for path in tmp_path.rglob("*") if "partial" in path.name]
    got = opened(tmp_path, THEIRS)
    np.testing.assert_array_equal(got[...], frames(6)[: got.shape[0]])


def test_what_does_not_fit_a_writer(tmp_path: Path) -> None:
    array = create(tmp_path / "a", **KIND)
    with zarrs_cuda.ArrayWriter(array) as writer:
        for wrong in (
            frames(1)[:, :, :3],
            frames(2)[:, 0, :3],
            np.zeros((1, 1, 12, 10), "uint16"),
            np.uint16(5),
        ):
            with pytest.raises(ValueError, match="shape"):
                writer.append(wrong)
        with pytest.raises(TypeError):
            writer.append(np.zeros((12, 10), "float64"))
    plain = create(tmp_path / "b", shape=(0, 4), chunks=(2, 4), dtype="uint8")
    with pytest.raises(ValueError, match="shard"):
        zarrs_cuda.ArrayWriter(plain)
    with pytest.raises(ValueError, match="read-only"):
        zarrs_cuda.ArrayWriter(zarr.open_array(tmp_path / "a", mode="r"))
    with pytest.raises(ValueError, match="4"):
        zarrs_cuda.ArrayWriter(opened(tmp_path / "a", OURS), start=3)


def test_boxes(tmp_path: Path) -> None:
    array = create(tmp_path, **{**KIND, "shape": (9, 12, 10)})
    values = frames(9)
    array[...] = values
    reader = zarrs_cuda.ArrayReader(array)
    assert reader.shape == (9, 12, 10)
    np.testing.assert_array_equal(reader.read(), values)
    np.testing.assert_array_equal(reader.read(slice(2, 7), slice(None), slice(1, 3)), values[2:7, :, 1:3])
    out = np.zeros((5, 12, 20), "uint16")
    view = out[:, :, ::2]
    assert reader.read(slice(2, 7), out=view) is view
    np.testing.assert_array_equal(out[:, :, ::2], values[2:7])
    assert (out[:, :, 1::2] == 0).all()
    rng = np.random.default_rng(0)
    origins = np.stack([rng.integers(0, extent - 2, 20) for extent in values.shape], axis=1)
    boxes = reader.read_boxes(origins, (3, 3, 3))
    for origin, box in zip(origins, boxes, strict=True):
        where = tuple(slice(at, at + 3) for at in origin)
        np.testing.assert_array_equal(box, values[where])
    assert reader.metrics()["bytes_wanted"] > 0
    assert "threads" in reader.explain()
    for wrong in (
        lambda: reader.read(slice(0, 4, 2)),
        lambda: reader.read_boxes([[8, 0, 0]], (3, 3, 3)),
        lambda: reader.read_boxes([[-1, 0, 0]], (1, 1, 1)),
        lambda: reader.read(out=np.empty((9, 12, 10), "uint32")),
        lambda: reader.read(out=np.empty((8, 12, 10), "uint16")),
        lambda: reader.read(out=np.empty((9, 12, 10), "uint16")[::-1]),
    ):
        with pytest.raises(ValueError, match=r"."):
            wrong()


def test_readers_of_shared_shards(tmp_path: Path) -> None:
    array = create(tmp_path, **{**KIND, "shape": (9, 12, 10)})
    shared = opened(tmp_path, OURS, shards="shared")
    shared[...] = frames(9)
    np.testing.assert_array_equal(zarrs_cuda.ArrayReader(shared).read(), frames(9))
    assert (zarrs_cuda.ArrayReader(array).read() == 0).all()
    np.testing.assert_array_equal(zarrs_cuda.ArrayReader(array, shared=True).read(), frames(9))


def open_image(path: Path, **arguments: Any) -> zarrs_cuda.MultiscaleWriter:
    group = zarr.create_group(path)
    array = group.create_array("0", dimension_names=["t", "y", "x"], **KIND)
    return zarrs_cuda.MultiscaleWriter(array, levels=3, **arguments)


# Another writer of the process would take a part of the memory.
MANY = """
import os, sys, zarr, zarrs_cuda
from pathlib import Path
from test_streams import frames, open_image
def threads(): return len(os.listdir("/proc/self/task"))
at = Path(sys.argv[1])
open_image(at / "first.zarr", memory="64MiB").abort()
before, writers = threads(), []
while True:
    try:
        writers.append(open_image(at / f"{len(writers)}.zarr", memory="64MiB", threads=1))
    except MemoryError as error:
        refused = str(error)
        break
assert len(writers) > 1
assert f"{len(writers)} open writers" in refused and str(64 << 20) in refused, refused
# Those of zarr-python, of leases and of the timer, however many writers there are.
assert threads() <= before + 8, (before, threads(), len(writers))
writers.pop().finish()
writers.append(open_image(at / "last.zarr", memory="64MiB"))
for writer in writers:
    writer.append(frames(20))
for writer in writers:
    writer.finish()
last = zarr.open_group(at / "last.zarr")
assert (last["0"][:] == frames(20)).all() and last["2"].shape == (20, 3, 3)
"""


def test_many_writers_share_memory_and_threads(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MANY, str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("memory", ["2GB", "1.5 GiB", "512mib", str(1 << 30), 1 << 30, None])
def test_memory_of_a_writer(memory: Any, tmp_path: Path) -> None:
    array = create(tmp_path, **KIND)
    with zarrs_cuda.ArrayWriter(array, memory=memory, threads=2) as writer:
        writer.append(frames(3))
    assert (array[:] == frames(3)).all()


@pytest.mark.parametrize("memory", ["", "2", "-1", "2 gibbons", "1e9", 0, -5, True, 1.5, 1 << 64])
def test_memory_that_is_none(memory: Any, tmp_path: Path) -> None:
    array = create(tmp_path, **KIND)
    # Two bytes are a number of bytes, and are too few.
    with pytest.raises(MemoryError if memory == "2" else ValueError, match="memory"):
        zarrs_cuda.ArrayWriter(array, memory=memory)
    with pytest.raises(ValueError, match="threads"):
        zarrs_cuda.ArrayWriter(array, threads=0)


def test_metrics_and_doctor(tmp_path: Path) -> None:
    before = zarrs_cuda.metrics()
    array = create(tmp_path, **{**KIND, "shape": (9, 12, 10)})
    array[...] = 1
    array[0]
    after = zarrs_cuda.metrics()
    assert after["calls"] == before["calls"] + 2
    assert after["fallback_calls"] == before["fallback_calls"]
    written, read = (after[key] - before[key] for key in ("host_encode_bytes_in", "host_decode_bytes_out"))
    assert written > 0
    assert read > 0
    assert after["host_encode_bytes_out"] > before["host_encode_bytes_out"]
    assert after["device_encode_bytes_in"] == 0
    said = zarrs_cuda.doctor()
    assert "WRONG" not in said
    assert "zstd:1" in said
    assert " ms on the host" in said
    with zarr.config.set({"codec_pipeline.max_workers": "many"}):
        assert "WRONG" in zarrs_cuda.doctor()


def test_a_writer_that_is_dropped_while_it_tells_its_progress(tmp_path: Path) -> None:
    array = create(tmp_path, **KIND)
    told = threading.Event()

    def tell(_now: dict[str, float]) -> None:
        told.set()
        time.sleep(0.05)

    writer = zarrs_cuda.ArrayWriter(array, progress=tell)
    writer.append(frames(8))
    writer.flush()
    assert told.wait(30)
    writer.append(frames(64))
    del writer


def test_a_function_for_progress_cannot_use_the_writer(tmp_path: Path) -> None:
    array = create(tmp_path, **KIND)
    errors = []

    def tell(_now: dict[str, float]) -> None:
        for use in (writer.progress, writer.abort, writer.flush):
            try:
                use()
            except RuntimeError as error:
                errors.append(str(error))

    writer = zarrs_cuda.ArrayWriter(array, progress=tell)
    writer.append(frames(8))
    writer.finish()
    assert errors
    assert all("cannot use a writer" in error for error in errors)
    np.testing.assert_array_equal(opened(tmp_path, THEIRS)[...], frames(8))


@pytest.mark.parametrize("end", ["", "del writer", "raise SystemExit(0)"])
def test_a_script_ends_that_did_not_finish_its_writer(end: str, tmp_path: Path) -> None:
    create(tmp_path, **KIND)
    code = f"""
import time, numpy as np, zarr, zarrs_cuda
array = zarr.open_array({str(tmp_path)!r}, mode="r+")
writer = zarrs_cuda.ArrayWriter(array, progress=lambda now: time.sleep(0.01))
writer.append(np.zeros((8, *array.shape[1:]), array.dtype))
{end}
"""
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "was not finished" in done.stderr


def test_boxes_of_another_rank_are_refused(tmp_path: Path) -> None:
    array = create(tmp_path, **KIND)
    with zarrs_cuda.ArrayWriter(array) as writer:
        writer.append(frames(4))
    reader = zarrs_cuda.ArrayReader(opened(tmp_path, OURS))
    axes = len(reader.shape)
    for origins in ([[0] * (axes + 1)], [[0] * (2 * axes)], [0] * axes, [[0.5] * axes], [[-1] * axes]):
        with pytest.raises(ValueError, match=r"begins at 3 integers|is negative"):
            reader.read_boxes(origins, (1,) * axes)
    with pytest.raises(ValueError, match="3 axes are asked for with 2 extents"):
        reader.read_boxes([[0, 0, 0]], (1, 1))
    with pytest.raises(ValueError, match="slices without steps"):
        reader.read(1)
    assert reader.read_boxes([], (1,) * axes).shape == (0,) + (1,) * axes


def test_the_array_has_the_new_shape_after_a_writer(tmp_path: Path) -> None:
    array = create(tmp_path, **KIND)
    with zarrs_cuda.ArrayWriter(array) as writer:
        writer.append(frames(6))
    assert array.shape == (6, 12, 10)
    array.append(frames(2))
    expected = np.concatenate([frames(6), frames(2)])
    np.testing.assert_array_equal(opened(tmp_path, THEIRS)[...], expected)
    with contextlib.suppress(KeyError), zarrs_cuda.ArrayWriter(array, start=4) as writer:
        writer.append(expected[:4] + 1)
        writer.flush()
        writer.append(expected[:1])
        raise KeyError
    assert array.shape == (8, 12, 10)
    assert writer.progress()["finished_slices"] == 8
    np.testing.assert_array_equal(array[4:], expected[:4] + 1)


def test_strings_have_no_writers_and_readers(tmp_path: Path) -> None:
    array = create(tmp_path, shape=(8,), chunks=(2,), shards=(4,), dtype=str)
    for kind in (zarrs_cuda.ArrayWriter, zarrs_cuda.ArrayReader):
        with pytest.raises(ValueError, match="use the array itself"):
            kind(array)


def test_an_exception_of_progress_ends_the_call(tmp_path: Path) -> None:
    array = create(tmp_path / "plain", **KIND)

    def fail(*_now: Any) -> None:
        raise LookupError("the disk of the log is full")

    writer = zarrs_cuda.ArrayWriter(array, progress=fail)
    with pytest.raises(LookupError, match="the disk of the log") as caught:
        fill(writer)
    assert "progress" in caught.value.__notes__[0]
    assert writer.progress()["appended_slices"] == 8
    writer.append(frames(1))
    # It is told again, and what was appended is stored all the same.
    with pytest.raises(LookupError):
        writer.finish()
    assert opened(tmp_path / "plain", THEIRS).shape == (9, 12, 10)
    group = zarr.create_group(tmp_path / "image")
    levels = group.create_array("0", dimension_names=["t", "y", "x"], **KIND)

    def record() -> None:
        with zarrs_cuda.MultiscaleWriter(levels, progress=fail) as writer:
            writer.append(frames(8))

    with pytest.raises(LookupError):
        record()


@pytest.mark.parametrize("kind", ["memory", "wrapped", "fsspec", "objects in memory"])
def test_writers_to_stores_that_only_python_writes(kind: str, tmp_path: Path) -> None:
    def store_in(path: Path) -> Any:
        match kind:
            case "memory":
                return MemoryStore()
            case "wrapped":
                return WrapperStore(LocalStore(path))
            case "fsspec":
                return FsspecStore.from_url(f"file://{path}", storage_options={"auto_mkdir": True})
        return ObjectStore(obstore.store.MemoryStore())

    store = store_in(tmp_path / "array")
    array = create(store, **KIND)
    values = frames(11)
    with zarrs_cuda.ArrayWriter(array) as writer:
        for frame in values:
            writer.append(frame)
    np.testing.assert_array_equal(opened(store, THEIRS)[...], values)
    with zarrs_cuda.ArrayWriter(opened(store, OURS), start=8) as writer:
        writer.append(values[:5])
    np.testing.assert_array_equal(opened(store, THEIRS)[8:], values[:5])
    # An image, which reads levels back.
    store = store_in(tmp_path / "image")
    group = zarr.create_group(store, path="image")
    level = group.create_array("0", dimension_names=["t", "y", "x"], **KIND)
    with zarrs_cuda.MultiscaleWriter(level, levels=2) as levels:
        levels.append(values[:8])
    assert zarr.open_group(store, path="image")["1"].shape == (8, 6, 5)
    assert "level 1" in zarrs_cuda.write_lower_levels(zarr.open_group(store, path="image")["0"], levels=2)


def test_an_error_of_a_store_of_python_is_its_own(tmp_path: Path) -> None:
    class Full(WrapperStore[Any]):
        is_full = False

        async def set(self, key: str, value: Any) -> None:
            if self.is_full:
                raise OSError(28, "no space left")
            await super().set(key, value)

    store = Full(LocalStore(tmp_path))
    array = create(store, **KIND)
    writer = zarrs_cuda.ArrayWriter(array)
    writer.append(frames(8))
    writer.flush()
    store.is_full = True
    with pytest.raises(OSError, match="no space left") as caught:
        fill(writer)
    assert caught.value.errno == 28
    assert "Slices below 8 are stored" in caught.value.__notes__[0]
    writer.abort()
    assert opened(tmp_path, THEIRS).shape == (8, 12, 10)


def fill(writer: zarrs_cuda.ArrayWriter) -> None:
    writer.append(frames(8))
    writer.flush()


def test_a_writer_and_maintenance_refuse_each_other(tmp_path: Path) -> None:
    array = create(LocalStore(tmp_path), **KIND)
    lease = tmp_path / ".zarrs-cuda-writer"
    with zarrs_cuda.ArrayWriter(array) as writer:
        writer.append(frames(8))
        writer.flush()
        assert "lease: held" in writer.explain()
        for work in (zarrs_cuda.compact, zarrs_cuda.recover):
            with pytest.raises(OSError, match="has the lease") as caught:
                work(opened(LocalStore(tmp_path), OURS))
            assert caught.value.errno == errno.EBUSY
        assert lease.exists()
    ours = opened(LocalStore(tmp_path), OURS)
    assert zarrs_cuda.compact(ours) == zarrs_cuda.recover(ours) == {}
    assert not lease.exists()
    # A writer within the array may be one of several.
    with zarrs_cuda.ArrayWriter(ours, start=0) as within:
        assert "lease: none" in within.explain()
        within.append(frames(8))
