"""GPUs: none is used that nobody asked for, and every setting and every lack is said in one sentence."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
import zarrs_cuda
from conftest import OURS, create
from zarr.storage import MemoryStore
from zarrs_cuda import _devices

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
KIND: dict[str, Any] = {
    "shape": (1024, 1024),
    "shards": (1024, 1024),
    "chunks": (64, 64),
    "dtype": "uint16",
    "compressors": zarr.codecs.ZstdCodec(level=1),
}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let each test begin without settings of GPUs, and take back what it sets."""
    # Python keeps the places of a package that it has once looked for.
    for name in ("nvidia", "nvidia.libnvcomp"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in list(os.environ):
        if name.startswith(("ZARRS_CUDA_", "ZARR_ZARRS_CUDA__", "LOCAL_RANK")):
            monkeypatch.delenv(name)
    with zarr.config.set({"zarrs_cuda": {}}):
        yield
    for name in list(os.environ):
        if name.startswith("ZARR_ZARRS_CUDA__"):
            del os.environ[name]


def why(**settings: Any) -> str:
    """Say why an array that is opened with these settings uses a GPU or not."""
    with zarr.config.set({f"zarrs_cuda.{key}": value for key, value in settings.items()}):
        return zarrs_cuda.explain(create(MemoryStore(), **KIND)).stages


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("backend", "gpu", "must be one of auto, host, cuda"),
        ("backend", True, "must be one of auto, host, cuda"),
        ("devices", "first", "the number of a GPU"),
        ("devices", [], "the number of a GPU"),
        ("devices", [0, -1], "the number of a GPU"),
        ("devices", [True], "the number of a GPU"),
        ("devices", 0.5, "the number of a GPU"),
        ("nvcomp", 6, "the path of a file"),
        ("device_memory", "much", "a number of bytes"),
        ("device_memory", 0, "a number of bytes"),
        ("device_timeout", "soon", "a number of seconds"),
        ("device_timeout", 0, "a number of seconds"),
        ("device_timeout", float("nan"), "a number of seconds"),
        ("device_check", "never", "'warmup', 'all' or a positive number"),
        ("device_check", 0, "'warmup', 'all' or a positive number"),
        ("gpus", 1, "there are backend, devices, nvcomp, device_memory, device_timeout, device_check"),
    ],
)
def test_wrong_settings_are_errors_that_name_them(key: str, value: Any, said: str) -> None:
    with zarr.config.set({f"zarrs_cuda.{key}": value}):
        with pytest.raises(ValueError, match=said) as error:
            create(MemoryStore(), **KIND)
        assert f"zarrs_cuda.{key}" in str(error.value)
        assert f"WRONG: {error.value}" in zarrs_cuda.doctor().splitlines()
    if key == "gpus":
        return
    zarrs_cuda.configure(backend="host")
    with pytest.raises(ValueError, match=said):
        zarrs_cuda.configure(**{"backend": "auto", key: value})
    # No setting was changed.
    assert _devices.settings() == ("host", None, None, None, None, None)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ZARRS_CUDA_BACKEND", "gpu", "must be auto, host or cuda"),
        ("ZARRS_CUDA_DEVICES", "gpu0", "such as 0,1, or all"),
        ("ZARRS_CUDA_DEVICES", "0,,1", "such as 0,1, or all"),
    ],
)
def test_wrong_variables_are_errors_that_name_them(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name} is '{value}'.*{said}") as error:
        create(MemoryStore(), **KIND)
    assert f"WRONG: {error.value}" in zarrs_cuda.doctor().splitlines()


def test_without_consent_nothing_is_looked_for() -> None:
    assert "no GPU was asked for" in why()
    assert "no GPU was asked for" in why(device_memory="1GiB", nvcomp="/no/file")
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert "libcuda.so" not in maps.read_text()
    assert "arrays use no GPU: none was asked for" in zarrs_cuda.doctor()


