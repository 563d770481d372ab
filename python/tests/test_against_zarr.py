"""Arrays that this package and zarr-python write in turns: both read what numpy has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from conftest import OURS, THEIRS, create, opened
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import MemoryStore, WrapperStore

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = ["local", "memory", "objects", "other"]
# With fill values that are not zeros.
TYPES: dict[str, list[Any]] = {
    "bool": [False, True],
    "int8": [0, -3],
    "uint16": [0, 65535],
    ">u2": [0, 258],
    "int32": [0, -(2**31)],
    ">i4": [7],
    "uint64": [0, 2**64 - 1],
    "float16": [0.0, float("nan")],
    "float32": [-0.0, float("inf")],
    ">f8": [0.0, 1.5],
    "float64": [float("nan"), 0.0],
    "complex64": [0j, 1 - 2j],
    "complex128": [0j],
    "datetime64[s]": [np.datetime64("NaT", "s"), np.datetime64("2020-01-01", "s")],
    "timedelta64[ms]": [np.timedelta64(5, "ms")],
}


def elements(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """Random elements, with repetitions."""
    values = rng.integers(0, 4, shape)
    if dtype.kind in "mM":
        return values.astype("int64").astype(dtype)
    return values.astype(dtype)


@st.composite
def arrays(draw: st.DrawFn) -> dict[str, Any]:
    """The arguments that an array is created with."""
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 13)) for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, 5)) for _ in range(ndim))
    name = draw(st.sampled_from(sorted(TYPES)))
    dtype = np.dtype(name)
    endian = draw(st.sampled_from(["little", "big"]))
    inner: list[Any] = []
    if draw(st.booleans()):
        inner.append(TransposeCodec(order=tuple(draw(st.permutations(range(ndim))))))
    inner.append(BytesCodec(endian=endian))
    inner += draw(
        st.sampled_from(
            [
                [],
                [ZstdCodec(level=1)],
                [ZstdCodec(level=3, checksum=True), Crc32cCodec()],
                [GzipCodec(level=1)],
                [Crc32cCodec()],
                [BloscCodec(cname="lz4", typesize=dtype.itemsize)],
                [BloscCodec(cname="zstd", typesize=dtype.itemsize, shuffle="shuffle")],
            ]
        )
    )
    kwargs: dict[str, Any] = {
        "dtype": name,
        "shape": shape,
        "fill_value": draw(st.sampled_from(TYPES[name])),
    }
    sharding = draw(st.sampled_from(["none", "plain", "plain", "plain", "wrapped", "nested"]))
    if sharding == "none":
        codecs = inner
        kwargs["chunks"] = chunks
    else:
        shard = tuple(size * draw(st.integers(1, 3)) for size in chunks)
        location = draw(st.sampled_from(["start", "end"]))
        codecs = [ShardingCodec(chunk_shape=chunks, codecs=inner, index_location=location)]
        if sharding == "wrapped":
            codecs.append(Crc32cCodec())
        elif sharding == "nested":
            codecs = [ShardingCodec(chunk_shape=shard, codecs=codecs)]
            shard = tuple(2 * size for size in shard)
        kwargs["chunks"] = shard
    kwargs["filters"] = [codec for codec in codecs if isinstance(codec, TransposeCodec)] or None
    rest = [codec for codec in codecs if not isinstance(codec, TransposeCodec)]
    kwargs["serializer"] = rest[0]
    kwargs["compressors"] = rest[1:] or None
    kwargs["config"] = {
        "write_empty_chunks": draw(st.booleans()),
        "order": draw(st.sampled_from(["C", "F"])),
    }
    return kwargs


@st.composite
def selections(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[str, Any]:
    """A way to select, and what it selects."""
    way = draw(st.sampled_from(["basic", "basic", "orthogonal", "coordinates", "mask"]))

    def slices(extent: int) -> slice:
        start = draw(st.integers(0, extent - 1))
        stop = draw(st.integers(start + 1, extent))
        return slice(start, stop, draw(st.sampled_from([1, 1, 1, 2, 3])))

    def numbers(extent: int) -> Any:
        wanted = draw(st.lists(st.integers(0, extent - 1), min_size=1, max_size=5, unique=True))
        return np.array(wanted)

    match way:
        case "basic":
            entries = [
                draw(st.integers(0, extent - 1)) if draw(st.integers(0, 3)) == 0 else slices(extent)
                for extent in shape
            ]
        case "orthogonal":
            entries = []
            for extent in shape:
                kind = draw(st.integers(0, 3))
                if kind == 0:
                    entries.append(draw(st.integers(0, extent - 1)))
                elif kind == 1:
                    entries.append(slices(extent))
                else:
                    entries.append(numbers(extent))
        case "coordinates":
            count = draw(st.integers(1, 6))
            points = draw(
                st.lists(
                    st.tuples(*(st.integers(0, extent - 1) for extent in shape)),
                    min_size=count,
                    max_size=count,
                    unique=True,
                )
            )
            entries = [np.array(column) for column in zip(*points, strict=True)]
        case _:
            seed = draw(st.integers(0, 2**32 - 1))
            mask = np.random.default_rng(seed).random(shape) < 0.3
            if not mask.any():
                mask.flat[0] = True
            return way, mask
    return way, tuple(entries)


def of_numpy(way: str, selection: Any, shape: tuple[int, ...]) -> Any:
    """What selects the same of a numpy array, and the shape that zarr gives to it."""
    if way != "orthogonal":
        return selection
    axes = [
        np.arange(extent)[entry] if isinstance(entry, slice) else np.atleast_1d(entry)
        for entry, extent in zip(selection, shape, strict=True)
    ]
    return np.ix_(*axes)


def get(array: zarr.Array[Any], way: str, selection: Any) -> Any:
    match way:
        case "basic":
            return array[selection]
        case "orthogonal":
            return array.oindex[selection]
        case "coordinates":
            return array.vindex[selection]
        case _:
            return array.get_mask_selection(selection)


def put(array: zarr.Array[Any], way: str, selection: Any, value: Any) -> None:
    match way:
        case "basic":
            array[selection] = value
        case "orthogonal":
            array.oindex[selection] = value
        case "coordinates":
            array.vindex[selection] = value
        case _:
            array.set_mask_selection(selection, value)


@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_both_pipelines_agree(data: st.DataObject, kind: str, stores: Callable[[str], Any]) -> None:
    kwargs = data.draw(arrays())
    store = stores(kind)
    made = create(store, data.draw(st.sampled_from([OURS, THEIRS])), **kwargs)
    both = [opened(store, OURS), opened(store, THEIRS)]
    for array in both:
        object.__setattr__(array.async_array, "config", made.async_array.config)
    shape = kwargs["shape"]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    expected = np.full(shape, kwargs["fill_value"], dtype=np.dtype(kwargs["dtype"]))
    for _ in range(data.draw(st.integers(1, 4))):
        writer = both[data.draw(st.integers(0, 1))]
        if data.draw(st.integers(0, 3)) == 0:
            way, selection = "basic", tuple(slice(None) for _ in shape)
        else:
            way, selection = data.draw(selections(shape))
        same = of_numpy(way, selection, shape)
        value: Any = elements(rng, expected.dtype, expected[same].shape)
        if data.draw(st.integers(0, 4)) == 0:
            value = elements(rng, expected.dtype, ())[()]
            put(writer, way, selection, value)
        else:
            put(writer, way, selection, value.reshape(get(both[1], way, selection).shape))
        expected[same] = value
        for array in both:
            np.testing.assert_array_equal(array[...], expected)
        way, selection = data.draw(selections(shape))
        same = expected[of_numpy(way, selection, shape)]
        results = [get(array, way, selection) for array in both]
        assert results[0].shape == results[1].shape
        assert results[0].dtype == results[1].dtype
        np.testing.assert_array_equal(results[0], results[1])
        np.testing.assert_array_equal(np.ravel(results[0]), np.ravel(same))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize(("extent", "subchunk"), [(64, 4), (256, 64)])
def test_changed_shards_have_the_bytes_of_new_ones(
    extent: int, subchunk: int, location: str, kind: str, stores: Callable[[str], Any]
) -> None:
    rng = np.random.default_rng(2)

    def made() -> Any:
        codec = ShardingCodec(
            chunk_shape=(subchunk, subchunk),
            codecs=[BytesCodec(), ZstdCodec(level=1)],
            index_location=location,
        )
        return create(
            stores(kind),
            shape=(2 * extent, extent),
            chunks=(extent, extent),
            dtype="uint32",
            serializer=codec,
            compressors=None,
        )

    changed, expected = made(), np.zeros((2 * extent, extent), "uint32")
    for selection, most in [
        ((slice(None), slice(None)), 2**8),
        ((slice(4, 9), slice(8, 12)), 2**30),  # some grow,
        ((slice(0, extent // 4), slice(extent // 4, None)), 2**4),  # shrink,
        ((slice(extent // 4, extent), slice(0, extent // 2)), 1),  # and become empty
        ((slice(extent - 1, extent + 2), slice(None)), 2**30),
        ((slice(0, extent, 3), slice(None)), 2**20),
    ]:
        value = rng.integers(0, most, expected[selection].shape, "uint32")
        changed[selection] = value
        expected[selection] = value
        new = made()
        new[...] = expected
        for key in ("c/0/0", "c/1/0"):
            assert stored(changed, key) == stored(new, key)
    np.testing.assert_array_equal(opened(changed.store, THEIRS)[...], expected)
    changed[:extent] = 0
    assert stored(changed, "c/0/0") is None


def stored(array: Any, key: str) -> bytes | None:
    """Return the bytes that a store has."""
    value = sync(array.store.get(key, default_buffer_prototype()))
    return None if value is None else value.to_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_without_axes(kind: str, stores: Callable[[str], Any]) -> None:
    store = stores(kind)
    create(store, shape=(), dtype="int32", fill_value=3)
    ours, theirs = opened(store, OURS), opened(store, THEIRS)
    assert ours[()] == 3
    ours[()] = 5
    assert theirs[()] == 5
    theirs[()] = 6
    assert ours[()] == 6


@pytest.mark.parametrize("kind", KINDS)
def test_a_shape_that_changes(kind: str, stores: Callable[[str], Any]) -> None:
    store = stores(kind)
    ours = create(store, shape=(4, 4), chunks=(2, 2), shards=(4, 4), dtype="uint8", fill_value=9)
    ours[...] = 1
    ours.resize((9, 4))
    ours[8, :] = 2
    for number in range(3):
        ours.append(np.full((2, 4), number + 3, dtype="uint8"))
    expected = np.full((15, 4), 9)
    expected[:4], expected[8] = 1, 2
    expected[9:11], expected[11:13], expected[13:] = 3, 4, 5
    np.testing.assert_array_equal(ours[...], expected)
    np.testing.assert_array_equal(opened(store, THEIRS)[...], expected)


def test_a_whole_write_counts_as_ours(stores: Callable[[str], Any]) -> None:
    # The warning of a fallback is an error in these tests.
    array = create(stores("local"), shape=(8,), chunks=(2,), shards=(4,), dtype="uint8")
    array[...] = 1
    assert array[3] == 1


@pytest.mark.parametrize("kind", [*KINDS, "shared"])
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_sparse_selections_agree_with_numpy(
    data: st.DataObject, kind: str, stores: Callable[[str], Any]
) -> None:
    """Few elements far apart in shards of many subchunks."""
    store = stores("local" if kind == "shared" else kind)
    ndim = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.integers(10, 40)) for _ in range(ndim))
    chunks = tuple(data.draw(st.integers(1, 3)) for _ in range(ndim))
    create(
        store,
        shape=shape,
        chunks=chunks,
        shards=tuple(size * data.draw(st.integers(6, 12)) for size in chunks),
        dtype="int32",
        fill_value=-1,
        compressors=data.draw(st.sampled_from([None, "auto"])),
    )
    array = opened(store, OURS, shards="shared" if kind == "shared" else "rewrite")
    expected = np.full(shape, -1, "int32")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    if data.draw(st.booleans()):
        expected[...] = rng.integers(0, 1000, shape)
        array[...] = expected
    for _ in range(3):
        way = data.draw(st.sampled_from(["basic", "orthogonal", "one axis", "coordinates", "mask"]))
        count = data.draw(st.integers(1, 4))
        points = [rng.integers(0, extent, count) for extent in shape]
        selection: Any
        match way:
            case "basic":
                selection = tuple(slice(int(p[0]), None, int(rng.integers(1, 12))) for p in points)
            case "orthogonal":
                selection = tuple(np.unique(p) if rng.random() < 0.7 else int(p[0]) for p in points)
            case "one axis":
                selection = tuple(
                    np.unique(p) if axis == count % ndim else slice(None) for axis, p in enumerate(points)
                )
            case "coordinates":
                selection = tuple(points)
            case _:
                selection = np.zeros(shape, bool)
                selection[tuple(points)] = True
        zarrs_way = "orthogonal" if way == "one axis" else way
        same = of_numpy(zarrs_way, selection, shape)
        got = get(array, zarrs_way, selection)
        np.testing.assert_array_equal(np.ravel(got), np.ravel(expected[same]))
        assert got.shape == get(opened(store, THEIRS), zarrs_way, selection).shape
        if data.draw(st.booleans()):
            value: Any = rng.integers(0, 1000, got.shape).astype("int32")
            if way == "coordinates":
                # Of a place that is there twice, the last element may be another one for numpy.
                value[...] = 5
            elif data.draw(st.booleans()):
                value = 6
            put(array, zarrs_way, selection, value)
            expected[same] = value if np.ndim(value) == 0 else value.reshape(expected[same].shape)
        np.testing.assert_array_equal(array[...], expected)


class Counting(WrapperStore[Any]):
    """Counts the bytes of shards that are read."""

    bytes = 0

    async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
        value = await super().get(key, *args, **kwargs)
        if value is not None and "/" in key:
            self.bytes += len(value)
        return value

    async def get_ranges(self, *args: Any, **kwargs: Any) -> Any:
        async for group in super().get_ranges(*args, **kwargs):
            self.bytes += sum(len(value) for _, value in group)
            yield group


def files_read() -> int:
    """Count the bytes that this process has read of files."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize("kind", ["local", "other"])
