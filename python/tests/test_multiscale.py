"""Images and their smaller levels, against numpy and against the rules of OME-Zarr."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorstore
import zarr
import zarrs_cuda
from conftest import OURS, THEIRS, create, exit_code, opened
from obstore.store import LocalStore as LocalObjects
from s3 import Server
from zarr.storage import ObjectStore
from zarrs_cuda import Axis, MultiscaleWriter, write_lower_levels

if TYPE_CHECKING:
    from collections.abc import Sequence

REDUCTIONS = ("mean", "minimum", "maximum", "median", "mode", "decimate")
DTYPES = [
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "complex64", "complex128", "datetime64[s]"),
]
# Odd extents, and ends within chunks and within shards.
SHAPE = (13, 11, 9)
KIND: dict[str, Any] = {"chunks": (2, 4, 4), "shards": (4, 8, 8), "dtype": "uint16"}
AXES = [
    {"name": "t", "unit": "second", "scale": 0.5},
    {"name": "y", "unit": "micrometer", "scale": 0.25, "translation": 10},
    {"name": "x", "unit": "micrometer", "scale": 0.25},
]


def has(dtype: np.dtype[Any], reduction: str) -> bool:
    """Whether elements of a type have a reduction."""
    if reduction in ("mode", "decimate"):
        return True
    return dtype.kind in "biuf" or (dtype.kind == "c" and reduction == "mean")


def of_floats(window: list[float], reduction: str) -> float:
    if any(value != value for value in window):
        return float("nan")
    # Of equal ones, -0.0 is less than 0.0.
    ordered = sorted(window, key=lambda value: (value, not np.signbit(value)))
    middle = len(window) // 2
    match reduction:
        case "minimum":
            return ordered[0]
        case "maximum":
            return ordered[-1]
        case "median":
            window = ordered[middle - 1 : middle + 1] if len(window) > 1 else ordered
    total = window[0]
    for value in window[1:]:
        total += value
    return total / len(window)


def of_integers(window: list[int], reduction: str) -> int:
    ordered = sorted(window)
    middle = len(window) // 2
    match reduction:
        case "minimum":
            return ordered[0]
        case "maximum":
            return ordered[-1]
        case "median":
            window = ordered[middle - 1 : middle + 1] if len(window) > 1 else ordered
    # Python rounds half to even.
    return round(Fraction(sum(window), len(window)))


def of_window(window: np.ndarray[Any, Any], reduction: str) -> Any:
    """Make one element of a window, in C order."""
    dtype = window.dtype
    if reduction == "decimate":
        return window[0]
    if reduction == "mode":
        counts = Counter(element.tobytes() for element in window)
        # The first of those that are there most often.
        (most, _), *_ = counts.most_common(1)
        return np.frombuffer(most, dtype)[0]
    if dtype.kind == "c":
        return dtype.type(
            complex(
                of_window(window.real, reduction).item(),
                of_window(window.imag, reduction).item(),
            )
        )
    if dtype.kind == "f":
        made = of_floats(window.astype("float64").tolist(), reduction)
        # The quiet one, without a sign.
        return dtype.type(np.nan if made != made else made)
    return dtype.type(of_integers([int(element) for element in window], reduction))


def below(values: np.ndarray[Any, Any], factors: Sequence[int], reduction: str) -> np.ndarray[Any, Any]:
    """Make the level below one, a window at a time."""
    shape = [-(-extent // factor) for extent, factor in zip(values.shape, factors, strict=True)]
    made = np.empty(shape, values.dtype)
    with np.errstate(all="ignore"):
        for at in np.ndindex(*shape):
            box = tuple(slice(i * by, (i + 1) * by) for i, by in zip(at, factors, strict=True))
            made[at] = of_window(values[box].ravel(), reduction)
    return made


def levels_of(
    values: np.ndarray[Any, Any], factors: Sequence[int], reduction: str, count: int
) -> list[np.ndarray[Any, Any]]:
    levels = [values]
    while len(levels) < count:
        levels.append(below(levels[-1], factors, reduction))
    return levels


def some(dtype: np.dtype[Any], shape: Sequence[int], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Make elements, many of which are at the limits of their type, or alike."""
    count = int(np.prod(shape))
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind == "M":
        return rng.integers(0, 4, shape).astype(dtype)
    if dtype.kind == "c":
        part = np.empty(0, dtype).real.dtype
        made = np.empty(shape, dtype)
        made.real, made.imag = some(part, shape, rng), some(part, shape, rng)
        return made
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        random = rng.integers(limits.min, limits.max, count, dtype, endpoint=True)
        special = np.array([limits.min, limits.max, limits.max - 1, 0, 1, 2], dtype)
    else:
        limits = np.finfo(dtype)
        random = rng.normal(0, 100, count).astype(dtype)
        tiny = limits.smallest_subnormal
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, limits.max, tiny, 4 * tiny, 8, 2.0**-8, 1.5]
        special = np.array(special, dtype)
    chosen = rng.random(count) < 0.4
    return np.where(chosen, rng.choice(special, count), random).reshape(shape)