def test_settings_hold_for_arrays_that_are_opened_afterwards() -> None:
    before = create(MemoryStore(), **KIND)
    zarrs_cuda.configure(devices=0, device_memory="1 GiB")
    assert _devices.settings()[:4] == (None, (0,), None, 2**30)
    after = create(MemoryStore(), **KIND)
    assert "no GPU was asked for" in zarrs_cuda.explain(before).stages
    assert "no GPU was asked for" not in zarrs_cuda.explain(after).stages
    # A pickled array keeps its settings, as on a worker.
    zarrs_cuda.configure(devices=None, device_memory=None)
    assert set(_devices.settings()) == {None}
    again = pickle.loads(pickle.dumps(after))
    assert zarrs_cuda.explain(again).stages == zarrs_cuda.explain(after).stages
    # Other pipelines of zarr-python are not concerned.
    with zarr.config.set({"zarrs_cuda.devices": 0}):
        assert "no GPU was asked for" in zarrs_cuda.explain(before).stages


def test_processes_that_are_started_later_have_the_settings() -> None:
    code = "from zarrs_cuda import _devices; print(tuple(_devices.settings()))"

    def in_child() -> str:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert in_child() == "(None, None, None, None, None, None)"
    nvcomp = Path("/a b/libnvcomp.so.6")
    zarrs_cuda.configure(backend="cuda", devices=[1, 0], device_memory=2**31, nvcomp=nvcomp)
    zarrs_cuda.configure(device_timeout=90, device_check="all")
    assert in_child() == f"('cuda', (1, 0), '/a b/libnvcomp.so.6', {2**31}, 90.0, 1)"
    zarrs_cuda.configure(
        devices=None, device_memory=None, nvcomp=None, device_timeout=None, device_check=None
    )
    # nvCOMP may be found among the packages.
    assert eval(in_child())[:2] == ("cuda", None)


def test_a_writer_has_the_settings() -> None:
    on_device = "CUDA device" if has_driver() else "libcuda.so.1"
    for backend, said in (("auto", on_device), ("host", "asked for the host")):
        with zarr.config.set({"zarrs_cuda.backend": backend}):
            array = create(MemoryStore(), **{**KIND, "shape": (0, 1024)})
            with zarrs_cuda.ArrayWriter(array) as writer:
                assert said in writer.explain()
                writer.append(np.ones((3, 1024), "uint16"))
            assert array.shape == (3, 1024)


def test_a_writer_may_have_a_device_of_its_own() -> None:
    array = create(MemoryStore(), **{**KIND, "shape": (0, 1024)})
    with zarrs_cuda.ArrayWriter(array, device=7) as writer:
        assert "no GPU was asked for" not in writer.explain()
    with pytest.raises(ValueError, match="the number of a GPU"):
        zarrs_cuda.ArrayWriter(array, device=-1)
    with (
        zarr.config.set({"zarrs_cuda.backend": "host"}),
        pytest.raises(ValueError, match="set one of them"),
    ):
        zarrs_cuda.ArrayWriter(array, device=0)


def has_driver() -> bool:
    return shutil.which("nvidia-smi") is not None


without_driver = pytest.mark.skipif(has_driver(), reason="this machine has an NVIDIA driver")


@without_driver
def test_no_driver() -> None:
    said = "no CUDA driver is installed: the loader found no libcuda.so.1"
    assert said in why(backend="auto")
    assert said in why(devices=[0])
    with zarr.config.set({"zarrs_cuda.backend": "cuda"}):
        array = create(MemoryStore(), **KIND)
        with pytest.raises(Exception, match=said):
            array[...] = 1
        doctor = zarrs_cuda.doctor().splitlines()
    assert len([line for line in doctor if said in line]) == 1, doctor
    assert "arrays use no GPU: there is none" in doctor