@pytest.mark.parametrize("compressors", [None, "auto"])
def test_selections_far_apart_read_little(kind: str, compressors: Any, stores: Callable[[str], Any]) -> None:
    store = stores("local") if kind == "local" else Counting(MemoryStore())
    values = np.random.default_rng(0).integers(0, 1 << 30, (512, 512), "uint32")
    create(
        store,
        shape=(512, 512),
        chunks=(16, 16),
        shards=(512, 512),
        dtype="uint32",
        compressors=compressors,
    )[...] = values
    array = opened(store, OURS)
    index, subchunk = 32 * 32 * 16 + 4, 16 * 16 * 4 + 64
    for way, selection, count in [
        ("coordinates", (np.array([0, 511, 200]), np.array([0, 511, 300])), 3),
        ("coordinates", (np.arange(0, 512, 16), np.arange(0, 512, 16)), 32),
        ("orthogonal", (np.array([0, 511]), np.array([0, 511])), 4),
        ("orthogonal", (np.array([1, 500]), slice(0, 64)), 8),
        ("basic", (slice(0, 512, 200), slice(0, 512, 300)), 6),
    ]:
        before = files_read() if kind == "local" else store.bytes
        got = get(array, way, selection)
        after = files_read() if kind == "local" else store.bytes
        np.testing.assert_array_equal(np.ravel(got), np.ravel(values[of_numpy(way, selection, (512, 512))]))
        # Rows that are near to each other are read together with what is between them, from files.
        gap = 2 * subchunk * 32 if kind == "local" else 0
        # The index is read before and after.
        assert after - before < 2 * index + count * (subchunk + gap) + 2000


