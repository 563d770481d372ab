"""The examples of the READMEs and of the guide, as a reader would run them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "python" / "README.md"
TRAINING = ROOT / "docs" / "guide" / "training.md"


def run(program: list[str], folder: Path, **variables: str) -> str:
    """Run a program of Python in a folder, and return its output."""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", *program],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("page", "count"), [("README.md", 1), ("docs/guide/python.md", 2)])
def test_the_first_programs(page: str, count: int, tmp_path: Path) -> None:
    programs = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert len(programs) == count
    check = "from zarrs_cuda._pipeline import counts\nassert counts.other == 0"
    run(["-c", "\n".join([*programs, check])], tmp_path)


def test_the_examples_of_the_readme(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 7
    assert "subchunks=1" in run(["-c", "\n".join(blocks)], tmp_path)


def test_the_examples_of_the_page_about_training(tmp_path: Path) -> None:
    program, grid, _ = re.findall(r"^```python\n(.*?)^```$", TRAINING.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "grid.py").write_text(f"{grid}\nassert origins.shape == (27, 3) and origins.max() == 128\n")
    stand_in = str(Path(__file__).parent / "without_torch")
    # Another test of this process may have found the stand-in.
    torch = importlib.util.find_spec("torch")
    is_missing = torch is None or str(torch.origin).startswith(stand_in)
    paths = {"PYTHONPATH": stand_in} if is_missing else {}
    for name in ("program.py", "grid.py"):
        run([name], tmp_path, **paths)
