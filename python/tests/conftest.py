"""What the tests share: arrays with this package's pipeline, and with zarr-python's own."""

from __future__ import annotations

import itertools
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
import zarr
from obstore.store import LocalStore as LocalObjects
from zarr.storage import LocalStore, MemoryStore, ObjectStore, WrapperStore
from zarrs_cuda._pipeline import counts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# A shell starts programs in the background with Ctrl-C ignored, and their children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests begin without settings: variables of the shell, or of the library's own tests, change what the
# package does.
for _name in list(os.environ):
    if _name.startswith(("ZARRS_CUDA_", "ZARR_ZARRS_CUDA__", "ZARR_CODEC_PIPELINE__")):
        del os.environ[_name]

OURS = "zarrs_cuda.CodecPipeline"
THEIRS = "zarr.core.codec_pipeline.BatchedCodecPipeline"


def opened(store: Any, pipeline: str, **settings: Any) -> zarr.Array[Any]:
    """Open the array of a store with a pipeline."""
    settings = {f"codec_pipeline.{key}": value for key, value in settings.items()}
    with zarr.config.set({"codec_pipeline.path": pipeline, **settings}):
        return zarr.open_array(store, mode="r+")


def create(store: Any, pipeline: str = OURS, **kwargs: Any) -> zarr.Array[Any]:
    """Create an array in a store with a pipeline."""
    with zarr.config.set({"codec_pipeline.path": pipeline}):
        return zarr.create_array(store, **kwargs)


def exit_code(child: int, seconds: float) -> int:
    """Wait for a forked child, and return its exit code. The test fails if the child takes longer."""
    deadline = time.monotonic() + seconds
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.005)
    if done == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail(f"a forked child has neither ended nor raised an error after {seconds} s")
    return os.waitstatus_to_exitcode(done[1])


@pytest.fixture
def stores(tmp_path: Path) -> Callable[[str], Any]:
    """Return a function that makes an empty store of a kind: files, memory, objects, or any other."""
    number = itertools.count()

    def make(kind: str) -> Any:
        match kind:
            case "local":
                return LocalStore(tmp_path / f"store{next(number)}")
            case "memory":
                return MemoryStore()
            case "objects":
                root = tmp_path / f"store{next(number)}"
                return ObjectStore(LocalObjects(root, mkdir=True))
            case _:
                return WrapperStore(MemoryStore())

    return make


@pytest.fixture(autouse=True)
def _counted() -> Any:
    """No test of this package's reads and writes is done by another pipeline unnoticed."""
    before = counts.other
    yield
    falls_back = counts.other - before
    assert not falls_back or "fall" in os.environ.get("PYTEST_CURRENT_TEST", "")