def image(path: Any, shape: Sequence[int] = SHAPE, name: str = "0", **settings: Any) -> zarr.Array[Any]:
    """Create level 0, without slices, in a group."""
    settings = {"dimension_names": ["t", "y", "x"][-len(shape) :], **KIND, **settings}
    with zarr.config.set({"codec_pipeline.path": OURS}):
        return zarr.create_group(path).create_array(name, shape=(0, *shape[1:]), **settings)


def write(
    writer: MultiscaleWriter, values: np.ndarray[Any, Any], rng: np.random.Generator | None = None
) -> str:
    """Append slices in pieces, and finish."""
    at = 0
    while at < len(values):
        count = 1 if rng is None else int(rng.integers(1, 6))
        writer.append(values[at] if count == 1 else values[at : at + count])
        at += count
    return writer.finish()


def stored(path: Path, count: int) -> list[np.ndarray[Any, Any]]:
    return [opened(path / str(level), THEIRS)[...] for level in range(count)]


def files(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): without_times(file.read_bytes())
        for file in path.rglob("*")
        if file.is_file()
    }


def without_times(content: bytes) -> bytes:
    """Return metadata without the fingerprint of level 0, which has the times of its files."""
    if b'"made_from"' not in content:
        return content
    metadata = json.loads(content)
    del metadata["attributes"]["ome"]["multiscales"][0]["metadata"]["made_from"]
    return json.dumps(metadata).encode()


