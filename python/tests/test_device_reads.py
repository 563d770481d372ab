"""Reads into the memory of GPUs: in processes with an emulated CUDA driver, for a stand-in for CuPy.

``check.py`` builds the driver, and names its file by ``CUDA_DRIVER_OF_TESTS``.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zarr
import zarrs_cuda
from conftest import create
from zarrs_cuda import _devices, _gpu_writes, _interrupts
from zarrs_cuda._interrupts import on_thread

if TYPE_CHECKING:
    from collections.abc import Callable

DRIVER = "CUDA_DRIVER_OF_TESTS"
CUPY = Path(__file__).parent / "without_gpu"

# What every program begins with.
BEGIN = """
import gc, sys, tempfile, threading, time
import numpy as np
import zarr
import zarrs_cuda
import cupy

zarr.config.set({"codec_pipeline.path": "zarrs_cuda.CodecPipeline"})
VALUES = np.arange(40 * 50).reshape(40, 50)
COMPRESSORS = {
    "none": None, "zstd": zarr.codecs.ZstdCodec(level=1), "gzip": zarr.codecs.GzipCodec(level=1),
    "blosc": zarr.codecs.BloscCodec(cname="lz4"),
}


def array_of(dtype="uint16", compressor=None, store=None, **settings):
    made = zarr.create_array(
        store or tempfile.mkdtemp(), shape=VALUES.shape, chunks=(4, 5), shards=(16, 20), dtype=dtype,
        compressors=COMPRESSORS.get(compressor), fill_value=0, **settings,
    )
    made[...] = VALUES.astype(dtype)
    return made


def until(holds):
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end, "it does not come to hold"
        gc.collect()
        time.sleep(0.005)


