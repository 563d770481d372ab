"""Every program of the book is run, here or by the test that a table names."""

from __future__ import annotations

import re
import subprocess
import sys
from os import environ
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from book import BLOCKS, ROOT, matching
from s3 import BUCKET, Server

README = "python/tests/test_readme.py"
COMMAND = "cli/tests/command/docs.rs"
# A page, a pattern of its blocks, how many these are (0: any number), and the test that runs them.
ELSEWHERE = [
    ("README.md", "^console", 1, COMMAND),
    ("docs/cli.md", "^console", 0, COMMAND),
    ("README.md", "^python", 1, README),
    ("python/README.md", "^python", 0, README),
    ("docs/guide/python.md", "^python", 2, README),
    ("docs/guide/training.md", "^python\nimport", 2, README),
    ("docs/guide/gpu.md", "^python", 1, "python/tests/test_device_reads.py"),
]
# Cargo takes minutes: `test_book_words.py` compares the words of such blocks with Cargo's manifests.
CARGO = [
    ("README.md", "^sh\ncargo run"),
    ("docs/guide/start.md", "^sh\ncargo add"),
    ("docs/internals/half-an-hour.md", "^sh\ncargo xtask"),
]
HERE: list[tuple[str, str]] = []
MACHINES = "docs/guide/many_machines.md"
BUNDLE = "docs/internals/half-an-hour.md"
VALUES = np.arange(64 * 64, dtype="uint16").reshape(64, 64)
ARRAYS = ("a", "deep/b")
# Runs the jobs of an array one after the other, without those that are lost.
SBATCH = f"""#!{sys.executable}
import os, subprocess, sys
export, array, script = sys.argv[1:]
variables = dict(word.split("=", 1) for word in export.removeprefix("--export=ALL,").split(","))
first, _, last = array.removeprefix("--array=").partition("-")
numbers = [str(n) for n in range(int(first), int(last) + 1)] if last else first.split(",")
for number in numbers:
    job = {{"SLURM_ARRAY_TASK_ID": number, "SLURM_ARRAY_TASK_MAX": numbers[-1], "SLURM_CPUS_PER_TASK": "1"}}
    if number not in os.environ.get("LOST", "").split(","):
        subprocess.run(["sh", script], env={{**os.environ, **variables, **job}}, check=True)
"""


def runs(page: str, *patterns: str) -> Any:
    """Give a test the texts of blocks of a page, one for each pattern."""
    HERE.extend((page, pattern) for pattern in patterns)
    texts = [block.text for pattern in patterns for block in matching(page, pattern)]
    return pytest.mark.parametrize("texts", [texts], ids=[page])


def run(text: str, folder: Path, code: int = 0, **variables: str) -> str:
    """Run commands in a folder, whose own programs come first, and return what they print."""
    path = f"{folder}/bin:{Path(sys.executable).parent}:{environ['PATH']}"
    known = {**environ, "PATH": path, "NO_COLOR": "1", **variables}
    done = subprocess.run(
        ["sh", "-ec", text], cwd=folder, env=known, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, f"{text}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def make_group(path: Path) -> None:
    made = zarr.create_group(path, zarr_format=2)
    for name in ARRAYS:
        made.create_array(name, data=VALUES, chunks=(8, 8))


def check_group(path: Path) -> None:
    for name in ARRAYS:
        array = zarr.open_array(path / name, mode="r")
        assert array.shards is not None
        np.testing.assert_array_equal(array[...], VALUES)


def test_every_block_is_run() -> None:
    entries = [*((*here, 1, "") for here in HERE), *ELSEWHERE, *((*cargo, 1, "") for cargo in CARGO)]
    found = [block for page, pattern, _, _ in entries for block in matching(page, pattern)]
    wrong = [
        f"{block.page}:{block.line}: {found.count(block)} entries of test_book.py run this block, not one"
        for block in BLOCKS
        if block.is_program and found.count(block) != 1
    ]
    for page, pattern, count, test in entries:
        lines = [block.line for block in matching(page, pattern)]
        if len(lines) != (count or max(len(lines), 1)):
            wrong.append(f"{page}: {pattern!r} of test_book.py is at the lines {lines}, not at {count or 1}")
        if test and Path(page).name not in (ROOT / test).read_text():
            wrong.append(f"{page} is not named in {test}")
    for page, pattern in CARGO:
        lines = [line for block in matching(page, pattern) for line in block.text.splitlines()]
        wrong += [f"{page}: `{line}` is not run" for line in lines if not line.startswith("cargo ")]
    assert not wrong, "\n".join(wrong)


@runs(MACHINES, "^sh\n.*\n.*--part 1/3", "^sh\n.*--against", "^sh\n.*--resume")
def test_parts_on_a_server(texts: list[str], tmp_path: Path) -> None:
    parts, verify, resume = texts
    make_group(tmp_path / "in.zarr")
    with Server() as server:
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        server.objects = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in files}
        address = f"http://127.0.0.1:{server.server_port}"
        variables = {"AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true", "AWS_SKIP_SIGNATURE": "true"}
        variables |= {"AWS_REGION": "us-east-1", "NO_PROXY": "127.0.0.1"}
        assert parts.count(f"s3://{BUCKET}/") == 6
        run(parts, tmp_path, **variables)
        run(verify, tmp_path, **variables)
        lost = "out.zarr/a/c/0/0"
        shard = server.objects.pop(lost)
        run(verify, tmp_path, code=3, **variables)
        run(resume, tmp_path, **variables)
        assert server.objects[lost] == shard
        run(verify, tmp_path, **variables)


