"""Conversions by the command of this package: here, in parts, or as tasks of ``dask.distributed``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from zarrs_cuda import _decode_with
from zarrs_cuda._tasks import Tasks, place
from zarrs_cuda._words import in_words_of_python

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from distributed import Client


@in_words_of_python
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
    keep_chunks: bool = False,
    shape_for: Mapping[str, Sequence[int] | tuple[Sequence[int], Sequence[int]]] | None = None,
    include: str | Sequence[str] = (),
    consolidate_metadata: bool = False,
    keep_going: bool = False,
    allow_empty: bool = False,
    verify: bool = False,
    overwrite: bool = False,
    resume: bool = False,
    dry_run: bool = False,
    decode_with: Literal["zarr-python"] | None = None,
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
    keep_chunks
        Whether subchunks have the shape of the chunks of ``source``, or of its subchunks if it has shards.
    shape_for
        Shapes for arrays of a group: ``{"t2m": (256, 320, 320)}`` of shards, or of shards and subchunks:
        ``{"surface/*": ((256, 320, 320), (64, 32, 32))}``. In a pattern, ``*`` is any characters but ``/``,
        and ``**`` any. The first that matches counts.
    include
        A pattern, or several, of the arrays of a group to re-encode, with the groups that they are in; by
        default all.
    consolidate_metadata
        Whether a group gets consolidated metadata also if ``source`` has none.
    keep_going
        Whether arrays that cannot be re-encoded are left out, with ``recursive``. ``resume`` adds them when
        the cause is gone. Not with ``overwrite``, which deletes all arrays of ``destination`` first.
    allow_empty
        Whether an array without stored chunks is re-encoded.
    verify
        Whether both arrays are read again and compared, with zarrs' own codecs. Not with ``part`` and
        ``client``.
    overwrite
        Whether arrays at ``destination`` are replaced. Not with ``part``. One whose parts are not all made is
        replaced with a ``client`` alone.
    resume
        Whether an interrupted run goes on. Parts always do. Without ``part`` and ``client``, shards are made
        again that are missing or damaged in a destination that parts have completed.
    dry_run
        Whether only the work is reported: the arrays, and their shards, bytes, reads and memory; of each part
        with ``parts``; with ``resume`` the shards to make, and those that are kept.
    decode_with
        ``"zarr-python"`` reads all elements by zarr-python, and so by every codec that this process has
        registered, and writes them here. It is for arrays that are refused otherwise. ``destination`` is a
        directory that is new or empty. Not with ``part``, ``client``, ``resume``, ``overwrite`` and
        ``dry_run``. Meanwhile ``zarr.config`` has other settings of threads, concurrency and syncs, for all
        threads of this process.
    threads, memory
        The number of threads, and the memory for buffers, as ``"4GiB"``, of each process.
    part
        ``(3, 16)`` makes the third of 16 parts. Other processes make the others, in any order, on any
        machines that reach both places; the last one completes the output. A part may be made again.
    client
        Makes all parts as tasks of this client. A task whose worker dies is done again by another worker.
    parts
        The number of parts with ``client`` or ``dry_run``; with a ``client``, by default the number of its
        workers, or of the parts of a run that was interrupted.
    retries
        How often a task that fails is tried again.
    resources
        What each task needs of a worker, as ``{"memory": 8e9}``: see ``resources`` of ``Client.map``.

    Returns
    -------
    dict
        The report of the command: see ``zarrs-cuda reencode --json``. Of a group, ``arrays`` is a list with
        the report of each array; with ``part`` it is the number of arrays. With ``client``, the report of
        ``zarrs-cuda status``, which has no ``arrays``.

    Raises
    ------
    ValueError
        If the arguments make no sense together.
    RuntimeError
        If something cannot be done. The message says what to do. With ``keep_going``, also if arrays were
        left out, when the others are made: the same call with ``resume=True`` adds the rest. To a run in
        parts nothing is added: re-encode the rest by themselves. ``decode_with`` raises no error then: the
        report has them, as ``left_out``.

    Warns
    -----
    UserWarning
        For each note of the report, such as files that could not be deleted.

    Examples
    --------
    >>> zarrs_cuda.reencode("old.zarr", "fast.zarr", recursive=True)  # doctest: +SKIP
    """
    in_parts = client is not None or part is not None or (parts is not None and not dry_run)
    if in_parts and verify:
        raise ValueError(
            "no part has the whole output, which `verify` reads: leave it out. When all parts are made, run "
            "`zarrs-cuda verify DESTINATION/ARRAY --against SOURCE/ARRAY` for each array"
        )
    if part is not None and overwrite:
        raise ValueError(
            "a `part` replaces nothing, and `overwrite` replaces arrays: leave one out, or delete "
            "`destination` once, before all parts"
        )
    words = ["reencode", *_places(client, source, destination)]
    words += _options(
        shard=_shape(shard),
        subchunk=_shape(subchunk),
        shard_size=shard_size,
        subchunk_size=subchunk_size,
        codec=codec,
        keep_chunks=keep_chunks,
        recursive=recursive,
        consolidate_metadata=consolidate_metadata,
        keep_going=keep_going,
        allow_empty=allow_empty,
        verify=verify,
        resume=resume and not in_parts and parts is None,  # parts always go on
        dry_run=dry_run,
        threads=threads,
        memory=memory,
    )
    patterns = [include] if isinstance(include, str) else include
    words += [f"--include={pattern}" for pattern in patterns]
    words += [f"--shape-for={pattern}={_shapes(shapes)}" for pattern, shapes in (shape_for or {}).items()]
    if decode_with is not None:
        if client is not None or part is not None or parts is not None:
            raise ValueError("`decode_with` is for one process: leave out `client`, `part` and `parts`")
        words.append(f"--decode-with={decode_with}")
        return _decode_with.reencode([*words, *(["--overwrite"] if overwrite else [])])
    tasks = Tasks(client, part, parts, retries, resources)
    return tasks.run(words, destination, overwrite=overwrite, is_dry=dry_run)


