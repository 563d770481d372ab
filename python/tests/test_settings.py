"""The settings of the package, and what is almost one of them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import zarr
import zarrs_cuda
from conftest import OURS, create
from zarr.storage import MemoryStore

KIND = {"shape": (4,), "chunks": (2,), "shards": (4,), "dtype": "uint8"}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("shards", "Shared", "rewrite, in_place, shared"),
        ("shards", None, "rewrite, in_place, shared"),
        ("strict", "yes", "True or False"),
        ("sync", 2, "True or False"),
        ("max_workers", 0, "positive number"),
        ("max_workers", "many", "positive number"),
        ("max_workers", 1.5, "positive number"),
        ("shard", "shared", "did you mean `codec_pipeline.shards`"),
        ("shrads", "shared", "did you mean `codec_pipeline.shards`"),
        ("strickt", True, "did you mean `codec_pipeline.strict`"),
        ("syncs", True, "did you mean `codec_pipeline.sync`"),
        ("max_worker", 2, "did you mean `codec_pipeline.max_workers`"),
        ("maxworkers", 2, "did you mean `codec_pipeline.max_workers`"),
    ],
)
def test_wrong_settings_are_errors_when_an_array_is_opened(key: str, value: Any, said: str) -> None:
    store = MemoryStore()
    create(store, **KIND)
    with zarr.config.set({"codec_pipeline.path": OURS, f"codec_pipeline.{key}": value}):
        with pytest.raises(ValueError, match=said) as error:
            zarr.open_array(store)
        assert f"codec_pipeline.{key}" in str(error.value)
        assert "WRONG" in zarrs_cuda.doctor()


@pytest.mark.parametrize(
    "key", ["direct_io", "validate_checksums", "chunk_concurrent_minimum", "batch_sizes"]
)
def test_settings_of_others_are_theirs(key: str) -> None:
    with zarr.config.set({f"codec_pipeline.{key}": 1}):
        assert create(MemoryStore(), **KIND)[...].sum() == 0


def test_right_settings() -> None:
    for settings in ({"max_workers": 2, "strict": True}, {"sync": 0, "strict": None}, {"max_workers": "3"}):
        with zarr.config.set({f"codec_pipeline.{key}": value for key, value in settings.items()}):
            assert create(MemoryStore(), **KIND)[...].sum() == 0


@pytest.mark.parametrize(
    ("environment", "warns"),
    [
        ({"ZARR_CODEC_PIPELINE__SHARDS": "shared"}, True),
        ({"ZARR_CODEC_PIPELINE__STRICT": "True"}, True),
        ({"ZARR_CODEC_PIPELINE__SHARDS": "shared", "ZARR_CODEC_PIPELINE__PATH": OURS}, False),
        ({"ZARR_CODEC_PIPELINE__SHARDS": "nonsense", "ZARR_CODEC_PIPELINE__PATH": OURS}, False),
        ({}, False),
    ],
)
def test_settings_without_the_pipeline_are_a_warning_at_import(environment: Any, warns: bool) -> None:
    for filter_ in ("default", "error"):
        done = subprocess.run(
            [sys.executable, "-W", f"{filter_}::UserWarning", "-c", "import zarrs_cuda"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        if filter_ == "default":
            assert ("does nothing: `codec_pipeline.path`" in done.stderr) == warns, done.stderr
