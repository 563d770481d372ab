"""Fast sharded Zarr arrays for zarr-python, and shards that many processes write.

One line makes zarr-python read and write every array through this package::

    zarr.config.set({"codec_pipeline.path": "zarrs_cuda.CodecPipeline"})

The files stay standard: any Zarr reader opens them. Importing the package loads no native code and
starts no thread; the first read or write does.
"""

import contextlib
import warnings
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from zarr.registry import register_pipeline

from zarrs_cuda import _settings
from zarrs_cuda._convert import pyramid, reencode, reshard
from zarrs_cuda._crops import Crops
from zarrs_cuda._devices import configure
from zarrs_cuda._doctor import doctor, metrics
from zarrs_cuda._errors import (
    BackendUnavailable,
    FallbackWarning,
    FramesPending,
    FramesWarning,
    ShardChanged,
    ShardError,
)
from zarrs_cuda._explain import Explanation, explain
from zarrs_cuda._maintenance import (
    Consolidation,
    Inspection,
    compact,
    consolidate,
    inspect,
    recover,
)
from zarrs_cuda._multiscale import Axis, MultiscaleWriter, write_lower_levels
from zarrs_cuda._native import native
from zarrs_cuda._pipeline import CodecPipeline
from zarrs_cuda._reader import ArrayReader
from zarrs_cuda._writers import ArrayWriter

if TYPE_CHECKING:
    from zarrs_cuda._internal import DeviceTensor

__version__ = version("zarrs-cuda")

# zarr-python finds a pipeline by these names.
CodecPipeline.__module__ = "zarrs_cuda"
register_pipeline(CodecPipeline)

# A warning that was made an error does not keep the package from being imported.
with contextlib.suppress(Exception):
    if why := _settings.unused():
        warnings.warn(why, UserWarning, stacklevel=2)
    del why


def __getattr__(name: str) -> Any:
    # A class of the native module, which is loaded when it is first needed.
    if name == "DeviceTensor":
        return native().DeviceTensor
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    # Without the names that this module imports, but with submodules that were imported.
    modules = ("bench", "dask", "torch", "xarray")
    return [*__all__, "__version__", *(name for name in modules if name in globals())]


__all__ = [
    "ArrayReader",
    "ArrayWriter",
    "Axis",
    "BackendUnavailable",
    "CodecPipeline",
    "Consolidation",
    "Crops",
    "DeviceTensor",
    "Explanation",
    "FallbackWarning",
    "FramesPending",
    "FramesWarning",
    "Inspection",
    "MultiscaleWriter",
    "ShardChanged",
    "ShardError",
    "compact",
    "configure",
    "consolidate",
    "doctor",
    "explain",
    "inspect",
    "metrics",
    "pyramid",
    "recover",
    "reencode",
    "reshard",
    "write_lower_levels",
]