def check_same(got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], what: Any) -> None:
    """Check that all bits are the same."""
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype), what
    if got.tobytes() != expected.tobytes():
        bits = [np.ascontiguousarray(array).view(f"V{array.itemsize}") for array in (got, expected)]
        where = np.argwhere(bits[0] != bits[1])[:3]
        pytest.fail(f"{what}: {[(tuple(at), got[tuple(at)], expected[tuple(at)]) for at in where]}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_all_levels_are_those_of_numpy(dtype: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(np.frombuffer(dtype.encode(), "uint8"))
    values = some(np.dtype(dtype), SHAPE, rng)
    for reduction in REDUCTIONS:
        for factors in ((2, 2, 2), (1, 2, 2)):
            where = tmp_path / f"{reduction}{factors[0]}"
            array = image(where, dtype=dtype)
            axes = [{**axis, "factor": factor} for axis, factor in zip(AXES, factors, strict=True)]
            if not has(values.dtype, reduction):
                with pytest.raises(ValueError, match=r"no|cannot"):
                    MultiscaleWriter(array, reduction=reduction, axes=axes)
                continue
            write(MultiscaleWriter(array, reduction=reduction, axes=axes, levels=4), values, rng)
            expected = levels_of(values, factors, reduction, 4)
            assert expected[3].shape == (2 if factors[0] == 2 else 13, 2, 2)
            for level, (got, wanted) in enumerate(zip(stored(where, 4), expected, strict=True)):
                check_same(got, wanted, (dtype, reduction, factors, level))
                if values.dtype.kind == "M":
                    continue
                spec = {
                    "driver": "zarr3",
                    "kvstore": {"driver": "file", "path": str(where / str(level))},
                }
                got = tensorstore.open(spec, open=True, read=True).result().read().result()
                check_same(np.asarray(got), wanted, ("tensorstore", dtype, reduction, factors, level))


def test_means_of_short_floats_are_rounded_once(tmp_path: Path) -> None:
    """A number just above the middle of two, which is the middle in 32 bits."""
    window = np.array([8, 2.0**-8, 2.0**-22, 0, 0, 0, 0, 0], "float16").reshape(2, 2, 2)
    array = image(tmp_path, (2, 2, 2), dtype="float16")
    axes = [{**axis, "factor": 2} for axis in AXES]
    write(MultiscaleWriter(array, axes=axes, levels=2), window)
    assert stored(tmp_path, 2)[1].item() == 1 + 2.0**-10


def test_as_many_levels_as_it_takes(tmp_path: Path) -> None:
    array = image(tmp_path)
    told: list[tuple[int, dict[str, float]]] = []
    values = some(np.dtype("uint16"), SHAPE, np.random.default_rng(1))
    with MultiscaleWriter(array, progress=lambda level, now: told.append((level, now))) as writer:
        assert writer.paths == ("0", "1", "2")
        writer.append(values)
        assert [now["appended_slices"] for now in writer.progress()] == [13, 13, 13]
    assert array.shape == SHAPE
    assert {level for level, _ in told} == {0, 1, 2}
    assert told[-1][1]["shards_stored"] > 0
    for got, wanted in zip(stored(tmp_path, 3), levels_of(values, (1, 2, 2), "mean", 3), strict=True):
        check_same(got, wanted, "")
    group = zarr.open_group(tmp_path)
    assert sorted(group.array_keys()) == ["0", "1", "2"]
    assert [group[name].shards for name in "012"] == [(4, 8, 8), (4, 8, 8), (4, 3, 3)]
    assert [group[name].metadata.dimension_names for name in "012"] == [("t", "y", "x")] * 3
    # The array is used on, with its new shape.
    array.append(values[:3])
    assert opened(tmp_path / "0", THEIRS).shape == (16, 11, 9)


def test_the_group_says_where_elements_are(tmp_path: Path) -> None:
    channels = [{"color": "FFFFFF", "label": "GFP", "window": {"start": 0, "end": 9, "min": 0, "max": 9}}]
    for reduction, shift in (("mean", 1), ("decimate", 0)):
        path = tmp_path / reduction
        array = image(path)
        zarr.open_group(path).attrs["mine"] = {"is": "kept"}
        writer = MultiscaleWriter(
            array, axes=AXES, levels=3, reduction=reduction, name="a name", omero={"channels": channels}
        )
        write(writer, np.zeros(SHAPE, "uint16"))
        attributes = zarr.open_group(path).attrs
        assert attributes["mine"] == {"is": "kept"}
        ome = attributes["ome"]
        assert ome["version"] == "0.5"
        assert ome["omero"] == {"channels": channels}
        (multiscale,) = ome["multiscales"]
        assert (multiscale["name"], multiscale["type"]) == ("a name", reduction)
        types = ["time", "space", "space"]
        assert multiscale["axes"] == [
            {"name": axis["name"], "type": kind, "unit": axis["unit"]}
            for axis, kind in zip(AXES, types, strict=True)
        ]
        for level, dataset in enumerate(multiscale["datasets"]):
            assert dataset["path"] == str(level)
            by_type = {each["type"]: each[each["type"]] for each in dataset["coordinateTransformations"]}
            elements = 2**level
            assert by_type["scale"] == [0.5, 0.25 * elements, 0.25 * elements]
            # The centre of a window.
            half = shift * 0.25 * (elements - 1) / 2
            assert by_type["translation"] == [0, 10 + half, half]


def check_by_others(path: Path, shapes: Sequence[Sequence[int]]) -> list[Any]:
    """Check a group with the validators, and return its levels as `ngff-zarr` reads them."""
    import ngff_zarr
    import ome_zarr_models
    import yaozarrs

    group = zarr.open_group(path, mode="r")
    found = ome_zarr_models.open_ome_zarr(group)
    assert type(found) is ome_zarr_models.v05.Image
    yaozarrs.validate_zarr_store(str(path))
    read = ngff_zarr.from_ngff_zarr(str(path), validate=True, version="0.5")
    assert [image.data.shape for image in read.images] == list(map(tuple, shapes))
    return list(read.images)


def test_validators_accept_an_image_while_it_grows(tmp_path: Path) -> None:
    values = some(np.dtype("uint16"), (16, 11, 9), np.random.default_rng(2))
    expected = levels_of(values, (1, 2, 2), "mean", 3)
    # Without names of dimensions, which the writer gives.
    array = image(tmp_path, dimension_names=None)
    writer = MultiscaleWriter(array, axes=AXES, name="growing")
    for end in range(4, 17, 4):
        writer.append(values[end - 4 : end])
        writer.flush()
        assert array.shape == (end, 11, 9)
        images = check_by_others(tmp_path, [level[:end].shape for level in expected])
        for image_, level in zip(images, expected, strict=True):
            check_same(image_.data.compute(), level[:end], "ngff-zarr")
    writer.finish()
    images = check_by_others(tmp_path, [level.shape for level in expected])
    for number, image_ in enumerate(images):
        assert image_.scale == {"t": 0.5, "y": 0.25 * 2**number, "x": 0.25 * 2**number}
        half = 0.25 * (2**number - 1) / 2
        assert image_.translation == {"t": 0, "y": 10 + half, "x": half}


def test_five_axes_are_valid(tmp_path: Path) -> None:
    shape = (3, 2, 5, 7, 6)
    array = image(
        tmp_path, shape, chunks=(1, 1, 2, 2, 2), shards=(1, 2, 4, 4, 4), dimension_names=list("tczyx")
    )
    values = some(np.dtype("uint16"), shape, np.random.default_rng(3))
    write(MultiscaleWriter(array), values)
    expected = levels_of(values, (1, 1, 2, 2, 2), "mean", 3)
    for image_, level in zip(
        check_by_others(tmp_path, [level.shape for level in expected]), expected, strict=True
    ):
        check_same(image_.data.compute(), level, "ngff-zarr")


@pytest.mark.parametrize("first_factor", [1, 2])
def test_a_writer_goes_on_to_the_same_bytes(first_factor: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    values = some(np.dtype("uint16"), (22, 11, 9), rng)
    settings: dict[str, Any] = {"axes": [{**AXES[0], "factor": first_factor}, *AXES[1:]], "levels": 3}
    write(MultiscaleWriter(image(tmp_path / "once"), **settings), values)
    array = image(tmp_path / "twice")
    writer = MultiscaleWriter(array, **settings)
    writer.append(values[:18])
    writer.flush()
    first = writer.abort()
    assert first == 16
    assert array.shape[0] == 16
    covered = [now["covered_slices"] for now in writer.progress()]
    assert covered == [opened(tmp_path / "twice" / str(level), THEIRS).shape[0] for level in range(3)]
    assert writer.abort() is None
    with pytest.raises(ValueError, match="closed"):
        writer.append(values[0])
    write(MultiscaleWriter(array, **settings), values[first:], rng)
    assert files(tmp_path / "twice") == files(tmp_path / "once")
    # And once more from an earlier slice.
    write(MultiscaleWriter(array, start=8, **settings), values[8:], rng)
    assert files(tmp_path / "twice") == files(tmp_path / "once")


def test_a_process_that_is_killed(tmp_path: Path) -> None:
    values = some(np.dtype("uint16"), (40, 11, 9), np.random.default_rng(5))
    write(MultiscaleWriter(image(tmp_path / "once")), values)
    np.save(tmp_path / "values.npy", values)
    code = f"""
import time, numpy as np, zarr, zarrs_cuda
values = np.load({str(tmp_path / "values.npy")!r})
array = zarr.open_array({str(tmp_path / "killed" / "0")!r}, mode="r+")
writer = zarrs_cuda.MultiscaleWriter(array)
for frame in values[array.shape[0]:]:
    writer.append(frame)
    writer.flush()
    print("appended", flush=True)
    time.sleep(0.002)
writer.finish()
"""
    image(tmp_path / "killed")
    for after in (5, 11):
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for _ in range(after):
            child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        # What the shapes cover is there.
        levels = stored(tmp_path / "killed", 3)
        expected = levels_of(values[: len(levels[0])], (1, 2, 2), "mean", 3)
        for got, level in zip(levels, expected, strict=True):
            check_same(got, level[: len(got)], "killed")
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=60)
    assert files(tmp_path / "killed") == files(tmp_path / "once")


def test_a_block_that_raises_abandons(tmp_path: Path) -> None:
    array = image(tmp_path)
    values = np.ones((6, 11, 9), "uint16")

    def record(writer: MultiscaleWriter) -> None:
        with writer:
            writer.append(values)
            writer.flush()
            raise KeyError

    with pytest.raises(KeyError):
        record(MultiscaleWriter(array))
    assert [len(level) for level in stored(tmp_path, 3)] == [4, 4, 4]
    assert array.shape == (4, 11, 9)
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".tmp", ".partial")]


