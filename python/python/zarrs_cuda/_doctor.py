"""What the package does in this process, and what it finds."""

from __future__ import annotations

import platform
from importlib.metadata import entry_points, version
from typing import Any

from zarr.core.config import config

from zarrs_cuda import _settings
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
        subchunks, which are not stored, do not count.
    """
    return {"calls": counts.ours, "fallback_calls": counts.other, **native().metrics()}


def _estimates() -> list[str]:
    """Return a table of the estimated times to encode shards of typical kinds."""
    lines = [
        "estimated to encode a shard of 256,256,256 uint16 with subchunks of 32,32,32, from figures of other "
        "machines:"
    ]
    for codec, host, device in native().typical_shards():
        on_device = "" if device is None else f", {device * 1e3:.2f} ms on a device"
        lines.append(f"  {codec:<20}  {host * 1e3:.2f} ms on the host{on_device}")
    return lines


def doctor() -> str:
    """Check the installation.

    Returns
    -------
    str
        For people: versions, settings, and what is wrong.
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
    try:
        lines += _estimates()
    except ImportError:
        pass  # Told above.
    if why := _settings.unused():
        lines.append(f"WRONG: {why}")
    return "\n".join(lines)
