"""Arrays that this package and zarr-python write in turns: both read what numpy has."""

from __future__ import annotations

import contextlib
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
import zarrs_cuda
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
    VLenBytesCodec,
    VLenUTF8Codec,
    ZstdCodec,
)
from zarr.codecs.numcodecs import BZ2, Adler32, PCodec, Shuffle, Zlib
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync
from zarr.dtype import VariableLengthBytes
from zarr.storage import MemoryStore, WrapperStore

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = ["local", "memory", "objects", "other"]
FIELDS = np.dtype([("a", "u1"), ("b", "<i4"), ("c", [("d", "<f8"), ("e", "S3")])])
# With fill values that are not zeros.
TYPES: dict[Any, list[Any]] = {
    "bool": [False, True],
    "int8": [0, -3],
    "uint16": [0, 65535],
    ">u2": [0, 258],
    "int32": [0, -(2**31)],
    ">i4": [7],
    "uint64": [0, 2**64 - 1],
    "float16": [0.0, float("nan"), float("-inf")],
    "float32": [-0.0, 0.0, float("inf")],
    ">f8": [0.0, 1.5],
    "float64": [float("nan"), 0.0],
    "complex64": [0j, 1 - 2j, complex(float("inf"), 1)],
    "complex128": [0j],
    "datetime64[s]": [np.datetime64("NaT", "s"), np.datetime64("2020-01-01", "s")],
    "timedelta64[ms]": [np.timedelta64(5, "ms"), np.timedelta64("NaT", "ms")],
    ">m8[10us]": [np.timedelta64(70, "us")],
    "U3": ["", "äb"],
    ">U2": ["x"],
    "S3": [b"", b"a\0b"],
    "V3": [b"\0\0\0", b"abc"],
    FIELDS: [(0, 0, (0.0, b"")), (7, -1, (float("inf"), b"xy"))],
    "str": ["", "a", "äöü"],
    VariableLengthBytes(): [b"", b"a"],
}
WORDS = ["", "a", "aa", "äöü☃", "b" * 300]


def numpy_type(kind: Any) -> np.dtype[Any]:
    if isinstance(kind, VariableLengthBytes):
        return np.dtype("O")
    return np.dtypes.StringDType() if kind == "str" else np.dtype(kind)


