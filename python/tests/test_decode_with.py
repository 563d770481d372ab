"""Arrays that the command does not decode: read by zarr-python, and written by this package."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
import zarrs_cuda
from numcodecs.abc import Codec
from numcodecs.registry import register_codec
from numcodecs.vlen import VLenArray

DECODE: dict[str, Any] = {"decode_with": "zarr-python"}
COMMAND = [sys.executable, "-m", "zarrs_cuda", "reencode", "--decode-with", "zarr-python"]
NUMBERS = (np.arange(600.0).reshape(20, 30) / 7).astype("float64")
TEXTS = np.array(["a", "bb", "", "ü"] * 6, dtype=object)


class Turned(Codec):  # type: ignore[misc]
    """A codec that no other process knows."""

    codec_id = "turned"

    def encode(self, buf: Any) -> Any:
        return bytes(np.asarray(buf).tobytes("A"))[::-1]

    def decode(self, buf: Any, out: Any = None) -> Any:  # noqa: ARG002
        return bytes(buf)[::-1]


class Unsteady(Turned):
    """A codec that decodes otherwise each time."""

    codec_id = "unsteady"
    times = 0

    def decode(self, buf: Any, out: Any = None) -> Any:  # noqa: ARG002
        Unsteady.times += 1
        return bytes([Unsteady.times % 256]) + bytes(buf)[1:]


register_codec(Turned)
register_codec(Unsteady)


def v2(path: Path, data: np.ndarray[Any, Any], **kwargs: Any) -> None:
    """Make an array of v2 in small chunks."""
    chunks = tuple(max(n // 3, 1) for n in data.shape)
    array = zarr.create_array(
        path,
        shape=data.shape,
        dtype=data.dtype,
        chunks=chunks,
        zarr_format=2,
        **{"compressors": None, **kwargs},
    )
    array.attrs["note"] = [1, None, "x"]
    array[...] = data


def objects(path: Path, codec: Any, values: np.ndarray[Any, Any]) -> None:
    """Make an array of one chunk of objects, as zarr-python 2 wrote it."""
    path.mkdir(parents=True)
    text: dict[str, Any] = {"shape": values.shape, "chunks": values.shape, "dtype": "|O", "zarr_format": 2}
    text |= {"fill_value": None, "order": "C", "compressor": None, "filters": [codec.get_config()]}
    (path / ".zarray").write_text(json.dumps(text))
    (path / "0").write_bytes(bytes(codec.encode(values)))


def left(folder: Path) -> list[Path]:
    return list(folder.glob(".*.partial"))


@pytest.mark.parametrize(
    ("filters", "data"),
    [
        ([numcodecs.Base64()], NUMBERS),
        ([numcodecs.checksum32.JenkinsLookup3()], NUMBERS),
        ([Turned()], NUMBERS),
        ([numcodecs.FixedScaleOffset(1000.3, 7, dtype="f8", astype="f4")], NUMBERS),
        ([numcodecs.Categorize(["a", "bb"], dtype="U2")], np.array(["a", "bb", ""] * 5, dtype="U2")),
        ([numcodecs.Base64()], NUMBERS.astype(">f4")),
        ([numcodecs.Base64()], np.array([-0.0, 0.0, np.nan, -np.nan, np.inf] * 3)),
        ([numcodecs.Base64()], np.arange(40).astype("M8[s]")),
        ([numcodecs.Base64()], np.array([b"a", b"bcd"] * 9, dtype="S3")),
        ([numcodecs.Base64()], np.array([(1, 2.5)] * 9, dtype=[("a", "<i4"), ("b", "<f8")])),
        ([numcodecs.Base64()], np.array(7, dtype="int16")),
    ],
)
def test_codecs(tmp_path: Path, filters: list[Any], data: np.ndarray[Any, Any]) -> None:
    v2(tmp_path / "old", data, filters=filters)
    report = zarrs_cuda.reencode(tmp_path / "old", tmp_path / "new", **DECODE, verify=True)
    assert report["verified"]
    assert report["decoded_with"].startswith("zarr-python 3")
    old, new = (zarr.open_array(tmp_path / name, mode="r") for name in ("old", "new"))
    assert new.metadata.zarr_format == 3
    assert new.shards is not None
    assert new.attrs["note"] == [1, None, "x"]
    wanted, found = np.asarray(old[...]), np.asarray(new[...])
    assert found.dtype.newbyteorder("=") == wanted.dtype.newbyteorder("=")
    assert found.tobytes() == wanted.astype(found.dtype).tobytes()
    assert not left(tmp_path)


@pytest.mark.parametrize(
    "codec",
    [
        numcodecs.JSON(),
        numcodecs.MsgPack(),
        numcodecs.Categorize(["a", "bb", "ü"], dtype=object),
        numcodecs.VLenUTF8(),
    ],
)
def test_texts(tmp_path: Path, codec: Any) -> None:
    objects(tmp_path / "old", codec, TEXTS)
    zarrs_cuda.reencode(tmp_path / "old", tmp_path / "new", **DECODE, shard=(12,), subchunk=(4,), verify=True)
    new = zarr.open_array(tmp_path / "new", mode="r")
    assert json.loads((tmp_path / "new/zarr.json").read_text())["data_type"] == "string"
    assert (new.shards, new.chunks) == ((12,), (4,))
    assert list(np.asarray(new[...])) == list(TEXTS)


def test_texts_in_the_other_order(tmp_path: Path) -> None:
    values = np.array([["a", "bb", ""], ["ü", "d", "e"]], dtype=object)
    objects(tmp_path / "old", numcodecs.VLenUTF8(), values)
    text = json.loads((tmp_path / "old/.zarray").read_text())
    (tmp_path / "old/.zarray").write_text(json.dumps({**text, "order": "F"}))
    (tmp_path / "old/0").unlink()
    encoded = numcodecs.VLenUTF8().encode(values.ravel(order="F"))
    (tmp_path / "old/0.0").write_bytes(bytes(encoded))
    with pytest.raises(RuntimeError, match="order F"):
        zarrs_cuda.reencode(tmp_path / "old", tmp_path / "new")
    zarrs_cuda.reencode(tmp_path / "old", tmp_path / "new", **DECODE, verify=True)
    new = zarr.open_array(tmp_path / "new", mode="r")
    assert np.asarray(new[...]).tolist() == values.tolist()


@pytest.mark.parametrize(
    ("codec", "values", "why"),
    [
        (numcodecs.Pickle(), TEXTS, "`pickle` would run any code"),
        (numcodecs.JSON(), np.array(["a", {"b": 1}], dtype=object), "`json2` decodes is of the type dict"),
        (numcodecs.MsgPack(), np.array(["a", 5], dtype=object), "`msgpack2` decodes is of the type int"),
        (VLenArray("i4"), np.array([np.arange(2), None], dtype=object)[:1], r"\(vlen-array\)"),
    ],
)
def test_objects_that_are_no_texts_are_refused(
    tmp_path: Path, codec: Any, values: np.ndarray[Any, Any], why: str
) -> None:
    objects(tmp_path / "old", codec, values)
    with pytest.raises(RuntimeError, match=why):
        zarrs_cuda.reencode(tmp_path / "old", tmp_path / "new", **DECODE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]


def test_an_object_that_is_no_text_in_the_last_chunk(tmp_path: Path) -> None:
    objects(tmp_path / "old", numcodecs.JSON(), TEXTS)
    text = json.loads((tmp_path / "old/.zarray").read_text())
    (tmp_path / "old/.zarray").write_text(json.dumps({**text, "shape": [48]}))
    (tmp_path / "old/1").write_bytes(numcodecs.JSON().encode(np.array([*TEXTS[1:], [1]], dtype=object)))
    with pytest.raises(RuntimeError, match=r"\[0:48\].*of the type list.*`destination` is as it was"):
        zarrs_cuda.reencode(tmp_path / "old", tmp_path / "new", **DECODE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]


def test_codecs_of_v3(tmp_path: Path) -> None:
    old = zarr.create_array(
        tmp_path / "old",
        data=NUMBERS,
        chunks=(5, 10),
        shards=(10, 30),
        filters=[zarr.codecs.numcodecs.Delta(dtype="<f8")],
        compressors=[zarr.codecs.numcodecs.JenkinsLookup3()],
        dimension_names=["y", "x"],
        fill_value=np.nan,
    )
    with pytest.raises(RuntimeError):
        zarrs_cuda.reencode(tmp_path / "old", tmp_path / "new")
    zarrs_cuda.reencode(tmp_path / "old", tmp_path / "new", **DECODE, verify=True, keep_chunks=True)
    new = zarr.open_array(tmp_path / "new", mode="r")
    assert new.chunks == (5, 10)
    assert new.metadata.dimension_names == ("y", "x")  # type: ignore[union-attr]
    assert np.isnan(new.fill_value)
    np.testing.assert_array_equal(new[...], old[...])


def test_what_differs_is_found(tmp_path: Path) -> None:
    v2(tmp_path / "old", NUMBERS, filters=[Unsteady()])
    with pytest.raises(RuntimeError, match=r"elements \[0:20, 0:30\] .*old differ in `destination`") as error:
        zarrs_cuda.reencode(tmp_path / "old", tmp_path / "new", **DECODE, verify=True)
    assert error.value.code == 3  # type: ignore[attr-defined]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """A group, one array of which nobody reads."""
    zarr.create_group(tmp_path / "old", zarr_format=2, attributes={"of": "all"})
    zarr.create_group(tmp_path / "old/deep", zarr_format=2)
    v2(tmp_path / "old/a", NUMBERS, filters=[numcodecs.Base64()])
    v2(tmp_path / "old/deep/b", NUMBERS + 1, filters=[numcodecs.Base64()])
    text = json.loads((tmp_path / "old/a/.zattrs").read_text())
    (tmp_path / "old/a/.zattrs").write_text(json.dumps({**text, "_ARRAY_DIMENSIONS": ["y", "x"]}))
    return tmp_path / "old"


def test_a_group(group: Path, tmp_path: Path) -> None:
    zarr.consolidate_metadata(group)
    options: dict[str, Any] = {"recursive": True, "shape_for": {"**/b": ((8, 8), (4, 4))}, "verify": True}
    report = zarrs_cuda.reencode(group, tmp_path / "new", **DECODE, **options)
    assert [Path(done["input"]).name for done in report["arrays"]] == ["a", "b"]
    assert str(tmp_path / "new/deep/b") in json.dumps(report)
    assert ".partial" not in json.dumps(report)
    new = zarr.open_consolidated(tmp_path / "new")
    assert new.attrs["of"] == "all"
    a, b = new["a"], new["deep/b"]
    assert isinstance(a, zarr.Array)
    assert isinstance(b, zarr.Array)
    assert (b.shards, b.chunks) == ((8, 8), (4, 4))
    assert a.metadata.dimension_names == ("y", "x")  # type: ignore[union-attr]
    np.testing.assert_array_equal(a[...], NUMBERS)
    np.testing.assert_array_equal(b[...], NUMBERS + 1)


def test_arrays_that_cannot_be_read_are_left_out_if_asked(group: Path, tmp_path: Path) -> None:
    objects(group / "deep/c", numcodecs.Pickle(), TEXTS)
    with pytest.raises(RuntimeError, match=r"deep/c: .*pickle.*`keep_going=True`"):
        zarrs_cuda.reencode(group, tmp_path / "new", **DECODE, recursive=True)
    assert not (tmp_path / "new").exists()
    arguments = [str(group), str(tmp_path / "new"), "--recursive", "--keep-going"]
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "deep/c is left out" in done.stderr
    new = zarr.open_group(tmp_path / "new", mode="r")
    assert sorted(name for name, _ in new.members(max_depth=None)) == ["a", "deep", "deep/b"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"resume": True}, "`resume=True` is not with `decode_with`"),
        ({"overwrite": True}, "`overwrite=True` is not with `decode_with`"),
        ({"dry_run": True}, "`dry_run=True` is not with `decode_with`"),
        ({"part": (1, 2)}, "leave out `client`, `part`"),
        ({"codec": "lzw"}, "lzw"),
        ({"memory": "much"}, "`memory`"),
        ({"threads": 0}, "`threads`"),
        ({"decode_with": "tensorstore"}, "`decode_with`"),
    ],
)
def test_wrong_arguments(tmp_path: Path, wrong: dict[str, Any], words: str) -> None:
    v2(tmp_path / "old", NUMBERS, filters=[numcodecs.Base64()])
    with pytest.raises(ValueError, match=words):
        zarrs_cuda.reencode(tmp_path / "old", tmp_path / "new", **{**DECODE, **wrong})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["old", "new", "--nonsense"], 2, "--nonsense"),
        (["old"], 2, "out"),
        (["none", "new"], 1, "cannot open none"),
        (["old", "full"], 1, "no empty directory"),
        (["old", "old/new"], 1, "is in IN"),
        (["old", "new", "--part", "1/2"], 2, "--part"),
        (["empty", "new"], 1, "no chunk of empty is stored"),
        (["old", "new", "--memory", "100"], 1, "--memory allows 100 B"),
        (["old", "s3://bucket/new"], 1, "OUT is a directory"),
    ],
)
def test_wrong_uses_of_the_command(tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    v2(tmp_path / "old", NUMBERS, filters=[numcodecs.Base64()])
    zarr.create_array(tmp_path / "empty", shape=(9,), chunks=(3,), dtype="u1", zarr_format=2)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("")
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full", "old"]
    assert not left(tmp_path / "old")


@pytest.mark.parametrize("with_signal", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_interrupted(tmp_path: Path, with_signal: signal.Signals) -> None:
    v2(tmp_path / "old", NUMBERS, filters=[numcodecs.Base64()])
    arguments = [str(tmp_path / "old"), str(tmp_path / "new"), "--shard=1,2", "--subchunk=1,1"]
    process = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not any(tmp_path.glob(".new.*.partial/out/c/*/*")):
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(with_signal)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGKILL if with_signal == signal.SIGKILL else 130), said
    assert not (tmp_path / "new").exists()
    # Only a process that is killed leaves what it has begun.
    assert len(left(tmp_path)) == (1 if with_signal == signal.SIGKILL else 0)
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=True)
    assert ("of another run" in done.stderr) == (with_signal == signal.SIGKILL)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "new", mode="r")[...], NUMBERS)


MEASURED = """
import resource, sys
from pathlib import Path
import zarrs_cuda
where = Path(sys.argv[1])
zarrs_cuda.reencode(where / "small", where / "warm", decode_with="zarr-python", verify=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
zarrs_cuda.reencode(where / "old", where / "new", decode_with="zarr-python", verify=True, memory="32MiB",
                    shard=(1024, 1024, 16), subchunk=(64, 64, 16))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory(tmp_path: Path) -> None:
    values = np.random.default_rng(1).integers(0, 1 << 60, size=(1024, 1024, 16))
    for name, data in {"small": NUMBERS, "old": values}.items():
        chunks = tuple(min(64, n) for n in data.shape)
        zarr.create_array(
            tmp_path / name,
            data=data,
            chunks=chunks,
            zarr_format=2,
            filters=[numcodecs.Base64()],
            compressors=None,
        )
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path)], capture_output=True, text=True, check=True
    )
    # The shard has 128 MiB.
    assert int(done.stdout) < (32 + 16) << 10
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "new", mode="r")[...], values)


@pytest.mark.parametrize("command", [COMMAND, COMMAND[:-2]])
def test_the_help_has_the_option(command: list[str]) -> None:
    """The help of the option is found with the option, too."""
    helped = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    assert "--decode-with zarr-python\n" in helped
    assert "--subchunk <" in helped
