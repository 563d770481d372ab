"""A microscope: a camera that is stopped in every way, followers, two writers at once, and plates.

A camera appends frames in bursts and pauses to an array, or to an image with its levels, in a program of its
own. It is killed, interrupted or fails, and is started again, behind what is stored. Other programs follow
meanwhile. Every frame says its number and which start of the camera took it, so that the judge knows each
element: what a writer said to be stored is there, what it had to store at its end, too, and followers never
see another value or a fill value. At the end all levels are compared with those of numpy.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
import zarrs_cuda
from common import (
    OURS,
    THEIRS,
    Notes,
    Program,
    Programs,
    Round,
    WrongError,
    demand,
    opened,
    raised_by,
    run,
    same,
    settings,
)

if TYPE_CHECKING:
    from common import Values

REDUCTIONS = ("mean", "minimum", "maximum", "median", "mode", "decimate")
# How a camera ends, and with which exit code.
ENDS = {
    "finish": 0,
    "exception": 1,
    "deleted": 0,
    "forgotten": 0,
    "SIGINT": -signal.SIGINT,
    "SIGTERM with the lines of the guide": 128 + signal.SIGTERM,
    "SIGKILL": -signal.SIGKILL,
    "SIGTERM": -signal.SIGTERM,
    "SIGKILL in a pause": -signal.SIGKILL,
    "SIGTERM in a pause": -signal.SIGTERM,
    "os._exit in a pause": 7,
}
# Those at which every complete shard is stored.
GRACEFUL = ("exception", "deleted", "forgotten", "SIGINT", "SIGTERM with the lines of the guide")
MOST_OF_A_BURST = 8


@dataclass(frozen=True)
class Camera:
    """A camera, and the array that it writes."""

    path: Path
    kind: str
    height: int
    width: int
    shard: int
    reduction: str
    factors: tuple[int, int, int]
    flush_after: float | None
    compressors: Any
    # Which start this is, and what it does.
    start: int = 0
    frames: int = 0
    end: str = "finish"
    seed: int = 0

    @property
    def level0(self) -> Path:
        """Where the frames are."""
        return self.path / "0"

    def create(self) -> None:
        """Make the array, without frames, in its group."""
        chunks = (max(self.shard // 4, 1), 16, 16)
        rounded = (-(-self.height // 16) * 16, -(-self.width // 16) * 16)
        zarr.create_group(self.path).create_array(
            "0",
            shape=(0, self.height, self.width),
            chunks=chunks,
            shards=(self.shard, *rounded),
            dtype="uint16",
            compressors=self.compressors,
            dimension_names=["t", "y", "x"],
        )

    def border(self, length: int) -> int:
        """Return the last border of a shard at or before a slice."""
        return length - length % self.shard

    def writer(self, array: zarr.Array[Any], first: int | None) -> Any:
        """Make a writer that begins at a slice."""
        if self.kind == "ArrayWriter":
            return zarrs_cuda.ArrayWriter(array, start=first, flush_after=self.flush_after)
        axes = [
            zarrs_cuda.Axis(name, factor=factor) for name, factor in zip("tyx", self.factors, strict=True)
        ]
        return zarrs_cuda.MultiscaleWriter(
            array,
            axes=axes,
            levels=3,
            reduction=self.reduction,
            start=first,
            flush_after=self.flush_after,
        )

    def frame(self, number: int, start: int) -> Values:
        """Make the frame with a number as it was taken after a start: no element is the fill value."""
        y, x = np.ogrid[: self.height, : self.width]
        frame = ((y * 31 + x * 17 + (y * x) % 251 + number * 101 + start * 7919) % 16381 + 1).astype("uint16")
        frame[0, 0], frame[0, 1] = number + 1, start + 1
        return frame

    def taken(self, first: int, count: int, start: int) -> Values:
        """Make some frames."""
        return np.stack([self.frame(number, start) for number in range(first, first + count)])


def safe(writer: Any, appended: int) -> int:
    """Return below which frame a kill loses nothing, of an array with so many."""
    now = writer.progress()
    level0 = now[0] if isinstance(now, list) else now
    return int(appended - level0["at_risk"])


class CameraError(Exception):
    """The camera has failed."""


def acquire(camera: Camera, notes: Notes) -> None:
    """Take frames: the program that is stopped."""
    if "lines of the guide" in camera.end:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    rng = np.random.default_rng(camera.seed)
    array = opened(camera.level0)
    length = array.shape[0]
    border = camera.border(length)
    again = array[border:]
    writer = camera.writer(array, border if len(again) else None)
    # A writer that was forgotten is there until the program ends.
    held: Any = writer if camera.end not in ("deleted", "forgotten") else contextlib.nullcontext()
    with held:
        notes.write(begins=length)
        if len(again):
            writer.append(again)
        number = length
        while number < length + camera.frames:
            burst = min(int(rng.integers(1, MOST_OF_A_BURST, endpoint=True)), length + camera.frames - number)
            taken = camera.taken(number, burst, camera.start)
            writer.append(taken[0] if burst == 1 else taken)
            number += burst
            notes.write(appended=number, safe=safe(writer, number))
            if rng.random() < 0.2:
                # The pauses of the camera.
                time.sleep(rng.exponential(0.1))
        if "in a pause" in camera.end:
            while safe(writer, number) < camera.border(number):
                time.sleep(0.01)
            notes.write(rests=True)
            if "_exit" in camera.end:
                os._exit(7)
            signal.pause()
        if camera.end == "exception":
            raise CameraError
    if camera.end == "deleted":
        del writer
        stored = opened(camera.level0, THEIRS).shape[0]
        demand(stored >= camera.border(number), f"it was deleted, and {stored} of {number} frames are stored")
    elif camera.end == "forgotten":
        globals()["forgotten"] = writer
    notes.write(appended=number, ended=True)


def follow(camera: Camera, level: int, how: str, stop: Path, notes: Notes) -> None:
    """Read a level while it grows, and check every element: the program of a follower."""
    rng = np.random.default_rng(camera.seed + level)
    seen = checked = 0
    is_over = False
    while not is_over:
        is_over = stop.exists()
        length = followed(camera, level)
        first = min(seen, length) if rng.random() < 0.7 else int(rng.integers(0, length + 1))
        box = slice(first, min(length, first + 32))
        try:
            check_followed(camera, level, how, box)
        except WrongError:
            # A camera that starts again may cut lower levels, and make them again. It leaves level 0 alone.
            if level == 0:
                raise
            time.sleep(0.5)
            box = slice(first, min(followed(camera, level), box.stop))
            check_followed(camera, level, how, box)
            notes.write(again=first)
        seen, checked = max(seen, box.stop), checked + max(box.stop - box.start, 0)
        notes.write(checked=checked)
        time.sleep(0.02)


def followed(camera: Camera, level: int) -> int:
    """Return how many slices of a level and those above are behind the camera."""
    lengths = [opened(camera.path / str(at), THEIRS).shape[0] for at in range(level, -1, -1)]
    # What is in the last shard may be written once more, by the next start of the camera.
    return min(camera.border(length) for length in lengths)


def read_by(path: Path, how: str, box: slice) -> Values:
    """Read some slices in one of several ways."""
    if how == "ArrayReader":
        return zarrs_cuda.ArrayReader(opened(path)).read(box)
    values: Values = opened(path, THEIRS if how == "zarr-python" else OURS)[box]
    return values


def check_followed(camera: Camera, level: int, how: str, box: slice) -> None:
    if box.stop <= box.start:
        return
    top = read_by(camera.level0, how, box)
    starts = top[:, 0, 1].astype(int) - 1
    demand((starts >= 0).all(), f"{how}: level 0 has fill values in {box}")
    demand((np.diff(starts) >= 0).all(), f"{how}: the starts of the frames {box} are {starts}")
    expected = np.stack([camera.frame(box.start + at, start) for at, start in enumerate(starts)])
    same(top, expected, f"{how}: level 0, slices from {box.start} on")
    for lower in range(1, level + 1):
        expected = below(expected, camera.factors, camera.reduction)
        got = read_by(camera.path / str(lower), how, box)
        same(got, expected, f"{how}: level {lower}, slices from {box.start} on")


def below(values: Values, factors: tuple[int, ...], reduction: str) -> Values:
    """Make the level below one, as the guide defines it."""
    padding = [(0, -extent % factor) for extent, factor in zip(values.shape, factors, strict=True)]
    padded = np.pad(values.astype("float64"), padding, constant_values=np.nan)
    windows = np.stack(
        [
            padded[tuple(slice(first, None, factor) for first, factor in zip(offset, factors, strict=True))]
            for offset in np.ndindex(*factors)
        ]
    )
    count = (~np.isnan(windows)).sum(axis=0)
    match reduction:
        case "mean":
            # To the nearest, half to even; sums and halves are exact.
            made = np.rint(np.nansum(windows, axis=0) / count)
        case "minimum":
            made = np.nanmin(windows, axis=0)
        case "maximum":
            made = np.nanmax(windows, axis=0)
        case "median":
            ordered = np.sort(windows, axis=0)
            upper = np.take_along_axis(ordered, (count // 2)[None], axis=0)[0]
            lower = np.take_along_axis(ordered, ((count - 1) // 2)[None], axis=0)[0]
            made = np.rint((lower + upper) / 2)
        case "mode":
            often = (windows[:, None] == windows[None]).sum(axis=1)
            made = np.take_along_axis(windows, often.argmax(axis=0)[None], axis=0)[0]
        case _:
            made = windows[0]
    return made.astype(values.dtype)


def some_camera(of: Round) -> Camera:
    """Choose an array and a writer."""
    return Camera(
        path=of.root / "image.zarr",
        kind=of.one_of(["ArrayWriter", "MultiscaleWriter"]),
        height=of.some(20, 70),
        width=of.some(20, 90),
        shard=of.one_of([4, 8, 16]),
        reduction=of.one_of(REDUCTIONS),
        factors=(of.one_of([1, 1, 2]), 2, 2),
        flush_after=of.one_of([0.05, 0.3, 1.0, None]),
        compressors=of.one_of(["auto", None]),
    )


class Film:
    """The frames as they must be stored: which start of the camera took each."""

    def __init__(self, camera: Camera) -> None:
        self.camera = camera
        self.starts: list[int] = []

    def values(self) -> Values:
        """Return all frames."""
        frames = [self.camera.frame(number, start) for number, start in enumerate(self.starts)]
        return np.stack(frames) if frames else np.empty((0, self.camera.height, self.camera.width), "uint16")

    def judge(self, camera: Camera, notes: Notes) -> str:
        """Check what is stored after a start of the camera. Returns how it ended."""
        before, shard = len(self.starts), camera.shard
        appended = notes.last("appended", before)
        stored = opened(camera.level0, THEIRS).shape[0]
        what = (
            f"start {camera.start}, {camera.kind}, ended by {camera.end}: of {before} + {appended - before}"
        )
        # A writer of an image cuts it at the border where it begins.
        kept = before if camera.kind == "ArrayWriter" else camera.border(before)
        least = max(kept, notes.last("safe", 0))
        demand(stored >= least, f"{what} frames {stored} are stored, and {least} were safe")
        end = camera.end
        if notes.last("ended") and end not in ("deleted", "forgotten"):
            end = "finish"
        if end == "finish":
            demand(stored == appended, f"{what} frames {stored} are stored")
        elif end in GRACEFUL or notes.last("rests"):
            complete = camera.border(appended)
            demand(stored >= complete, f"{what} frames {stored} are stored, expected {complete}")
        # A burst may have been taken that was not noted, and the last shard may have been stored short.
        most = appended if notes.last("rests") or ENDS[camera.end] in (0, 1) else appended + MOST_OF_A_BURST
        borders = stored % shard == 0 and stored <= most
        is_whole = stored == before + camera.frames and end not in ("exception", "deleted", "forgotten")
        demand(borders or is_whole or stored == before, f"{what} frames {stored} are stored")
        self.starts = (self.starts + [camera.start] * max(stored - before, 0))[:stored]
        same(opened(camera.level0, THEIRS)[...], self.values(), f"{what} frames {stored} are stored: level 0")
        return end

    def judge_levels(self, camera: Camera) -> None:
        """Check all levels of an image that is finished."""
        check_levels(camera.path, self.values(), camera.factors, camera.reduction)


def check_levels(
    path: Path, values: Values, factors: tuple[int, ...], reduction: str, levels: int = 3
) -> None:
    for level in range(levels):
        same(opened(path / str(level), THEIRS)[...], values, f"{path.name}, {reduction}: level {level}")
        values = below(values, factors, reduction)


def stopped(program: Program, camera: Camera, notes: Notes, of: Round) -> None:
    """Let a camera run, and stop it as its end says."""
    number = getattr(signal, camera.end.split()[0], None)
    if number is not None:
        program.until(lambda: notes.last("begins") is not None, "beginning")
        if "in a pause" in camera.end:
            program.until(lambda: notes.last("rests"), "at rest, with all complete shards stored")
        else:
            time.sleep(of.rng.exponential(0.4))
        if program.is_alive():
            program.signal(number)
    # A program that has done everything, and is about to end, has no handlers any more.
    code = program.ended(0, ENDS[camera.end], *([-number] if number and notes.last("ended") else []))
    if camera.end == "exception":
        said = program.errors.read_text()
        demand(code == 1 and "CameraError" in said, f"another error than the camera's: {said}")


def a_camera(of: Round) -> None:
    """A camera is stopped several times, while others follow."""
    camera = some_camera(of)
    camera.create()
    film, stop = Film(camera), of.root / "stop"
    level = 2 if camera.kind == "MultiscaleWriter" and camera.factors[0] == 1 else 0
    with Programs(of.root) as programs:
        hows = of.rng.permutation(["zarr-python", "ArrayReader", "zarrs_cuda"])[:2]
        followers = []
        for how in hows:
            notes = Notes(of.root / f"{how}.notes")
            followers.append((notes, level, how))
        running: list[tuple[Program, Notes]] = []
        ends = [end for end in ENDS if camera.flush_after is not None or "pause" not in end]
        for start in range(of.some(4, 8)):
            end = of.one_of(ends)
            now = replace(camera, start=start, end=end, frames=of.some(1, 120), seed=of.some(0, 1 << 30))
            notes = Notes(of.root / f"camera{start}.notes")
            program = programs.start(acquire, now, notes)
            if not running:
                # All levels are there as soon as the writer is.
                program.until(lambda notes=notes: notes.last("begins") is not None, "beginning")
                running = [
                    (programs.start(follow, camera, at, how, stop, told), told) for told, at, how in followers
                ]
            stopped(program, now, notes, of)
            how = film.judge(now, notes)
            of.counts[f"ends by {how}"] += 1
            of.counts["frames"] += notes.last("appended", 0)
            for follower, _ in running:
                if not follower.is_alive():
                    follower.ended()
        last = replace(camera, start=100, end="finish", frames=of.some(1, 40), seed=of.some(0, 1 << 30))
        notes = Notes(of.root / "last.notes")
        programs.start(acquire, last, notes).ended()
        film.judge(last, notes)
        if camera.kind == "MultiscaleWriter":
            film.judge_levels(camera)
            of.counts["images with all levels as numpy's"] += 1
        stop.touch()
        for follower, told in running:
            follower.ended()
            of.counts["frames that followers checked"] += told.last("checked", 0)
    demand(not list(camera.path.rglob("*.tmp")), "temporaries of the writers are left")


def two_writers(of: Round) -> None:
    """The second of two writers is refused, whoever is first, and changes nothing."""
    camera = replace(some_camera(of), flush_after=0.05, end="SIGKILL in a pause")
    camera.create()
    film = Film(camera)
    with Programs(of.root) as programs:
        for start in range(3):
            now = replace(camera, start=start, frames=of.some(1, 60), seed=of.some(0, 1 << 30))
            rivals = []
            for number in range(2):
                notes = Notes(of.root / f"rival{start}{number}.notes")
                rivals.append((programs.start(acquire, now, notes), notes))
            for program, notes in rivals:
                program.until(lambda notes=notes: notes.last("rests"), "at rest")
            alive = [(program, notes) for program, notes in rivals if program.is_alive()]
            demand(len(alive) == 1, f"{len(alive)} of two writers at once go on")
            (first, notes) = alive[0]
            for second, _ in rivals:
                if second is not first:
                    second.ended(1)
                    said = second.errors.read_text()
                    demand(str(first.process.pid) in said, f"the refusal does not name the process: {said}")
            # One more, in this process.
            error = raised_by(lambda: camera.writer(opened(camera.level0), None), OSError, ValueError)
            demand(first.is_alive(), f"the first writer ended when the second was refused: {error}")
            first.signal(signal.SIGKILL)
            first.ended(-signal.SIGKILL)
            film.judge(now, notes)
            of.counts["second writers that were refused"] += 2


PLATE = {"rows": "AB", "columns": "12", "fields": 2}


def plate_paths() -> list[str]:
    """Return where the fields of the plate are."""
    return [
        f"{row}/{column}/{field}"
        for row in PLATE["rows"]
        for column in PLATE["columns"]
        for field in range(PLATE["fields"])
    ]


def create_plate(path: Path, camera: Camera) -> None:
    """Make the groups of a plate as OME-Zarr 0.5 describes them."""
    wells = [(row, column) for row in PLATE["rows"] for column in PLATE["columns"]]
    plate = {
        "version": "0.5",
        "name": "a plate",
        "field_count": PLATE["fields"],
        "rows": [{"name": row} for row in PLATE["rows"]],
        "columns": [{"name": column} for column in PLATE["columns"]],
        "wells": [
            {
                "path": f"{row}/{column}",
                "rowIndex": PLATE["rows"].index(row),
                "columnIndex": PLATE["columns"].index(column),
            }
            for row, column in wells
        ],
    }
    root = zarr.create_group(path, attributes={"ome": {"version": "0.5", "plate": plate}})
    for row in PLATE["rows"]:
        root.create_group(row)
    for row, column in wells:
        images = [{"path": str(field)} for field in range(PLATE["fields"])]
        root.create_group(
            f"{row}/{column}", attributes={"ome": {"version": "0.5", "well": {"images": images}}}
        )
    for place in plate_paths():
        replace(camera, path=path / place).create()


def image_plate(path: Path, camera: Camera, notes: Notes) -> None:
    """Visit all fields again and again: the program that is killed."""
    fields = [replace(camera, path=path / place) for place in plate_paths()]
    with contextlib.ExitStack() as stack:
        writers, lengths = [], []
        for field in fields:
            array = opened(field.level0)
            length = field.border(array.shape[0])
            # Ctrl-C may come when some writers have finished.
            writers.append(
                stack.enter_context(field.writer(array, None if length == array.shape[0] else length))
            )
            lengths.append(length)
        for number in range(min(lengths), camera.frames):
            for place, (field, writer, length) in enumerate(zip(fields, writers, lengths, strict=True)):
                if number >= length:
                    writer.append(field.frame(number, place))
            notes.write(appended=number + 1, safe=[safe(writer, number + 1) for writer in writers])
    notes.write(ended=True)


def a_plate(of: Round) -> None:
    """A plate of wells and fields is imaged by a writer for each field, and killed in between."""
    import ome_zarr_models
    import yaozarrs

    path = of.root / "plate.zarr"
    shard = of.one_of([2, 4])
    camera = replace(some_camera(of), kind="MultiscaleWriter", shard=shard, frames=shard * of.some(3, 8) + 1)
    camera = replace(camera, height=of.some(20, 40), width=of.some(20, 40))
    create_plate(path, camera)
    with Programs(of.root) as programs:
        for attempt in range(of.some(2, 4)):
            notes = Notes(of.root / f"plate{attempt}.notes")
            program = programs.start(image_plate, path, camera, notes)
            program.until(lambda notes=notes: notes.last("appended") is not None, "beginning")
            time.sleep(of.rng.exponential(0.3))
            how = of.one_of([signal.SIGKILL, signal.SIGINT])
            program.signal(how)
            program.ended(-how, 0)
            of.counts["plates that were stopped"] += 1
            least = notes.last("safe", [0] * len(plate_paths()))
            for number, place in enumerate(plate_paths()):
                array = opened(path / place / "0", THEIRS)
                length = array.shape[0]
                demand(
                    length >= least[number], f"{place}: {length} frames are stored, {least[number]} were safe"
                )
                if length:
                    same(array[...], camera.taken(0, length, number), f"{place}: level 0")
        notes = Notes(of.root / "plate.notes")
        programs.start(image_plate, path, camera, notes).ended()
        demand(notes.last("ended"), "the plate was not finished")
    found = ome_zarr_models.open_ome_zarr(zarr.open_group(path, mode="r"))
    demand(type(found) is ome_zarr_models.v05.HCS, f"the plate is read as {type(found)}")
    yaozarrs.validate_zarr_store(str(path))
    for number, place in enumerate(plate_paths()):
        field = replace(camera, path=path / place)
        values = field.taken(0, camera.frames, number)
        check_levels(path / place, values, camera.factors, camera.reduction)
        of.counts["fields with all levels as numpy's"] += 1


if __name__ == "__main__":
    with settings(path=OURS):
        run("microscope", __doc__, [a_camera, two_writers, a_plate])
