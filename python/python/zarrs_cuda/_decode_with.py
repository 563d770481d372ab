"""``reencode --decode-with zarr-python``: arrays that zarr-python decodes, and this package encodes.

1. The metadata of IN are copied, as of arrays without codecs and chunks (`_stand_in.py`).
2. The command re-encodes them in a directory beside OUT. So shapes and metadata are those that it chooses.
3. Elements are read by zarr-python, and written shard by shard.
4. All is synced, and the directory is renamed to OUT. Before, nothing is there.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import zarr

from zarrs_cuda import _settings, _stand_in
from zarrs_cuda._stand_in import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

DONE, FAILED, USAGE, DIFFERENT, INTERRUPTED = 0, 1, 2, 3, 130

_OURS = "zarrs_cuda.CodecPipeline"
_THEIRS = "zarr.core.codec_pipeline.BatchedCodecPipeline"

# Options of the command that choose shapes and metadata: it gets them as they are.
_VALUES = ("shard", "subchunk", "shard-size", "subchunk-size", "codec", "index", "include", "shape-for")
_SWITCHES = ("recursive", "keep-chunks", "consolidate-metadata", "keep-going")
_REFUSED = {
    "resume": "an interrupted run leaves nothing in OUT: run it again",
    "overwrite": "delete OUT before, or name another one",
    "part": "one process makes the whole: name some arrays by --include in each of several runs",
    "prepare": "one process makes the whole: name some arrays by --include in each of several runs",
    "dry-run": "--dry-run is for arrays that the command decodes",
    "explain": "`zarrs_cuda.explain` tells it of the new array",
    "backend": "GPUs are set by `zarrs_cuda.configure`, or by the variables ZARRS_CUDA_…",
    "devices": "GPUs are set by `zarrs_cuda.configure`, or by the variables ZARRS_CUDA_…",
}

HELP = f"""
Of the Python package alone:
      --decode-with zarr-python
          Decode IN by zarr-python, for codecs and data types that only Python has.
          Not with {", ".join(f"--{name}" for name in _REFUSED)}"""

# Bytes of an element of text or of a byte string, which has any length: so many are expected.
_TEXT = 128
# How often a chunk of IN is in memory while it is decoded, and the elements of a box while they are written.
_DECODED, _WRITTEN = 3, 2


class FailedError(RuntimeError):
    """What could not be done, what to do, and the exit code."""

    def __init__(self, error: str, remedy: str | None = None, code: int = FAILED) -> None:
        super().__init__(error if remedy is None else f"{error}. {remedy}")
        self.error, self.remedy, self.code = error, remedy, code


class _Usage(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def is_asked(words: Sequence[str]) -> bool:
    """Return whether arguments of the command have the option `--decode-with`."""
    options = itertools.takewhile(lambda word: word != "--", words)
    return any(word.split("=", 1)[0] == "--decode-with" for word in options)


def is_help_asked(words: Sequence[str]) -> bool:
    """Return whether arguments of the command ask for the help of ``reencode``."""
    return words[:1] == ["reencode"] and not {"-h", "--help"}.isdisjoint(words)


def without(words: Sequence[str]) -> list[str]:
    """Return the arguments without the option `--decode-with` and its value."""
    kept: list[str] = []
    for word, before in zip(words, ["", *words], strict=False):
        if word.split("=", 1)[0] != "--decode-with" and before != "--decode-with":
            kept.append(word)
    return kept


def command(words: Sequence[str]) -> int:
    """Run the command with these arguments, print what it did, and return the exit code."""
    is_json = "--json" in words
    try:
        report = reencode(words, (lambda _: None) if is_json else _tell)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    except FailedError as failure:
        if is_json:
            remedy = {} if failure.remedy is None else {"help": failure.remedy}
            print(json.dumps({"error": failure.error, **remedy, "exit_code": failure.code}, indent=2))
        else:
            print(f"error: {failure.error}", file=sys.stderr)
            if failure.remedy is not None:
                print(f"help: {failure.remedy}", file=sys.stderr)
        return failure.code
    except KeyboardInterrupt:
        print("interrupted: nothing is in OUT", file=sys.stderr)
        return INTERRUPTED
    if is_json:
        print(json.dumps(report, indent=2))
    return FAILED if report.get("left_out") else DONE


def reencode(words: Sequence[str], tell: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Re-encode an array or a group that zarr-python reads, and return the report.

    Notes are warnings, unless ``tell`` takes them with all else that was done.

    Raises
    ------
    ValueError
        If the arguments are none of this way to decode.
    FailedError
        If something cannot be done. Then OUT is as it was.
    """
    asked = _parsed(words)
    if "://" in asked.out:
        raise FailedError(f"cannot write {asked.out}", "OUT is a directory with --decode-with")
    tell = tell or _warn
    out = Path(os.path.realpath(asked.out))
    _must_be_free(asked.input, out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
    except OSError as error:
        raise FailedError(f"cannot make a directory beside {asked.out}: {error}") from error
    for left in sorted(out.parent.glob(f".{out.name}.*.partial")):
        if left != folder:
            tell(f"note: {left} is of another run: delete it if that run has ended")
    try:
        with zarr.config.set(_configuration(asked)):
            report = _Run(asked, folder, tell).run()
        _sync(folder / "out")
        # An empty directory is replaced, and another one is an error.
        (folder / "out").rename(out)
        _sync_folder(out.parent)
    except OSError as error:
        raise FailedError(f"cannot write {asked.out}: {error}", "OUT is as it was") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return report


def _tell(line: str) -> None:
    print(line, file=sys.stderr if line.startswith("note:") else sys.stdout, flush=True)


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    if not words or words[0] != "reencode":
        raise ValueError("--decode-with is an option of `python -m zarrs_cuda reencode`")
    parser = _Usage(prog="reencode", allow_abbrev=False, add_help=False)
    parser.add_argument("input")
    parser.add_argument("out")
    parser.add_argument("--decode-with", choices=["zarr-python"], required=True)
    for name in _VALUES:
        parser.add_argument(f"--{name}", action="append", default=[])
    for name in (*_SWITCHES, "verify", "allow-empty", "json"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--threads", type=lambda text: _settings.limits(None, int(text))[1])
    parser.add_argument("--memory", type=lambda text: _settings.size("memory", text))
    for word in itertools.takewhile(lambda word: word != "--", words):
        name = word.split("=", 1)[0].removeprefix("--")
        if word.startswith("--") and name in _REFUSED:
            raise ValueError(f"--{name} is not with --decode-with: {_REFUSED[name]}")
    return parser.parse_args(list(words[1:]))


def _must_be_free(source: str, out: Path) -> None:
    real = Path(os.path.realpath(source))
    if "://" not in source and real.exists() and (out == real or real in out.parents):
        raise FailedError(f"OUT ({out}) is in IN", "name another OUT")
    if os.path.lexists(out) and not (out.is_dir() and not any(out.iterdir())):
        raise FailedError(f"{out} is there, and no empty directory", "name another OUT, or delete it")


def _configuration(asked: argparse.Namespace) -> dict[str, Any]:
    threads = {} if asked.threads is None else {"threading.max_workers": asked.threads}
    return {**threads, "codec_pipeline.sync": True, "codec_pipeline.strict": True}


def _warn(line: str) -> None:
    from zarrs_cuda import _tasks

    if line.startswith("note: "):
        _tasks.warn(line.removeprefix("note: "))


class _Run(NamedTuple):
    """A run, its directory, and whom it tells what it has done."""

    asked: argparse.Namespace
    folder: Path
    tell: Callable[[str], None]

    def run(self) -> dict[str, Any]:
        """Make the output in the directory of this run, and return the report."""
        nodes = self._nodes()
        report = self._plan(nodes)
        for path, done in _by_path(report, self.asked.input).items():
            with _named(_joined(self.asked.input, path)):
                self._copy(path, nodes.arrays[path], done)
        report["decoded_with"] = f"zarr-python {zarr.__version__}"
        report.setdefault("left_out", [])
        report["left_out"] += [
            {"input": _joined(self.asked.input, path), "error": why} for path, why in nodes.refused.items()
        ]
        for path, why in nodes.refused.items():
            self.tell(f"note: {_joined(self.asked.input, path)} is left out: {why}")
        return report

    def _nodes(self) -> _stand_in.Nodes:
        name = self.asked.input
        try:
            with zarr.config.set({"codec_pipeline.path": _THEIRS}):
                source = _stand_in.open_input(name)
                nodes = _stand_in.write(source, self.folder / "in", recursive=self.asked.recursive)
        except (RefusedError, OSError, ValueError, ImportError) as error:
            raise FailedError(f"cannot open {name}: {error}") from error
        if nodes.refused and not (self.asked.keep_going and self.asked.recursive):
            reasons = "; ".join(f"{_joined(name, path)}: {why}" for path, why in nodes.refused.items())
            remedy = "--keep-going leaves such arrays out" if self.asked.recursive else None
            raise FailedError(f"zarr-python cannot read {reasons}", remedy)
        for path in nodes.strangers:
            self.tell(f"note: {_joined(name, path)} is not copied: it is no part of the hierarchy")
        return nodes

    def _plan(self, nodes: _stand_in.Nodes) -> dict[str, Any]:
        """Let the command make the output, of arrays without chunks."""
        from zarrs_cuda import _tasks

        asked = vars(self.asked)
        words = ["reencode", "--allow-empty"]
        words += [f"--{name}" for name in _SWITCHES if asked[name.replace("-", "_")]]
        for name in _VALUES:
            words += [f"--{name}={value}" for value in asked[name.replace("-", "_")]]
        words += ["--", str(self.folder / "in"), str(self.folder / "out")]
        code, report, message = _tasks.run_any(words)
        places = (str(self.folder / "in"), self.asked.input), (str(self.folder / "out"), self.asked.out)
        for here, there in places:
            message = message.replace(here, str(there))
            report = json.loads(json.dumps(report).replace(json.dumps(here)[1:-1], json.dumps(there)[1:-1]))
        if code == USAGE:
            raise ValueError(message)
        if code != DONE and not (self.asked.keep_going and report.get("left_out")):
            raise FailedError(message)
        # What is left out cannot be added here.
        (self.folder / "out" / "zarr.json.incomplete").unlink(missing_ok=True)
        if not nodes.arrays and not report:
            raise FailedError(f"{self.asked.input} has no array that zarr-python reads")
        return report

    def _copy(self, path: str, source: zarr.Array[Any], done: dict[str, Any]) -> None:
        name = _joined(self.asked.input, path)
        begun = time.monotonic()
        done["chunks"] = self._stored(name, source)
        budget = self.asked.memory or _quarter()
        out = _opened(self.folder / "out" / path, _OURS, "rewrite")
        size = _TEXT if source.dtype.kind in "TO" else source.dtype.itemsize
        if not _are_alike(source.dtype, out.dtype):
            raise FailedError(
                f"zarr-python reads {source.dtype} from {name}, and the new array has {out.dtype}",
                "convert the array with a program of yours",
            )
        # A verification has the elements of both arrays.
        of_box = budget // (2 * _WRITTEN)
        shard = out.shards or out.chunks
        box = _box(shard, out.chunks, of_box // size)
        chunk = math.prod(source.shards or source.chunks) * size * _DECODED
        least = max(math.prod(box) * size * 2 * _WRITTEN, 2 * chunk)
        if least > budget:
            raise FailedError(
                f"{name} takes {least} B of memory, for a chunk of {source.shards or source.chunks} elements "
                f"or a box of {box}, and --memory allows {budget} B",
                "raise --memory",
            )
        if box != shard and size != _TEXT:
            # Nobody reads the shard yet, which is written subchunk by subchunk.
            out = _opened(self.folder / "out" / path, _OURS, "in_place")
        at_once = int(min(max(budget // 2 // max(chunk, 1), 1), zarr.config.get("async.concurrency")))
        with zarr.config.set({"async.concurrency": at_once}):
            for region in _boxes(out.shape, shard, box):
                with _named(f"the elements {_text(region)} of {name}"):
                    out[region] = source[region]
            if self.asked.verify:
                new = _opened(self.folder / "out" / path, _THEIRS, "rewrite")
                for region in _boxes(out.shape, shard, box):
                    with _named(f"the elements {_text(region)} of {name}"):
                        _compare(source, new, region, name)
        done["verified"] = bool(self.asked.verify)
        done["copied"] = {
            "bytes_decoded": math.prod(source.shape) * source.dtype.itemsize,
            "seconds": time.monotonic() - begun,
        }
        chunks = done["chunks"]
        self.tell(f"{name} -> {_joined(self.asked.out, path)}")
        if chunks is not None:
            self.tell(f"{chunks['stored']} of {chunks['of']} chunks stored")
        verified = ", verified" if self.asked.verify else ""
        self.tell(f"array {list(out.shape)}, shards {list(shard)}, subchunks {list(out.chunks)}{verified}")

    def _stored(self, name: str, source: zarr.Array[Any]) -> dict[str, int] | None:
        """Count the stored chunks. An array without any is rather a wrong place than one of fill values."""
        if not source.store.supports_listing:
            return None
        stored, of = int(source.nchunks_initialized), int(source.nchunks)
        if of and not stored and not self.asked.allow_empty:
            if not self.asked.recursive:
                raise FailedError(
                    f"no chunk of {name} is stored, of {of}: every element would be the fill value",
                    "look whether this is the right place; --allow-empty takes an array of fill values",
                )
            self.tell(f"note: no chunk of {name} is stored, of {of}")
        return {"stored": stored, "of": of}


def _by_path(report: dict[str, Any], source: str) -> dict[str, dict[str, Any]]:
    """Return the reports of arrays, by their paths in IN."""
    arrays = report.get("arrays")
    if arrays is None:
        return {"": report}
    return {done["input"].removeprefix(str(source)).strip("/"): done for done in arrays}


def _joined(place: str, path: str) -> str:
    return f"{str(place).rstrip('/')}/{path}" if path else str(place)


def _opened(path: Path, pipeline: str, mode: str) -> zarr.Array[Any]:
    with zarr.config.set({"codec_pipeline.path": pipeline, "codec_pipeline.shards": mode}):
        return zarr.open_array(path, mode="r+")


def _are_alike(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    if one.kind in "TO" or other.kind in "TO":
        return one.kind == other.kind
    return one.newbyteorder("=") == other.newbyteorder("=")


def _box(shard: tuple[int, ...], subchunk: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Return the largest box of whole subchunks that has at most so many elements: long in the last axes.

    It has one subchunk at least.
    """
    box = list(shard)
    for axis, (length, edge) in enumerate(zip(shard, subchunk, strict=True)):
        rest = math.prod(box) // max(length, 1)
        fitting = most // max(rest, 1) // edge * edge
        box[axis] = min(length, max(fitting, edge))
        if box[axis] >= edge and math.prod(box) <= most:
            break
    return tuple(box)


def _boxes(
    shape: tuple[int, ...], shard: tuple[int, ...], box: tuple[int, ...]
) -> Iterator[tuple[slice, ...]]:
    """Yield the boxes of an array, those of one shard after those of another."""
    corners = itertools.product(*(range(0, n, s) for n, s in zip(shape, shard, strict=True)))
    for corner in corners:
        ends = [min(n, at + s) for n, at, s in zip(shape, corner, shard, strict=True)]
        starts = (range(at, end, b) for at, end, b in zip(corner, ends, box, strict=True))
        for start in itertools.product(*starts):
            yield tuple(slice(at, min(at + b, e)) for at, b, e in zip(start, box, ends, strict=True))


def _text(region: tuple[slice, ...]) -> str:
    return "[" + ", ".join(f"{axis.start}:{axis.stop}" for axis in region) + "]"


@contextlib.contextmanager
def _named(what: str) -> Iterator[None]:
    """Say in errors of codecs, which may be of any package, what was converted."""
    try:
        yield
    except FailedError:
        raise
    except Exception as error:
        why = str(error) or type(error).__name__
        raise FailedError(f"cannot convert {what}: {why}", "OUT is as it was") from error


def _compare(one: zarr.Array[Any], other: zarr.Array[Any], region: tuple[slice, ...], name: str) -> None:
    wanted, found = np.asarray(one[region]), np.asarray(other[region])
    if wanted.dtype.kind in "TO":
        is_same = bool(np.all(wanted == found))
    else:
        # Every bit, also of NaN.
        wanted = np.ascontiguousarray(wanted.astype(found.dtype, copy=False))
        one_of, other_of = (bits.reshape(-1).view(np.uint8) for bits in (wanted, np.ascontiguousarray(found)))
        is_same = np.array_equal(one_of, other_of)
    if not is_same:
        raise FailedError(
            f"the elements {_text(region)} of {name} differ in OUT", "OUT is as it was", DIFFERENT
        )


def _quarter() -> int:
    """Return a quarter of this machine's memory, or of what this process may use."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        most = min(most, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return most // 4


def _sync(folder: Path) -> None:
    """Sync the directories of an output; its files are synced already."""
    for path, _, _ in os.walk(folder):
        _sync_folder(Path(path))


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
