"""Re-encode arrays and groups as sharded arrays: here, in parts, or as tasks of ``dask.distributed``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from distributed import Client

# Exit codes of the command.
_USAGE = 2


def reencode(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    recursive: bool = False,
    shard: Sequence[int] | None = None,
    subchunk: Sequence[int] | None = None,
    shard_size: str | int | None = None,
    subchunk_size: str | int | None = None,
    codec: str | None = None,
    keep_going: bool = False,
    allow_empty: bool = False,
    verify: bool = False,
    overwrite: bool = False,
    resume: bool = False,
    threads: int | None = None,
    memory: str | int | None = None,
    part: tuple[int, int] | None = None,
    client: Client | None = None,
    parts: int | None = None,
    retries: int = 3,
    resources: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Re-encode any Zarr array, of v2 or v3, as a sharded array of v3, bit for bit.

    The work is done by the command of this package, in a process of its own for each part. Elements are read
    shard by shard, so arrays may be larger than memory. An output cannot be opened before it is complete.

    Parameters
    ----------
    source, destination
        Directories, or addresses that begin with ``s3://`` (``source`` also ``https://``).
    recursive
        Whether ``source`` is a group, all arrays of which are re-encoded.
    shard, subchunk
        Their shapes in elements; by default they are chosen by the sizes.
    shard_size, subchunk_size
        About how large they are, decoded, as ``"128MiB"`` or a number of bytes.
    codec
        The codec of subchunks, as ``"zstd:3"``.
    keep_going
        Whether arrays that cannot be re-encoded are left out, with ``recursive``.
    allow_empty
        Whether an array without stored chunks is re-encoded.
    verify
        Whether both arrays are read again and compared, with zarrs' own codecs. Not in parts.
    overwrite
        Whether arrays at ``destination`` are replaced. Not with ``part``.
    resume
        Whether an interrupted run goes on. Parts always do.
    threads, memory
        The number of threads, and the memory for buffers, as ``"4GiB"``, of each process.
    part
        ``(3, 16)`` makes the third of 16 parts. Other processes make the others, in any order, on any
        machines that reach both places; the last one completes the output. A part may be made again.
    client
        Makes all parts as tasks of this client. A task whose worker dies is done again by another worker.
    parts
        The number of parts with ``client``; by default the number of workers.
    retries
        How often a task that fails is tried again.
    resources
        What each task needs of a worker, as ``{"memory": 8e9}``: see ``resources`` of ``Client.map``.

    Returns
    -------
    dict
        The report of the command: see ``zarrs-cuda reencode --json``. With ``client``, the report of
        ``zarrs-cuda status``.

    Raises
    ------
    ValueError
        If the arguments make no sense together.
    RuntimeError
        If something cannot be done. The message says what to do.

    Examples
    --------
    >>> zarrs_cuda.reencode("old.zarr", "fast.zarr", recursive=True)  # doctest: +SKIP
    """
    words = ["reencode", os.fspath(source), os.fspath(destination)]
    for name, value in {
        "shard": _shape(shard),
        "subchunk": _shape(subchunk),
        "shard-size": shard_size,
        "subchunk-size": subchunk_size,
        "codec": codec,
        "threads": threads,
        "memory": memory,
    }.items():
        if value is not None:
            words += [f"--{name}", str(value)]
    switches = {
        "recursive": recursive,
        "keep-going": keep_going,
        "allow-empty": allow_empty,
        "verify": verify,
        "resume": resume,
    }
    words += [f"--{name}" for name, value in switches.items() if value]
    if client is None:
        if parts is not None:
            raise ValueError("`parts` is the number of tasks of a `client`; one part is `part=(3, 16)`")
        if part is not None:
            number, of = part
            words += ["--part", f"{number}/{of}"]
        return run([*words, "--overwrite"] if overwrite else words)
    if part is not None:
        raise ValueError("a `client` makes all parts: leave out `part`, or `client`")
    return _by_tasks(client, words, parts, overwrite, retries, resources)


def _by_tasks(
    client: Client,
    words: list[str],
    parts: int | None,
    overwrite: bool,
    retries: int,
    resources: Mapping[str, float] | None,
) -> dict[str, Any]:
    from distributed import as_completed

    if parts is None:
        parts = max(len(client.scheduler_info(n_workers=-1)["workers"]), 1)
    # The plan is made first: mistakes are found here, and not by all tasks.
    run([*words, "--prepare", str(parts), *(["--overwrite"] if overwrite else [])])
    commands = [[*words, "--part", f"{number}/{parts}"] for number in range(1, parts + 1)]
    tasks = client.map(run, commands, pure=False, retries=retries, resources=dict(resources or {}))
    try:
        for task in as_completed(tasks):  # type: ignore[no-untyped-call]
            task.result()
    finally:
        client.cancel(tasks)  # type: ignore[no-untyped-call]
    return run(["status", words[2], "--finish"])


def run(words: list[str]) -> dict[str, Any]:
    """Run the command in a process of its own, and return its report."""
    command = [sys.executable, "-m", "zarrs_cuda", *words, "--json"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        report = {}
    if done.returncode == 0:
        return report
    message = done.stderr.strip() or f"the command ended with the exit code {done.returncode}"
    if error := report.get("error"):
        message = error if "help" not in report else f"{error}. {report['help']}"
    raise (ValueError if done.returncode == _USAGE else RuntimeError)(message)


def _shape(shape: Sequence[int] | None) -> str | None:
    return None if shape is None else ",".join(map(str, shape))