def test_an_array_that_was_opened_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = some(np.dtype("uint16"), SHAPE, np.random.default_rng(12))
    image(tmp_path / "image")
    monkeypatch.chdir(tmp_path)
    array = opened("image/0", OURS)
    writer = MultiscaleWriter(array)
    assert writer.paths == ("0", "1", "2")
    write(writer, values)
    assert array.shape == SHAPE
    for got, wanted in zip(
        stored(tmp_path / "image", 3), levels_of(values, (1, 2, 2), "mean", 3), strict=True
    ):
        check_same(got, wanted, "")
    # The directory around an array is no group, unless it is said to be one.
    create(tmp_path / "alone/a", dimension_names=["t", "y", "x"], shape=(0, 11, 9), **KIND)
    with pytest.raises(ValueError, match="no group has it"):
        MultiscaleWriter(opened(tmp_path / "alone/a", OURS))
    assert [path.name for path in (tmp_path / "alone").iterdir()] == ["a"]


def test_what_does_not_fit(tmp_path: Path) -> None:
    array = image(tmp_path / "a")
    for settings, match in [
        ({"reduction": "average"}, "must be one of mean, minimum"),
        ({"levels": 0}, "levels"),
        ({"axes": [{"name": "t", "factor": 3}, *AXES[1:]]}, "factor"),
        ({"axes": AXES[1:]}, "3 axes, and 2 were given"),
        ({"axes": [AXES[0], AXES[2], AXES[1]]}, "differ"),
        ({"axes": [*AXES[:2], {**AXES[2], "scale": float("nan")}]}, "finite"),
        ({"shapes": {9: ((1, 1, 1), (1, 1, 1))}}, "level 9"),
        ({"omero": {"channels": 3}}, "OME-Zarr"),
        ({"start": 4}, "0"),
    ]:
        with pytest.raises(ValueError, match=match):
            MultiscaleWriter(array, **settings)
        with pytest.raises(ValueError, match=match):
            write_lower_levels(array, **settings)
    with pytest.raises(TypeError, match="scala"):
        MultiscaleWriter(array, axes=[{"name": "t", "scala": 1}])
    with pytest.raises(ValueError, match="`axes`"):
        MultiscaleWriter(image(tmp_path / "b", dimension_names=["u", "v", "w"]))
    # Nothing was written.
    assert len(files(tmp_path / "a")) == 2
    for wrong, match in [
        (create({}, shape=(0, 4), chunks=(2, 2), shards=(2, 2), dtype="uint8"), "root of its store"),
        (create(tmp_path / "c", shape=(0, 4), chunks=(2, 2), shards=(2, 2), dtype="uint8"), "group"),
        (zarr.create_group(tmp_path / "d").create_array("0", shape=(0, 4, 4), dtype="uint8"), "shard"),
        (zarr.open_array(tmp_path / "a" / "0", mode="r"), "read-only"),
    ]:
        with pytest.raises(ValueError, match=match):
            MultiscaleWriter(wrong, axes=AXES[-wrong.ndim :])
    with MultiscaleWriter(array) as writer:
        for frames in (np.zeros((11, 8), "uint16"), np.zeros((1, 1, 11, 9), "uint16")):
            with pytest.raises(ValueError, match="shape"):
                writer.append(frames)
        with pytest.raises(TypeError):
            writer.append(np.zeros((11, 9)))
        writer.append(np.ones((11, 9), "uint8"))
    assert array.shape == (1, 11, 9)
    with pytest.raises(ValueError, match="finished"):
        writer.append(np.zeros((11, 9), "uint16"))
    with pytest.raises(ValueError, match="4"):
        MultiscaleWriter(array)
    # A level with other settings is in the way.
    with pytest.raises(ValueError, match="erase it"):
        MultiscaleWriter(array, start=0, shapes={1: ((1, 3, 3), (1, 3, 3))})


