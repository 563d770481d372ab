"""The GPUs of this machine, as a process of its own finds them: this process initialises no CUDA for that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from zarrs_cuda import _devices
from zarrs_cuda._native import native

# For how long the command's own search may take, and when the command itself counts as hanging.
_LIMIT, _SECONDS = 50, 70


def gpu_lines() -> list[str]:
    """Return lines for people: the GPUs, nvCOMP, and whether arrays that are opened now may use them."""
    try:
        settings = _devices.settings()
    except (ValueError, ImportError) as error:
        return [f"WRONG: {error}"]
    if settings.backend == "host":
        return ["arrays use no GPU: `zarrs_cuda.backend` is 'host'"]
    packaged = _devices.packaged_nvcomp()
    report = _report(settings, settings.nvcomp or packaged)
    if isinstance(report, str):
        return [f"WRONG: {report}"]
    found, use = report["machine"], report["use"]
    lines = [
        f"GPU {device['ordinal']}: {device['name']}, {device['memory'] / 2**30:.1f} GiB, "
        f"compute capability {'.'.join(map(str, device['compute_capability']))}"
        for device in found["devices"]
    ]
    if (why := found["no_devices"]) and why not in use["text"]:
        lines.append(f"GPU: none: {why}")
    if library := found["driver"]["library"]:
        lines.append(f"driver: {library}")
    nvcomp = found["nvcomp"]
    if "path" in nvcomp:
        lines.append(f"nvCOMP: {nvcomp['version']} in {nvcomp['path']}")
    elif nvcomp["problem"] not in use["text"]:
        lines.append(f"nvCOMP: none: {_by_python(nvcomp['problem'], settings, packaged)}")
    lines.append(_use(settings, use))
    if report["estimates"]:
        lines.append(
            "estimated to encode a shard of 256,256,256 uint16 with subchunks of 32,32,32, from figures of "
            "other machines:"
        )
    for kind in report["estimates"]:
        seconds = kind["seconds"]
        on_device = seconds["device"]
        behind = "" if on_device is None else f", {on_device * 1e3:.2f} ms on a GPU"
        lines.append(f"  {kind['codec']:<20}  {seconds['host'] * 1e3:.2f} ms on the host{behind}")
    return lines


def _use(settings: _devices.Devices, use: dict[str, Any]) -> str:
    """Say whether arrays use GPUs. The command was given the settings of `zarr.config` as its options."""
    if settings.asks() and native().is_forked_after_devices():
        lost = (
            "every read and every write is refused" if _devices.wants_cuda(settings) else "arrays use no GPU"
        )
        return (
            f"WRONG: {lost}: this process was forked from one that had looked for GPUs, and CUDA does not "
            'work then. Start processes by "spawn" or "forkserver"'
        )
    text: str = use["text"]
    for option in ("devices", "backend"):
        text = text.replace(f"--{option}", f"`zarrs_cuda.{option}`")
    text = text.replace("by the options", "by `zarrs_cuda.backend`")
    return text if use["is_well"] else f"WRONG: {text}"


def _by_python(problem: str, settings: _devices.Devices, packaged: str | None) -> str:
    """Say which setting of Python named nvCOMP: the command was given its file by a variable."""
    if settings.nvcomp is not None and settings.nvcomp != packaged:
        return problem.replace("which ZARRS_CUDA_NVCOMP named", "which `zarrs_cuda.nvcomp` named")
    if packaged is not None:
        return problem.replace("which ZARRS_CUDA_NVCOMP named", "which a package of this Python has")
    return problem


def _report(settings: _devices.Devices, nvcomp: str | None) -> dict[str, Any] | str:
    """Return what the command says of this machine, or why the command did not say it."""
    environment = dict(os.environ)
    if nvcomp is not None:
        environment["ZARRS_CUDA_NVCOMP"] = nvcomp
    command = [sys.executable, "-m", "zarrs_cuda", "doctor", "--json", f"--limit={_LIMIT}"]
    if settings.backend is not None:
        command.append(f"--backend={settings.backend}")
    if settings.devices is not None:
        numbers = "all" if settings.devices == "all" else ",".join(map(str, settings.devices))
        command.append(f"--devices={numbers}")
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS)
        report: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return f"a process that looked for GPUs did not end in {_SECONDS} s: {' '.join(command)}"
    except (OSError, ValueError) as error:
        return f"a process that looked for GPUs failed: {' '.join(command)}: {error}"
    return report
