"""The settings of GPUs in ``zarr.config``, under ``zarrs_cuda``. No GPU is used that nobody asked for."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import warnings
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, SupportsFloat, SupportsIndex

import numpy as np
from zarr.core.config import config

from zarrs_cuda import _settings
from zarrs_cuda._errors import BackendUnavailable
from zarrs_cuda._native import native
from zarrs_cuda._words import by_python

if TYPE_CHECKING:
    from collections.abc import Callable


class _Unset(Enum):
    UNSET = "unset"


UNSET: Final = _Unset.UNSET


class Devices(NamedTuple):
    """The settings of devices with which an array was opened.

    The native module takes the fields by their position.
    """

    backend: str | None
    devices: tuple[int, ...] | Literal["all"] | None
    nvcomp: str | None
    device_memory: int | None
    device_timeout: float | None
    # One batch of so many is compared after the warm-up; None for the library's default.
    device_check: int | None
    # Whether GPUs may decompress: the data are trusted.
    device_decode: bool | None = None
    # Whether the argument `device` of a writer has named the device.
    by_writer: bool = False

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
    devices: SupportsIndex | Iterable[SupportsIndex] | Literal["all"] | _Unset | None = UNSET,
    nvcomp: str | os.PathLike[str] | _Unset | None = UNSET,
    device_memory: SupportsIndex | str | _Unset | None = UNSET,
    device_timeout: SupportsFloat | SupportsIndex | _Unset | None = UNSET,
    device_check: SupportsIndex | str | _Unset | None = UNSET,
    device_decode: bool | _Unset | None = UNSET,
) -> None:
    """Ask for GPUs, for arrays that are opened afterwards.

    Without this call no GPU is used, unless the environment asks for one: CUDA takes memory of the GPU, and
    cannot be used in processes that are forked after it was used. The settings are kept in ``zarr.config``
    under ``zarrs_cuda``, and in the environment, where processes that are started later find them: workers of
    ``multiprocessing`` that are spawned, and workers of Dask. They find ``codec_pipeline.path`` there, too,
    if it is this package's pipeline, a GPU is asked for, and ``ZARR_CODEC_PIPELINE__PATH`` is not set. So set
    the path before this call; a warning says if it is another one. A setting that is not given stays; None is
    the default.

    Parameters
    ----------
    backend
        ``"auto"``: a GPU where one helps, and the host if it fails. ``"cuda"``: the first read or write of
        an array is a :class:`BackendUnavailable` if no GPU can be used, and so is a shard that a GPU should
        encode and cannot. Reads of parts, shared shards and arrays without shards are the host's by design.
        ``"host"``: no GPU, whatever the environment says.
    devices
        The number of a GPU, or several different ones, such as ``[0, 1]`` or ``range(4)``, or ``"all"``. The
        processors do the work of a number that names no GPU, and of ``"all"`` without any, unless the backend
        is ``"cuda"``; a warning and :func:`metrics` say so. By default one GPU: that of the current CUDA
        context of the thread, else the number in ``LOCAL_RANK`` modulo the number of GPUs, else GPU 0.
    nvcomp
        The file of NVIDIA's nvCOMP library, which compresses on a GPU. A relative path begins in the folder
        that is current now, and ``~`` is the user's home. By default it is looked for: the
        variable ``ZARRS_CUDA_NVCOMP``, the package ``nvidia-libnvcomp-cu12`` (or ``-cu13``) of this
        environment, and the libraries of the system. A path without a file is warned of.
    device_memory
        The most memory that buffers take on each GPU: bytes, or a text such as ``"4GiB"``. By default 2 GiB,
        or a quarter of what is free if that is less.
    device_timeout
        For how many seconds a call waits for a GPU before the GPU counts as hanging, and is not used any more
        in this process. By default 60.
    device_check
        How often results of a GPU are compared with those of the host after the first ones, which always are:
        ``"all"``, or a number n for one batch of n. By default, and with ``"warmup"``, one of 64.
    device_decode
        Whether GPUs may decompress. Use it for trusted data only: shards that were made for it let nvCOMP
        write anywhere in the memory that this process has on a GPU. By default the host decompresses. Shards
        without a compressor need no such setting.

    Raises
    ------
    ValueError
        If a value is none that the setting may have. No setting is changed then.
    """
    arguments = {
        "backend": backend,
        "devices": devices,
        "nvcomp": nvcomp,
        "device_memory": device_memory,
        "device_timeout": device_timeout,
        "device_check": device_check,
        "device_decode": device_decode,
    }
    checked = {
        key: None if value is None else _KNOWN[key](key, value)
        for key, value in arguments.items()
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
    named = checked.get("nvcomp")
    if named is not None and Path(named).is_absolute() and not Path(named).exists():
        missing = (
            f"`zarrs_cuda.nvcomp` is {named!r}, and there is no such file: no GPU compresses where it is "
            "missing. `pip install nvidia-libnvcomp-cu12` installs one, which is found by itself"
        )
        warnings.warn(missing, RuntimeWarning, stacklevel=2)
    if why := other_pipeline():
        _warn_once(why, 3)
    elif _asks_now():
        # Spawned processes would read and write by zarr-python's own pipeline, without a GPU.
        os.environ.setdefault("ZARR_CODEC_PIPELINE__PATH", str(config.get("codec_pipeline.path")))


def other_pipeline() -> str | None:
    """Return why zarr-python uses no GPU that was asked for: another pipeline is set. Else None."""
    path = config.get("codec_pipeline.path", None)
    if not _asks_now() or _settings.is_ours(path):
        return None
    return (
        f"a GPU was asked for, and zarr-python does not use it: `codec_pipeline.path` is {path!r}. Add the "
        'line `zarr.config.set({"codec_pipeline.path": "zarrs_cuda.CodecPipeline"})` before '
        "`zarrs_cuda.configure`, and before arrays are opened"
    )


def _asks_now() -> bool:
    """Return whether the settings that hold now ask for a device. Wrong settings do not."""
    try:
        return given().asks()
    except ValueError:
        return False


def settings(*, warns: bool = True) -> Devices:
    """Return the settings of devices that hold now.

    Parameters
    ----------
    warns
        Whether misspelt variables of the environment are warned of.

    Raises
    ------
    ValueError
        If a value is none that the setting may have, or a key is none of a setting.
    """
    found = given()
    _check_environment(found, warns)
    if found.nvcomp is None and found.asks():
        found = found._replace(nvcomp=packaged_nvcomp())
    return found


def given() -> Devices:
    """Return the settings in ``zarr.config``.

    Raises
    ------
    ValueError
        If a value is none that the setting may have, or a key is none of a setting.
    """
    values = config.get("zarrs_cuda", None) or {}
    if not isinstance(values, dict):
        msg = f"`zarrs_cuda` in `zarr.config` is {values!r}, and has the settings {', '.join(_KNOWN)}"
        raise ValueError(msg)
    checked: dict[str, Any] = dict.fromkeys(_KNOWN)
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name not in _KNOWN:
            msg = f"`zarrs_cuda.{key}` is no setting: there are {', '.join(_KNOWN)}"
            raise ValueError(msg)
        if value is not None:
            checked[name] = _KNOWN[name](name, value)
    devices, check = checked["devices"], checked["device_check"]
    checked["devices"] = tuple(devices) if isinstance(devices, list) else devices
    checked["device_check"] = {"warmup": None, "all": 1}.get(check, check)
    return Devices(**checked)


def number_of(device: Any) -> int | Literal["cpu", "cuda"]:
    """Return the GPU that an argument ``device`` of a reader names: its number, or any; or else the host.

    Raises
    ------
    ValueError
        If it names none.
    """
    number = _settings.integer(device)
    # Such as a `torch.device`, whose text is its name.
    named = re.fullmatch(r"(?a:(cpu|cuda)(?::(\d{1,9}))?)", str(device)) if number is None else None
    if named and named[1] == "cpu":
        return "cpu"
    if named and named[2] is None:
        return "cuda"
    try:
        return _number("`device`", int(named[2]) if named else number)
    except ValueError:
        msg = f"`device` is {device!r}, and must be the number of a GPU, or 'cuda', 'cuda:1' or 'cpu'"
        raise ValueError(msg) from None


def check_backend(found: Devices) -> None:
    """Check that a GPU can be used if these settings, or the environment, ask for ``"cuda"``.

    Raises
    ------
    BackendUnavailable
        If they do, and no GPU can be used. The message says why.
    """
    if wants_cuda(found):
        native().check_backend(found)


def wants_cuda(found: Devices) -> bool:
    """Return whether these settings, or else the environment, ask for the backend ``"cuda"``."""
    backend = found.backend or os.environ.get("ZARRS_CUDA_BACKEND", "").strip().lower()
    return backend == "cuda"


# The GPUs that were warned of, and the process that was.
_warned: set[tuple[int, int]] = set()


# The processes in which all GPUs were asked for and looked for, and those of them that have none.
_looked: set[int] = set()
_without: set[int] = set()


def all_are_missing() -> bool:
    """Return whether all GPUs were asked for, by ``"all"``, and this process has none."""
    return os.getpid() in _without


def _wants_all(found: Devices) -> bool:
    backend = found.backend or os.environ.get("ZARRS_CUDA_BACKEND", "").strip().lower()
    devices = found.devices or os.environ.get("ZARRS_CUDA_DEVICES", "").strip().lower()
    return devices == "all" and backend != "host"


def _warn_of_none(found: Devices) -> None:
    try:
        native().check_backend(found._replace(backend="cuda"))
    except BackendUnavailable as error:
        _without.add(os.getpid())
        by = "ZARRS_CUDA_DEVICES" if found.devices is None else "zarr.config"
        reason = by_python(error.args[0]).removeprefix("the CUDA backend cannot be used: ")
        why = f"all CUDA devices were asked for by {by}, none can be used, and the host does their work"
        warnings.warn(f"{why}: {reason}. `zarrs_cuda.doctor()` says more", RuntimeWarning, stacklevel=4)


def warn_of_missing(found: Devices, *, looks: bool = True) -> None:
    """Warn of each GPU that was named by number, looked for in vain, and not warned of in this process.

    So it does of ``"all"`` without any GPU. ``found`` are the settings of the array that was used, and
    ``looks`` says whether the library looks for GPUs for that array.
    """
    if found.devices is None and "ZARRS_CUDA_DEVICES" not in os.environ:
        return
    if looks and _wants_all(found) and os.getpid() not in _looked:
        _looked.add(os.getpid())
        _warn_of_none(found)
    for number, why in native().missing_devices().items():
        key = os.getpid(), number
        if key not in _warned:
            _warned.add(key)
            warnings.warn(f"{by_python(why)}. `zarrs_cuda.doctor()` says more", RuntimeWarning, stacklevel=3)


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
    number = _number("`device`", device)
    found = found._replace(devices=(number,), backend=found.backend or "auto", by_writer=True)
    if found.backend == "host":
        msg = f"`device` is {device}, and `zarrs_cuda.backend` in `zarr.config` is 'host': set one of them"
        raise ValueError(msg)
    return found


# The variables of the environment that this package knows.
_VARIABLES = ("ZARRS_CUDA_BACKEND", "ZARRS_CUDA_DEVICES", "ZARRS_CUDA_NVCOMP")

# The sentences that were warned of in this process.
_told: set[str] = set()


def _warn_once(why: str, level: int) -> None:
    """Warn of a sentence, unless this process was warned of it. `level` is as for ``warnings.warn``."""
    if why not in _told:
        _told.add(why)
        warnings.warn(why, RuntimeWarning, stacklevel=level)


def _check_environment(found: Devices, warns: bool) -> None:
    """Check the variables of the environment. The native module is loaded only if there are any."""
    ours = [name for name in os.environ if name.startswith("ZARRS_CUDA_")]
    if warns and any(name not in _VARIABLES for name in ours):
        for why in native().unknown_variables():
            _warn_once(why, 5)
    if any(name in _VARIABLES for name in ours):
        native().check_settings(found)


def to_variables() -> None:
    """Set the variables that the command reads, where they are not set, from ``zarr.config`` and packages.

    Raises
    ------
    ValueError
        If a setting in ``zarr.config`` is wrong.
    """
    found = given()
    numbers = found.devices if isinstance(found.devices, str) else ",".join(map(str, found.devices or ()))
    for name, value in (
        ("ZARRS_CUDA_BACKEND", found.backend),
        ("ZARRS_CUDA_DEVICES", numbers),
        ("ZARRS_CUDA_NVCOMP", found.nvcomp or packaged_nvcomp()),
    ):
        if value and not os.environ.get(name):
            os.environ[name] = value


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
    # The variable of the environment ignores case, too.
    backend = value.strip().lower() if isinstance(value, str) else None
    if backend not in _BACKENDS:
        msg = f"`zarrs_cuda.{key}` is {value!r}, and must be one of {', '.join(_BACKENDS)}"
        raise ValueError(msg)
    return str(backend)


def _number(name: str, value: Any) -> int:
    number = _settings.integer(value)
    if number is None or not 0 <= number < 2**31:
        msg = f"{name} is {value!r}, and must be the number of a GPU, which counts from 0"
        raise ValueError(msg)
    return number


def _devices(key: str, value: Any) -> list[int] | str:
    if isinstance(value, str) and value.strip().lower() == "all":
        return "all"
    name = f"`zarrs_cuda.{key}`"
    wrong = f"{name} is {value!r}, and must be the number of a GPU, a list of different numbers, or 'all'"
    if meant := _meant(value):
        msg = f"{wrong}: did you mean {meant}?"
        raise ValueError(msg)
    is_one = isinstance(value, (str, bytes)) or not isinstance(value, Iterable)
    try:
        numbers = [_number(name, number) for number in ([value] if is_one else value)]
    except (TypeError, ValueError):
        raise ValueError(wrong) from None
    twice = next((number for number in numbers if numbers.count(number) > 1), None)
    if twice is not None:
        msg = f"{wrong}: it names GPU {twice} twice"
        raise ValueError(msg)
    if not numbers:
        raise ValueError(wrong)
    return numbers


def _meant(value: Any) -> Any:
    """Return the numbers in a text, as the variable of the environment has, or in an array without axes."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return [value.item()] if value.dtype.kind in "iu" else None
    if isinstance(value, str) and re.fullmatch(r"(?a:\s*\d+\s*(,\s*\d+\s*)*)", value):
        return [int(number) for number in value.split(",")]
    return None


