"""Training: a data set that many processes build, and a loader that reads it for thousands of batches.

Spawned processes write samples into shared shards, in files or in S3, each its own; some are killed and start
again. Then spawned workers of a loader read random batches by pickled readers, and an epoch of crops, in
other types and across the edge of the data set, and compare every element with the truth. Memory and threads
must not grow, Ctrl-C ends a batch and not the worker, and a server that hangs once costs one batch at most.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import obstore
import zarr
import zarrs_cuda
from common import LIMIT, OURS, THEIRS, Round, WrongError, demand, opened, run, same, settings
from obstore.store import S3Store
from zarr.storage import LocalStore, ObjectStore

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from s3 import BUCKET, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from common import Values

SPAWN = multiprocessing.get_context("spawn")
# How much more memory a worker may take in the second half of many batches than in the first.
MEGABYTES, MANY = 48, 200
# The most threads of a worker: 255 of its readers, as the guide says, and those of Python and numpy.
THREADS = 255 + 45
# Ctrl-C ends a batch within so many seconds, on a machine that is busy with others, too.
PATIENCE = 5.0
# How long a request to the server may take, and how long the server hangs, in seconds.
TIMEOUT, HANGS = 5, 8


@dataclass(frozen=True)
class Samples:
    """The truth: each sample is made by its number."""

    count: int
    height: int
    width: int
    dtype: str
    seed: int

    def sample(self, number: int) -> Values:
        """Make a sample. No element is 0, the fill value."""
        y, x = np.ogrid[: self.height, : self.width]
        mixed = (number * 2654435761 + self.seed) % 4093
        return ((y * 37 + x * 11 + mixed * (1 + y % 7)) % 250 + 1).astype(self.dtype)

    @cached_property
    def all(self) -> Values:
        """All samples, in memory."""
        return np.stack([self.sample(number) for number in range(self.count)])


class Crew:
    """Processes of a trial that say something before they end, or are killed."""

    def __init__(self) -> None:
        self.all: list[tuple[BaseProcess, Connection]] = []

    def start(self, task: Callable[..., None], *arguments: Any) -> tuple[BaseProcess, Connection]:
        """Start a process of its own interpreter. Its first argument sends what it says."""
        receive, send = SPAWN.Pipe(duplex=False)
        process = SPAWN.Process(target=task, args=(send, *arguments), daemon=True)
        process.start()
        # The other end is the process's alone, so that its end is seen.
        send.close()
        self.all.append((process, receive))
        return process, receive

    def ended(self, *codes: int) -> Iterator[tuple[int, list[Any]]]:
        """Wait for all processes. Returns their exit codes, which must be some, and what each said."""
        for process, receive in self.all:
            said = []
            with contextlib.suppress(EOFError, OSError):
                while True:
                    demand(receive.poll(LIMIT), f"{process.name} has said nothing for {LIMIT} s")
                    said.append(receive.recv())
            process.join(LIMIT)
            wrong = [what for what in said if isinstance(what, WrongError)]
            if wrong:
                raise wrong[0]
            demand(process.exitcode in codes, f"{process.name} ended with {process.exitcode}, not {codes}")
            yield process.exitcode or 0, said

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for process, _ in self.all:
            process.kill()
            process.join()


def write_samples(say: Connection, array: Any, samples: Samples, numbers: list[int]) -> None:
    """Write samples: a process that may be killed."""
    for number in numbers:
        array[number] = samples.sample(number)
        say.send(number)


def pack(say: Connection, array: Any, part: tuple[int, int]) -> None:
    """Pack a part of the shards."""
    say.send(zarrs_cuda.consolidate(array, part).shards)


def build(of: Round, array: Any, samples: Samples) -> None:
    """Let processes write all samples, and kill some of them."""
    step = array.chunks[0]
    blocks = [list(range(first, min(first + step, samples.count))) for first in range(0, samples.count, step)]
    of.rng.shuffle(blocks)
    count = of.some(2, 3)
    # No two processes write the same subchunk, also when one starts again.
    todo = [[number for block in blocks[worker::count] for number in block] for worker in range(count)]
    while todo:
        with Crew() as crew:
            for numbers in todo:
                crew.start(write_samples, array, samples, numbers)
            if of.chance(0.6):
                process, receive = of.one_of(crew.all)
                # After its first sample, at any moment.
                demand(receive.poll(LIMIT), "a process that writes samples does not begin")
                time.sleep(of.rng.exponential(0.1))
                process.kill()
            ends = list(crew.ended(0, -signal.SIGKILL))
        again = []
        for numbers, (code, said) in zip(todo, ends, strict=True):
            written = opened_again(array)
            for number in said:
                same(written[number], samples.sample(number), f"sample {number}, which was written")
            of.counts["samples that were written"] += len(said)
            of.counts["writers that were killed"] += code != 0
            again.append([number for number in numbers if number not in said])
        todo = [numbers for numbers in again if numbers]


def opened_again(array: Any) -> zarr.Array[Any]:
    """Open an array anew, which sees what is beside its shards."""
    return opened(array.store, path=array.path, shards="shared")


def status(what: str) -> float:
    """Return a number that the system knows of this process: memory without files in MB, or threads."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == what:
            return int(value.split()[0]) / (1024 if value.endswith("kB") else 1)
    msg = f"the system does not say {what} of a process"
    raise WrongError(msg)