@runs(MACHINES, "^sh\nsbatch .*=1-64", "^sh\nzarrs-cuda status", "^sh\nsbatch .*PARTS=64")
def test_jobs_of_slurm(texts: list[str], tmp_path: Path) -> None:
    jobs, status, again = (text.replace("64", "8") for text in texts)
    make_group(tmp_path / "in.zarr")
    program(tmp_path / "bin/sbatch", SBATCH)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    run(jobs, tmp_path, code=3, LOST="3,7")
    assert re.search(r"3/8.*\n.*7/8", run(status, tmp_path, code=3))
    run(again, tmp_path)
    run(status, tmp_path)
    check_group(tmp_path / "out.zarr")


def test_the_arguments_for_other_schedulers(tmp_path: Path) -> None:
    table = re.findall(r"^\| .* \| `(--part \S.*)` \|$", (ROOT / MACHINES).read_text(), re.MULTILINE)
    assert len(table) == 2
    make_group(tmp_path / "in.zarr")
    for number, argument in enumerate(text.replace("/16", "/2") for text in table):
        for rank in "01":
            ranks = {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": "2", "JOB_COMPLETION_INDEX": rank}
            run(f"zarrs-cuda reencode in.zarr out{number} --recursive {argument}", tmp_path, **ranks)
        check_group(tmp_path / f"out{number}")


@runs(MACHINES, "^python")
def test_parts_from_python(texts: list[str], tmp_path: Path) -> None:
    begin, tasks, part = re.split(r"\n(?=zarrs_cuda\.)", texts[0].strip())
    make_group(tmp_path / "in.zarr")
    lines = ["from distributed import Client, LocalCluster", begin, "size = 2"]
    lines += ["with LocalCluster(processes=False, dashboard_address=None) as c, Client(c) as client:"]
    lines += [f"    {tasks}", "for rank in range(size):", f"    {part.replace('out.zarr', 'parts.zarr')}"]
    (tmp_path / "program.py").write_text("\n".join(lines))
    run("python program.py", tmp_path)
    check_group(tmp_path / "out.zarr")
    check_group(tmp_path / "parts.zarr")


@runs("docs/guide/memory.md", "^sh\ncat ")
def test_whether_programs_get_huge_pages(texts: list[str], tmp_path: Path) -> None:
    if not Path(texts[0].split()[1]).exists():
        pytest.skip("this kernel has no huge pages")
    assert re.search(r"\[(always|madvise|never)\]", run(texts[0], tmp_path))


@runs("docs/guide/memory.md", "^sh\nGLIBC_.*hugetlb", "^sh\nGLIBC_.*mmap_max")
def test_glibc_knows_its_tunables(texts: list[str], tmp_path: Path) -> None:
    loader = next(Path("/").glob("lib*/ld-linux*.so.*"), None)
    if loader is None:
        pytest.skip("this system has no glibc")
    program(tmp_path / "program", f"#!/bin/sh\nexec {loader} --list-tunables\n")
    for text in texts:
        told = dict(re.findall(r"^(\S+): (\S+)", run(text, tmp_path), re.MULTILINE))
        for name, value in re.findall(r"(glibc\.[\w.]+)=(\d+)", text):
            assert int(told[name], 0) == int(value), name


@runs("docs/guide/migrate.md", "^sh\nprogram-that-prints-frames", "^sh\nzarrs-cuda reencode")
def test_migrations(texts: list[str], tmp_path: Path) -> None:
    frames, group = texts
    print_frames = "import sys; sys.stdout.buffer.write(bytes(range(256)) * (2 << 15))"
    program(tmp_path / "bin/program-that-prints-frames", f"#!/bin/sh\nexec python -c '{print_frames}'\n")
    run(frames, tmp_path)
    array = zarr.open_array(tmp_path / "out.zarr", mode="r")
    assert (array.shape, array.dtype) == ((2, 2048, 2048), "uint16")
    assert array[...].tobytes() == bytes(range(256)) * (2 << 15)
    make_group(tmp_path / "OLD.zarr")
    assert "equal, bit for bit" in run(group, tmp_path)
    check_group(tmp_path / "NEW.zarr")


@runs("docs/guide/migrate.md", "^text\nzarr.config.set", "^text\nwith h5py.File")
def test_frames_of_other_files(texts: list[str], tmp_path: Path) -> None:
    pipeline, loop = texts
    stand_in = "import contextlib, numpy\nIMAGES = numpy.full((70, 8, 8), 5, 'uint16')\n"
    (tmp_path / "h5py.py").write_text(
        stand_in + "def File(_): return contextlib.nullcontext({'images': IMAGES})"
    )
    kind = "shape=(0, 8, 8), chunks=(1, 8, 8), shards=(32, 8, 8), dtype='uint16'"
    begin = f"import h5py, zarr, zarrs_cuda\n{pipeline}array = zarr.create_array('a.zarr', {kind})\n"
    end = "assert (array[...] == h5py.IMAGES).all()\n"
    (tmp_path / "program.py").write_text(begin + loop + end)
    run("python program.py", tmp_path)


@runs(BUNDLE, "^sh\ntar -C target -czf", "^sh\ntar -xzf")
def test_the_bundle_is_packed_and_run(texts: list[str], tmp_path: Path) -> None:
    pack, unpack = texts
    program(tmp_path / "target/gpu-bundle/run.sh", "echo the bundle runs\n")
    program(tmp_path / "bin/scp", '#!/bin/sh\ntest "$2" = MACHINE: && cp "$1" machine/\n')
    (tmp_path / "machine").mkdir()
    run(pack, tmp_path)
    assert run(unpack, tmp_path / "machine") == "the bundle runs\n"


@runs("docs/guide/training.md", "^python\nloader = ")
def test_crops_for_a_gpu(texts: list[str], tmp_path: Path) -> None:
    """The stand-in for PyTorch has no GPU, and takes any device."""
    begin = """
import zarr, zarrs_cuda, zarrs_cuda.torch
from torch.utils.data import DataLoader
array = zarr.create_array("a.zarr", shape=(32, 32), chunks=(8, 8), shards=(16, 16), dtype="uint16")
array[:] = 3
crops = zarrs_cuda.torch.Crops(zarrs_cuda.ArrayReader(array), 5, (4, 4), batch_size=5, seed=1)
"""
    end = "assert (batch.numpy() == 3).all() and (batch.shape, batch.dtype) == ((5, 4, 4), 'float32')\n"
    (tmp_path / "program.py").write_text(begin + texts[0] + end)
    run("python program.py", tmp_path, PYTHONPATH=str(Path(__file__).parent / "without_torch"))


@runs("python/README.md", "^sh\npython -m zarrs_cuda inspect")
def test_the_command_of_the_package(texts: list[str], tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "volume.zarr", data=VALUES, chunks=(8, 8), shards=(32, 32))
    assert array.shards is not None
    assert "4 of 4 shards" in run(texts[0].replace("/data/", ""), tmp_path)
