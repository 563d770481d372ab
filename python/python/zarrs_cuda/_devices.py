"""The settings of GPUs in ``zarr.config``, under ``zarrs_cuda``. No GPU is used that nobody asked for."""

from __future__ import annotations

import importlib.util
import math
import os
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from zarr.core.config import config

from zarrs_cuda import _settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class _Unset(Enum):
    UNSET = "unset"


UNSET: Final = _Unset.UNSET


class Devices(NamedTuple):
    """The settings of devices with which an array was opened.

    The native module takes the fields by their position.
    """

    backend: str | None
    devices: tuple[int, ...] | None
    nvcomp: str | None
    device_memory: int | None
    device_timeout: float | None
    # One batch of so many is compared after the warm-up; None for the library's default.
    device_check: int | None

    def asks(self) -> bool:
        """Return whether these settings, or the environment, ask for a device."""
        if self.devices is not None or self.backend in ("auto", "cuda"):
            return True
        if self.backend == "host":
            return False
        names = ("ZARRS_CUDA_DEVICES", "ZARRS_CUDA_BACKEND")
        return any(os.environ.get(name, "").strip().lower() not in ("", "host") for name in names)


def configure(
    *,
    backend: str | _Unset | None = UNSET,
    devices: int | Sequence[int] | _Unset | None = UNSET,
    nvcomp: str | os.PathLike[str] | _Unset | None = UNSET,
    device_memory: int | str | _Unset | None = UNSET,
    device_timeout: float | _Unset | None = UNSET,
    device_check: int | str | _Unset | None = UNSET,
) -> None:
    """Ask for GPUs, for arrays that are opened afterwards.

    Without this call no GPU is used, unless the environment asks for one: CUDA takes memory of the GPU, and
    cannot be used in processes that are forked after it was used. The settings are kept in ``zarr.config``
    under ``zarrs_cuda``, and in the environment, where processes that are started later find them: workers of
    ``multiprocessing`` that are spawned, and workers of Dask. A setting that is not given stays; None is the
    default.

    Parameters
    ----------
    backend
        ``"auto"``: a GPU where one helps, and the host if it fails. ``"cuda"``: a GPU, or an error.
        ``"host"``: no GPU, whatever the environment says.
    devices
        The number of a GPU, or several. By default one GPU: that of the current CUDA context of the thread,
        else the number in ``LOCAL_RANK`` modulo the number of GPUs, else GPU 0.
    nvcomp
        The file of NVIDIA's nvCOMP library, which compresses on a GPU. By default it is looked for: the
        variable ``ZARRS_CUDA_NVCOMP``, the package ``nvidia-libnvcomp-cu12`` of this environment, and the
        libraries of the system.
    device_memory
        The most memory that buffers take on each GPU: bytes, or a text such as ``"4GiB"``. By default 2 GiB,
        or a quarter of what is free if that is less.
    device_timeout
        For how many seconds a call waits for a GPU before the GPU counts as hanging, and is not used any more
        in this process. By default 60.
    device_check
        How often results of a GPU are compared with those of the host after the first ones, which always are:
        ``"all"``, or a number n for one batch of n. By default, and with ``"warmup"``, one of 64.

    Raises
    ------
    ValueError
        If a value is none that the setting may have. No setting is changed then.
    """
    given = {
        "backend": backend,
        "devices": devices,
        "nvcomp": nvcomp,
        "device_memory": device_memory,
        "device_timeout": device_timeout,
        "device_check": device_check,
    }
    checked = {
        key: None if value is None else _KNOWN[key](key, value)
        for key, value in given.items()
        if value is not UNSET
    }
    config.set({f"zarrs_cuda.{key}": value for key, value in checked.items()})
    for key, value in checked.items():
        # Where `zarr.config` of another process looks for the setting.
        name = f"ZARR_ZARRS_CUDA__{key.upper()}"
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = repr(value) if isinstance(value, list) else str(value)