def test_selections_write_the_subchunks_that_they_meet(tmp_path: Path) -> None:
    """Those between them may belong to other processes."""
    create(tmp_path, shape=(32, 32), chunks=(2, 2), shards=(32, 32), dtype="uint16")[...] = 1
    array = opened(tmp_path, OURS, shards="shared")
    array.vindex[[0, 31], [1, 30]] = [5, 6]
    assert len(list(tmp_path.rglob("*.chunk"))) == 2
    array.oindex[[0, 31], [0, 31]] = 7
    array[0:32:20, 0:32:20] = 8
    assert len({path.name.split(".")[0] for path in tmp_path.rglob("*.chunk")}) == 7
    assert array[0, 1] == 5
    assert array[31, 30] == 6
    assert array[31, 31] == array[0, 31] == 7
    assert array[20, 0] == array[0, 0] == 8


class Replacing(WrapperStore[Any]):
    """Replaces a shard after its index was read, as often as it is told to."""

    values: list[Any]

    async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
        value = await super().get(key, *args, **kwargs)
        if "/" in key and kwargs.get("byte_range") is not None and self.values:
            other = self.values.pop()
            if other is None:
                await super().delete(key)
            else:
                await super().set(key, other)
        return value


@pytest.mark.parametrize("compressors", [None, "auto"])
@pytest.mark.parametrize("rounds", [1, 2, 9])
def test_a_shard_that_is_replaced_between_its_index_and_its_elements(compressors: Any, rounds: int) -> None:
    kind: dict[str, Any] = {"shape": (16, 16), "chunks": (4, 4), "shards": (16, 16), "dtype": "uint32"}
    shards, arrays = [], []
    for number in range(2):
        # Empty subchunks move the others.
        values = np.random.default_rng(number).integers(1, 1 << 30, (16, 16), "uint32")
        values[0:4, 0 : 4 + 4 * number] = 0
        memory = MemoryStore()
        create(memory, compressors=compressors, **kind)[...] = values
        shards.append(memory._store_dict["c/0/0"])
        arrays.append(values)
    store = Replacing(memory)
    store.values = []
    array = opened(store, OURS)
    for last in (1, 0):
        store.values = [shards[(last + n) % 2] for n in range(rounds)]
        memory._store_dict["c/0/0"] = shards[(last + rounds) % 2]
        if rounds > 3:
            with pytest.raises(RuntimeError, match="replaced"):
                array[12, 12]
            store.values = []
            continue
        np.testing.assert_array_equal(array[8:, 5:], arrays[last][8:, 5:])
        assert store.values == []
    # It is deleted.
    store.values = [None]
    assert array[12, 12] == 0


def test_a_damaged_shard_is_an_error_that_is_not_hidden() -> None:
    memory = MemoryStore()
    create(Replacing(memory), shape=(16, 16), chunks=(4, 4), shards=(16, 16), dtype="uint32")
    store = Replacing(memory)
    store.values = []
    array = opened(store, OURS)
    array[...] = np.arange(256).reshape(16, 16)
    good = memory._store_dict["c/0/0"]
    torn = good.to_bytes()
    torn = bytes([torn[0] ^ 255]) + torn[1:]
    memory._store_dict["c/0/0"] = type(good).from_bytes(torn)
    with pytest.raises(RuntimeError, match="c/0/0"):
        array[0, 0]
