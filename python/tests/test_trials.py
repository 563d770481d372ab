"""The trials, some rounds of each. The programs themselves run for as long as they are told."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TRIALS = Path(__file__).parent / "trials"


@pytest.mark.parametrize(
    ("name", "arguments", "did"),
    [
        ("climate", ["--rounds", "4"], r"dask blocks 1, day by day 1, .*programs share regions 1"),
        ("microscope", ["--rounds", "3"], r"second writers that were refused 6"),
        ("training", ["--rounds", "2", "--batches", "200"], r"batches \d{3,}"),
    ],
)
def test_a_trial(name: str, arguments: list[str], did: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, TRIALS / f"{name}.py", *arguments, "--directory", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(did, done.stdout), done.stdout