def elements(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """Random elements, with repetitions."""
    values = rng.integers(0, 4, shape)
    match dtype.kind:
        case "m" | "M":
            values = values.astype("int64")
            return np.where(values == 3, np.iinfo("int64").min, values).astype(dtype)
        case "T":
            return np.array(WORDS, dtype)[rng.integers(0, len(WORDS), shape)]
        case "O":
            return np.array([word.encode() for word in WORDS], dtype)[rng.integers(0, len(WORDS), shape)]
        case "V" if dtype.fields is None:
            return np.array([b"", b"abc", b"a", b"\0b"], dtype)[values]
        case "V":
            made = np.zeros(shape, dtype)
            made["a"], made["b"], made["c"]["d"], made["c"]["e"] = values, -values, values / 4, b"xyz"
            return made
        case "f" | "c":
            special = np.array([0.0, -0.0, np.inf, np.nan, 1.5, -2.75], dtype)
            if dtype.kind == "c":
                # zarr-python takes both zeros for the fill value 0, and all NaN for each other.
                special = special[[0, 2, 4, 5]]
            return special[rng.integers(0, len(special), shape)]
    return values.astype(dtype)


def assert_same(got: Any, expected: Any) -> None:
    """Both have the same elements, bit by bit."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    if expected.dtype.kind in "TO":
        assert got.tolist() == expected.tolist()
        return
    native = expected.dtype.newbyteorder("=")
    assert got.astype(native).tobytes() == expected.astype(native).tobytes()


@st.composite
def arrays(draw: st.DrawFn) -> dict[str, Any]:
    """The arguments that an array is created with."""
    name = draw(st.sampled_from(list(TYPES)))
    # zarr-python puts an array into an array of byte strings that has no axes.
    axes = [1, 1, 2, 2, 3, 3] + [0] * (not isinstance(name, VariableLengthBytes))
    ndim = draw(st.sampled_from(axes))
    # An axis of 0 elements has no chunk.
    shape = tuple(draw(st.integers(0 if draw(st.integers(0, 9)) == 0 else 1, 13)) for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, 5)) for _ in range(ndim))
    dtype = numpy_type(name)
    is_variable = dtype.kind in "TO"
    itemsize = 1 if is_variable else dtype.itemsize
    # A structure of the other byte order is left to zarr-python.
    endian = "little" if name is FIELDS else draw(st.sampled_from(["little", "big"]))
    inner: list[Any] = []
    # zarrs transposes no arrays without axes.
    if ndim and not is_variable and draw(st.booleans()):
        inner.append(TransposeCodec(order=tuple(draw(st.permutations(range(ndim))))))
    serializers: list[Any] = [BytesCodec(endian=endian)]
    if dtype.kind == "T":
        serializers = [VLenUTF8Codec()]
    elif dtype.kind == "O":
        serializers = [VLenBytesCodec()]
    elif dtype.kind in "iuf" and itemsize > 1 and dtype.isnative:
        serializers.append(PCodec(level=4))
    inner.append(draw(st.sampled_from(serializers)))
    chains: list[list[Any]] = [
        [],
        [ZstdCodec(level=1)],
        [ZstdCodec(level=3, checksum=True), Crc32cCodec()],
        [GzipCodec(level=1)],
        [Crc32cCodec()],
        [BloscCodec(cname="lz4", typesize=itemsize)],
        [BloscCodec(cname="zstd", typesize=itemsize, shuffle="shuffle")],
        [Zlib(level=1)],
        [BZ2(level=1)],
    ]
    if not is_variable:
        chains += [[Adler32()], [Zlib(level=6), Adler32(location="end")]]
    if isinstance(inner[-1], BytesCodec):
        chains.append([Shuffle(elementsize=itemsize), Zlib(level=6)])
    inner += draw(st.sampled_from(chains))
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
def selections(draw: st.DrawFn, shape: tuple[int, ...], chunks: tuple[int, ...]) -> tuple[str, Any]:
    """A way to select, and what it selects."""
    if 0 in shape or not shape:
        # Nothing, and the one element: zarr-python takes no coordinates of these.
        return "basic", tuple(slice(None) for _ in shape) or ...
    way = draw(st.sampled_from(["basic", "basic", "orthogonal", "coordinates", "mask", "block"]))

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
        case "block":
            counts = [-(-extent // chunk) for extent, chunk in zip(shape, chunks, strict=True)]
            entries = [draw(st.integers(0, count - 1)) for count in counts]
        case _:
            seed = draw(st.integers(0, 2**32 - 1))
            mask = np.random.default_rng(seed).random(shape) < 0.3
            if not mask.any():
                mask.flat[0] = True
            return way, mask
    return way, tuple(entries)


def of_numpy(way: str, selection: Any, shape: tuple[int, ...], chunks: tuple[int, ...]) -> Any:
    """What selects the same of a numpy array."""
    if way == "block":
        return tuple(
            slice(number * chunk, (number + 1) * chunk)
            for number, chunk in zip(selection, chunks, strict=True)
        )
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
        case "block":
            return array.blocks[selection]
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
        case "block":
            array.blocks[selection] = value
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
    shape, chunks = kwargs["shape"], kwargs["chunks"]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    expected = np.full(shape, made.metadata.fill_value, dtype=numpy_type(kwargs["dtype"]))
    for _ in range(data.draw(st.integers(1, 4))):
        writer = both[data.draw(st.integers(0, 1))]
        if data.draw(st.integers(0, 3)) == 0:
            way, selection = "basic", tuple(slice(None) for _ in shape)
        else:
            way, selection = data.draw(selections(shape, chunks))
        same = of_numpy(way, selection, shape, chunks)
        of_zarr = np.shape(get(both[1], way, selection))
        is_one = data.draw(st.integers(0, 4)) == 0
        if expected.dtype.kind == "O" and (is_one or of_zarr == ()):
            # zarr-python writes an array as the element.
            writer = both[0]
        value: Any = elements(rng, expected.dtype, () if is_one else np.shape(expected[same]))
        value = np.asarray(value, expected.dtype)
        put(writer, way, selection, value[()] if is_one else value.reshape(of_zarr))
        expected[same] = value
        for array in both:
            assert_same(array[...], expected)
        way, selection = data.draw(selections(shape, chunks))
        same = expected[of_numpy(way, selection, shape, chunks)]
        results = [get(array, way, selection) for array in both]
        assert type(results[0]) is type(results[1])
        if isinstance(results[0], np.ndarray):
            assert results[0].dtype == results[1].dtype
        assert_same(results[0], results[1])
        assert_same(np.ravel(results[0]), np.ravel(same))


@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_irregular_grids(data: st.DataObject, kind: str, stores: Callable[[str], Any]) -> None:
    step = data.draw(st.sampled_from([1, 2]))
    sizes = st.lists(st.sampled_from([step, 2 * step, 3 * step]), min_size=1, max_size=4)
    chunks = tuple(data.draw(sizes) for _ in range(data.draw(st.integers(1, 2))))
    shape = tuple(sum(axis) for axis in chunks)
    kwargs: dict[str, Any] = {"dtype": data.draw(st.sampled_from(["uint16", "str"])), "compressors": None}
    if data.draw(st.booleans()):
        serializer = VLenUTF8Codec() if kwargs["dtype"] == "str" else BytesCodec()
        codec = ShardingCodec(chunk_shape=(step,) * len(shape), codecs=[serializer, ZstdCodec()])
        kwargs["serializer"] = codec
    store = stores(kind)
    with zarr.config.set({"array.rectilinear_chunks": True}):
        create(store, shape=shape, chunks=chunks, **kwargs)
        both = [opened(store, OURS), opened(store, THEIRS)]
        assert zarrs_cuda.explain(both[0]).pipeline == OURS
        rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
        expected = np.full(shape, both[0].metadata.fill_value, numpy_type(kwargs["dtype"]))
        for _ in range(data.draw(st.integers(1, 3))):
            # The oracle knows the blocks of regular grids only.
            way, selection = data.draw(selections(shape, (10**9,) * len(shape)))
            same = of_numpy(way, selection, shape, (10**9,) * len(shape))
            value = np.asarray(elements(rng, expected.dtype, np.shape(expected[same])), expected.dtype)
            if way == "block":
                continue
            writer = both[data.draw(st.integers(0, 1))]
            put(writer, way, selection, value.reshape(np.shape(get(both[1], way, selection))))
            expected[same] = value
            for array in both:
                assert_same(array[...], expected)
            assert_same(get(both[0], way, selection), get(both[1], way, selection))


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("name", list(TYPES), ids=str)
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_both_store_the_same_bytes(name: Any, shards: bool, stores: Callable[[str], Any]) -> None:
    rng = np.random.default_rng(3)
    values = np.asarray(elements(rng, numpy_type(name), (7, 5)), numpy_type(name))
    stored = []
    for pipeline in (OURS, THEIRS):
        store = stores("memory")
        # Subchunks are in C order here: there is one row of them.
        kind = {"chunks": (3, 2), "shards": (3, 6)} if shards else {"chunks": (3, 2)}
        array = create(store, pipeline, shape=(7, 5), dtype=name, compressors=None, **kind)
        array[...] = values
        stored.append({key: value.to_bytes() for key, value in store._store_dict.items()})
    assert stored[0] == stored[1]
    assert len(stored[0]) > 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("location", ["start", "end", None])
@pytest.mark.parametrize(
    ("name", "compressors"),
    [
        *((name, codec) for name in ("uint16", "str") for codec in (None, ZstdCodec(), BZ2(level=1))),
        ("uint16", Zlib(level=1)),
        ("uint16", Adler32()),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_torn_values_are_errors_until_they_are_written_again(
    name: str, compressors: Any, location: Any, kind: str, stores: Callable[[str], Any]
) -> None:
    store = stores(kind)
    kwargs: dict[str, Any] = {"chunks": (2, 2), "compressors": compressors}
    if location:
        codecs = [VLenUTF8Codec() if name == "str" else BytesCodec()]
        codecs += [compressors] if compressors else []
        serializer = ShardingCodec(chunk_shape=(2, 2), codecs=codecs, index_location=location)
        kwargs = {"chunks": (4, 4), "serializer": serializer, "compressors": None}
    array = create(store, shape=(4, 4), dtype=name, fill_value="?" if name == "str" else 77, **kwargs)
    expected = np.asarray(np.arange(16).reshape(4, 4), numpy_type(name))
    array[...] = expected
    value = sync(store.get("c/0/0", prototype=cpu.buffer_prototype)).to_bytes()
    for cut in range(len(value)):
        sync(store.set("c/0/0", cpu.Buffer.from_bytes(value[:cut])))
        with pytest.raises(zarrs_cuda.ShardError):
            array[...]
        with pytest.raises((ValueError, RuntimeError, struct.error, zlib.error, OSError)):
            opened(store, THEIRS)[...]
        # One element: right, or an error.
        with contextlib.suppress(zarrs_cuda.ShardError):
            assert array[1, 1] == expected[1, 1]
    array[...] = expected
    for pipeline in (OURS, THEIRS):
        assert_same(opened(store, pipeline)[...], expected)


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
        same = of_numpy(zarrs_way, selection, shape, ())
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
        np.testing.assert_array_equal(
            np.ravel(got), np.ravel(values[of_numpy(way, selection, (512, 512), ())])
        )
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
