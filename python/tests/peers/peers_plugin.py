"""A plugin of pytest for the tests of zarr-python and zarrs-python, with this package's pipeline.

Tests that cannot pass are listed here, each with its reason, and must fail. Reads and writes of arrays of
Zarr v3 in local and memory stores are counted: those of this package, and those that it left to another
pipeline.
"""

from __future__ import annotations

import fnmatch
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

_ORDER = "subchunks are always stored in C order"
_INSIDE = "it replaces a function inside of zarr-python's own sharding codec"
_AGAIN = "an index is read once more behind the subchunks, because the shard may have been replaced meanwhile"
# Names of tests, without their folder.
FAILS = {
    "test_sharding.py::test_encoded_subchunk_write_order[[]morton]": _ORDER,
    "test_sharding.py::test_encoded_subchunk_write_order[[]colexicographic]": _ORDER,
    "test_sharding.py::test_sharding_partial_shard_read__index_chunk_slice_fails*": _INSIDE,
    "test_sharding.py::test_sharding_multiple_chunks_partial_shard_read*": _AGAIN,
    "test_sharding.py::test_sharding_duplicate_read_indexes*": _AGAIN,
    # Of zarrs-python.
    "tests/test_codecs.py::test_invalid_metadata*": "it expects the words of an older zarr-python",
    "pipeline/test_pipeline.py::test_ellipsis_indexing_invalid*": "it expects zarrs-python's words",
    "pipeline/test_pipeline.py::test_pipeline_used*": "it looks into zarrs-python's own pipeline",
}
_counts = {"ours": 0, "other": 0}

# zarr-python's property tests have 300 examples each, which take minutes.
settings.register_profile(
    "zarrs_cuda",
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)


def pytest_pycollect_makemodule() -> None:
    """Choose the profile: after zarr-python's fixtures have chosen another, and before tests take theirs.

    Not by the environment: child processes of the tests do not know the profile.
    """
    settings.load_profile("zarrs_cuda")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that must fail."""
    for item in items:
        for pattern, reason in FAILS.items():
            if fnmatch.fnmatch(item.nodeid, f"*{pattern}"):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def pytest_configure() -> None:
    """Count what the pipeline decides."""
    import zarr
    import zarrs_cuda
    from zarr.core.array import AsyncArray
    from zarr.core.metadata import ArrayV3Metadata
    from zarr.storage import LocalStore, MemoryStore, StorePath

    # zarrs-python's tests are older than zarr-python 3.4, which gave these another name.
    for kind in (zarr.Array, AsyncArray):
        if not hasattr(kind, "create"):
            kind.create = kind._create

    chosen = zarrs_cuda.CodecPipeline._for

    def counted(self: Any, batch: Any) -> Any:
        ours = chosen(self, batch)
        where = batch[0][0]
        is_near = isinstance(where, StorePath) and type(where.store) in (LocalStore, MemoryStore)
        if is_near and isinstance(self._metadata, ArrayV3Metadata):
            _counts["other" if ours is None else "ours"] += 1
        return ours

    zarrs_cuda.CodecPipeline._for = counted  # type: ignore[method-assign]


def pytest_unconfigure() -> None:
    """Leave the counts of this process in a file."""
    directory = os.environ.get("ZARRS_CUDA_COUNTS")
    if directory is not None and sum(_counts.values()):
        (Path(directory) / f"{os.getpid()}.json").write_text(json.dumps(_counts))
