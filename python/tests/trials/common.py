"""What the trials share: rounds that can be repeated, a judge, and programs that are killed."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import pickle
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import zarr
import zarrs_cuda

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    type Values = np.ndarray[Any, Any]

OURS = "zarrs_cuda.CodecPipeline"
THEIRS = "zarr.core.codec_pipeline.BatchedCodecPipeline"
# No process of a trial takes longer for one task, on a machine that is busy with others, too.
LIMIT = 180.0
# A fallback to zarr-python's own pipeline would try something else, in every process.
warnings.simplefilter("error", zarrs_cuda.FallbackWarning)
# A shell starts programs in the background without Ctrl-C, and they pass that on.
signal.signal(signal.SIGINT, signal.default_int_handler)


class WrongError(AssertionError):
    """Something is not as the documentation says."""


def demand(condition: object, what: str) -> None:
    """End the trial unless a condition holds."""
    if not condition:
        raise WrongError(what)


def same(got: Any, expected: Values, what: str) -> None:
    """End the trial unless two arrays have the same shape, type and elements."""
    got = np.asarray(got)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        msg = f"{what}: {got.dtype}{got.shape}, expected {expected.dtype}{expected.shape}"
        raise WrongError(msg)
    differ = got != expected
    if expected.dtype.kind in "fcmM":
        differ &= ~((got != got) & (expected != expected))  # NaN and NaT
    if differ.any():
        at = tuple(int(index) for index in np.argwhere(differ)[0])
        msg = (
            f"{what}: the element at {at} is {got[at]!r}, expected {expected[at]!r}; "
            f"{np.count_nonzero(differ)} of {differ.size} elements differ"
        )
        raise WrongError(msg)


@contextlib.contextmanager
def settings(**named: Any) -> Any:
    """Set settings of the codec pipeline for a block: ``path``, ``shards`` and others."""
    with zarr.config.set({f"codec_pipeline.{name}": value for name, value in named.items()}):
        yield


def opened(where: Any, pipeline: str = OURS, path: str = "", **named: Any) -> zarr.Array[Any]:
    """Open an array by a pipeline."""
    with settings(path=pipeline, **named):
        return zarr.open_array(where, path=path, mode="r+")


@dataclass
class Round:
    """One round of a trial.

    Attributes
    ----------
    number
        Counted from 0.
    root
        An empty directory.
    rng
        The random numbers, which the seed and the number decide.
    counts
        What all rounds did.
    options
        What the trial was started with.
    """

    number: int
    root: Path
    rng: np.random.Generator
    counts: Counter[str]
    options: argparse.Namespace

    def some(self, low: int, high: int) -> int:
        """Return a number between two, both among them."""
        return int(self.rng.integers(low, high, endpoint=True))

    def one_of[T](self, choices: Sequence[T]) -> T:
        """Return one of some things."""
        return choices[self.some(0, len(choices) - 1)]

    def chance(self, of: float) -> bool:
        """Return true as often as a number between 0 and 1 says."""
        return bool(self.rng.random() < of)


class Notes:
    """What a program noted before it ended, or was killed: lines of a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, **note: Any) -> None:
        """Add a note, which a kill does not take back."""
        with self.file.open("ab", buffering=0) as file:
            file.write(json.dumps(note).encode() + b"\n")

    def read(self) -> list[dict[str, Any]]:
        """Return all notes that are whole."""
        if not self.file.exists():
            return []
        lines = self.file.read_bytes().split(b"\n")
        return [json.loads(line) for line in lines[:-1]]

    def last(self, key: str, default: Any = None) -> Any:
        """Return the value that was noted last for a key."""
        return next((note[key] for note in reversed(self.read()) if key in note), default)


