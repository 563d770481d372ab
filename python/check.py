#!/usr/bin/env python3
"""Set up and test the Python package: ``python3 python/check.py``.

It needs Python 3.12 or newer, which it looks for in ``PATH`` and in the versions of pyenv, a toolchain of
Rust, and access to PyPI. Everything is made below ``target/python``. With names of steps as arguments,
only those are done: ``setup``, ``lint``, ``test``, ``peers``, ``smoke``.

This file itself runs on every Python 3 that is still in use.
"""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time

PYTHON = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(PYTHON)
WORK = os.path.join(ROOT, "target", "python")
VENV = os.path.join(WORK, "venv")
WHEELS = os.path.join(WORK, "wheels")
SOURCES = os.path.join(WORK, "sources")
OLDEST = (3, 12)
MOST_MEGABYTES = 15
LEAST_SHARE = 0.95
ZARR_PYTHON = [
    "test_api.py",
    "test_array.py",
    "test_array_stateful.py",
    "test_codec_pipeline.py",
    "test_codec_pipeline_suite.py",
    "test_codecs",
    "test_fastpath_equivalence.py",
    "test_fused_pipeline.py",
    "test_indexing.py",
    "test_info.py",
    "test_pipeline_parity.py",
    "test_properties.py",
    "test_resize.py",
    "test_sync.py",
    "test_unified_chunk_grid.py",
    "test_v2.py",
]
# Not those of its strict mode, its registration, its version and its own stores; and not those of strings,
# which import what zarr-python 3.4 does not have.
ZARRS_PYTHON = [
    "pipeline",
    "test_codecs.py",
    "test_endian.py",
    "test_gzip.py",
    "test_sharding.py",
    "test_transpose.py",
    "test_v2.py",
    "test_zstd.py",
]


def run(*command, **kwargs):
    """Run a command, and show it."""
    words = [str(word) for word in command]
    print("+ " + " ".join(words), flush=True)
    environment = dict(os.environ, **kwargs.pop("environment", {}))
    environment.pop("PYTHONPATH", None)
    subprocess.run(words, check=True, env=environment, **kwargs)


