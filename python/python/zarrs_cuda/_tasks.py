"""Processes that run the command: a child of this one, or children of the workers of ``dask.distributed``."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from distributed import Client, Event

# Exit codes of the command.
_USAGE = 2

# Tells the command that the process that began it holds the other end of its input.
_FOLLOWS = "_ZARRS_CUDA_FOLLOWS_INPUT"

# A run in parts does not go on with arrays that it left out.
_BY_THEMSELVES = "re-encode the rest by themselves, each to its path in `destination`"

# How often a task looks whether it is to stop, and how long the command may take to stop, in seconds.
_LOOKS, _STOPS = 2.0, 20.0


class Tasks(NamedTuple):
    """The processes that do the work: this one's child, for all or for a part, or tasks of a client."""

    client: Client | None
    part: tuple[int, int] | None
    parts: int | None
    retries: int
    resources: Mapping[str, float] | None

    def run(
        self,
        words: list[str],
        output: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        is_dry: bool = False,
    ) -> dict[str, Any]:
        """Run the command with `words`, which makes `output`, and return its report."""
        overwrites = ["--overwrite"] if overwrite else []
        if self.client is not None and self.part is not None:
            raise ValueError("a `client` makes all parts: leave out `part`, or `client`")
        if self.part is not None:
            return run([*words, f"--part={_part(self.part)}", *overwrites])
        if self.client is None and (self.parts is None or is_dry):
            prepare = [] if self.parts is None else [f"--prepare={self.parts}"]
            return run([*words, *prepare, *overwrites])
        if self.client is None:
            raise ValueError("`parts` is the number of tasks of a `client`; one part is `part=(3, 16)`")
        workers = _workers(self.client, self.resources or {})
        # A run that was interrupted goes on with the parts that it has.
        parts = self.parts
        if parts is None:
            parts = (None if overwrite else _planned(output)) or max(len(workers), 1)
        # The plan is made first: mistakes are found here, and not by all tasks.
        code, report, message = run_any([*words, f"--prepare={parts}", *overwrites])
        leaves_out = _is_made(report)
        _check(0 if leaves_out else code, report, message)
        if is_dry:
            return report
        at_once = -(-parts // max(len(workers), 1))
        self._each(self.client, [[*words, f"--part={n}/{parts}"] for n in range(1, parts + 1)], at_once)
        status = run(["status", place(output), "--finish"])
        if leaves_out:
            others = f"The other arrays are made. When the cause is gone, {_BY_THEMSELVES}"
            raise RuntimeError(f"{message}\n{others}")
        return status

    def _each(self, client: Client, commands: list[list[str]], at_once: int) -> None:
        from distributed import Event, as_completed

        stop = Event(client=client)  # type: ignore[no-untyped-call]
        tasks = client.map(
            do_part,
            commands,
            at_once=at_once,
            stop=stop,
            pure=False,
            retries=self.retries,
            resources=dict(self.resources or {}),
        )
        try:
            for task in as_completed(tasks):  # type: ignore[no-untyped-call]
                task.result()
        except BaseException:
            # Tasks that have begun do not end when they are cancelled.
            if client.status == "running":
                stop.set()  # type: ignore[no-untyped-call]
            raise
        finally:
            if client.status == "running":
                client.cancel(tasks)  # type: ignore[no-untyped-call]


def place(path: str | os.PathLike[str], *, absolute: bool = False) -> str:
    """Return a path or an address as an argument of the command, which takes none for an option."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"a place is a text or a path, and {text!r} is {type(text).__name__}")
    if "://" in text:
        return text
    if absolute:
        # Workers may have another working directory.
        return os.path.abspath(text)  # noqa: PTH100
    return f"./{text}" if text.startswith("-") else text


def run(words: list[str], is_stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """Run the command in a process of its own, and return its report.

    Parameters
    ----------
    words
        The arguments.
    is_stopped
        Is asked every two seconds whether the command is to stop.

    Raises
    ------
    ValueError
        If the arguments are wrong.
    RuntimeError
        If something could not be done, also if arrays are left out of an output that is made.

    Warns
    -----
    UserWarning
        For each note of the report. An error has them as its own notes.
    """
    code, report, message = run_any(words, is_stopped)
    _check(code, report, message)
    return report


def _check(code: int, report: dict[str, Any], message: str) -> None:
    """Raise the error of the command, with the notes of its report; warn of them if there is none."""
    if code == 0:
        for note in _notes(report):
            warn(note)
        return
    text = "\n".join([message, *_of_others(report)])
    error = ValueError(text) if code == _USAGE else RuntimeError(text)
    for note in _notes(report):
        error.add_note(note)
    raise error


def _notes(report: dict[str, Any]) -> Iterator[str]:
    """Return the notes of a report, and of the arrays in it."""
    arrays = report.get("arrays")
    # A report of a part has their number.
    of_arrays = arrays if isinstance(arrays, list) else []
    for found in (report, report.get("status", {}), *of_arrays):
        yield from (note.removeprefix("note: ") for note in found.get("notes") or [])


def warn(note: str) -> None:
    """Warn of a note of the command, at the call of this package."""
    package = str(Path(__file__).parent)
    warnings.warn(f"a note of the conversion: {note}", UserWarning, skip_file_prefixes=(package,))


def _of_others(report: dict[str, Any]) -> list[str]:
    """Return what holds of the other arrays of a group, if there are failures of some."""
    if "errors" not in report:
        return []
    if not _is_made(report):
        return ["Nothing was written. A call with `keep_going=True` makes the other arrays"]
    if "groups" in report:
        return [
            f"The other arrays are made ({len(report['arrays'])}). When the cause is gone, the same call "
            "with `resume=True` adds the rest"
        ]
    made = f"Part {report['part']} of the other arrays is made"
    return [f"{made}. When all parts are made and the cause is gone, {_BY_THEMSELVES}"]


def _is_made(report: dict[str, Any]) -> bool:
    """Return whether some arrays are left out, and all that this run was to make of the others is made."""
    is_planned = report.get("state", "refused") != "refused"
    return "errors" in report and ("groups" in report or is_planned)


def run_any(
    words: list[str], is_stopped: Callable[[], bool] = lambda: False
) -> tuple[int, dict[str, Any], str]:
    """Run the command in a process of its own, and return its exit code, its report, and its error."""
    command = [sys.executable, "-m", "zarrs_cuda", words[0], "--json", *words[1:]]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    # The input ends with this process, also if it is killed.
    process = subprocess.Popen(command, **pipes, env={**os.environ, _FOLLOWS: "1"})
    # `communicate` would close it.
    lifeline, process.stdin = process.stdin, None
    try:
        while True:
            try:
                out, err = process.communicate(timeout=_LOOKS)
                break
            except subprocess.TimeoutExpired:
                if is_stopped():
                    raise RuntimeError("the run was stopped: another part failed, or its client") from None
    except BaseException:
        _end(process)
        raise
    finally:
        if lifeline is not None:
            lifeline.close()
    try:
        report: dict[str, Any] = json.loads(out)
    except ValueError:
        report = {}
    message = err.decode(errors="replace").strip()
    message = message or f"the command ended with the exit code {process.returncode}"
    failures = [report] if report.get("error") else report.get("errors", [])
    if failures:
        message = "\n".join(map(_text, failures))
    return process.returncode, report, message


def _text(failure: dict[str, Any]) -> str:
    """Return the error and the remedy of a failure; some have no remedy."""
    said = failure.get("error") or failure.get("interrupted")
    return ". ".join(text for text in (said, failure.get("help")) if text)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command, which stores the shards under way, or kill it."""
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=_STOPS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def follow_input() -> None:
    """End this process as SIGTERM does when the process that began it has ended, if that asked for it."""
    if os.environ.pop(_FOLLOWS, None) is None:
        return

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="zarrs_cuda parent", daemon=True).start()


