"""What the package does in this process, and what it finds."""

from __future__ import annotations

import platform
from importlib.metadata import entry_points, version
from typing import Any

from zarr.core.config import config

from zarrs_cuda import _devices, _settings
from zarrs_cuda._gpus import gpu_lines
from zarrs_cuda._native import native
from zarrs_cuda._pipeline import counts


def metrics() -> dict[str, Any]:
    """Return the counts of this process.

    Returns
    -------
    dict
        ``calls``: reads and writes of chunks of Zarr v3 by this package; ``fallback_calls``: those that
        were left to zarr-python's own pipeline; and the counts of the library. Among them are the bytes of
        the subchunks that each engine encoded and decoded: ``host_encode_bytes_in`` are the decoded bytes
        that the host encoded, ``host_encode_bytes_out`` what they became; ``host_decode_bytes_in`` and
        ``host_decode_bytes_out`` the same of decoding, and ``device_…`` the same of devices. Empty
        subchunks, which are not stored, do not count. ``named_devices_missing`` are the GPUs that were asked
        for by number and are missing; ``devices="all"`` without any GPU counts as one.
    """
    found = {"calls": counts.ours, "fallback_calls": counts.other, **native().metrics()}
    found["named_devices_missing"] += int(_devices.all_are_missing())
    return found


def doctor() -> str:
    """Check the installation.

    Returns
    -------
    str
        For people: versions, settings, GPUs, and what is wrong. A process of its own looks for GPUs, so that
        CUDA is not initialised in this one.
    """
    lines = [f"Python {platform.python_version()} on {platform.platform()}"]
    lines += [f"{name} {version(name)}" for name in ("zarrs-cuda", "zarr", "numpy")]
    try:
        lines.append(f"native module: {native().__file__}")
    except ImportError as error:
        lines.append(f"WRONG: {error}")
    found = [entry.value for entry in entry_points(group="zarr.codec_pipeline")]
    if "zarrs_cuda:CodecPipeline" not in found:
        lines.append("WRONG: the entry point is missing: install the package, do not only add its path")
    path = config.get("codec_pipeline.path")
    lines.append(
        f"codec_pipeline.path: {path}"
        + ("" if path == "zarrs_cuda.CodecPipeline" else " (arrays opened now use that pipeline)")
    )
    for name, setting in (("shards", _settings.mode), ("threads of a call", _settings.threads)):
        try:
            lines.append(f"{name}: {setting()}")
        except ValueError as error:
            lines.append(f"WRONG: {error}")
    try:
        _settings.check()
        lines.append(f"strict: {_settings.is_strict()}, sync: {_settings.syncs()}")
    except ValueError as error:
        lines.append(f"WRONG: {error}")
    if why := _devices.other_pipeline():
        lines.append(f"WRONG: {why}")
    if why := _settings.unused():
        lines.append(f"WRONG: {why}")
    lines += gpu_lines()
    return "\n".join(lines)