@dataclass(frozen=True)
class Work:
    """What a worker of the loader does: so many batches of so many crops."""

    samples: Samples
    batches: int
    size: int
    crop: tuple[int, int]
    fills: bool
    seed: int
    # In how many batches Ctrl-C comes, and how many the server may fail.
    interrupts: int = 0
    failures: int = 0


def load(say: Connection, reader: zarrs_cuda.ArrayReader, work: Work) -> None:
    """Read batches, and compare them: a worker of the loader."""
    try:
        say.send(loaded(reader, work))
    except WrongError as error:
        say.send(error)


def loaded(reader: zarrs_cuda.ArrayReader, work: Work) -> dict[str, float]:
    rng = np.random.default_rng(work.seed)
    truth = work.samples.all.astype(reader.dtype)
    shape = (1, *work.crop)
    margin = (1, shape[1] // 2, shape[2] // 2) if work.fills else (0, 0, 0)
    truth = np.pad(truth, [(size, size) for size in margin])
    order = rng.permutation(work.samples.count)
    seen: dict[str, list[float]] = {"RssAnon": [], "Threads": []}
    interrupted = failed = 0
    for at in range(work.batches):
        origins = rng.integers(0, np.array(truth.shape) - shape, (work.size, 3), endpoint=True)
        if not work.fills:
            # Shuffled: each sample once in an epoch.
            origins[:, 0] = order[np.arange(at * work.size, (at + 1) * work.size) % len(order)]
        boxes = origins - margin
        if interrupted < work.interrupts and at % 16 == 3:
            interrupt(partial(reader.read_boxes, boxes, shape), rng)
            interrupted += 1
        try:
            got = reader.read_boxes(boxes, shape)
        except obstore.exceptions.BaseError as error:
            failed += 1
            demand(failed <= work.failures, f"batch {at}: {failed} batches have failed: {error}")
            got = reader.read_boxes(boxes, shape)
        expected = np.stack([truth[tuple(map(slice, first, first + shape))] for first in origins])
        same(got, expected, f"batch {at} of {reader!r}, boxes of {shape} at {boxes.tolist()}")
        for what, values in seen.items():
            values.append(status(what))
    failed += loop(reader, work, truth, margin, rng)
    demand(failed <= work.failures, f"{failed} batches of the loops of {reader!r} have failed")
    if work.batches >= MANY:
        # The first batches are those in which caches and threads become what they are.
        memory = seen["RssAnon"][work.batches // 10 :]
        before, after = max(memory[: len(memory) // 2]), max(memory[len(memory) // 2 :])
        demand(after <= before + MEGABYTES, f"{reader!r} took {before:.0f} MB at first, then {after:.0f} MB")
    threads = max(seen["Threads"])
    demand(threads <= THREADS, f"{reader!r}: {threads:.0f} threads")
    return {"failed": failed, "interrupted": interrupted} | {what: max(seen[what]) for what in seen}


def loop(
    reader: zarrs_cuda.ArrayReader, work: Work, truth: Values, margin: Any, rng: np.random.Generator
) -> int:
    """Read an epoch by a loop over crops, which goes on after errors. Returns how many there were."""
    shape = (1, *work.crop)
    count = int(rng.integers(1, 30 * work.size))
    origins = rng.integers(0, np.array(truth.shape) - shape, (count, 3), endpoint=True)
    crops = zarrs_cuda.Crops(
        reader,
        origins - margin,
        shape,
        batch_size=work.size,
        seed=work.seed,
        shards_in_flight=int(rng.integers(1, 9)),
        prefetch=int(rng.integers(1, 4)),
        memory=int(rng.integers(0, count * np.prod(shape) * 16)),
        with_numbers=True,
    )
    if work.interrupts:
        interrupt(partial(list, crops), rng)
    seen: list[int] = []
    failed, batches = 0, iter(crops)
    while True:
        try:
            for got, numbers in batches:
                expected = np.stack(
                    [truth[tuple(map(slice, first, first + shape))] for first in origins[numbers]]
                )
                same(got, expected, f"the crops {numbers} of {reader!r}, of {shape} at {origins.tolist()}")
                seen += numbers.tolist()
            break
        except obstore.exceptions.BaseError:
            failed += 1
            crops.load_state_dict(crops.state_dict())
            batches = iter(crops)
    demand(sorted(seen) == list(range(count)), f"a loop over {count} crops has seen {sorted(seen)}")
    return failed


def interrupt(action: Callable[[], Any], rng: np.random.Generator) -> None:
    """Do what Ctrl-C ends, or has ended before."""
    at: list[float] = []

    def send() -> None:
        at.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(rng.exponential(0.005), send)
    try:
        timer.start()
        action()
        timer.join()
        # It is raised at one of the next instructions.
        time.sleep(LIMIT)
    except KeyboardInterrupt:
        taken = time.monotonic() - at[0]
        demand(taken < PATIENCE, f"Ctrl-C took {taken:.1f} s")
        return
    msg = "Ctrl-C raised nothing"
    raise WrongError(msg)


def train(of: Round, store: Any, batches: int) -> Samples:
    """Build a data set in a store, and read it. Returns the truth."""
    samples = Samples(
        of.some(30, 120),
        of.some(10, 40),
        of.some(10, 40),
        of.one_of(["uint8", "uint16", "float32"]),
        of.number,
    )
    step = of.some(1, 3)
    side = of.some(5, 20)
    kind = {
        "shape": (samples.count, samples.height, samples.width),
        "chunks": (step, side, side),
        "shards": (step * of.some(2, 8), side * of.some(1, 4), side * of.some(1, 4)),
        "dtype": samples.dtype,
        "compressors": of.one_of(["auto", None]),
    }
    with settings(path=OURS, shards="shared"):
        array = zarr.create_array(store, name="samples", **kind)
    build(of, array, samples)
    if of.chance(0.5):
        # Before the shards are packed.
        read(of, array, samples, max(batches // 10, 20))
    with Crew() as crew:
        for part in (1, 2):
            crew.start(pack, array, (part, 2))
        packed = sum(said[0] for _, said in crew.ended(0))
    of.counts["shards that were packed"] += packed
    zarrs_cuda.consolidate(array, discard_invalid=True)
    same(opened(store, THEIRS, "samples")[...], samples.all, "all samples, by zarr-python")
    read(of, opened(store, path="samples"), samples, batches)
    return samples


def read(of: Round, array: Any, samples: Samples, batches: int, failures: int = 0) -> None:
    """Let the workers of a loader read batches by readers that were pickled."""
    is_shared = zarrs_cuda.explain(array).mode == "shared"
    with Crew() as crew:
        for _ in range(2):
            fills = of.chance(0.4)
            reader = zarrs_cuda.ArrayReader(
                array,
                dtype=of.one_of([None, "float32", "float64"]),
                subchunk_cache=0 if is_shared else of.one_of([0, 1 << 20]),
                fill=fills,
            )
            crop = (of.some(1, samples.height), of.some(1, samples.width))
            work = Work(
                samples, batches, of.some(1, 24), crop, fills, of.some(0, 1 << 30), of.some(0, 10), failures
            )
            crew.start(load, reader, work)
        for _, (said,) in crew.ended(0):
            of.counts["batches"] += batches
            of.counts["batches that Ctrl-C ended"] += said["interrupted"]
            of.counts["batches that a hanging server ended"] += said["failed"]
            for what, name in (
                ("RssAnon", "MB of the largest worker"),
                ("Threads", "threads of the largest worker"),
            ):
                of.counts[name] = max(of.counts[name], round(said[what]))


def from_files(of: Round) -> None:
    """Samples in files."""
    train(of, LocalStore(of.root / "data.zarr"), of.options.batches)


def objects(server: Server, timeout: int, retries: int) -> ObjectStore[S3Store]:
    """Return a store whose requests take so many seconds at most."""
    return ObjectStore(
        S3Store(
            BUCKET,
            endpoint=f"http://127.0.0.1:{server.server_port}",
            region="us-east-1",
            skip_signature=True,
            client_options={"allow_http": True, "timeout": f"{timeout}s"},
            retry_config={"max_retries": retries},
        )
    )


def from_s3(of: Round) -> None:
    """Samples in objects, by a server that hangs once."""
    with Server() as server:
        samples = train(of, objects(server, 60, 0), max(of.options.batches // 10, 20))
        release, first = threading.Event(), threading.Lock()

        def hang(_kind: str, key: str) -> None:
            if "/c/" in key and first.acquire(blocking=False):
                release.wait(HANGS)

        server.before = hang
        array = opened(objects(server, TIMEOUT, of.one_of([0, 3])), path="samples")
        read(of, array, samples, 20, failures=1)
        demand(first.locked(), "the server did not hang")
        release.set()


if __name__ == "__main__":
    run("training", __doc__, [from_files, from_s3], {"batches": (10000, "how many batches a worker reads")})