def _file(key: str, value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)) or not str(value):
        msg = f"`zarrs_cuda.{key}` is {value!r}, and must be the path of a file"
        raise ValueError(msg)
    path = Path(os.fspath(value)).expanduser()
    if path.is_dir():
        msg = f"`zarrs_cuda.{key}` is {os.fspath(value)!r}, a folder, and must be the path of a file"
        raise ValueError(msg)
    # The loader looks up a name without a folder.
    return str(path) if len(path.parts) == 1 and not path.exists() else str(path.absolute())


def _memory(key: str, value: Any) -> int:
    return _settings.size(f"zarrs_cuda.{key}", value)


# A wait must end: some thirty years.
_LONGEST = 1e9


def _seconds(key: str, value: Any) -> float:
    try:
        is_number = not isinstance(value, (str, bytes, bool, np.bool_))
        seconds = float(value) if is_number else math.nan
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not 0 < seconds <= _LONGEST:
        msg = (
            f"`zarrs_cuda.{key}` is {value!r}, and must be a number of seconds above 0, and at most "
            f"{_LONGEST:.0e}, which no wait reaches"
        )
        raise ValueError(msg)
    return seconds


def _check(key: str, value: Any) -> int | str:
    word = value.strip().lower() if isinstance(value, str) else None
    if word in ("warmup", "all"):
        return word
    number = _settings.integer(value)
    if number is not None and 1 <= number < 2**32:
        return number
    msg = f"`zarrs_cuda.{key}` is {value!r}, and must be 'warmup', 'all' or a positive number"
    raise ValueError(msg)


def _decode(key: str, value: Any) -> bool:
    # The environment gives 0 and 1, too.
    if isinstance(value, (bool, np.bool_)) or _settings.integer(value) in (0, 1):
        return bool(value)
    msg = f"`zarrs_cuda.{key}` is {value!r}, and must be True or False"
    raise ValueError(msg)


_KNOWN: dict[str, Callable[[str, Any], Any]] = {
    "backend": _backend,
    "devices": _devices,
    "nvcomp": _file,
    "device_memory": _memory,
    "device_timeout": _seconds,
    "device_check": _check,
    "device_decode": _decode,
}
