"""The GPUs of this machine, as a process of its own finds them: this process initialises no CUDA for that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from zarrs_cuda import _devices

_SECONDS = 60


def gpu_lines() -> list[str]:
    """Return lines for people: the GPUs, nvCOMP, and whether arrays that are opened now may use them."""
    try:
        settings = _devices.settings()
    except ValueError as error:
        return [f"WRONG: {error}"]
    if settings.backend == "host":
        return ["GPU: none is used, because `zarrs_cuda.backend` is 'host'"]
    report = _report(settings.nvcomp or _devices.packaged_nvcomp())
    if isinstance(report, str):
        return [f"WRONG: {report}"]
    found = report["machine"]
    lines = [
        f"GPU {device['ordinal']}: {device['name']}, {device['memory'] / 2**30:.1f} GiB, "
        f"compute capability {'.'.join(map(str, device['compute_capability']))}"
        for device in found["devices"]
    ]
    if why := found["no_devices"]:
        lines.append(f"GPU: none: {why}")
    if library := found["driver"]["library"]:
        lines.append(f"driver: {library}")
    nvcomp = found["nvcomp"]
    if "path" in nvcomp:
        lines.append(f"nvCOMP: {nvcomp['version']} in {nvcomp['path']}")
    else:
        lines.append(f"nvCOMP: none: {nvcomp['problem']}")
    lines.append(_use(settings, found["devices"]))
    lines.append(
        "estimated to encode a shard of 256,256,256 uint16 with subchunks of 32,32,32, from figures of other "
        "machines:"
    )
    for kind in report["estimates"]:
        seconds = kind["seconds"]
        on_device = seconds["device"]
        behind = "" if on_device is None else f", {on_device * 1e3:.2f} ms on a GPU"
        lines.append(f"  {kind['codec']:<20}  {seconds['host'] * 1e3:.2f} ms on the host{behind}")
    return lines


def _use(settings: _devices.Devices, devices: list[Any]) -> str:
    if not settings.asks():
        how = "`zarrs_cuda.configure(devices=[0])`, or ZARRS_CUDA_DEVICES=0 in the environment, asks for one"
        return f"arrays use no GPU: none was asked for; {how}"
    numbers = [device["ordinal"] for device in devices]
    missing = [number for number in settings.devices or () if number not in numbers]
    if missing:
        return (
            f"WRONG: `zarrs_cuda.devices` names GPU {missing[0]}, and the GPUs that can be used are {numbers}"
        )
    return "arrays use a GPU where one helps" if devices else "arrays use no GPU: there is none"


def _report(nvcomp: str | None) -> dict[str, Any] | str:
    """Return what the command says of this machine, or why the command did not say it."""
    environment = dict(os.environ)
    if nvcomp is not None:
        environment["ZARRS_CUDA_NVCOMP"] = nvcomp
    # The command has settings of its own.
    environment.pop("ZARRS_CUDA_BACKEND", None)
    command = [sys.executable, "-m", "zarrs_cuda", "doctor", "--json"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS)
        report: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return f"a process that looked for GPUs did not end in {_SECONDS} s: {' '.join(command)}"
    except (OSError, ValueError) as error:
        return f"a process that looked for GPUs failed: {' '.join(command)}: {error}"
    return report