def test_tensors(tmp_path: Path) -> None:
    class Tensor:
        def __init__(self, values: Any) -> None:
            self.values = values

        def __dlpack__(self, **kwargs: Any) -> Any:
            return self.values.__dlpack__(**kwargs)

        def __dlpack_device__(self) -> Any:
            return self.values.__dlpack_device__()

    values = some(np.dtype("uint16"), SHAPE, np.random.default_rng(6))
    with MultiscaleWriter(image(tmp_path)) as writer:
        writer.append(Tensor(values))
    check_same(stored(tmp_path, 1)[0], values, "tensor")


def test_levels_have_shapes_of_their_own(tmp_path: Path) -> None:
    values = some(np.dtype("uint16"), SHAPE, np.random.default_rng(7))
    shapes = {1: ((1, 2, 3), (2, 6, 6)), 2: ((4, 3, 3), (8, 3, 3))}
    write(MultiscaleWriter(image(tmp_path), shapes=shapes, levels=3), values)
    for level, (chunks, shards) in shapes.items():
        array = opened(tmp_path / str(level), THEIRS)
        assert (array.chunks, array.shards) == (chunks, shards)
    for got, wanted in zip(stored(tmp_path, 3), levels_of(values, (1, 2, 2), "mean", 3), strict=True):
        check_same(got, wanted, "")


