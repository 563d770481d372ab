"""The command in the wheel: ``python -m zarrs_cuda``, and the script ``zarrs-cuda``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import zarr
import zarrs_cuda
from conftest import create

MODULE = [sys.executable, "-m", "zarrs_cuda"]
SCRIPT = [str(Path(sys.executable).with_name("zarrs-cuda"))]
VALUES = np.arange(256, dtype="uint16").reshape(16, 16)


def said(*words: object, code: int = 0, command: list[str] = MODULE) -> str:
    """Run the command. Returns its output, and then its errors."""
    done = subprocess.run([*command, *map(str, words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def array(path: Path) -> None:
    create(path, shape=(16, 16), chunks=(2, 2), shards=(8, 8), dtype="uint16", fill_value=7)[...] = VALUES


@pytest.mark.parametrize("command", [MODULE, SCRIPT], ids=["module", "script"])
def test_its_version_is_that_of_the_package(command: list[str]) -> None:
    assert said("--version", command=command) == f"zarrs-cuda {zarrs_cuda.__version__}\n"


def test_help_is_printed_to_its_end() -> None:
    assert "130  interrupted" in said("--help").splitlines()[-1]
    assert "inspect" in said("--help")


def test_wrong_arguments(tmp_path: Path) -> None:
    for words in [(), ("no-such-task",), ("inspect",), ("inspect", tmp_path, "--threads", "many")]:
        assert "--help" in said(*words, code=2)
    assert "help: " in said("verify", tmp_path / "none", code=1)


def test_an_array_of_zarr_python(tmp_path: Path) -> None:
    array(tmp_path / "a ü")
    found = json.loads(said("inspect", tmp_path / "a ü", "--json"))
    assert found["stored"] == 4
    assert "engine: host" in said("explain", tmp_path / "a ü", "--backend", "host")
    said("reencode", tmp_path / "a ü", tmp_path / "b", "--shard", "16,16", "--subchunk", "8,8", "--verify")
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "b")[...], VALUES)
    shard = tmp_path / "b/c/0/0"
    shard.write_bytes(shard.read_bytes()[:-20])
    assert json.loads(said("verify", tmp_path / "b", "--json", code=3).split("\n}")[0] + "}")["damaged"]


def test_addresses_are_taken() -> None:
    assert "names no host or bucket" in said("inspect", "s3://", code=2)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_finishes_what_is_under_way(number: int, tmp_path: Path) -> None:
    words = ["--frame-shape", "16,16", "--dtype", "uint16", "--subchunk", "1,8,8", "--shard", "4,16,16"]
    out = tmp_path / "out"
    child = subprocess.Popen(
        [*MODULE, "stream", str(out), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert child.stdin is not None
    # The input stays open: the command waits for more frames.
    child.stdin.write(VALUES.tobytes() * 300)
    child.stdin.flush()
    begin = time.monotonic()
    while not (out / "c").exists() and time.monotonic() - begin < 60 and child.poll() is None:
        time.sleep(0.01)
    child.send_signal(number)
    code = child.wait(60)
    text, _ = child.communicate()
    assert code == 130, text
    whole = zarr.open_array(out)
    assert 1 <= whole.shape[0] <= 300
    assert (whole[...] == VALUES).all()