def do_part(words: list[str], *, at_once: int, stop: Event) -> dict[str, Any]:
    """Do a part, as a task of a worker.

    Parameters
    ----------
    words
        The arguments of the command.
    at_once
        How many parts each worker gets. So many share its threads and its memory.
    stop
        Is set when the run is to stop.
    """
    code, report, message = run_any([*words, *_share(words, at_once)], stop.is_set)
    # The process that made the plan says what is left out.
    _check(0 if _is_made(report) else code, report, message)
    return report


def _share(words: list[str], at_once: int) -> list[str]:
    """Return the threads and the memory of a part: those of the worker, by the parts that it has at once."""
    from distributed import get_worker

    worker = get_worker()
    threads = worker.state.nthreads
    at_once = max(min(at_once, threads), 1)
    share = []
    if not any(word.startswith("--threads=") for word in words):
        share.append(f"--threads={max(threads // at_once, 1)}")
    memory = worker.memory_manager.memory_limit
    if memory and not any(word.startswith("--memory=") for word in words):
        # The command is allowed a quarter of a machine.
        share.append(f"--memory={max(memory // 4 // at_once, 1)}")
    return share


def _part(part: tuple[int, int]) -> str:
    try:
        number, of = part
    except (TypeError, ValueError) as error:
        raise ValueError(f"`part` is {part!r}, and must be as (3, 16): the third of 16") from error
    return f"{number}/{of}"


def _planned(output: str | os.PathLike[str]) -> int | None:
    """Return the number of parts of the run that makes `output`, or has made it; None if there is none."""
    _, report, _ = run_any(["status", place(output)])
    parts: int | None = report.get("status", {}).get("parts")
    return parts


def _version() -> str:
    return importlib.metadata.version("zarrs-cuda")


def _workers(client: Client, resources: Mapping[str, float]) -> dict[str, Any]:
    """Return the workers of a client. Every worker can do parts.

    Raises
    ------
    ValueError
        If the client cannot run tasks, or its workers have another version of this package, or none, or none
        of them has the resources: then tasks would wait forever.
    """
    if client.asynchronous:
        raise ValueError("the `client` is asynchronous: make one with `asynchronous=False`")
    if client.status != "running":
        raise ValueError(f"the `client` is {client.status}: connect one that runs")
    workers: dict[str, Any] = client.scheduler_info(n_workers=-1)["workers"]
    ours = _version()
    theirs: dict[str, Any] = client.run(importlib.metadata.version, "zarrs-cuda", on_error="return")
    for worker, version in theirs.items():
        if version != ours:
            has = "no zarrs-cuda" if isinstance(version, Exception) else f"zarrs-cuda {version}"
            raise ValueError(f"the worker {worker} has {has}: install zarrs-cuda {ours} there, as here")
    offered = [worker.get("resources") or {} for worker in workers.values()]
    if offered and not any(all(one.get(k, 0) >= v for k, v in resources.items()) for one in offered):
        raise ValueError(f"no worker has the `resources` {dict(resources)}: the workers have {offered}")
    return workers