def interpreter():
    """Return a Python that is new enough."""
    names = ["python3.%d" % minor for minor in range(OLDEST[1], OLDEST[1] + 8)] + ["python3"]
    found = [shutil.which(name) for name in names]
    versions = os.path.join(os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv")), "versions")
    found += sorted(glob.glob(os.path.join(versions, "3.*", "bin", "python3")))
    question = (
        "import sys, sysconfig as c; print(*sys.version_info[:2], c.get_config_var('Py_GIL_DISABLED') or 0)"
    )
    for path in filter(None, found):
        done = subprocess.run([path, "-c", question], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        answer = done.stdout.split()
        # Wheels for the stable interface do not load in free-threaded builds.
        if done.returncode == 0 and (int(answer[0]), int(answer[1])) >= OLDEST and answer[2] == b"0":
            return path
    sys.exit(
        "no Python %d.%d or newer is in PATH or in %s: install one (`pyenv install 3.13`)"
        % (*OLDEST, versions)
    )


def python(venv=VENV):
    """Return the Python of a virtual environment."""
    return os.path.join(venv, "bin", "python")


def make_venv(venv):
    """Make an empty virtual environment."""
    run(interpreter(), "-m", "venv", "--clear", venv)


def the_wheel():
    """Return the path of the wheel."""
    (wheel,) = glob.glob(os.path.join(WHEELS, "*.whl"))
    return wheel


def maturin(task, folder, *arguments):
    """Run a task of maturin in a folder."""
    target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
    command = os.path.join(VENV, "bin", "maturin")
    environment = {"CARGO_TARGET_DIR": os.path.abspath(target)}
    run(command, task, *arguments, cwd=folder, environment=environment)


def unpacked():
    """Make the source distribution, unpack it in an empty folder, and return its folder."""
    shutil.rmtree(SOURCES, ignore_errors=True)
    maturin("sdist", PYTHON, "--out", SOURCES)
    (packed,) = glob.glob(os.path.join(SOURCES, "*.tar.gz"))
    with tarfile.open(packed) as archive:
        archive.extractall(SOURCES)
    # The times in the archive are always the same, and Cargo goes by times.
    for folder, _, names in os.walk(SOURCES):
        for name in names:
            os.utime(os.path.join(folder, name))
    return packed[: -len(".tar.gz")]


def setup():
    """Install what is needed, build the wheel from the source distribution, and install it."""
    requirements = os.path.join(PYTHON, "requirements.txt")
    stamp = os.path.join(VENV, "requirements.txt")
    with open(requirements) as file:
        wanted = file.read()
    known = None
    if os.path.exists(stamp):
        with open(stamp) as file:
            known = file.read()
    if known != wanted:
        make_venv(VENV)
        run(python(), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements)
        with open(stamp, "w") as file:
            file.write(wanted)
    shutil.rmtree(WHEELS, ignore_errors=True)
    maturin("build", unpacked(), "--quiet", "--out", WHEELS)
    install = [python(), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*install, "--no-deps", "--force-reinstall", the_wheel())


def lint():
    """Check formatting, lints, types and the stubs."""
    run(os.path.join(VENV, "bin", "ruff"), "format", "--check", ".", cwd=PYTHON)
    run(os.path.join(VENV, "bin", "ruff"), "check", ".", cwd=PYTHON)
    run(os.path.join(VENV, "bin", "mypy"), cwd=PYTHON)
    run(
        os.path.join(VENV, "bin", "stubtest"),
        "zarrs_cuda._internal",
        "--ignore-missing-stub",
        cwd=WORK,
    )


def emulated_driver():
    """Build the library of the emulated CUDA driver. Returns its file."""
    target = os.path.abspath(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"))
    run("cargo", "build", "--quiet", "--package", "zarrs_cuda_emulator", cwd=ROOT)
    return os.path.join(target, "debug", "libzarrs_cuda_emulator.so")


def test():
    """Run the tests of the package."""
    environment = {"CUDA_DRIVER_OF_TESTS": emulated_driver()}
    run(python(), "-m", "pytest", "-q", "-n", "2", "tests", cwd=PYTHON, environment=environment)


def source(requirement):
    """Fetch and unpack a source distribution. Returns its directory."""
    name, version = requirement.split("==")
    directory = os.path.join(WORK, "peers")
    unpacked = os.path.join(directory, "%s-%s" % (name, version))
    if not os.path.isdir(unpacked):
        os.makedirs(directory, exist_ok=True)
        get = [python(), "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        # Its metadata are asked for, which takes what builds it, and nothing is built.
        run(*get, "--no-binary", name, "--dest", directory, requirement)
        with tarfile.open(unpacked + ".tar.gz") as archive:
            archive.extractall(directory, filter="data")
    return unpacked


def peers():
    """Run zarr-python's and zarrs-python's own tests with this package's pipeline."""
    with open(os.path.join(PYTHON, "requirements.txt")) as file:
        pinned = file.read()
    counts = os.path.join(WORK, "counts")
    shutil.rmtree(counts, ignore_errors=True)
    os.makedirs(counts)
    settings = {
        "ZARR_CODEC_PIPELINE__PATH": "zarrs_cuda.CodecPipeline",
        "ZARRS_CUDA_COUNTS": counts,
    }
    for name, files in (("zarr", ZARR_PYTHON), ("zarrs", ZARRS_PYTHON)):
        (requirement,) = re.findall("^%s==.*$" % name, pinned, re.MULTILINE)
        directory = source(requirement)
        fixture = os.path.join(directory, "tests", "conftest.py")
        with open(fixture) as file:
            text = file.read()
        with open(fixture, "w") as file:
            # zarrs-python's tests choose its own pipeline.
            file.write(text.replace("zarrs.ZarrsCodecPipeline", "zarrs_cuda.CodecPipeline"))
        plugin = os.path.join(PYTHON, "tests", "peers")
        code = "import sys, pytest; sys.path.insert(0, %r); sys.exit(pytest.main(sys.argv[1:]))" % plugin
        # Of their own settings, what does not need more packages.
        addopts = "addopts=" if name == "zarr" else "addopts=--import-mode=importlib"
        # Some tests that zarrs-python marks as failing pass.
        options = [
            "-q",
            "-n",
            "2",
            "-o",
            "xfail_strict=false",
            "-o",
            addopts,
            "-p",
            "no:cacheprovider",
            "-p",
            "peers_plugin",
        ]
        options += [
            "-W",
            "ignore::zarrs_cuda.FallbackWarning",
            "-W",
            "ignore::pytest.PytestDeprecationWarning",
        ]
        if name == "zarr":
            # `test_array_stateful.py`.
            options.append("--run-slow-hypothesis")
        tests = [os.path.join("tests", file) for file in files]
        environment = dict(settings, PYTHONDONTWRITEBYTECODE="1")
        run(python(), "-c", code, *options, *tests, cwd=directory, environment=environment)
    sums = {"ours": 0, "other": 0}
    for path in glob.glob(os.path.join(counts, "*.json")):
        with open(path) as file:
            for key, count in json.load(file).items():
                sums[key] += count
    share = sums["ours"] / max(sum(sums.values()), 1)
    print("reads and writes of Zarr v3 in local and memory stores: %s, %.1f %% ours" % (sums, 100 * share))
    if share < LEAST_SHARE:
        sys.exit("fewer than %d %% are ours" % (100 * LEAST_SHARE))


SMOKE = """
import tempfile, numpy, zarr
zarr.config.set({"codec_pipeline.path": "zarrs_cuda.CodecPipeline", "codec_pipeline.strict": True})
array = zarr.create_array(tempfile.mkdtemp(), shape=(64, 64), chunks=(8, 8), shards=(32, 32), dtype="uint16")
array[:] = numpy.arange(64 * 64).reshape(64, 64)
assert (array[5:9, ::3] == numpy.arange(64 * 64).reshape(64, 64)[5:9, ::3]).all()
import zarrs_cuda
print(zarrs_cuda.doctor())
assert "WRONG" not in zarrs_cuda.doctor()
"""


def smoke():
    """Install the wheel into an empty environment, and use it."""
    megabytes = os.path.getsize(the_wheel()) / 1e6
    print("%s: %.1f MB" % (os.path.basename(the_wheel()), megabytes))
    if megabytes > MOST_MEGABYTES:
        sys.exit("the wheel has more than %d MB" % MOST_MEGABYTES)
    venv = os.path.join(WORK, "empty")
    make_venv(venv)
    run(python(venv), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", the_wheel())
    run(python(venv), "-c", SMOKE, cwd=WORK)
    run(python(venv), "-m", "zarrs_cuda", "doctor", cwd=WORK)
    manual = os.path.join(venv, "share", "man", "man1", "zarrs-cuda.1")
    if not os.path.exists(manual):
        sys.exit("the wheel has no manual page: %s is missing" % manual)


STEPS = {"setup": setup, "lint": lint, "test": test, "peers": peers, "smoke": smoke}


def main():
    """Do the steps that were asked for."""
    wanted = sys.argv[1:] or list(STEPS)
    unknown = [step for step in wanted if step not in STEPS]
    if unknown:
        sys.exit("there is no step %s; there are %s" % (", ".join(unknown), ", ".join(STEPS)))
    os.makedirs(WORK, exist_ok=True)
    for step in wanted:
        print("\n== %s" % step, flush=True)
        begin = time.time()
        STEPS[step]()
        print("%s: %d s" % (step, time.time() - begin), flush=True)


if __name__ == "__main__":
    main()
