"""The implementation ``zarrs-cuda`` of iohub: its arrays through this package."""

from __future__ import annotations

from iohub.core.implementations.zarr_python import ZarrPythonImplementation


class ZarrsCudaImplementation(ZarrPythonImplementation):  # type: ignore[misc]
    """zarr-python, with the codec pipeline of this package."""

    _DEFAULT_CODEC_PIPELINE = "zarrs_cuda.CodecPipeline"