@in_words_of_python
def reshard(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    shard: Sequence[int] | None = None,
    chunks: bool = False,
    index: str | None = None,
    threads: int | None = None,
    memory: str | int | None = None,
    part: tuple[int, int] | None = None,
    client: Client | None = None,
    parts: int | None = None,
    retries: int = 3,
    resources: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Move the encoded subchunks of an array of Zarr v3 into other shards, without decoding them.

    Parameters
    ----------
    source, destination
        Directories.
    shard
        The shape of the new shards in elements, a whole multiple of a subchunk.
    chunks
        Whether the new array has no shards: each subchunk becomes a chunk. Not in parts.
    index
        Where a shard keeps its index: ``"start"`` or ``"end"``; by default as in ``source``.
    threads, memory, part, client, parts, retries, resources
        As for :func:`reencode`.

    Returns
    -------
    dict
        The report of the command: see ``zarrs-cuda reshard --json``. With ``client``, the report of
        ``zarrs-cuda status``.

    Raises
    ------
    ValueError
        If the arguments make no sense together.
    RuntimeError
        If something cannot be done. The message says what to do.

    Warns
    -----
    UserWarning
        For each note of the report.

    Examples
    --------
    >>> zarrs_cuda.reshard("chunks.zarr", "shards.zarr", shard=(256, 256, 256))  # doctest: +SKIP
    """
    words = ["reshard", *_places(client, source, destination)]
    words += _options(shard=_shape(shard), chunks=chunks, index=index, threads=threads, memory=memory)
    return Tasks(client, part, parts, retries, resources).run(words, destination)


@in_words_of_python
def pyramid(
    image: str | os.PathLike[str],
    *,
    levels: int | None = None,
    reduction: str | None = None,
    axes: Sequence[Mapping[str, Any]] = (),
    name: str | None = None,
    start: int | None = None,
    allow_empty: bool = False,
    dry_run: bool = False,
    threads: int | None = None,
    memory: str | int | None = None,
    part: tuple[int, int] | None = None,
    client: Client | None = None,
    parts: int | None = None,
    retries: int = 3,
    resources: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Make the smaller levels of an image whose level 0 is there, described by OME-Zarr 0.5.

    :func:`write_lower_levels` does the same in this process. In parts, no reader sees a level before all
    parts are made.

    Parameters
    ----------
    image
        The directory of level 0, or of the group that has it.
    levels
        How many levels there are, with level 0.
    reduction
        ``"mean"``, ``"minimum"``, ``"maximum"``, ``"median"``, ``"mode"`` or ``"decimate"``.
    axes
        The axes, as ``{"name": "y", "unit": "micrometer", "scale": 0.325, "factor": 2}``. What is not said is
        as the image says, or usual for an axis of this name.
    name
        The name of the image.
    start
        The slice of level 0 from which on the levels are made again. Not in parts.
    allow_empty
        Whether levels are made of a level 0 without stored shards.
    dry_run
        Whether only the levels and the memory are reported.
    threads, memory, part, client, parts, retries, resources
        As for :func:`reencode`.

    Returns
    -------
    dict
        The report of the command: see ``zarrs-cuda pyramid --json``. With ``client``, the report of
        ``zarrs-cuda status``.

    Raises
    ------
    ValueError
        If the arguments make no sense together.
    RuntimeError
        If something cannot be done. The message says what to do.

    Warns
    -----
    UserWarning
        For each note of the report.

    Examples
    --------
    >>> zarrs_cuda.pyramid("image.zarr", levels=5)  # doctest: +SKIP
    """
    words = ["pyramid", *_places(client, image)]
    words += _options(
        levels=levels,
        reduction=reduction,
        name=name,
        start=start,
        allow_empty=allow_empty,
        dry_run=dry_run,
        threads=threads,
        memory=memory,
    )
    for axis in axes:
        known = {key: value for key, value in axis.items() if key != "name" and value is not None}
        words.append("--axis=" + ",".join([str(axis["name"]), *(f"{key}={known[key]}" for key in known)]))
    group = Path(image)
    if _is_array(group):
        group = group.absolute().parent
    return Tasks(client, part, parts, retries, resources).run(words, group, is_dry=dry_run)


def _is_array(path: Path) -> bool:
    try:
        is_array: bool = json.loads((path / "zarr.json").read_text())["node_type"] == "array"
    except (OSError, ValueError, KeyError, TypeError):
        return False  # the command says why
    return is_array


def _options(**options: str | float | bool | None) -> list[str]:
    """Return options of the command: switches that are true, and values that are given."""
    words = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            words.append(f"{option}={value}")
    return words


def _places(client: Client | None, *places: str | os.PathLike[str]) -> list[str]:
    return [place(path, absolute=client is not None) for path in places]


def _shape(shape: Sequence[int] | None) -> str | None:
    return None if shape is None else ",".join(map(str, shape))


def _shapes(shapes: Sequence[int] | tuple[Sequence[int], Sequence[int]]) -> str:
    """Return the shape of a shard, or those of a shard and of a subchunk, as an argument."""
    are_two = len(shapes) > 0 and hasattr(shapes[0], "__len__")
    of_each = shapes if are_two else [shapes]
    return "/".join(str(_shape(shape)) for shape in of_each)  # type: ignore[arg-type]