class Program:
    """A task of the script in an interpreter of its own, as a user would start it."""

    def __init__(self, root: Path, task: Callable[..., None], arguments: Any, hash_seed: int | None) -> None:
        self.name = task.__name__
        self.errors = root / f"{self.name}-{secrets.token_hex(4)}.stderr"
        environment = dict(os.environ)
        if hash_seed is not None:
            environment["PYTHONHASHSEED"] = str(hash_seed)
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, sys.argv[0], "--task", self.name],
                stdin=subprocess.PIPE,
                stderr=errors,
                env=environment,
                # It dies with its own processes, such as those of Dask.
                start_new_session=True,
            )
        assert self.process.stdin is not None
        with self.process.stdin as stdin:
            pickle.dump(arguments, stdin)

    def signal(self, number: int) -> None:
        """Send a signal, if the program has not ended."""
        if number == signal.SIGKILL:
            self.kill()
        else:
            self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the program, and the processes that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until a condition holds, or the program has ended. Returns whether it holds."""
        deadline = time.monotonic() + LIMIT
        while not (found := condition()) and self.is_alive():
            demand(time.monotonic() < deadline, f"{self.name}: after {LIMIT} s still not {what}")
            time.sleep(0.005)
        return found or condition()

    def ended(self, *codes: int) -> int:
        """Wait for the end. The exit code must be one of some; 0 by default."""
        try:
            code = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.kill()
            msg = f"{self.name} has not ended after {LIMIT} s: {self.errors.read_text()}"
            raise WrongError(msg) from None
        wanted = codes or (0,)
        said = self.errors.read_text()
        demand(code in wanted, f"{self.name} ended with {code}, expected one of {wanted}:\n{said}")
        return code


@dataclass
class Programs:
    """The programs of one round: none of them outlives it."""

    root: Path
    started: list[Program] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self.started:
            program.kill()
            program.process.wait()

    def start(self, task: Callable[..., None], *arguments: Any, hash_seed: int | None = None) -> Program:
        """Start a task of this script."""
        program = Program(self.root, task, arguments, hash_seed)
        self.started.append(program)
        return program


def raised_by(action: Callable[[], Any], *kinds: type[BaseException]) -> BaseException:
    """Return what an action raises, which must be of one of some kinds."""
    try:
        action()
    except kinds as error:
        return error
    msg = f"nothing was raised, expected one of {[kind.__name__ for kind in kinds]}"
    raise WrongError(msg)


def run(
    name: str,
    description: str | None,
    scenarios: Sequence[Callable[[Round], None]],
    options: Mapping[str, tuple[int, str]] | None = None,
) -> None:
    """Run the program of a trial: rounds, each of the next of some scenarios.

    The process ends with 1 after the first wrong thing, and says how to repeat it. `options` are further
    options of numbers: the default and the meaning of each.
    """
    if sys.argv[1:2] == ["--task"]:
        getattr(sys.modules["__main__"], sys.argv[2])(*pickle.load(sys.stdin.buffer))
        return
    parser = argparse.ArgumentParser(
        prog=f"python trials/{name}.py",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long new rounds begin (60)")
    parser.add_argument("--rounds", type=int, help="how many rounds there are, however long they take")
    parser.add_argument(
        "--seed", type=int, default=secrets.randbelow(1 << 32), help="by default another each time"
    )
    parser.add_argument("--first", type=int, default=0, help="the number of the first round (0)")
    parser.add_argument("--directory", type=Path, help="where files are made; by default for temporary ones")
    for option, (default, meaning) in (options or {}).items():
        parser.add_argument(f"--{option}", type=int, default=default, help=f"{meaning} ({default})")
    arguments = parser.parse_args()
    more = "".join(f"--{option} {getattr(arguments, option)} " for option in options or {})
    counts: Counter[str] = Counter()
    begin = time.monotonic()
    # The end of the program that runs a trial ends its programs, too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    print(f"seed {arguments.seed}", flush=True)
    for number in itertools.count(arguments.first):
        done = number - arguments.first
        if done == arguments.rounds:
            break
        if arguments.rounds is None and time.monotonic() - begin > arguments.seconds:
            break
        scenario = scenarios[number % len(scenarios)]
        root = Path(tempfile.mkdtemp(prefix=f"trial-{name}-", dir=arguments.directory))
        rng = np.random.default_rng([arguments.seed, number])
        try:
            scenario(Round(number, root, rng, counts, arguments))
        except Exception:
            traceback.print_exc()
            print(
                f"WRONG in round {number} ({scenario.__name__}), whose files are in {root}; repeat it by\n"
                f"    python trials/{name}.py {more}--seed {arguments.seed} --first {number} --rounds 1",
                file=sys.stderr,
                flush=True,
            )
            sys.exit(1)
        except BaseException:
            shutil.rmtree(root)
            raise
        shutil.rmtree(root)
        counts[scenario.__name__.replace("_", " ")] += 1
    print(f"{time.monotonic() - begin:.0f} s: " + ", ".join(f"{k} {v}" for k, v in sorted(counts.items())))