@pytest.mark.parametrize("kind", ["local objects", "server"])
def test_images_in_object_stores(kind: str, tmp_path: Path) -> None:
    values = some(np.dtype("uint16"), SHAPE, np.random.default_rng(8))
    expected = levels_of(values, (1, 2, 2), "mean", 3)
    with Server() as server:
        store = ObjectStore(LocalObjects(tmp_path) if kind == "local objects" else server.store())
        with zarr.config.set({"codec_pipeline.path": OURS}):
            group = zarr.create_group(store, path="plate/A/1")
            array = group.create_array("s0", shape=(0, 11, 9), dimension_names=["t", "y", "x"], **KIND)
        with MultiscaleWriter(array) as writer:
            assert writer.paths == tuple(f"plate/A/1/s{level}" for level in range(3))
            writer.append(values)
        group = zarr.open_group(store, path="plate/A/1", mode="r")
        for level, wanted in enumerate(expected):
            check_same(group[f"s{level}"][...], wanted, level)
        if kind == "server":
            server.fails = {"plate/A/1/s1/c/4/0/0": 403}
            rest = values[:4]
            writer = MultiscaleWriter(array, start=12)
            writer.append(values[12:])
            writer.append(rest)
            with pytest.raises(Exception, match=r"level 1: ") as error:
                writer.finish()
            assert type(error.value).__module__ == "obstore.exceptions"
            # Nothing is lost.
            server.fails = {}
            writer.finish()
            both = np.concatenate([values, rest])
            group = zarr.open_group(store, path="plate/A/1", mode="r")
            for level, wanted in enumerate(levels_of(both, (1, 2, 2), "mean", 3)):
                check_same(group[f"s{level}"][...], wanted, level)


def test_unpacked_subchunks_are_in_the_way(tmp_path: Path) -> None:
    values = np.ones((8, 11, 9), "uint16")
    array = image(tmp_path)
    write(MultiscaleWriter(array), values)
    for level in (0, 1):
        shared = opened(tmp_path / str(level), OURS, shards="shared")
        shared[0, 0, 0] = 7
        for use in (MultiscaleWriter, write_lower_levels):
            with pytest.raises(zarrs_cuda.FramesPending) as error:
                use(array)
            assert (error.value.array, error.value.shard) == (str(level), f"{level}/c/0/0/0")
        zarrs_cuda.consolidate(shared)
    # Level 0 has changed since its levels were made.
    assert write_lower_levels(array).startswith("level 1: slices 0 to 8")


def test_levels_of_an_array_that_is_there(tmp_path: Path) -> None:
    values = some(np.dtype("uint16"), (26, 11, 9), np.random.default_rng(9))
    axes = [Axis("t", factor=2), Axis("y"), Axis("x")]
    expected = levels_of(values, (2, 2, 2), "median", 3)
    for name in ("whole", "parts"):
        array = image(tmp_path / name)
        array.append(values)
        if name == "whole":
            done = write_lower_levels(array, axes=axes, levels=3, reduction="median")
            assert done.startswith("level 1: slices 0 to 13")
        else:
            for part in (3, 1, 2):
                done = write_lower_levels(array, axes=axes, levels=3, reduction="median", part=(part, 3))
                assert "blocks" in done
        for got, wanted in zip(stored(tmp_path / name, 3), expected, strict=True):
            check_same(got, wanted, name)
        check_by_others(tmp_path / name, [level.shape for level in expected])
    whole, parts = files(tmp_path / "whole"), files(tmp_path / "parts")
    # The description of the image says that there are parts.
    assert whole.pop("zarr.json") != parts.pop("zarr.json")
    assert whole == parts
    for part in ((4, 3), (0, 3), (1, 0)):
        with pytest.raises(ValueError, match="part"):
            write_lower_levels(array, axes=axes, levels=3, reduction="median", part=part)
    # What was changed is made again from there on.
    array = opened(tmp_path / "whole" / "0", OURS)
    array[20:] = 3
    write_lower_levels(array, axes=axes, levels=3, reduction="median", start=20)
    values[20:] = 3
    expected = levels_of(values, (2, 2, 2), "median", 3)
    for got, wanted in zip(stored(tmp_path / "whole", 3), expected, strict=True):
        check_same(got, wanted, "again")


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    array = image(tmp_path)
    array.append(np.ones((8, 11, 9), "uint16"))
    shard = tmp_path / "0/c/1/0/0"
    shard.write_bytes(shard.read_bytes()[:-5])
    with pytest.raises(zarrs_cuda.ShardError) as error:
        write_lower_levels(array)
    assert (error.value.array, error.value.shard) == ("0", "0/c/1/0/0")


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    array = image(tmp_path)
    # A directory is where the shard of level 1 should be.
    (tmp_path / "1/c/0/0/0/in/the/way").mkdir(parents=True)
    writer = MultiscaleWriter(array)
    writer.append(np.ones((8, 11, 9), "uint16"))
    with pytest.raises(OSError, match="level 1: "):
        writer.finish()
    for directory in ("in/the/way", "in/the", "in", "."):
        (tmp_path / "1/c/0/0/0" / directory).rmdir()
    writer.finish()
    assert [len(level) for level in stored(tmp_path, 3)] == [8, 8, 8]