def settings() -> Devices:
    """Return the settings of devices that hold now.

    Raises
    ------
    ValueError
        If a value is none that the setting may have, or a key is none of a setting.
    """
    given = config.get("zarrs_cuda", None) or {}
    if not isinstance(given, dict):
        msg = f"`zarrs_cuda` in `zarr.config` is {given!r}, and has the settings {', '.join(_KNOWN)}"
        raise ValueError(msg)
    checked: dict[str, Any] = dict.fromkeys(_KNOWN)
    for key, value in given.items():
        name = str(key).replace("-", "_")
        if name not in _KNOWN:
            msg = f"`zarrs_cuda.{key}` is no setting: there are {', '.join(_KNOWN)}"
            raise ValueError(msg)
        if value is not None:
            checked[name] = _KNOWN[name](name, value)
    devices, check = checked["devices"], checked["device_check"]
    checked["devices"] = None if devices is None else tuple(devices)
    checked["device_check"] = {"warmup": None, "all": 1}.get(check, check)
    found = Devices(**checked)
    _check_environment()
    if found.nvcomp is None and found.asks():
        found = found._replace(nvcomp=packaged_nvcomp())
    return found


def of_writer(device: int | None) -> Devices:
    """Return the settings of devices for a writer that was given the number of a device, or None.

    Raises
    ------
    ValueError
        If the number, or a value in ``zarr.config``, is none that the setting may have.
    """
    found = settings()
    if device is None:
        return found
    found = found._replace(devices=tuple(_devices("device", device)), backend=found.backend or "auto")
    if found.backend == "host":
        msg = f"`device` is {device}, and `zarrs_cuda.backend` in `zarr.config` is 'host': set one of them"
        raise ValueError(msg)
    return found


def _check_environment() -> None:
    value = os.environ.get("ZARRS_CUDA_BACKEND", "").strip()
    if value.lower() not in ("", *_BACKENDS):
        msg = f"ZARRS_CUDA_BACKEND is {value!r} in the environment, and must be auto, host or cuda"
        raise ValueError(msg)
    value = os.environ.get("ZARRS_CUDA_DEVICES", "").strip()
    numbers = [number.strip() for number in value.split(",")]
    if value.lower() not in ("", "all") and not all(n.isascii() and n.isdigit() for n in numbers):
        msg = (
            f"ZARRS_CUDA_DEVICES is {value!r} in the environment, and must be numbers of devices with commas "
            "between them, such as 0,1, or all"
        )
        raise ValueError(msg)


def packaged_nvcomp() -> str | None:
    """Return the file of nvCOMP in a package of this Python, unless a variable names another file."""
    if os.environ.get("ZARRS_CUDA_NVCOMP"):
        return None
    try:
        spec = importlib.util.find_spec("nvidia.libnvcomp")
    except (ImportError, ValueError):
        return None
    folders = [] if spec is None else spec.submodule_search_locations or []
    for folder in folders:
        for name in (
            "lib64/libnvcomp.so.6",
            "lib64/libnvcomp.so.5",
            "bin/nvcomp64_6.dll",
            "bin/nvcomp64_5.dll",
        ):
            file = Path(folder, name)
            if file.exists():
                return str(file)
    return None


_BACKENDS = ("auto", "host", "cuda")


def _backend(key: str, value: Any) -> str:
    if value not in _BACKENDS:
        msg = f"`zarrs_cuda.{key}` is {value!r}, and must be one of {', '.join(_BACKENDS)}"
        raise ValueError(msg)
    return str(value)


def _devices(key: str, value: Any) -> list[int]:
    numbers = [value] if isinstance(value, int) else value
    is_list = isinstance(numbers, (list, tuple)) and len(numbers) > 0
    if not is_list or not all(type(n) is int and 0 <= n < 2**31 for n in numbers):
        msg = f"`zarrs_cuda.{key}` is {value!r}, and must be the number of a GPU, or a list of numbers"
        raise ValueError(msg)
    return list(numbers)


def _file(key: str, value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)) or not str(value):
        msg = f"`zarrs_cuda.{key}` is {value!r}, and must be the path of a file"
        raise ValueError(msg)
    return os.fspath(value)


def _memory(key: str, value: Any) -> int:
    return _settings.size(f"zarrs_cuda.{key}", value)


def _seconds(key: str, value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        msg = f"`zarrs_cuda.{key}` is {value!r}, and must be a number of seconds above 0"
        raise ValueError(msg)
    return float(value)


def _check(key: str, value: Any) -> int | str:
    if value in ("warmup", "all") or (type(value) is int and 1 <= value < 2**32):
        return cast("int | str", value)
    msg = f"`zarrs_cuda.{key}` is {value!r}, and must be 'warmup', 'all' or a positive number"
    raise ValueError(msg)


_KNOWN: dict[str, Callable[[str, Any], Any]] = {
    "backend": _backend,
    "devices": _devices,
    "nvcomp": _file,
    "device_memory": _memory,
    "device_timeout": _seconds,
    "device_check": _check,
}
