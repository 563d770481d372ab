"""Importing, choosing, pickling and explaining the pipeline; falling back; errors."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
import threading
import warnings
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
import zarrs_cuda
from conftest import OURS, THEIRS, create, opened
from zarr.codecs import BytesCodec, ScaleOffset, numcodecs
from zarr.core.buffer import BufferPrototype, NDBuffer, cpu
from zarr.dtype import VariableLengthBytes
from zarr.storage import LocalStore, MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable


def run(code: str, **environment: str) -> str:
    """Run Python code in a process of its own."""
    import os

    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:zarrs_cuda", "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_loads_no_native_code_and_no_thread() -> None:
    run(
        """
        import sys, threading
        import zarrs_cuda
        assert "zarrs_cuda._internal" not in sys.modules
        assert threading.active_count() == 1
        assert zarrs_cuda.CodecPipeline.__module__ == "zarrs_cuda"
        """
    )


def test_the_names_of_the_package() -> None:
    code = "import zarrs_cuda\nprint(*set(dir(zarrs_cuda)) ^ set(zarrs_cuda.__all__))"
    for more, names in (("", {"__version__"}), ("\nimport zarrs_cuda.dask", {"__version__", "dask"})):
        program = code.replace("\n", f"{more}\n")
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert set(done.stdout.split()) == names


def test_the_environment_chooses_the_pipeline() -> None:
    run(
        """
        import sys, zarr
        array = zarr.create_array({}, shape=(4,), dtype="uint8")
        assert type(array.async_array.codec_pipeline).__module__ == "zarrs_cuda"
        assert "zarrs_cuda._internal" not in sys.modules
        array[:] = 1
        assert "zarrs_cuda._internal" in sys.modules
        """,
        ZARR_CODEC_PIPELINE__PATH=OURS,
    )


def test_a_broken_native_module_raises_only_when_it_is_used() -> None:
    run(
        """
        import sys
        sys.modules["zarrs_cuda._internal"] = None
        import zarr, zarrs_cuda
        # Another pipeline is not disturbed, although all entry points are loaded.
        other = zarr.create_array({}, shape=(4,), dtype="uint8")
        other[:] = 1
        zarr.config.set({"codec_pipeline.path": "zarrs_cuda.CodecPipeline"})
        array = zarr.create_array({}, shape=(4,), dtype="uint8")
        try:
            array[:] = 1
        except ImportError as error:
            assert "zarrs-cuda" in str(error)
        else:
            raise AssertionError
        """
    )


def test_entry_points() -> None:
    (ours,) = [e for e in entry_points(group="zarr.codec_pipeline") if e.name == "zarrs_cuda"]
    assert ours.load() is zarrs_cuda.CodecPipeline


def test_pickles_carry_metadata_store_and_mode(tmp_path: Path) -> None:
    with zarr.config.set({"codec_pipeline.shards": "shared"}):
        array = create(tmp_path / "a", shape=(8,), chunks=(2,), shards=(8,), dtype="uint8")
    array[:2] = 1
    assert len(array.async_array.codec_pipeline.__getstate__()) == 4
    (tmp_path / "pickle").write_bytes(pickle.dumps(array))
    # A process whose configuration is untouched writes as the array does.
    run(
        f"""
        import pathlib, pickle
        array = pickle.loads(pathlib.Path({str(tmp_path / "pickle")!r}).read_bytes())
        assert array.async_array.codec_pipeline._mode == "shared"
        array[4:6] = 3
        assert list(array[:]) == [1, 1, 0, 0, 3, 3, 0, 0]
        """
    )
    assert list((tmp_path / "a").rglob("c/0")) == []
    assert len(list((tmp_path / "a/c/0.frame").iterdir())) == 2
    assert list(array[:]) == [1, 1, 0, 0, 3, 3, 0, 0]


def test_equal_and_hash() -> None:
    store = MemoryStore()
    create(store, shape=(4,), dtype="uint8")
    one, other = (opened(store, OURS).async_array.codec_pipeline for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)


def test_a_structured_type_of_foreign_byte_order_falls_back_with_one_warning() -> None:
    zarrs_cuda._pipeline._warned.clear()
    dtype = np.dtype([("a", "u1"), ("b", "<i4")])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            array = create({}, shape=(4,), dtype=dtype, chunks=(2,), serializer=BytesCodec(endian="big"))
            array[:] = np.array((1, 2), dtype=dtype)
            assert (array[:] == np.array((1, 2), dtype=dtype)).all()
    ours = [w for w in caught if w.category is zarrs_cuda.FallbackWarning]
    assert len(ours) == 1
    assert "type" in str(ours[0].message)
    assert "Batched" in zarrs_cuda.explain(array).pipeline


def test_a_fallback_is_an_error_if_strict() -> None:
    array = create({}, shape=(4,), dtype="uint8", chunks=(2,), compressors=[numcodecs.LZ4()])
    with (
        zarr.config.set({"codec_pipeline.strict": True}),
        pytest.raises(ValueError, match="strict"),
    ):
        array[:] = 1


@pytest.mark.parametrize(
    ("dtype", "kwargs", "why"),
    [
        ("uint8", {"compressors": [numcodecs.Blosc()]}, "Blosc"),
        ("uint8", {"compressors": [numcodecs.CRC32()]}, "CRC32"),
        ("uint8", {"compressors": [numcodecs.CRC32C()]}, "CRC32C"),
        ("uint8", {"compressors": [numcodecs.Fletcher32()]}, "Fletcher32"),
        ("uint8", {"compressors": [numcodecs.GZip()]}, "GZip"),
        ("uint8", {"compressors": [numcodecs.JenkinsLookup3()]}, "JenkinsLookup3"),
        ("uint8", {"compressors": [numcodecs.LZ4()]}, "LZ4"),
        ("uint8", {"compressors": [numcodecs.LZMA()]}, "LZMA"),
        ("uint8", {"compressors": [numcodecs.Zstd()]}, "Zstd"),
        ("uint8", {"filters": [numcodecs.Delta(dtype="u1")]}, "Delta"),
        ("float64", {"filters": [numcodecs.FixedScaleOffset(offset=1, scale=2)]}, "FixedScaleOffset"),
        ("float64", {"filters": [numcodecs.Quantize(digits=2, dtype="f8")]}, "Quantize"),
        ("float64", {"filters": [numcodecs.AsType(encode_dtype="f4", decode_dtype="f8")]}, "AsType"),
        ("float64", {"filters": [ScaleOffset(offset=1, scale=2)]}, "ScaleOffset"),
        ("str", {"compressors": [numcodecs.Adler32()]}, "Adler32"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.filterwarnings("ignore::zarrs_cuda.FallbackWarning")
def test_codecs_of_zarr_python_alone_fall_back(dtype: str, kwargs: Any, why: str) -> None:
    array = create({}, shape=(4,), chunks=(2,), dtype=dtype, **kwargs)
    array[:] = np.arange(4).astype(dtype)
    assert [float(value) for value in array[:]] == [0, 1, 2, 3]
    found = zarrs_cuda.explain(array)
    assert found.pipeline.endswith("BatchedCodecPipeline")
    assert f".{why} " in found.why


@pytest.mark.filterwarnings("ignore::zarrs_cuda.FallbackWarning")
def test_parameters_that_zarrs_does_not_know_fall_back() -> None:
    # zarrs panics for one of them.
    for level in (0, 10):
        array = create({}, shape=(4,), chunks=(2,), dtype="uint8", compressors=[numcodecs.BZ2(level=level)])
        with pytest.raises(ValueError, match="between 1 and 9"):
            array[:] = 1
        assert zarrs_cuda.explain(array).mode is None
    array = create({}, shape=(4,), chunks=(2,), dtype="uint8", compressors=[numcodecs.Shuffle(elementsize=0)])
    array[:] = 1
    assert array[3] == 1


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("keepbits", [0, 3, 9])
def test_rounded_floats_have_the_bits_of_numcodecs(dtype: str, keepbits: int) -> None:
    rng = np.random.default_rng(5)
    values = rng.integers(0, 256, (40, np.dtype(dtype).itemsize * 25), dtype="uint8").view(dtype)
    # A rounded NaN may have an exponent that is too large: numcodecs makes 0 of it.
    values[np.isnan(values) & np.signbit(values)] = -np.inf
    values[0, :3] = np.nan, np.inf, -0.0
    stored = []
    for pipeline in (OURS, THEIRS):
        store = MemoryStore()
        filters = [numcodecs.BitRound(keepbits=keepbits)]
        array = create(
            store, pipeline, shape=(40, 25), chunks=(10, 25), dtype=dtype, filters=filters, compressors=None
        )
        array[...] = values
        array[3:33, 2] = 1.7
        stored.append({key: value.to_bytes() for key, value in store._store_dict.items()})
        assert opened(store, OURS)[...].tobytes() == opened(store, THEIRS)[...].tobytes()
    assert stored[0] == stored[1]


def test_a_nan_of_the_metadata_keeps_its_bits(tmp_path: Path) -> None:
    create(tmp_path, shape=(4,), chunks=(2,), shards=(4,), dtype="float32", fill_value=np.nan)
    text = (tmp_path / "zarr.json").read_text()
    assert '"NaN"' in text
    (tmp_path / "zarr.json").write_text(text.replace('"NaN"', '"0x7fc00123"'))
    array = opened(tmp_path, OURS)
    array[0] = 1
    assert list(array[:].view("uint32")) == [0x3F800000, 0x7FC00123, 0x7FC00123, 0x7FC00123]
    np.testing.assert_array_equal(opened(tmp_path, THEIRS)[:], array[:])


def test_strings_are_counted_as_objects_of_python() -> None:
    strings = zarrs_cuda.explain(create({}, shape=(4, 5), chunks=(2, 5), dtype="str"))
    assert strings.pipeline == OURS
    assert strings.one_by_one == 20
    assert "20 elements go through Python one by one" in str(strings)
    assert zarrs_cuda.explain(create({}, shape=(4, 5), chunks=(2, 5), dtype="U3")).one_by_one == 0


def test_what_is_no_string_is_an_error() -> None:
    array = create({}, shape=(4,), chunks=(2,), dtype=VariableLengthBytes())
    with pytest.raises(TypeError, match="expected a string or bytes, and found float"):
        array[:] = np.array([b"a", 1.5, b"", b""], dtype=object)
    array[:] = np.array([b"a", None, 0, bytearray(b"b")], dtype=object)
    assert list(array[:]) == [b"a", b"", b"", b"b"]


@pytest.mark.parametrize("mode", ["shared", "in_place"])
def test_modes_do_not_fall_back(mode: str, tmp_path: Path) -> None:
    with zarr.config.set({"codec_pipeline.shards": mode}):
        array = create(
            tmp_path, shape=(4,), chunks=(1,), shards=(2,), dtype="uint8", compressors=[numcodecs.LZ4()]
        )
        elsewhere = create({}, shape=(4,), chunks=(1,), shards=(2,), dtype="uint8")
        plain = create({}, shape=(4,), chunks=(2,), dtype="uint8")
    with pytest.raises(ValueError, match=mode):
        array[:] = 1
    with pytest.raises(ValueError, match="LocalStore"):
        elsewhere[:] = 1
    with pytest.raises(ValueError, match="LocalStore"):
        elsewhere[:]
    # An array without shards is rewritten.
    plain[:] = 1
    assert plain[3] == 1


def test_an_unknown_mode_is_an_error() -> None:
    with (
        zarr.config.set({"codec_pipeline.shards": "quick"}),
        pytest.raises(ValueError, match="rewrite, in_place, shared"),
    ):
        create({}, shape=(4,), dtype="uint8")


def test_zarr_v2_falls_back_in_silence() -> None:
    array = create({}, shape=(4,), dtype="uint8", zarr_format=2)
    array[:] = 1
    assert array[2] == 1


@pytest.mark.parametrize("kind", ["local", "memory", "objects", "other"])
def test_read_only_stores_raise_what_they_raise(kind: str, stores: Callable[[str], Any]) -> None:
    store = stores(kind)
    create(store, shape=(4,), chunks=(2,), dtype="uint8")[...] = 1
    errors = []
    for pipeline in (OURS, THEIRS):
        array = opened(store, pipeline)
        with zarr.config.set({"codec_pipeline.path": pipeline}):
            array = zarr.open_array(store.with_read_only(True), mode="r")
        assert array[1] == 1
        with pytest.raises(ValueError, match="read-only") as error:
            array[...] = 2
        errors.append(str(error.value))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("kind", ["local", "memory", "objects", "other"])
def test_a_damaged_shard_is_named(kind: str, stores: Callable[[str], Any]) -> None:
    store = stores(kind)
    array = create(store, shape=(8, 8), chunks=(2, 2), shards=(8, 8), dtype="uint16")
    array[...] = np.arange(64, dtype="uint16").reshape(8, 8)
    zarr.core.sync.sync(damage(store))
    for read in (lambda: array[...], lambda: array[3, 3]):
        with pytest.raises(zarrs_cuda.ShardError, match="c/0/0") as error:
            read()
        assert isinstance(error.value, RuntimeError)
        assert error.value.shard == "c/0/0"
        assert str(store) in str(error.value)
        assert pickle.loads(pickle.dumps(error.value)).shard == "c/0/0"
    with pytest.raises(zarrs_cuda.ShardError, match="recover"):
        array[0, 0] = 1
    array[...] = 3
    assert (array[...] == 3).all()


async def damage(store: Any) -> None:
    from zarr.core.buffer import cpu

    value = await store.get("c/0/0", prototype=cpu.buffer_prototype)
    torn = value.to_bytes()[:-7]
    await store.set("c/0/0", cpu.Buffer.from_bytes(torn))


def test_errors_of_files_are_those_of_the_system(tmp_path: Path) -> None:
    array = create(tmp_path, shape=(4,), chunks=(2,), dtype="uint8")
    (tmp_path / "c").write_text("no directory")
    with pytest.raises(OSError, match=r"c/[01]") as error:
        array[...] = 1
    assert error.value.errno is not None


def test_subclasses_of_stores_are_other_stores(tmp_path: Path) -> None:
    asked = []

    class Mine(LocalStore):
        async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
            asked.append(key)
            return await super().get(key, *args, **kwargs)

    array = create(Mine(tmp_path), shape=(4,), chunks=(2,), dtype="uint8")
    array[...] = 1
    asked.clear()
    assert array[3] == 1
    assert asked == ["c/1"]


def test_explain(tmp_path: Path) -> None:
    array = create(tmp_path, shape=(4,), chunks=(1,), shards=(2,), dtype="uint8")
    found = zarrs_cuda.explain(array)
    assert found.pipeline == OURS
    assert found.mode == "rewrite"
    assert "2 subchunks" in str(found)
    assert zarrs_cuda.explain(opened(tmp_path, THEIRS)).mode is None


def test_threads_are_those_of_the_settings(tmp_path: Path) -> None:
    from zarrs_cuda import _settings

    with zarr.config.set({"threading.max_workers": 3}):
        assert _settings.threads() == 3
        with zarr.config.set({"codec_pipeline.max_workers": 2}):
            assert _settings.threads() == 2
    with (
        zarr.config.set({"codec_pipeline.max_workers": 0}),
        pytest.raises(ValueError, match="positive"),
    ):
        _settings.threads()
    run(
        f"""
        import os, zarr, numpy as np
        zarr.config.set({{"codec_pipeline.path": {OURS!r}, "codec_pipeline.max_workers": 1}})
        kind = dict(shape=(64, 64), chunks=(2, 2), shards=(8, 8), dtype="uint16")
        array = zarr.create_array({str(tmp_path)!r}, **kind)
        array[:] = np.arange(64 * 64).reshape(64, 64)
        array[:]
        names = [open(f"/proc/self/task/{{task}}/comm").read() for task in os.listdir("/proc/self/task")]
        # One thread may do all of the work: that of the caller.
        assert len([name for name in names if name.startswith("zarrs_cuda")]) <= 1, names
        """
    )


def test_the_lock_of_python_is_released(tmp_path: Path) -> None:
    array = create(tmp_path, shape=(256, 256, 64), chunks=(32, 32, 32), shards=(256, 256, 64), dtype="uint32")
    done, turns = threading.Event(), 0

    def write() -> None:
        array[...] = np.arange(256 * 256 * 64, dtype="uint32").reshape(256, 256, 64)
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not done.wait(0.0005):
        turns += 1
    thread.join()
    assert turns > 10


class Away:
    """Elements that are not numpy's, as those on a device."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values
        self.shape, self.dtype, self.ndim = values.shape, values.dtype, values.ndim

    def __setitem__(self, key: Any, value: Any) -> None:
        self.values[key] = value