def test_ctrl_c_ends_the_levels_of_an_array(tmp_path: Path) -> None:
    # So many shards that it takes longer than a signal waits.
    count = 2000
    array = image(tmp_path, (0, 32, 32), chunks=(1, 8, 8), shards=(1, 32, 32))
    values = np.random.default_rng(10).integers(0, 65536, (count, 32, 32), "uint16")
    with zarrs_cuda.ArrayWriter(array) as writer:
        writer.append(values)
    code = f"""
import zarr, zarrs_cuda
array = zarr.open_array({str(tmp_path / "0")!r}, mode="r+")
try:
    print(zarrs_cuda.write_lower_levels(array))
except KeyboardInterrupt:
    print("interrupted")
"""

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)

    child = start()
    while not (tmp_path / "1/zarr.json").exists():
        assert child.poll() is None
        time.sleep(0.001)
    child.send_signal(signal.SIGINT)
    outcome, _ = child.communicate(timeout=60)
    assert outcome.strip() == "interrupted"
    assert opened(tmp_path / "1", THEIRS).shape[0] < count
    child = start()
    outcome, _ = child.communicate(timeout=60)
    assert "level 2: slices" in outcome
    for level in (1, 2):
        wide = values.reshape(count, 32 // 2**level, 2, 32 // 2**level, 2).astype("uint64")
        # A half goes to the even integer.
        values = np.rint(wide.sum(axis=(2, 4)) / 4).astype("uint16")
        check_same(opened(tmp_path / str(level), OURS)[...], values, level)


@pytest.mark.parametrize("end", ["", "del writer", "raise SystemExit(0)"])
def test_a_script_ends_that_did_not_finish_its_writer(end: str, tmp_path: Path) -> None:
    image(tmp_path)
    code = f"""
import time, numpy as np, zarr, zarrs_cuda
array = zarr.open_array({str(tmp_path / "0")!r}, mode="r+")
writer = zarrs_cuda.MultiscaleWriter(array, progress=lambda level, now: time.sleep(0.01))
writer.append(np.zeros((8, *array.shape[1:]), array.dtype))
{end}
"""
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "a writer was not finished" in done.stderr


def test_a_function_for_progress_cannot_use_the_writer(tmp_path: Path) -> None:
    errors = []

    def tell(_level: int, _now: dict[str, float]) -> None:
        for use in (writer.progress, writer.abort, writer.flush):
            try:
                use()
            except RuntimeError as error:
                errors.append(str(error))

    writer = MultiscaleWriter(image(tmp_path), progress=tell)
    writer.append(np.ones((8, 11, 9), "uint16"))
    writer.finish()
    assert errors
    assert all("cannot use a writer" in error for error in errors)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_leaves_the_writer_alone(tmp_path: Path) -> None:
    values = np.ones((8, 11, 9), "uint16")
    writer = MultiscaleWriter(image(tmp_path / "parent"))
    writer.append(values[:6])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for use in (lambda: writer.append(values[0]), writer.flush, writer.finish, writer.abort):
                with pytest.raises(RuntimeError, match="process"):
                    use()
            write(MultiscaleWriter(image(tmp_path / "child")), values)
            status = 0
        except BaseException as error:
            os.write(2, repr(error).encode())
        finally:
            os._exit(status)
    assert exit_code(child, 20) == 0
    writer.append(values[6:])
    writer.finish()
    assert files(tmp_path / "parent") == files(tmp_path / "child")


def write_in_another_process(array: Any, values: np.ndarray[Any, Any]) -> None:
    write(MultiscaleWriter(array), values)


@pytest.mark.parametrize("way", ["forkserver", "spawn"])
def test_processes_that_are_started_otherwise(way: str, tmp_path: Path) -> None:
    values = some(np.dtype("uint16"), SHAPE, np.random.default_rng(11))
    array = image(tmp_path)
    child = multiprocessing.get_context(way).Process(target=write_in_another_process, args=(array, values))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    check_same(stored(tmp_path, 3)[2], levels_of(values, (1, 2, 2), "mean", 3)[2], way)


def test_parts_that_begin_at_the_same_time(tmp_path: Path) -> None:
    values = some(np.dtype("uint16"), (26, 11, 9), np.random.default_rng(13))
    array = image(tmp_path, dimension_names=None)
    array.append(values)
    code = f"""
import sys, zarr, zarrs_cuda
array = zarr.open_array({str(tmp_path / "0")!r}, mode="r+")
sys.stdin.readline()
axes = [{{"name": name}} for name in "tyx"]
print(zarrs_cuda.write_lower_levels(array, axes=axes, part=(int(sys.argv[1]), 3)))
"""
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(part)], stdin=subprocess.PIPE, text=True)
        for part in (1, 2, 3)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        child.communicate(timeout=60)
        assert child.returncode == 0
    expected = levels_of(values, (1, 2, 2), "mean", 3)
    for got, wanted in zip(stored(tmp_path, 3), expected, strict=True):
        check_same(got, wanted, "parts")
    check_by_others(tmp_path, [level.shape for level in expected])