def driver(folder: Path, code: int) -> str:
    """Compile a library in the place of the driver's, all of whose functions return `code`."""
    source = ROOT / "crates/engine/src/cuda/driver/cuda/functions.rs"
    names = set(re.findall(r"\bcu[A-Z]\w+(?=\()", source.read_text()))
    assert len(names) > 30
    text = "".join(f"int {name}(void) {{ return {code}; }}\n" for name in sorted(names))
    (folder / "stub.c").write_text(text)
    command = ["cc", "-shared", "-fPIC", "-w", "-o", folder / "libcuda.so", folder / "stub.c"]
    subprocess.run(command, check=True)
    return str(folder)


@without_driver
@pytest.mark.parametrize(("code", "said"), [(34, "the stub of a CUDA toolkit"), (100, "error 100")])
def test_a_library_that_is_no_driver(
    code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", driver(tmp_path, code))
    doctor = zarrs_cuda.doctor().splitlines()
    assert len([line for line in doctor if said in line]) == 1, doctor
    assert f"driver: {tmp_path}/libcuda.so" in doctor


def test_nvcomp_is_found_where_python_finds_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package may lie in any folder of ``sys.path``, as in a kernel of Jupyter or a system's pip."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "nvidia" / "libnvcomp" / "lib64"
    folder.mkdir(parents=True)
    file = folder / "libnvcomp.so.6"
    file.write_bytes(b"no library")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert _devices.settings().nvcomp is None
    with zarr.config.set({"zarrs_cuda.devices": 0}):
        assert _devices.settings().nvcomp == str(file)
        doctor = zarrs_cuda.doctor()
        assert f"nvCOMP: none: nvCOMP, which ZARRS_CUDA_NVCOMP named: {file}" in doctor
        # A setting of the user comes first.
        monkeypatch.setenv("ZARRS_CUDA_NVCOMP", "/no/libnvcomp.so.6")
        assert _devices.settings().nvcomp is None
        assert "/no/libnvcomp.so.6" in zarrs_cuda.doctor()


def test_no_nvcomp_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_devices, "packaged_nvcomp", lambda: None)
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    lines = [line for line in zarrs_cuda.doctor().splitlines() if line.startswith("nvCOMP:")]
    assert len(lines) == 1
    for place in ("libnvcomp.so.6", "libnvcomp.so.5", "ZARRS_CUDA_NVCOMP"):
        assert place in lines[0], lines


@without_driver
@pytest.mark.parametrize("mode", ["rewrite", "in_place"])
def test_a_missing_gpu_is_no_damage(mode: str, tmp_path: Path) -> None:
    """No error of a device advises to delete a shard."""
    array = create(tmp_path, **KIND)
    array[...] = 7
    with zarr.config.set({"zarrs_cuda.backend": "cuda", "codec_pipeline.shards": mode}):
        with zarr.config.set({"codec_pipeline.path": OURS}):
            again = zarr.open_array(tmp_path, mode="r+")
        with pytest.raises(RuntimeError, match="no CUDA driver is installed") as error:
            again[0, 0] = 9
        assert not isinstance(error.value, zarrs_cuda.ShardError)
    assert (array[...] == 7).all()


@without_driver
def test_a_variable_that_asks_for_a_missing_gpu(tmp_path: Path) -> None:
    """The package goes on, writes are refused, and the program's own setting comes first."""
    code = f"""
import zarr, zarrs_cuda
zarr.config.set({{"codec_pipeline.path": {OURS!r}}})
array = zarr.create_array({str(tmp_path / "a")!r}, shape=(8,), chunks=(2,), shards=(8,), dtype="uint8")
assert "cuda" in zarrs_cuda.doctor()
try:
    array[...] = 1
except RuntimeError as error:
    assert "no CUDA driver is installed" in str(error), error
else:
    raise AssertionError
zarrs_cuda.configure(backend="host")
array = zarr.open_array({str(tmp_path / "a")!r}, mode="r+")
array[...] = 2
assert (array[...] == 2).all()
"""
    environment = {**os.environ, "ZARRS_CUDA_BACKEND": "cuda"}
    for command in (["-c", code], ["-m", "zarrs_cuda", "--version"], ["-m", "zarrs_cuda", "doctor"]):
        command = [sys.executable, "-W", "error", *command]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