def error_of(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")
"""


@pytest.fixture
def on_devices(tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs a program in a process with emulated devices, and returns its output."""
    file = os.environ.get(DRIVER)
    if not file or not Path(file).is_file():
        pytest.fail(
            f"{DRIVER} is {file!r}, and must name the library of the emulated driver. `python3 "
            "python/check.py test` builds it (`cargo build --package zarrs_cuda_emulator`), and sets that"
        )
    folder = tmp_path / "driver"
    folder.mkdir()
    shutil.copy(file, folder / "libcuda.so.1")

    def run(program: str, settings: str = "devices=2", *, code: int = 0, **variables: str) -> str:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ZARRS_CUDA_", "ZARR_ZARRS_CUDA__", "ZARR_CODEC_PIPELINE__PATH"))
        }
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", BEGIN + textwrap.dedent(program)],
            env={
                **environment,
                "LD_LIBRARY_PATH": str(folder),
                "PYTHONPATH": str(CUPY),
                "ZARRS_CUDA_EMULATED": settings,
                **variables,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert code or not done.stderr, done.stderr
        return done.stdout + done.stderr

    return run


# Eager: operations run at once. Latest: as late as a driver may, so that what nobody waits for is not there.
@pytest.mark.parametrize("schedule", ["eager", "latest"])
def test_the_elements_are_those_of_the_host(schedule: str, on_devices: Callable[..., str]) -> None:
    on_devices(
        """
        zarrs_cuda.configure(devices=range(2))
        kinds = [("uint16", name) for name in COMPRESSORS]
        kinds += [(dtype, "none") for dtype in ("bool", "int8", ">f4", "float16", "f8", "complex64", ">c16")]
        rng = np.random.default_rng(1)
        for dtype, name in kinds:
            reader = zarrs_cuda.ArrayReader(array_of(dtype, name))
            values = VALUES.astype(dtype)
            for number in range(4):
                start, stop = np.sort(rng.integers(0, 41, (2, 2)), axis=0)
                box = tuple(map(slice, start.tolist(), stop.tolist()))
                for device in ("cuda", "cuda:0", np.int64(1), 0):
                    tensor = reader.read(*box, device=device)
                    assert isinstance(tensor, zarrs_cuda.DeviceTensor)
                    wanted = {"cuda": 0, "cuda:0": 0}.get(str(device), device)
                    assert tensor.device == f"cuda:{wanted}", (tensor, device)
                    assert tensor.__dlpack_device__() == (2, wanted)
                    host = reader.read(*box, device="cpu")
                    assert type(host) is np.ndarray
                    np.testing.assert_array_equal(host, values[box])
                    assert tensor.shape == host.shape and tensor.dtype == host.dtype
                    assert tensor.nbytes == host.nbytes
                    for taken in (
                        cupy.from_dlpack(tensor), cupy.from_dlpack(tensor, None), cupy.asarray(tensor)
                    ):
                        assert taken.device.id == wanted or not host.size
                        assert taken.dtype == host.dtype
                        np.testing.assert_array_equal(taken.get(), host)
            origins = rng.integers(0, 30, (7, 2))
            boxes = reader.read_boxes(origins, (5, 9), device="cuda:0")
            np.testing.assert_array_equal(cupy.asarray(boxes).get(), reader.read_boxes(origins, (5, 9)))
            assert reader.read_boxes(np.empty((0, 2), int), (5, 9), device=0).shape == (0, 5, 9)
        """,
        f"devices=2 schedule={schedule}",
    )


def test_what_a_consumer_may_ask_for(on_devices: Callable[..., str]) -> None:
    on_devices(
        """
        zarrs_cuda.configure(devices=[0, 1])
        reader = zarrs_cuda.ArrayReader(array_of())
        tensor = reader.read(slice(3, 9), device="cuda:1")
        assert repr(tensor) == "DeviceTensor(shape=(6, 50), dtype=uint16, device='cuda:1')"
        streams = [None, 1, 2, -1, cupy.cuda.Stream().ptr, 2**64 - 1]
        for stream in streams:
            for version in (None, (0, 8), (1, 0), (1, 3), (2, 0)):
                capsule = tensor.__dlpack__(stream=stream, max_version=version)
                assert ("versioned" in repr(capsule)) == (version is not None and version[0] > 0)
                taken = cupy.Taken(capsule)
                assert "used_dltensor" in repr(capsule)
                if version and version[0]:
                    assert (taken.managed.major, taken.managed.flags) == (1, 0)
                np.testing.assert_array_equal(taken.array().get(), VALUES[3:9])
        assert "0, which DLPack does not allow" in error_of(ValueError, lambda: tensor.__dlpack__(stream=0))
        assert "-2" in error_of(ValueError, lambda: tensor.__dlpack__(stream=-2))
        for wrong in ("1", True, 1.5):
            assert repr(wrong) in error_of(TypeError, lambda: tensor.__dlpack__(stream=wrong))
        assert "copy=True" in error_of(BufferError, lambda: tensor.__dlpack__(copy=True))
        for other in ((2, 0), (1, 0), (2, -1), (13, 1)):
            said = error_of(BufferError, lambda: tensor.__dlpack__(dl_device=other))
            assert str(other) in said and "(2, 1)" in said
        tensor.__dlpack__(stream=1, dl_device=(2, 1), copy=False, max_version=(1, 0))
        error_of(TypeError, lambda: tensor.__dlpack__(1))
        assert tensor.__cuda_array_interface__ == {
            "version": 3, "shape": (6, 50), "typestr": "<u2", "strides": None, "stream": None,
            "data": (cupy.from_dlpack(tensor).pointer, False),
        }
        empty = reader.read(slice(3, 3), device=0)
        assert empty.__cuda_array_interface__["data"] == (0, False)
        assert cupy.from_dlpack(empty).shape == (0, 50)
        assert "numpy does not reach" in error_of(TypeError, lambda: np.asarray(tensor))
        error_of(TypeError, lambda: type(tensor)())
        """
    )


def test_memory_is_freed_when_nobody_has_it(on_devices: Callable[..., str]) -> None:
    on_devices(
        """
        zarrs_cuda.configure(devices=0)
        reader = zarrs_cuda.ArrayReader(array_of("float64"))
        cupy.from_dlpack(reader.read(device="cuda")).get()

        gone = 0
        def free():
            return cupy.free_memory(0)
        until(lambda: free() == free())
        del cupy.NOTES[:]
        gc.collect()
        before = None
        for _ in range(100):
            time.sleep(0.01)
            before = max(before or 0, free())

        tensor = reader.read(device="cuda")
        held = free()
        assert held <= before - VALUES.nbytes, (held, before)
        # Unused capsules of both kinds.
        for version in (None, (1, 0)):
            capsule = tensor.__dlpack__(max_version=version)
            del tensor
            assert free() == held
            again = cupy.Taken(capsule)
            del capsule
            assert free() == held, "a used capsule frees nothing"
            again.delete()
            until(lambda: free() == before)
            tensor = reader.read(device="cuda")
            held = free()
        for version in (None, (1, 0)):
            capsule = tensor.__dlpack__(max_version=version)
            del tensor
            time.sleep(0.05)
            assert free() == held
            del capsule
            until(lambda: free() == before)
            tensor = reader.read(device="cuda")
            held = free()
        # The interface, too, keeps the tensor by its consumer.
        taken = cupy.asarray(tensor)
        del tensor
        time.sleep(0.05)
        np.testing.assert_array_equal(taken.get(), VALUES)
        del taken
        until(lambda: free() == before)
        """
    )


@pytest.mark.parametrize("schedule", ["eager", "latest"])
def test_deleters_run_on_every_kind_of_thread(schedule: str, on_devices: Callable[..., str]) -> None:
    """Work of the consumer is queued meanwhile. The driver ends the process if memory is freed before."""
    on_devices(
        """
        import ctypes
        zarrs_cuda.configure(devices=[0, 1])
        reader = zarrs_cuda.ArrayReader(array_of("float64"))
        libc, holding = ctypes.CDLL(None), ctypes.PyDLL(None)

        def foreign(taken, library=libc):
            # A thread that Python does not know. With the other library the GIL is held until it has ended.
            thread, deleter = ctypes.c_ulong(), taken.deleter
            taken.deleter = None
            start = ctypes.c_void_p(deleter)
            assert not library.pthread_create(
                ctypes.byref(thread), None, start, ctypes.c_void_p(taken.address)
            )
            assert not library.pthread_join(thread, None)

        def python_thread(taken):
            thread = threading.Thread(target=taken.delete)
            thread.start()
            thread.join()

        def in_other_context(taken):
            with cupy._context(1):
                taken.delete()

        ways = {
            "main": lambda taken: taken.delete(),
            "another context": in_other_context,
            "a thread of Python": python_thread,
            "a foreign thread": foreign,
            "a foreign thread, while the GIL is held": lambda taken: foreign(taken, holding),
        }
        stream = cupy.cuda.Stream()
        reader.read(device=0)
        time.sleep(0.5)
        before = cupy.free_memory(0)
        for way in ways.values():
            for version in (None, (1, 0)):
                taken = cupy.Taken(reader.read(device="cuda").__dlpack__(max_version=version))
                with stream:
                    for _ in range(3):
                        taken.array().zero_later()
                way(taken)
                with stream:
                    cupy.empty(4).zero_later()
        until(lambda: cupy.free_memory(0) >= before)
        stream.synchronize()
        """,
        f"devices=2 schedule={schedule}",
    )


def test_forked_children_and_the_end_of_the_process(on_devices: Callable[..., str]) -> None:
    on_devices(
        """
        import atexit, os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)

        @atexit.register
        def last():
            # Registered before the package: it runs after the devices were shut down.
            late.delete()
            print("deleted at the end")

        zarrs_cuda.configure(devices=0)
        reader = zarrs_cuda.ArrayReader(array_of("float64"))
        tensor, capsule = reader.read(device=0), reader.read(device=0).__dlpack__()
        taken = cupy.Taken(reader.read(device=0).__dlpack__())
        late = cupy.Taken(reader.read(device=0).__dlpack__(max_version=(1, 0)))
        left = cupy.Taken(reader.read(device=0).__dlpack__())
        for way in (sys.exit, os._exit):
            child = os.fork()
            if child == 0:
                said = error_of(zarrs_cuda.BackendUnavailable, lambda: reader.read(device=0))
                assert "forked" in said, said
                np.testing.assert_array_equal(reader.read(), VALUES)
                taken.delete()
                thread = threading.Thread(target=left.delete)
                thread.start()
                thread.join()
                del tensor, capsule
                gc.collect()
                atexit.unregister(last)
                way(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        # The parent has everything still.
        np.testing.assert_array_equal(cupy.from_dlpack(tensor).get(), VALUES)
        np.testing.assert_array_equal(cupy.Taken(capsule).array().get(), VALUES)
        np.testing.assert_array_equal(taken.array().get(), VALUES)
        """
    )


def test_refusals_say_what_to_do(on_devices: Callable[..., str]) -> None:
    on_devices(
        """
        import pickle
        unasked = zarrs_cuda.ArrayReader(array_of())
        said = error_of(zarrs_cuda.BackendUnavailable, lambda: unasked.read(device="cuda"))
        assert "no GPU was asked for" in said and "zarrs_cuda.configure(devices=[0])" in said, said
        assert "Without `device`, and with an `out` of the host, the elements are read" in said
        assert "backend='auto'" not in said

        zarrs_cuda.configure(devices=1)
        reader = pickle.loads(pickle.dumps(zarrs_cuda.ArrayReader(array_of())))
        assert cupy.from_dlpack(reader.read(device="cuda")).device.id == 1
        for number in (0, 2, 5000):
            said = error_of(zarrs_cuda.BackendUnavailable, lambda: reader.read(device=number))
            assert str(number) in said, said
        texts = "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:9999999999", "1", ""
        for wrong in (*texts, -1, True, 1.0, [1], 2**40):
            said = error_of(ValueError, lambda: reader.read(device=wrong))
            assert f"`device` is {wrong!r}" in said, said
        out = np.empty(VALUES.shape, "uint16")
        assert "give one of them" in error_of(ValueError, lambda: reader.read(out=out, device=1))
        assert "give one of them" in error_of(
            ValueError, lambda: reader.read_boxes([[0, 0]], (4, 5), out[None, :4, :5], device="cuda")
        )
        assert reader.read(out=out, device="cpu") is out

        def of(call):
            return error_of(ValueError, call)

        other = zarrs_cuda.ArrayReader(array_of(), dtype="float32")
        assert "of the type uint16, and this reader returns float32" in of(lambda: other.read(device=1))
        filling = zarrs_cuda.ArrayReader(array_of(), fill=True)
        assert "leave the array" in of(lambda: filling.read(slice(-1, 4), device=1))
        assert "leave the array" in of(lambda: filling.read_boxes([[0, 0], [38, 0]], (4, 5), device=1))
        inside = filling.read(slice(38, 40), device=1)
        np.testing.assert_array_equal(cupy.from_dlpack(inside).get(), VALUES[38:])
        memory = zarrs_cuda.ArrayReader(array_of(store=zarr.storage.MemoryStore()))
        assert "does not read a MemoryStore itself" in of(lambda: memory.read(device=1))
        assert "does not read a MemoryStore itself" in of(
            lambda: memory.read_boxes([[0, 0]], (4, 5), device=1)
        )
        plain = zarr.create_array(tempfile.mkdtemp(), shape=(9,), chunks=(4,), dtype="uint16")
        assert "zarrs reads it" in of(lambda: zarrs_cuda.ArrayReader(plain).read(device=1))
        assert "axis 0" in of(lambda: reader.read(slice(0, 41), device=1))
        times = zarr.create_array(
            tempfile.mkdtemp(), shape=(8,), chunks=(4,), shards=(8,), dtype="datetime64[s]"
        )
        assert "datetime64[s]" in error_of(
            ValueError, lambda: zarrs_cuda.ArrayReader(times).read(device=1)
        )
        assert cupy.from_dlpack(reader.read(device=1)).get()[-1, -1] == VALUES[-1, -1]
        """
    )


def test_damage_is_the_error_of_the_host_and_lack_of_memory_is_told(on_devices: Callable[..., str]) -> None:
    on_devices(
        """
        from pathlib import Path
        zarrs_cuda.configure(devices=0)
        for name in COMPRESSORS:
            folder = Path(tempfile.mkdtemp())
            array = array_of(compressor=name, store=folder)
            shard = folder / "c" / "1" / "1"
            whole = shard.read_bytes()
            # The index is behind the subchunks.
            for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:40]):
                shard.write_bytes(damaged)
                reader = zarrs_cuda.ArrayReader(array)
                for device in (None, "cuda"):
                    said = error_of(zarrs_cuda.ShardError, lambda: reader.read(device=device))
                    assert "c/1/1" in said, said
                undamaged = reader.read(slice(0, 16), device="cuda")
                np.testing.assert_array_equal(cupy.from_dlpack(undamaged).get(), VALUES[:16])
        large = zarr.create_array(
            tempfile.mkdtemp(), shape=(1 << 32,), chunks=(1 << 10,), shards=(1 << 20,), dtype="uint8"
        )
        assert "allocate 4294967296 bytes of device memory on CUDA device 0" in error_of(
            zarrs_cuda.BackendUnavailable, lambda: zarrs_cuda.ArrayReader(large).read(device="cuda")
        )
        """
    )


def test_a_device_that_hangs_ends_neither_the_host_nor_the_process(on_devices: Callable[..., str]) -> None:
    on_devices(
        """
        # CuPy's own calls would wait for ever.
        cupy._Memory.__del__ = lambda self: None
        zarrs_cuda.configure(backend="host")
        made = array_of("uint32")
        zarrs_cuda.configure(backend=None, devices=0, device_timeout=0.2)
        reader = zarrs_cuda.ArrayReader(zarr.open_array(made.store_path.store))
        out = cupy.empty(VALUES.shape, "uint32")
        begin = time.monotonic()

        def read():
            while True:
                reader.read(out=out)

        said = error_of(zarrs_cuda.BackendUnavailable, read)
        assert "did not get there within 200ms" in said and "`zarrs_cuda.device_timeout`" in said, said
        said = error_of(zarrs_cuda.BackendUnavailable, lambda: reader.read(device=0))
        assert "is not used any more in this process" in said, said
        assert time.monotonic() - begin < 60
        np.testing.assert_array_equal(reader.read(), VALUES)
        """,
        "devices=1 schedule=latest hang=60",
    )


def test_trust_is_a_setting(on_devices: Callable[..., str]) -> None:
    on_devices(
        """
        def told():
            return zarrs_cuda.ArrayReader(array_of(compressor="zstd")).explain()

        zarrs_cuda.configure(devices=0)
        assert "unless `zarrs_cuda.device_decode` says that they are trusted" in told(), told()
        zarrs_cuda.configure(device_decode=True)
        # What is left is that there is no nvCOMP.
        assert "nvCOMP was not found" in told(), told()
        zarrs_cuda.configure(device_decode=None)
        assert "device_decode" in told()
        """
    )


@pytest.mark.parametrize("schedule", ["eager", "latest"])
def test_memory_that_is_given_is_written_behind_the_work_in_its_stream(
    schedule: str, on_devices: Callable[..., str]
) -> None:
    on_devices(
        """
        zarrs_cuda.configure(devices=[0, 1])
        readers = [zarrs_cuda.ArrayReader(array_of("uint32", name)) for name in COMPRESSORS]
        rng = np.random.default_rng(2)
        for reader in readers:
            for device in (0, 1):
                with cupy.cuda.Device(device):
                    streams = [None, cupy.cuda.Stream(), 2, cupy.cuda.Stream()]
                for given in streams:
                    with cupy.cuda.Device(device):
                        # The default stream, and that of this thread.
                        own = {None: 0, 2: 2}.get(given)
                        stream = given if own is None else cupy.cuda.Stream(ptr=own)
                    with cupy.cuda.Device(device), stream:
                        out = cupy.empty((30, 40), "uint32")
                        # Not complete yet: what is read must come behind it, without a wait of the host.
                        out.zero_later()
                    if given is not None and given != 2 and rng.integers(2):
                        given = type("OfTorch", (), {"cuda_stream": given.ptr})()
                    view = out[5:20, 3:40:2]
                    assert reader.read(slice(1, 16), slice(20, 39), out=view, stream=given) is view
                    with cupy.cuda.Device(device), stream:
                        expected = np.zeros((30, 40), "uint32")
                        expected[5:20, 3:40:2] = VALUES[1:16, 20:39]
                        np.testing.assert_array_equal(out.get(), expected)
                        many = cupy.empty((3, 4, 5), "uint32")
                        many.zero_later()
                    origins = rng.integers(0, 30, (3, 2))
                    assert reader.read_boxes(origins, (4, 5), many, stream=given) is many
                    with cupy.cuda.Device(device), stream:
                        np.testing.assert_array_equal(many.get(), reader.read_boxes(origins, (4, 5)))
                    with cupy.cuda.Device(device), stream:
                        wide = cupy.empty((2, 3, 9), "uint32")
                        fortran = cupy.empty((6, 7), "uint32", "F")
                    reader.read_boxes([[1, 2], [30, 40]], (3, 9), wide[:, :, :], stream=given)
                    reader.read(slice(34, 40), slice(0, 7), out=fortran, stream=given, device="cuda")
                    assert reader.read(slice(3, 3), out=cupy.empty((0, 50), "uint32")).shape == (0, 50)
                    reader.read_boxes(np.empty((0, 2), int), (3, 9), out=cupy.empty((0, 3, 9), "uint32"))
                    with cupy.cuda.Device(device), stream:
                        np.testing.assert_array_equal(
                            wide.get(), [VALUES[1:4, 2:11], VALUES[30:33, 40:49]]
                        )
                        np.testing.assert_array_equal(fortran.get(), VALUES[34:40, :7])
                        del many, wide, fortran, out, view
        gc.collect()
        assert not cupy.EXPORTED
        """,
        f"devices=2 schedule={schedule}",
    )


@pytest.mark.parametrize("schedule", ["eager", "latest"])
def test_the_work_of_the_owner_comes_before_in_any_stream(
    schedule: str, on_devices: Callable[..., str]
) -> None:
    """The library of a tensor lets our stream wait for its own, as DLPack says."""
    on_devices(
        """
        zarrs_cuda.configure(devices=0)
        reader = zarrs_cuda.ArrayReader(array_of())
        theirs = cupy.cuda.Stream()
        other = cupy.cuda.Stream()

        def waits():
            return [note.stream for note in cupy.NOTES if note.name == "cuStreamWaitEvent"]

        with theirs:
            out = cupy.empty(VALUES.shape, "uint16")
            out.zero_later()
            # Their own stream is no stream that their own has to wait for.
            reader.read(out=out, stream=theirs)
            assert waits() == []
            # The default stream.
            reader.read(out=out)
            reader.read(out=out, stream=0)
            assert waits() == [1, 1]
            reader.read(out=out, stream=other)
            assert waits() == [1, 1, other.ptr]
        other.synchronize()
        theirs.synchronize()
        np.testing.assert_array_equal(out.get(), VALUES)
        """,
        f"devices=1 schedule={schedule}",
    )


@pytest.mark.parametrize("schedule", ["eager", "latest"])
def test_the_current_device_may_be_another_one(schedule: str, on_devices: Callable[..., str]) -> None:
    """CuPy and PyTorch let our stream wait for their stream of the current GPU, and of no other."""
    on_devices(
        """
        from types import ModuleType, SimpleNamespace

        class Tensor:
            def __init__(self, array):
                self.array, self.device = array, array.device.id

            def __dlpack_device__(self):
                return 2, self.device

            def __dlpack__(self, **keywords):
                # PyTorch refuses it.
                assert cupy.cuda.Device().id == self.device, "the current device is another one"
                return self.array.__dlpack__(**keywords)

        torch = sys.modules["torch"] = ModuleType("torch")
        torch.Tensor, torch.cuda = Tensor, SimpleNamespace(device=cupy.cuda.Device)
        zarrs_cuda.configure(devices=[0, 1])
        reader = zarrs_cuda.ArrayReader(array_of())
        with cupy.cuda.Device(1):
            theirs = cupy.cuda.Stream()
        with theirs:
            for wrapped in (lambda array: array, Tensor):
                with cupy.cuda.Device(1):
                    out = cupy.empty(VALUES.shape, "uint16")
                    out.zero_later()
                given = wrapped(out)
                assert cupy.cuda.Device().id == 0
                assert reader.read(out=given) is given
                with cupy.cuda.Device(1):
                    cupy.cuda.Device(1).synchronize()
                    np.testing.assert_array_equal(out.get(), VALUES)
        """,
        f"devices=2 schedule={schedule}",
    )


def test_memory_without_dlpack_and_memory_that_cannot_be_written(on_devices: Callable[..., str]) -> None:
    on_devices(
        """
        zarrs_cuda.configure(devices=[0, 1])
        reader = zarrs_cuda.ArrayReader(array_of())

        class Only:
            def __init__(self, array, **changes):
                self.array, self.changes = array, changes

            @property
            def __cuda_array_interface__(self):
                return {**self.array.__cuda_array_interface__, **self.changes}

        with cupy.cuda.Device(1):
            array = cupy.empty((6, 50), "uint16")
        own = Only(array)
        assert reader.read(slice(4, 10), out=own, device="cuda:1") is own
        np.testing.assert_array_equal(array.get(), VALUES[4:10])
        reader.read(slice(5, 11), out=Only(array, strides=None, stream=None), device=1)
        np.testing.assert_array_equal(array.get(), VALUES[5:11])
        for device in (None, "cuda"):
            said = error_of(ValueError, lambda: reader.read(slice(4, 10), out=own, device=device))
            assert "does not say on which GPU it is" in said
        said = error_of(ValueError, lambda: reader.read(slice(4, 10), out=own, device=0))
        assert "belong to device 1" in said, said
        short = Only(array, shape=(40, 50))
        said = error_of(ValueError, lambda: reader.read(out=short, device=1))
        assert "bytes left" in said, said

        def of(out, kind=ValueError, box=slice(4, 10), **options):
            return error_of(kind, lambda: reader.read(box, out=out, **options))

        assert "may only be read" in of(Only(array, data=(array.pointer, True)), device=1)
        assert "shape (6, 50)" in of(array, box=slice(3, 10))
        assert "type int16" in of(Only(array, typestr="<i2"), device=1)
        assert "goes backwards" in of(Only(array, strides=(100, -2)), device=1)
        assert "`device` names 0" in of(array, device=0)
        assert "`device` names 'cpu'" in of(array, device="cpu")
        for stream in ("0", -1, True, 1.5, 2**64, object()):
            assert "handle of a CUDA stream" in of(array, TypeError, stream=stream)
        assert "there is none" in of(None, stream=1)
        assert "there is none" in of(np.empty((6, 50), "uint16"), stream=1)
        assert "`out` is a list" in of([], TypeError)
        assert "boxes that leave the array" in error_of(ValueError, lambda: zarrs_cuda.ArrayReader(
            array_of(), fill=True).read(slice(-1, 5), out=array))
        memory = zarrs_cuda.ArrayReader(array_of(store=zarr.storage.MemoryStore()))
        assert "does not read a MemoryStore itself" in error_of(
            ValueError, lambda: memory.read(slice(4, 10), out=array))

        class OfHost:
            def __dlpack_device__(self):
                return 1, 0

            def __dlpack__(self, **_):
                raise AssertionError

        assert "memory of the host, of the type OfHost" in of(OfHost())
        for cupy.FLAGS in (1, 2):
            assert "may only be read, or is a copy" in of(array)
        cupy.FLAGS = 0

        class Old:
            __dlpack_device__ = array.__dlpack_device__

            def __dlpack__(self, stream=None):
                return array.__dlpack__(stream=stream)

        old = Old()
        assert reader.read(slice(7, 13), out=old) is old
        np.testing.assert_array_equal(array.get(), VALUES[7:13])
        unasked = zarrs_cuda.ArrayReader(array_of())
        zarrs_cuda.configure(devices=0)
        other = zarrs_cuda.ArrayReader(array_of())
        said = error_of(zarrs_cuda.BackendUnavailable, lambda: other.read(slice(4, 10), out=array))
        assert "1" in said
        """
    )


ENABLE = """
import warnings
# What zarr-python says of elements that the host has decoded.
warnings.filterwarnings("ignore", message="Creating a zarr.buffer.gpu")
zarr.config.enable_gpu()
OF_HOST = {"buffer": "zarr.buffer.cpu.Buffer", "ndbuffer": "zarr.buffer.cpu.NDBuffer"}

def opened(array, **settings):
    with zarr.config.set(settings):
        return zarr.open_array(array.store_path.store, mode="r+")

def writes():
    # Copies of CuPy to the device: of a host that has decoded.
    return [note for note in cupy.NOTES if note.name == "cuMemcpyHtoDAsync_v2"]

def check(array, values, on_device, key=Ellipsis, how="__getitem__"):
    del cupy.NOTES[:]
    got = getattr(array, how)(key) if isinstance(how, str) else how(array)
    assert isinstance(got, cupy.ndarray), type(got)
    assert bool(writes()) != on_device, (key, how, writes())
    syncs = [note for note in cupy.NOTES if note.name == "cuStreamSynchronize"]
    assert syncs, "the host waits before the read returns"
    if on_device and cupy.DEFAULT == 2:
        # zarr-python's thread waits for its own stream first, as the one that reads does at the end.
        assert len({note.thread for note in syncs}) == 2
    np.testing.assert_array_equal(got.get(), values, err_msg=str(key))
    return got
"""


@pytest.mark.parametrize("schedule", ["eager", "latest"])
def test_arrays_of_zarr_python_are_decoded_into_their_buffer(
    schedule: str, on_devices: Callable[..., str]
) -> None:
    on_devices(
        ENABLE
        + textwrap.dedent(
            """
            zarrs_cuda.configure(devices=range(2))
            from zarr.core.buffer import gpu
            import itertools
            cupy.IS_BUSY = True
            for name, cupy.DEFAULT in itertools.product(COMPRESSORS, (0, 2)):
                with zarr.config.set(OF_HOST):
                    made = array_of("uint32", name)
                    part = zarr.create_array(
                        tempfile.mkdtemp(), shape=(64,), chunks=(4,), shards=(16,), dtype="int16",
                        fill_value=7, compressors=COMPRESSORS[name],
                    )
                    part[20:30] = np.arange(10)
                holes = np.full(64, 7, "int16")
                holes[20:30] = np.arange(10)
                array = opened(made)
                before = zarrs_cuda.metrics()["subchunks_read_to_devices"]
                check(array, VALUES, True)
                assert zarrs_cuda.metrics()["subchunks_read_to_devices"] == before + 10 * 10
                check(array, VALUES[3:21, 7:44], True, (slice(3, 21), slice(7, 44)))
                check(array, VALUES[17:20, 7], True, (slice(17, 20), 7))
                check(array, VALUES[5], True, 5)
                check(opened(part), holes, True)
                check(opened(part), holes[3:25], True, slice(3, 25))
                # Memory that the caller gives to zarr-python, on any device that was asked for.
                for device, is_strided in itertools.product((0, 1), (False, True)):
                    with cupy.cuda.Device(device):
                        whole = cupy.empty((40, 55), "uint32")
                        given = gpu.NDBuffer(whole[:, 2:52] if is_strided else cupy.empty((40, 50), "uint32"))
                        # zarr-python's thread does not see the stream of this one.
                        cupy.cuda.Device(device).synchronize()
                    key = (slice(None), slice(None))
                    read = lambda array: array.get_basic_selection(key, out=given)
                    got = check(array, VALUES, not is_strided, key, read)
                    assert got.device.id == device
                # What is no box, and what is not contiguous, is decoded by the host.
                check(array, VALUES[::3, 2], False, (slice(None, None, 3), 2))
                check(array, VALUES[[1, 30]], False, [1, 30])
                check(array, VALUES[[1, 30]][:, [4, 5]], False, ([1, 30], [4, 5]), "get_orthogonal_selection")
                assert int(array[3, 4].get()) == VALUES[3, 4]
                assert array[3:3].shape == (0, 50)
                fortran = opened(made, **{"array.order": "F"})
                if fortran[...].strides[0] == 4:
                    check(fortran, VALUES, False)
            # A host's buffer, as before.
            with zarr.config.set(OF_HOST):
                assert type(opened(made)[...]) is np.ndarray
            strict = opened(part, **{"array.read_missing_chunks": False})
            error_of(Exception, lambda: strict[...])
            check(strict, np.arange(10), False, slice(20, 30))
            """
        ),
        f"devices=2 schedule={schedule}",
    )


def test_the_buffers_of_zarr_python_need_consent(on_devices: Callable[..., str]) -> None:
    on_devices(
        ENABLE
        + textwrap.dedent(
            """
            with zarr.config.set(OF_HOST):
                made = array_of("uint32")
                shared = array_of("uint32")
                memory = array_of("uint32", store=zarr.storage.MemoryStore())
                plain = zarr.create_array(tempfile.mkdtemp(), shape=(40, 50), chunks=(9, 9), dtype="uint32")
                plain[...] = VALUES
            check(opened(made), VALUES, False)
            zarrs_cuda.configure(devices=1)
            # CuPy's arrays are on device 0.
            check(opened(made), VALUES, False)
            zarrs_cuda.configure(backend="host", devices=0)
            check(opened(made), VALUES, False)
            zarrs_cuda.configure(backend="auto")
            check(opened(made), VALUES, True)
            for other in (memory, plain):
                check(opened(other), VALUES, False)
            check(opened(shared, **{"codec_pipeline.shards": "shared"}), VALUES, False)
            check(opened(shared, **{"codec_pipeline.shards": "in_place"}), VALUES, True)
            zarrs_cuda.configure(backend=None, devices=None)
            """
        )
    )
    # A device that cannot be used: the host takes over, unless the backend says that it must not.
    on_devices(
        ENABLE
        + textwrap.dedent(
            """
            with zarr.config.set(OF_HOST):
                made = array_of("uint32")
            # No lane has so little memory.
            zarrs_cuda.configure(backend="auto", devices=0, device_memory=1)
            check(opened(made), VALUES, False)
            zarrs_cuda.configure(backend="cuda")
            array = opened(made)
            said = error_of(zarrs_cuda.BackendUnavailable, lambda: array[...])
            assert "device" in said and "enable_gpu" not in said, said
            """
        )
    )


@pytest.mark.parametrize("backend", ["auto", "cuda"])
def test_zarr_python_is_told_that_a_device_has_failed(backend: str, on_devices: Callable[..., str]) -> None:
    """CuPy's copy of elements from the host would be done by the same device."""
    program = ENABLE + textwrap.dedent(
        f"""
        # CuPy's own calls would wait for ever.
        cupy._Memory.__del__ = lambda self: None
        with zarr.config.set(OF_HOST):
            zarrs_cuda.configure(backend="host")
            made = array_of("uint32")
        zarrs_cuda.configure(backend={backend!r}, devices=0, device_timeout=0.2)
        array = opened(made)
        """
    )
    on_devices(
        program
        + textwrap.dedent(
            """
            said = error_of(zarrs_cuda.BackendUnavailable, lambda: array[...])
            assert "enable_gpu" in said, said
            # The device goes on.
            check(array, VALUES, True)
            """
        ),
        "devices=1 fault=cuStreamIsCapturing:0:1",
    )
    on_devices(
        program
        + textwrap.dedent(
            """
            begin = time.monotonic()

            def read():
                while True:
                    array[...]

            said = error_of(zarrs_cuda.BackendUnavailable, read)
            assert "did not get there within 200ms" in said and "enable_gpu" in said, said
            del cupy.NOTES[:]
            for _ in range(2):
                said = error_of(zarrs_cuda.BackendUnavailable, lambda: array[...])
                assert "is not used any more in this process" in said, said
            # The thread of zarr-python waits for nothing that CuPy does.
            assert not [note for note in cupy.NOTES if note.name.startswith(("cuMemcpy", "cuStreamSync"))]
            assert time.monotonic() - begin < 60
            zarrs_cuda.configure(backend="host")
            with zarr.config.set(OF_HOST):
                np.testing.assert_array_equal(opened(made)[...], VALUES)
            """
        ),
        "devices=1 schedule=latest hang=60",
    )


def test_damage_is_an_error_of_zarr_pythons_reads_too(on_devices: Callable[..., str]) -> None:
    on_devices(
        ENABLE
        + textwrap.dedent(
            """
            from pathlib import Path
            zarrs_cuda.configure(devices=0)
            folder = Path(tempfile.mkdtemp())
            with zarr.config.set(OF_HOST):
                array_of("uint32", "zstd", folder)
            array = zarr.open_array(folder)
            (folder / "c/1/1").write_bytes(b"no shard")
            assert "c/1/1" in error_of(zarrs_cuda.ShardError, lambda: array[...])
            check(array, VALUES[:16], True, slice(0, 16))
            """
        )
    )


@pytest.mark.parametrize("schedule", ["eager", "latest"])
def test_arrays_on_a_gpu_are_written_through_pinned_memory(
    schedule: str, on_devices: Callable[..., str]
) -> None:
    """The driver ends the process if memory that is not pinned, or was freed, is copied to."""
    on_devices(
        ENABLE
        + textwrap.dedent(
            """
            import asyncio
            zarr.config.set({"array.rectilinear_chunks": True})
            from zarr.core import sync
            from zarrs_cuda import _gpu_writes

            def down():
                return [note for note in cupy.NOTES if note.name == "cuMemcpyDtoHAsync_v2"]

            def most_pinned(call):
                # How many bytes of pinned memory there are at once, and what the call returns.
                sizes = []
                alloc = cupy.PinnedMemory.__init__

                def noted(self, size):
                    alloc(self, size)
                    sizes.append(sum(cupy.PINNED.values()))

                cupy.PinnedMemory.__init__ = noted
                call()
                cupy.PinnedMemory.__init__ = alloc
                assert not cupy.PINNED
                return max(sizes)

            with zarr.config.set(OF_HOST):
                made = array_of("uint32")
                irregular = zarr.create_array(
                    tempfile.mkdtemp(), shape=VALUES.shape, chunks=[[9, 11, 20], [7, 3, 40]], dtype="uint32"
                )
                memory = array_of("uint32", store=zarr.storage.MemoryStore())
                plain = zarr.create_array(
                    tempfile.mkdtemp(), shape=VALUES.shape, chunks=(9, 9), dtype="uint32"
                )
            rng = np.random.default_rng(3)
            for _gpu_writes.PIECE in (4, 36, 200, 1000, 1 << 20):
                pieces = {4: 2000, 36: 40 * 6, 200: 40, 1000: 8, 1 << 20: 1}[_gpu_writes.PIECE]
                for device in (0, 1):
                    for array in (made, irregular, memory, plain):
                        expected = rng.integers(0, 1 << 32, VALUES.shape, "uint32")
                        with cupy.cuda.Device(device):
                            values = cupy.asarray(expected)
                            # In the default stream, which zarr-python's thread has, too.
                            values[10:13].zero_later()
                        expected[10:13] = 0
                        array = opened(array)
                        del cupy.NOTES[:]
                        most = most_pinned(lambda: array.__setitem__(..., values))
                        assert most <= 2 * _gpu_writes.PIECE
                        assert len(down()) == pieces, "every element once"
                        waits = [note for note in cupy.NOTES if note.name == "cuStreamSynchronize"]
                        assert sync.iothread[0].ident not in {note.thread for note in waits + down()}
                        with zarr.config.set(OF_HOST):
                            np.testing.assert_array_equal(opened(array)[...], expected)
                # The stream that is current on the thread that writes, of the array's device.
                with cupy.cuda.Device(1):
                    stream = cupy.cuda.Stream()
                with stream:
                    with cupy.cuda.Device(1):
                        values = cupy.asarray(VALUES.astype("uint32"))
                        values[20:].zero_later()
                    array = opened(made)
                    del cupy.NOTES[:]
                    asyncio.run(array.async_array.setitem(..., values))
                    assert {note.stream for note in down()} == {stream.ptr}
                expected = VALUES.copy()
                expected[20:] = 0
                with zarr.config.set(OF_HOST):
                    np.testing.assert_array_equal(opened(made)[...], expected)
            # The default stream of this thread alone.
            cupy.DEFAULT = 2
            values = cupy.asarray(VALUES.astype("uint32"))
            values[30:].zero_later()
            asyncio.run(opened(made).async_array.setitem(..., values))
            cupy.DEFAULT = 0
            expected[20:30], expected[30:] = VALUES[20:30], 0
            with zarr.config.set(OF_HOST):
                np.testing.assert_array_equal(opened(made)[...], expected)
            # Elements that lie apart, other orders, none, and one.
            array, expected = opened(made), expected.astype("uint32")
            wide = rng.integers(0, 1 << 32, (40, 100), "uint32")
            for key in (np.s_[:, ::2], np.s_[:, 50:], np.s_[:, 1::2]):
                array[...] = cupy.asarray(wide)[key]
                np.testing.assert_array_equal(array[...].get(), wide[key])
            array[3:3] = cupy.empty((0, 50), "uint32")
            expected[...] = wide[:, 1::2]
            array[7, 9] = cupy.asarray(np.array(77, "uint32"))
            array[::3, [1, 4]] = cupy.asarray(wide[:14, :2])
            expected[7, 9] = 77
            expected[::3, [1, 4]] = wide[:14, :2]
            np.testing.assert_array_equal(array[...].get(), expected)
            # Without the buffers of GPUs, too.
            with zarr.config.set(OF_HOST):
                array = opened(made)
                array[...] = cupy.asarray(VALUES.astype("uint32"))
                np.testing.assert_array_equal(array[...], VALUES)
            # Without pinned memory.
            cupy.cuda.alloc_pinned_memory = lambda size: 1 // 0
            array[...] = cupy.asarray(expected)
            with zarr.config.set(OF_HOST):
                np.testing.assert_array_equal(opened(made)[...], expected)
            """
        ),
        f"devices=2 schedule={schedule}",
    )


def test_pieces_are_all_elements_once_and_contiguous() -> None:
    seed = int.from_bytes(os.urandom(4))
    rng = np.random.default_rng(seed)
    for _ in range(300):
        shape = tuple(rng.integers(0, 6, rng.integers(0, 5)).tolist())
        most = int(rng.integers(1, 40))
        numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
        found = [numbers[piece].reshape(-1).tolist() for piece in _gpu_writes._pieces(shape, most)]
        for piece in found:
            assert 0 < len(piece) <= most, (seed, shape, most)
            assert piece == list(range(piece[0], piece[0] + len(piece))), (seed, shape, most)
        assert list(itertools.chain(*found)) == numbers.reshape(-1).tolist(), (seed, shape, most)


def test_arrays_that_cannot_be_copied_are_not_written(on_devices: Callable[..., str]) -> None:
    on_devices(
        ENABLE
        + textwrap.dedent(
            """
            from zarrs_cuda import _gpu_writes
            _gpu_writes.PIECE = 1000
            with zarr.config.set(OF_HOST):
                made = array_of("uint32")
            array, values = opened(made), cupy.asarray(VALUES.astype("uint32") + 1)
            copy, calls = cupy._Data.copy_to_host_async, []

            def failing(self, *arguments):
                calls.append(arguments)
                if len(calls) == 3:
                    raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")
                copy(self, *arguments)

            cupy._Data.copy_to_host_async = failing
            said = error_of(zarrs_cuda.BackendUnavailable, lambda: array.__setitem__(..., values))
            assert "shape (40, 50) and type uint32 on GPU 0" in said, said
            assert "CUDA_ERROR_ILLEGAL_ADDRESS" in said and "cupy.asnumpy" in said, said
            # The copy before is waited for, and nothing is kept.
            until(lambda: not cupy.PINNED)
            # No memory on the device, while a copy is on its way.
            gather, gathered = cupy.ascontiguousarray, []

            def full(values):
                gathered.append(values)
                if len(gathered) == 3:
                    raise MemoryError("of the device")
                return gather(values)

            cupy._Data.copy_to_host_async, cupy.ascontiguousarray = copy, full
            assert "of the device" in error_of(MemoryError, lambda: array.__setitem__(..., values))
            until(lambda: not cupy.PINNED)
            cupy.ascontiguousarray = gather
            # The device may still write it, because the wait fails, too.
            def broken(self):
                raise RuntimeError("CUDA_ERROR_LAUNCH_FAILED")

            synchronize, cupy.Stream.synchronize = cupy.Stream.synchronize, broken
            said = error_of(zarrs_cuda.BackendUnavailable, lambda: array.__setitem__(..., values))
            assert "CUDA_ERROR_LAUNCH_FAILED" in said, said
            gc.collect()
            assert len(cupy.PINNED) == 2
            cupy.Stream.synchronize = synchronize
            with zarr.config.set(OF_HOST):
                np.testing.assert_array_equal(opened(made)[...], VALUES)
            array[...] = values
            with zarr.config.set(OF_HOST):
                np.testing.assert_array_equal(opened(made)[...], VALUES + 1)
            """
        )
    )


def test_work_of_loops_is_done_by_few_threads_that_hold_nothing() -> None:
    class Held:
        pass

    async def failing(held: Held) -> None:
        def fail() -> None:
            raise ValueError(repr(held))

        await on_thread(fail)

    async def main() -> list[weakref.ref[Held]]:
        running, most, lock = set(), 0, threading.Lock()

        def work(number: int) -> int:
            nonlocal most
            with lock:
                running.add(number)
                most = max(most, len(running))
            time.sleep(0.002)
            with lock:
                running.remove(number)
            return number

        numbers = [on_thread(functools.partial(work, number)) for number in range(200)]
        assert await asyncio.gather(*numbers) == list(range(200))
        assert 1 < most <= _interrupts._MOST
        refs = []
        for _ in range(5):
            held = Held()
            refs.append(weakref.ref(held))
            with pytest.raises(ValueError, match="Held"):
                await failing(held)
            del held
        return refs

    before = threading.active_count()
    gc.collect()
    gc.disable()
    try:
        refs = asyncio.run(main())
        # The thread drops its work soon after the loop has the error.
        end = time.monotonic() + 30
        while any(ref() is not None for ref in refs):
            assert time.monotonic() < end, "a cycle has it"
            time.sleep(0.005)
    finally:
        gc.enable()
    for _ in range(3):
        asyncio.run(main())
    assert threading.active_count() <= before + _interrupts._MOST


INTERRUPT = """
import os, signal, weakref
# CuPy's own calls would wait for ever.
cupy._Memory.__del__ = lambda self: None
zarrs_cuda.configure(backend="host")
made = array_of("uint32")
zarrs_cuda.configure(backend=None, devices=0, device_timeout=5)
done = 0

def interrupt():
    # When the device hangs nothing is done any more.
    before = -1
    while before != done:
        before = done
        time.sleep(1)
    global sent
    sent = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)

def until_interrupted(read):
    global done
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        while True:
            read()
            done += 1
    except KeyboardInterrupt:
        assert time.monotonic() - sent < 3, "the device's time is 5 s"
"""


@pytest.mark.parametrize("is_given", [True, False])
def test_ctrl_c_ends_a_read_from_a_device_that_hangs(is_given: bool, on_devices: Callable[..., str]) -> None:
    said = on_devices(
        INTERRUPT
        + textwrap.dedent(
            f"""
            reader = zarrs_cuda.ArrayReader(zarr.open_array(made.store_path.store))
            out = cupy.empty(VALUES.shape, "uint32")
            held = weakref.ref(out)
            until_interrupted(lambda: reader.read(**({{"out": out}} if {is_given} else {{"device": 0}})))
            """
        )
        + textwrap.dedent(
            """
            # The host reads, and the device says why it does not.
            np.testing.assert_array_equal(reader.read(), VALUES)
            said = error_of(zarrs_cuda.BackendUnavailable, lambda: reader.read(device=0))
            assert "did not" in said or "is not used any more" in said, said
            said = error_of(zarrs_cuda.BackendUnavailable, lambda: reader.read(device=0))
            assert "is not used any more in this process" in said, said
            # The work has ended, which nobody sees. It had not begun to write the memory.
            time.sleep(2)
            del out
            until(lambda: held() is None)
            print("free", flush=True)
            raise KeyboardInterrupt
            """
        ),
        "devices=1 schedule=latest hang=60",
        code=-signal.SIGINT,
    )
    assert "free" in said, said


@pytest.mark.parametrize("is_read", [True, False])
def test_ctrl_c_ends_calls_of_zarr_python(is_read: bool, on_devices: Callable[..., str]) -> None:
    """The end of the process waits for the device at most 5 s, and not for all the time that it may take."""
    said = on_devices(
        ENABLE
        + INTERRUPT.replace("device_timeout=5", "device_timeout=100")
        + textwrap.dedent(
            f"""
            array = opened(made)
            values = cupy.asarray(VALUES.astype("uint32"))
            until_interrupted(lambda: array[...] if {is_read} else array.__setitem__(..., values))
            print("interrupted at", time.time(), flush=True)
            raise KeyboardInterrupt
            """
        ),
        "devices=1 schedule=latest hang=60",
        code=-signal.SIGINT,
    )
    (at,) = re.findall("interrupted at (.*)", said)
    assert time.time() - float(at) < 30


def test_the_program_of_the_guide(on_devices: Callable[..., str], tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "guide" / "gpu.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    checks = """
np.testing.assert_array_equal(elements.get(), array[:64, 10:20])
np.testing.assert_array_equal(batch.get(), [array[:32, 5:37, 9:41], array[70:102, :32, 31:63]])
"""
    on_devices(f"import os\nos.chdir({str(tmp_path)!r})\n" + program + checks)


def test_a_process_without_a_driver_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if shutil.which("nvidia-smi") is not None:
        pytest.skip("this machine has an NVIDIA driver")
    for name in list(os.environ):
        if name.startswith(("ZARRS_CUDA_", "ZARR_ZARRS_CUDA__")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(_devices, "_told", set())
    with zarr.config.set({"zarrs_cuda": {"devices": 0}}):
        array = create(tmp_path / "a", shape=(8, 8), chunks=(2, 2), shards=(4, 4), dtype="uint8")
        reader = zarrs_cuda.ArrayReader(array)
    with pytest.raises(zarrs_cuda.BackendUnavailable, match="no CUDA driver is installed") as error:
        reader.read(device="cuda")
    assert "zarrs_cuda.doctor()" in str(error.value)
    assert (reader.read() == 0).all()


def test_memory_that_is_not_for_writing_is_refused(on_devices: Callable[..., str]) -> None:
    """Tensors that promise to be complete, immutable arrays, and a stream beside the memory's own."""
    on_devices("""
        zarrs_cuda.configure(devices=[0])
        reader = zarrs_cuda.ArrayReader(array_of())
        tensor = reader.read(device=0)
        out = cupy.empty(VALUES.shape, "uint16")


        class Immutable:
            # Arrays of JAX: a capsule that does not say so, and an interface that does.
            def __dlpack_device__(self):
                return out.__dlpack_device__()

            def __dlpack__(self, *, stream=None, max_version=None, copy=None, dl_device=None):
                return out.__dlpack__(stream=stream)

            @property
            def __cuda_array_interface__(self):
                told = out.__cuda_array_interface__
                return told | {"data": (told["data"][0], True)}


        class Refusing(Immutable):
            def __dlpack__(self, **keywords):
                raise BufferError("not here")


        class Bare:
            __cuda_array_interface__ = out.__cuda_array_interface__ | {"stream": 1}


        stream = cupy.cuda.Stream(non_blocking=True)
        for why, read in (
            ("is a DeviceTensor", lambda: reader.read(out=tensor)),
            ("may only be read", lambda: reader.read(out=Immutable())),
            ("not here", lambda: reader.read(out=Refusing())),
            ("the current one", lambda: reader.read(out=Refusing())),
            ("used in the stream 1", lambda: reader.read(out=Bare(), device=0, stream=stream)),
            ("below 0", lambda: reader.read_boxes([[0, 0]], (-1, 2), device=0)),
        ):
            assert why in error_of(ValueError, read), why
        reader.read(out=Bare(), device=0)
        np.testing.assert_array_equal(cupy.asnumpy(out), VALUES)
    """)
