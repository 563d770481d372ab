"""Writers that end early: by an exception, a signal, the end of the program, or a kill."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zarrs_cuda
from conftest import OURS, THEIRS, create, opened

KIND = {"shape": (0, 64, 64), "chunks": (4, 32, 32), "shards": (8, 64, 64), "dtype": "uint16"}
WRITERS = ["ArrayWriter", "MultiscaleWriter"]
FRAMES = 100
# In complete shards.
COMPLETE = 96

SCRIPT = """
import os, signal, sys, threading, time
import numpy as np, zarr, zarrs_cuda

array = zarr.open_array({path!r}, mode="r+")
writer = zarrs_cuda.{kind}(array, flush_after={after})
for n in range({frames}):
    writer.append(np.full((64, 64), n, "uint16"))
{end}
"""


def image(path: Path) -> Path:
    with zarr.config.set({"codec_pipeline.path": OURS}):
        zarr.create_group(path).create_array("0", dimension_names=["t", "y", "x"], **KIND)
    return path / "0"


def script(path: Path, kind: str, end: str, after: float | None) -> subprocess.Popen[str]:
    code = SCRIPT.format(path=str(path), kind=kind, after=after, frames=FRAMES, end=end)
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-W", "always", "-c", code], stdout=pipe, stderr=pipe, text=True)


def check(path: Path, kind: str, complete: int = COMPLETE) -> None:
    values = opened(path, THEIRS)
    assert values.shape == (complete, 64, 64)
    expected = np.broadcast_to(np.arange(complete, dtype="uint16")[:, None, None], values.shape)
    np.testing.assert_array_equal(values[...], expected)
    if kind == "MultiscaleWriter":
        lower = opened(path.parent / "1", THEIRS)
        assert lower.shape == (complete, 32, 32)
        np.testing.assert_array_equal(lower[...], expected[:, :32, :32])
    assert not list(path.parent.rglob("*.tmp"))


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(
    ("end", "code", "told"),
    [
        ("", 0, "the program ended, and a writer was not finished: the last 4 slices are lost"),
        ("del writer", 0, "it was deleted, and a writer was not finished: the last 4 slices are lost"),
        ("sys.exit(3)", 3, "the last 4 slices are lost"),
        ("raise ValueError('mine')", 1, "the last 4 slices are lost"),
        ("with writer:\n    raise ValueError('mine')", 1, "slices below 96; 4 behind them are lost"),
        ("with writer:\n    raise KeyboardInterrupt", -2, "storing"),
        ("threading.Thread(target=lambda: time.sleep(0.5)).start()", 0, "the last 4 slices are lost"),
    ],
)
def test_complete_shards_are_stored_at_the_end(
    end: str, code: int, told: str, kind: str, tmp_path: Path
) -> None:
    path = image(tmp_path)
    process = script(path, kind, end, None)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code, errors
    assert told in errors
    assert "schedule new futures" not in errors
    check(path, kind)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("end", ["kill", "os._exit(0)", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_a_pause_helps_where_nothing_runs_at_the_end(end: str, kind: str, tmp_path: Path) -> None:
    path = image(tmp_path)
    waits = "print('ready', flush=True); time.sleep(2)"
    process = script(path, kind, waits + ("\ntime.sleep(60)" if end == "kill" else f"\n{end}"), 0.2)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    if end == "kill":
        time.sleep(2)
        process.kill()
    process.communicate(timeout=120)
    check(path, kind)


def test_sigterm_with_the_lines_of_the_guide(tmp_path: Path) -> None:
    path = image(tmp_path)
    end = """
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
with writer:
    print("ready", flush=True)
    time.sleep(60)
"""
    process = script(path, "ArrayWriter", end, None)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    check(path, "ArrayWriter")


def test_a_second_ctrl_c_gives_up(tmp_path: Path) -> None:
    array = image(tmp_path)
    # The threads that store wait for the function, and so does `finish`.
    code = f"""
import time, numpy as np, zarr, zarrs_cuda
array = zarr.open_array({str(array)!r}, mode="r+")
with zarrs_cuda.ArrayWriter(array, progress=lambda now: time.sleep(600)) as writer:
    writer.append(np.ones((100, 64, 64), "uint16"))
    print("ready", flush=True)
"""
    for again in (True, False):
        pipe = subprocess.PIPE
        process = subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True)
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        line = process.stderr.readline()
        assert "storing" in line, line + process.stderr.read()
        if again:
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        taken = time.monotonic() - begin
        assert "KeyboardInterrupt" in errors
        assert (taken < 4) == again, taken
        assert taken < 10


def test_what_is_at_risk(tmp_path: Path) -> None:
    array = create(tmp_path, **KIND)
    writer = zarrs_cuda.ArrayWriter(array, flush_after=None)
    writer.append(np.ones((20, 64, 64), "uint16"))
    assert writer.progress()["at_risk"] == 20
    writer.flush()
    assert writer.progress()["at_risk"] == 4
    assert writer.abort() == 16
    assert writer.progress()["at_risk"] == 4
    with pytest.raises(ValueError, match="flush_after"):
        zarrs_cuda.ArrayWriter(array, flush_after=-1.0)


def test_an_exception_says_what_is_stored(tmp_path: Path) -> None:
    array = create(tmp_path, **KIND)

    def use(writer: Any, *, aborts: bool = False) -> None:
        with writer:
            writer.append(np.ones((20, 64, 64), "uint16"))
            if aborts:
                writer.abort()
            msg = "mine"
            raise ValueError(msg)

    with pytest.raises(ValueError, match="mine") as error:
        use(zarrs_cuda.ArrayWriter(array))
    assert error.value.__notes__ == ["The writer has stored the slices below 16; 4 behind them are lost."]
    assert array.shape[0] == 16
    # A writer that was aborted within the block has nothing to add.
    with pytest.raises(ValueError, match="mine") as error:
        use(zarrs_cuda.ArrayWriter(array, start=16), aborts=True)
    assert not hasattr(error.value, "__notes__")