class AwayBuffer(NDBuffer):
    """What ``zarr.config.enable_gpu`` chooses, without a GPU."""

    def __init__(self, array: Any) -> None:
        self._data = array if isinstance(array, Away) else Away(np.asarray(array))

    @classmethod
    def create(cls, *, shape: Any, dtype: Any, order: Any = "C", fill_value: Any = None) -> Any:
        return cls(np.full(shape, 0 if fill_value is None else fill_value, dtype, order))

    empty = create

    def as_numpy_array(self) -> Any:
        return self._data.values

    def __setitem__(self, key: Any, value: Any) -> None:
        assert isinstance(value, NDBuffer)
        self._data[key] = value.as_numpy_array()


@pytest.mark.parametrize("kind", ["local", "memory", "objects", "other"])
def test_elements_on_a_device_are_copied_once(kind: str, stores: Callable[[str], Any]) -> None:
    array = create(stores(kind), shape=(8, 8), chunks=(2, 2), shards=(4, 4), dtype="uint16")
    values = np.arange(64, dtype="uint16").reshape(8, 8)
    prototype = BufferPrototype(cpu.Buffer, AwayBuffer)
    array.set_basic_selection((slice(None), slice(None)), values, prototype=prototype)
    np.testing.assert_array_equal(array[...], values)
    got = array.get_basic_selection((slice(1, 7), slice(2, 5)), prototype=prototype)
    assert isinstance(got, Away)
    np.testing.assert_array_equal(got.values, values[1:7, 2:5])
    got = array.get_orthogonal_selection(([1, 6], [0, 7]), prototype=prototype)
    np.testing.assert_array_equal(got.values, values[np.ix_([1, 6], [0, 7])])


@pytest.mark.parametrize("kind", ["local", "memory", "objects", "other"])
def test_foreign_byte_order_and_other_types_of_outputs(kind: str, stores: Callable[[str], Any]) -> None:
    # Not opened again: the metadata do not say in which order elements are in memory.
    array = create(stores(kind), shape=(8, 8), chunks=(2, 2), shards=(4, 4), dtype=">u2")
    values = np.arange(64, dtype=">u2").reshape(8, 8) * 3
    array[...] = values
    array[1, 1:3] = np.array([700, 800], "<u2")
    values[1, 1:3] = 700, 800
    np.testing.assert_array_equal(array[...], values)
    np.testing.assert_array_equal(array[1:7:2, 2], values[1:7:2, 2])
    for dtype in (">u2", "<u2", "float64"):
        out = cpu.NDBuffer.from_numpy_array(np.zeros((6, 8), dtype))
        array.get_basic_selection((slice(1, 7), slice(None)), out=out)
        np.testing.assert_array_equal(out.as_numpy_array(), values[1:7])