def test_files_are_synced_if_asked_for(tmp_path: Path) -> None:
    with zarr.config.set({"codec_pipeline.sync": True}):
        write(MultiscaleWriter(image(tmp_path)), np.ones(SHAPE, "uint16"))
    assert [len(level) for level in stored(tmp_path, 3)] == [13, 13, 13]


def test_a_temporary_of_a_killed_process_is_not_in_the_way(tmp_path: Path) -> None:
    array = image(tmp_path)
    (tmp_path / "zarr.json.tmp").write_bytes(b"{")
    write(MultiscaleWriter(array), np.ones(SHAPE, "uint16"))
    assert len(stored(tmp_path, 3)[2]) == 13
    assert "ome" in json.loads((tmp_path / "zarr.json").read_text())["attributes"]


@pytest.mark.parametrize("names", ["tyx", "TYX", ["frame", "Y", "X"], [{"name": "T"}, Axis("y"), "x"]])
def test_axes_by_their_names(names: Any, tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path)
    array = group.create_array("0", shape=(0, 16, 16), chunks=(1, 4, 4), shards=(2, 8, 8), dtype="u1")
    with MultiscaleWriter(array, axes=names) as writer:
        writer.append(np.ones((2, 16, 16), "u1"))
    ome = zarr.open_group(tmp_path).attrs["ome"]["multiscales"][0]
    assert [axis["type"] for axis in ome["axes"]] == ["time", "space", "space"]
    assert zarr.open_group(tmp_path)["1"].shape == (2, 8, 8)


def test_dimension_names_of_either_size_are_axes(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path)
    kind = {"shape": (0, 16, 16), "chunks": (1, 4, 4), "shards": (2, 8, 8), "dtype": "u1"}
    array = group.create_array("0", dimension_names=["frame", "Y", "X"], **kind)
    with MultiscaleWriter(array) as writer:
        writer.append(np.ones((2, 16, 16), "u1"))
    axes = zarr.open_group(tmp_path).attrs["ome"]["multiscales"][0]["axes"]
    assert [(axis["name"], axis["type"]) for axis in axes] == [
        ("frame", "time"),
        ("Y", "space"),
        ("X", "space"),
    ]


def test_units_are_written_out() -> None:
    assert [Axis("x", unit=unit).unit for unit in ("um", "µm", "nm", "s", "ms", "parsec", None)] == [
        "micrometer", "micrometer", "nanometer", "second", "millisecond", "parsec", None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"scale": 0}, r"scale of the axis 'y' is 0.*more than 0"),
        ({"scale": -1.5}, "scale of the axis 'y'"),
        ({"scale": float("nan")}, "scale of the axis 'y' is nan.*finite"),
        ({"scale": "2"}, "scale of the axis 'y' is '2'"),
        ({"translation": float("inf")}, "translation of the axis 'y'"),
        ({"factor": 3}, r"factor of the axis 'y' is 3.*must be 2"),
        ({"name": ""}, "has the name ''"),
        ({"units": "um"}, r"'units'.*'unit'"),
    ],
)
def test_axes_that_are_wrong_are_named(settings: Any, said: str, tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path)
    array = group.create_array("0", shape=(0, 16, 16), chunks=(1, 4, 4), shards=(2, 8, 8), dtype="u1")
    with pytest.raises((ValueError, TypeError), match=said):
        MultiscaleWriter(array, axes=["t", {"name": "y"} | settings, "x"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "zarr.json"]


@pytest.mark.parametrize("levels", [0, -1, 65, 2**70, 20])
def test_levels_that_are_too_many_are_named(levels: int, tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path)
    array = group.create_array("0", shape=(0, 16, 16), chunks=(1, 4, 4), shards=(2, 8, 8), dtype="u1")
    if levels == 20:
        # Levels of one element are legal.
        with MultiscaleWriter(array, axes="tyx", levels=levels) as writer:
            writer.append(np.ones((2, 16, 16), "u1"))
        assert zarr.open_group(tmp_path)["19"].shape == (2, 1, 1)
        return
    with pytest.raises(ValueError, match=rf"`levels` is {levels}, and must be 1 to 64"):
        MultiscaleWriter(array, axes="tyx", levels=levels)
