"""GPUs: none is used that nobody asked for, and every setting and every lack is said in one sentence."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import warnings
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask.array
import numpy as np
import pytest
import zarr
import zarrs_cuda
from conftest import OURS, THEIRS, create
from zarr.storage import MemoryStore
from zarrs_cuda import _devices, _gpus, _settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
        if name.startswith(("ZARRS_CUDA_", "ZARR_ZARRS_CUDA__", "ZARR_CODEC_PIPELINE__PATH", "LOCAL_RANK")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(_devices, "_told", set())
    with zarr.config.set({"zarrs_cuda": {}}):
        yield
    for name in list(os.environ):
        if name.startswith(("ZARR_ZARRS_CUDA__", "ZARR_CODEC_PIPELINE__PATH")):
            del os.environ[name]


def why(**settings: Any) -> str:
    """Say why an array that is opened with these settings uses a GPU or not."""
    with zarr.config.set({f"zarrs_cuda.{key}": value for key, value in settings.items()}):
        return zarrs_cuda.explain(create(MemoryStore(), **KIND)).stages


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("backend", "gpu", "must be one of auto, host, cuda"),
        ("backend", "cuda!", "must be one of auto, host, cuda"),
        ("backend", True, "must be one of auto, host, cuda"),
        ("devices", "first", "the number of a GPU"),
        ("devices", [], "the number of a GPU"),
        ("devices", [0, -1], "the number of a GPU"),
        ("devices", [True], "the number of a GPU"),
        ("devices", 0.5, "the number of a GPU"),
        ("devices", "0", "the number of a GPU"),
        ("devices", "0,1", r"did you mean \[0, 1\]\?"),
        ("devices", " 2 ", r"did you mean \[2\]\?"),
        ("devices", np.array(0), r"did you mean \[0\]\?"),
        ("devices", np.array(0.5), "or 'all'$"),
        ("devices", [0, 1, 0], "names GPU 0 twice"),
        ("devices", [np.True_], "the number of a GPU"),
        ("nvcomp", str(Path.home()), "a folder"),
        ("nvcomp", 6, "the path of a file"),
        ("device_memory", "much", "a number of bytes"),
        ("device_memory", 0, "a number of bytes"),
        ("device_timeout", "soon", "a number of seconds"),
        ("device_timeout", 0, "a number of seconds"),
        ("device_timeout", float("nan"), "a number of seconds"),
        ("device_timeout", float("inf"), "above 0, and at most 1e\\+09, which no wait reaches"),
        ("device_timeout", 1e30, "at most 1e"),
        ("device_timeout", True, "a number of seconds"),
        ("device_memory", np.True_, "a number of bytes"),
        ("device_memory", 1e9, "a number of bytes"),
        ("device_check", np.True_, "'warmup', 'all' or a positive number"),
        ("device_check", "never", "'warmup', 'all' or a positive number"),
        ("device_check", 0, "'warmup', 'all' or a positive number"),
        ("device_decode", "yes", "True or False"),
        ("device_decode", 2, "True or False"),
        (
            "gpus",
            1,
            "there are backend, devices, nvcomp, device_memory, device_timeout, device_check, device_decode",
        ),
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
    assert _devices.settings() == ("host", None, None, None, None, None, None, False)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ZARRS_CUDA_BACKEND", "gpu", "has to be auto, host or cuda"),
        ("ZARRS_CUDA_DEVICES", "gpu0", "such as 0,1, or all"),
        ("ZARRS_CUDA_DEVICES", "0,,1", "such as 0,1, or all"),
        ("ZARRS_CUDA_DEVICES", "1,1", "different numbers"),
    ],
)
def test_wrong_variables_are_errors_that_name_them(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f'{name} is "{value}".*{said}') as error:
        create(MemoryStore(), **KIND)
    assert f"WRONG: {error.value}" in zarrs_cuda.doctor().splitlines()


def test_without_consent_nothing_is_looked_for() -> None:
    assert "no GPU was asked for" in why()
    assert "no GPU was asked for" in why(device_memory="1GiB", nvcomp="/no/file")
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert "libcuda.so" not in maps.read_text()
    assert "arrays use no GPU: no GPU was asked for" in zarrs_cuda.doctor()


def test_settings_hold_for_arrays_that_are_opened_afterwards() -> None:
    before = create(MemoryStore(), **KIND)
    zarrs_cuda.configure(devices=0, device_memory="1 GiB")
    assert _devices.settings()[:4] == (None, (0,), None, 2**30)
    after = create(MemoryStore(), **KIND)
    assert "no GPU was asked for" in zarrs_cuda.explain(before).stages
    assert "no GPU was asked for" not in zarrs_cuda.explain(after).stages
    # A pickled array keeps its settings, as on a worker.
    zarrs_cuda.configure(devices=None, device_memory=None)
    assert set(_devices.settings()[:7]) == {None}
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

    assert in_child() == "(None, None, None, None, None, None, None, False)"
    nvcomp = Path("/a b/libnvcomp.so.6")
    zarrs_cuda.configure(backend="cuda", devices=[1, 0], device_memory=2**31, nvcomp=nvcomp)
    zarrs_cuda.configure(device_timeout=90, device_check="all", device_decode=np.True_)
    assert in_child() == f"('cuda', (1, 0), '/a b/libnvcomp.so.6', {2**31}, 90.0, 1, True, False)"
    zarrs_cuda.configure(
        devices=None,
        device_memory=None,
        nvcomp=None,
        device_timeout=None,
        device_check=None,
        device_decode=None,
    )
    # nvCOMP may be found among the packages.
    assert eval(in_child())[:2] == ("cuda", None)


def test_processes_that_are_started_later_have_the_pipeline(tmp_path: Path) -> None:
    create(tmp_path / "a", **KIND)
    code = f"""
import zarr
array = zarr.open_array({str(tmp_path / "a")!r}, mode="r")
print(type(array.async_array.codec_pipeline).__module__)
"""

    def in_child() -> str:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    with zarr.config.set({"codec_pipeline.path": OURS}):
        # Nobody has asked for a GPU.
        zarrs_cuda.configure(device_memory="1GiB")
        zarrs_cuda.configure(backend="host")
        assert in_child() != "zarrs_cuda"
        for settings in ({"backend": "auto"}, {"devices": [0]}):
            os.environ.pop("ZARR_CODEC_PIPELINE__PATH", None)
            zarrs_cuda.configure(**settings)
            assert in_child() == "zarrs_cuda"
        # The user's own variable stays.
        os.environ["ZARR_CODEC_PIPELINE__PATH"] = THEIRS
        zarrs_cuda.configure(backend="auto")
        assert in_child() != "zarrs_cuda"
    del os.environ["ZARR_CODEC_PIPELINE__PATH"]
    with zarr.config.set({"codec_pipeline.path": THEIRS}), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarrs_cuda.configure(backend="auto")
        assert in_child() != "zarrs_cuda"


def test_a_gpu_that_another_pipeline_would_not_use_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = 'zarr.config.set({"codec_pipeline.path": "zarrs_cuda.CodecPipeline"})'

    def wrong() -> list[str]:
        return [each for each in zarrs_cuda.doctor().splitlines() if "WRONG" in each and line in each]

    with warnings.catch_warnings(record=True) as told, zarr.config.set({"codec_pipeline.path": THEIRS}):
        warnings.simplefilter("always")
        zarrs_cuda.configure(backend="host", device_memory="1GiB")
        assert not told
        assert not wrong()
        for _ in range(2):
            zarrs_cuda.configure(backend="auto")
        assert len(told) == 1, told
        assert told[0].category is RuntimeWarning
        assert told[0].filename == __file__
        assert line in str(told[0].message)
        assert len(wrong()) == 1
        with zarr.config.set({"codec_pipeline.path": OURS}):
            assert not wrong()
        zarrs_cuda.configure(backend=None, devices=None)
        assert not wrong()
        monkeypatch.setenv("ZARRS_CUDA_DEVICES", "0")
        assert len(wrong()) == 1
    assert len(told) == 1, told


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
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with zarrs_cuda.ArrayWriter(array, device=4095) as writer:
            assert "no GPU was asked for" not in writer.explain()
    assert any("CUDA device 4095, which was named by `device`" in str(each.message) for each in told)
    for wrong in (-1, "cuda", "cuda:0", True, [0]):
        with pytest.raises(ValueError, match=r"^`device` is .*the number of a GPU"):
            zarrs_cuda.ArrayWriter(array, device=wrong)
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
    assert any(line.startswith("WRONG: the backend is `cuda`, so every read") for line in doctor), doctor


RAW: dict[str, Any] = {**KIND, "compressors": None}
UNSHARDED: dict[str, Any] = {**KIND, "shards": None}


@without_driver
@pytest.mark.parametrize("asked", ["configure", "config", "environment"])
@pytest.mark.parametrize("mode", ["rewrite", "in_place", "shared"])
@pytest.mark.parametrize("kind", [KIND, RAW, UNSHARDED], ids=["zstd", "raw", "unsharded"])
def test_cuda_never_means_the_host(
    asked: str, mode: str, kind: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a usable GPU every read and every write is refused, by one error."""
    create(tmp_path / "a", **kind)[...] = 7
    if asked == "configure":
        zarrs_cuda.configure(backend="cuda")
    elif asked == "config":
        zarr.config.set({"zarrs_cuda.backend": "cuda"})
    else:
        monkeypatch.setenv("ZARRS_CUDA_BACKEND", "cuda")
    with zarr.config.set({"codec_pipeline.path": OURS, "codec_pipeline.shards": mode}):
        array = zarr.open_array(tmp_path / "a", mode="r+")
    said = zarrs_cuda.explain(array).stages
    assert said.startswith("every read and every write is refused"), said
    assert "decoded by zarrs" not in said
    values = np.ones((1024, 1024), "uint16")
    uses: list[Callable[[], Any]] = [
        lambda: array[...],
        lambda: array[3, 4],
        lambda: array[:100, :100],
        lambda: array.oindex[[1, 70], :],
        lambda: array.__setitem__(..., values),
        lambda: array.__setitem__((3, 4), 1),
        lambda: array.__setitem__((slice(64), slice(64)), 1),
        lambda: dask.array.store(dask.array.from_array(values, chunks=(512, 512)), array, lock=False),
        lambda: zarrs_cuda.ArrayReader(array),
        lambda: pickle.loads(pickle.dumps(array))[0, 0],
    ]
    for use in uses:
        with pytest.raises(zarrs_cuda.BackendUnavailable, match="no CUDA driver is installed") as error:
            use()
        assert isinstance(error.value, RuntimeError)
        for hint in ("zarrs_cuda.doctor()", "zarrs_cuda.configure(backend='auto')"):
            assert str(error.value).count(hint) == 1, error.value
    zarrs_cuda.configure(backend="host")
    with zarr.config.set({"codec_pipeline.path": OURS}):
        assert (zarr.open_array(tmp_path / "a", mode="r")[...] == 7).all()


@without_driver
def test_cuda_is_refused_where_zarr_python_would_do_the_work() -> None:
    """Arrays that this package leaves to zarr-python's own pipeline use no GPU in silence either."""
    with zarr.config.set({"codec_pipeline.path": OURS, "zarrs_cuda.backend": "cuda"}):
        array = zarr.create_array(MemoryStore(), shape=(8,), chunks=(4,), dtype="uint8", zarr_format=2)
    assert "is refused" in zarrs_cuda.explain(array).stages
    with pytest.raises(zarrs_cuda.BackendUnavailable):
        array[...] = 1
    with pytest.raises(zarrs_cuda.BackendUnavailable):
        array[...]


@without_driver
def test_writers_refuse_with_the_same_error() -> None:
    with zarr.config.set({"zarrs_cuda.backend": "cuda"}):
        array = create(MemoryStore(), **{**KIND, "shape": (0, 1024)})
        with pytest.raises(zarrs_cuda.BackendUnavailable, match="no CUDA driver is installed") as error:
            zarrs_cuda.ArrayWriter(array)
        again = pickle.loads(pickle.dumps(error.value))
        assert str(again) == str(error.value)
        assert str(again).count("zarrs_cuda.doctor()") == 1


def test_shared_shards_are_the_hosts(tmp_path: Path) -> None:
    """`explain` does not say of shared shards that a GPU encodes them."""
    with zarr.config.set({"codec_pipeline.shards": "shared", "zarrs_cuda.devices": 0}):
        array = create(tmp_path, **KIND)
        stages = zarrs_cuda.explain(array).stages
    assert stages.startswith("subchunks are written and read one by one, on the host"), stages
    assert "engine:" not in stages


def driver(folder: Path, code: int, but: str = "") -> str:
    """Compile a library in the place of the driver's, whose functions return `code`, other than `but`."""
    source = ROOT / "crates/engine/src/cuda/driver/cuda/functions.rs"
    names = set(re.findall(r"\bcu[A-Z]\w+(?=\()", source.read_text()))
    assert len(names) > 30
    names = {name for name in names if f"{name}(" not in but}
    text = but + "".join(f"\nint {name}(void) {{ return {code}; }}" for name in sorted(names)) + "\n"
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
        assert f"nvCOMP: none: nvCOMP, which a package of this Python has: {file}" in doctor
        named = tmp_path / "libnvcomp.so"
        with zarr.config.set({"zarrs_cuda.nvcomp": named}):
            doctor = zarrs_cuda.doctor()
        assert f"nvCOMP: none: nvCOMP, which `zarrs_cuda.nvcomp` named: {named}: cannot" in doctor
        # A setting of the user comes first.
        monkeypatch.setenv("ZARRS_CUDA_NVCOMP", "/no/libnvcomp.so.6")
        assert _devices.settings().nvcomp is None
        assert "/no/libnvcomp.so.6" in zarrs_cuda.doctor()


def command(*words: str, code: int = 0, **variables: str) -> Any:
    """Run the command of the package. Returns its JSON object, or what it printed if it has none."""
    arguments = [sys.executable, "-m", "zarrs_cuda", *words]
    environment = {**os.environ, **variables}
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout) if "--json" in words and done.stdout else done.stdout + done.stderr


def test_the_command_finds_nvcomp_where_its_python_finds_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No variable names the folder, as in an environment that is not activated."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "nvidia" / "libnvcomp" / "lib64" / "libnvcomp.so.6"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"no library")
    code = f"""
import runpy, sys
sys.path.append({str(tmp_path)!r})
sys.argv = ["zarrs-cuda", "doctor", "--json"]
runpy.run_module("zarrs_cuda", run_name="__main__")
"""

    def problem(**variables: str) -> str:
        environment = {**os.environ, **variables}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        return str(json.loads(done.stdout)["machine"]["nvcomp"]["problem"])

    assert str(file) in problem()
    # What the user names comes first.
    assert "/no/libnvcomp.so.6" in problem(ZARRS_CUDA_NVCOMP="/no/libnvcomp.so.6")
    assert "/no/libnvcomp.so.5" in problem(ZARR_ZARRS_CUDA__NVCOMP="/no/libnvcomp.so.5")


@without_driver
@pytest.mark.parametrize(
    ("settings", "variables", "said", "code"),
    [
        ({}, {}, "no GPU was asked for", 0),
        ({"backend": "cuda"}, {}, "the backend is `cuda`, so every read", 1),
        ({"backend": "host", "devices": [2]}, {}, "asked for the host", 0),
        ({"devices": [2, 5]}, {}, "names GPU 2", 1),
        ({"devices": "all"}, {}, "no CUDA driver is installed", 0),
        ({"backend": "cuda"}, {"ZARRS_CUDA_BACKEND": "host"}, "asked for the host", 0),
        ({"devices": [2]}, {"ZARRS_CUDA_DEVICES": "3"}, "names GPU 3", 1),
    ],
)
def test_the_command_has_the_settings_of_configure(
    settings: dict[str, Any], variables: dict[str, str], said: str, code: int
) -> None:
    with zarr.config.set({"codec_pipeline.path": OURS}):
        zarrs_cuda.configure(**settings)
        found = command("doctor", "--json", code=code, **variables)
        assert said in found["use"]["text"], found["use"]
        if not variables:
            doctor = zarrs_cuda.doctor().splitlines()
            wrong = [line for line in doctor if line.startswith("WRONG")]
            assert len(wrong) == code, doctor


def test_wrong_settings_of_configure_are_an_error_of_the_command() -> None:
    wrong = {"ZARR_ZARRS_CUDA__BACKEND": "gpu"}
    assert "`zarrs_cuda.backend` is 'gpu'" in command("doctor", code=1, **wrong)
    assert command("--version", **wrong).startswith("zarrs-cuda ")


def test_a_process_of_doctor_has_the_settings_of_now() -> None:
    """The variables that `configure` leaves do not come before a later change of ``zarr.config``."""
    zarrs_cuda.configure(backend="cuda", devices=[3])
    with zarr.config.set({"zarrs_cuda": {}, "codec_pipeline.path": OURS}):
        doctor = zarrs_cuda.doctor()
    assert "arrays use no GPU: no GPU was asked for" in doctor
    assert "WRONG" not in doctor


def test_no_text_of_python_names_what_python_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doctor = zarrs_cuda.doctor()
    asks = "in the environment asks for one, and so does `zarrs_cuda.configure(devices=[0])` in the program"
    assert asks in doctor
    array = create(tmp_path, **KIND)
    explained = zarrs_cuda.explain(array).stages
    assert asks in explained
    assert "unless `zarrs_cuda.device_decode` says otherwise" in explained
    with zarrs_cuda.ArrayWriter(create(tmp_path / "w", **{**KIND, "shape": (0, 1024)})) as writer:
        written = writer.explain()
    for text in (doctor, explained, written):
        for word in ("Options::", "--devices", "--limit", "``"):
            assert word not in text, text
    delegated = zarrs_cuda.BackendUnavailable("the host handles them; use `Backend::Auto` or `Backend::Host`")
    assert 'use `backend="auto"` or `backend="host"`' in str(delegated)
    report = {"machine": {"devices": [], "driver": {"library": None}, "no_devices": ""}, "estimates": []}
    report["machine"]["nvcomp"] = {"problem": "it was not looked for"}
    slow = "did not end in 50 s: the NVIDIA driver hangs. Restart the machine, or give a longer --limit"
    report["use"] = {"is_well": False, "text": slow}
    monkeypatch.setattr(_gpus, "_report", lambda *_: report)
    assert "or call `python -m zarrs_cuda doctor --limit 300`" in zarrs_cuda.doctor()


def test_doctor_lists_misspelt_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZARRS_CUDA_DEVICE", "0")
    for backend in (None, "host", "auto"):
        settings = {"codec_pipeline.path": OURS, "zarrs_cuda.backend": backend}
        with zarr.config.set(settings), warnings.catch_warnings():
            warnings.simplefilter("error")
            doctor = zarrs_cuda.doctor().splitlines()
        told = [line for line in doctor if "Did you mean ZARRS_CUDA_DEVICES?" in line]
        assert len(told) == 1, doctor
        assert told[0].startswith("WRONG: ZARRS_CUDA_DEVICE in the environment does nothing")


def test_no_nvcomp_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_devices, "packaged_nvcomp", lambda: None)
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    lines = [line for line in zarrs_cuda.doctor().splitlines() if line.startswith("nvCOMP:")]
    assert len(lines) == 1
    for place in (
        "libnvcomp.so.6",
        "libnvcomp.so.5",
        "ZARRS_CUDA_NVCOMP",
        "pip install nvidia-libnvcomp-cu12",
        "nvidia-libnvcomp-cu13",
    ):
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
assert "WRONG: the backend is `cuda`, so every read" in zarrs_cuda.doctor()
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
    for command, exit_code in (
        (["-c", code], 0),
        (["-m", "zarrs_cuda", "--version"], 0),
        (["-m", "zarrs_cuda", "doctor"], 1),
    ):
        command = [sys.executable, "-W", "error", *command]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == exit_code, done.stderr


@without_driver
@pytest.mark.parametrize("by", ["zarr.config", "ZARRS_CUDA_DEVICES"])
def test_all_gpus_of_a_machine_without_any_are_warned_of_once(by: str, tmp_path: Path) -> None:
    code = f"""
import warnings, zarr, zarrs_cuda
zarr.config.set({{"codec_pipeline.path": {OURS!r}}})
kind = dict(shape=(1024, 1024), chunks=(64, 64), dtype="uint16")
zarrs_cuda.configure(backend="host", devices="all")
host = zarr.create_array({str(tmp_path / "h")!r}, shards=(1024, 1024), **kind)
zarrs_cuda.configure(backend=None, devices="all" if {by!r} == "zarr.config" else None)
flat = zarr.create_array({str(tmp_path / "f")!r}, **kind)
array = zarr.create_array({str(tmp_path / "a")!r}, shards=(1024, 1024), **kind)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    host[...] = 1
    # No GPU is looked for.
    flat[...] = 1
    assert not told, told
    assert zarrs_cuda.metrics()["named_devices_missing"] == 0
    for value in range(3):
        array[...] = value + 1
    zarrs_cuda.explain(array)
    assert (array[...] == 3).all()
assert zarrs_cuda.metrics()["named_devices_missing"] == 1
told = [str(each.message) for each in told if each.category is RuntimeWarning]
assert len(told) == 1, told
assert told[0].startswith("all CUDA devices were asked for by {by}, none can be used"), told
assert "the host does their work: initialize CUDA: no CUDA driver is installed" in told[0], told
"""
    environment = dict(os.environ) if by == "zarr.config" else {**os.environ, by: "ALL"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@without_driver
def test_a_refused_append_of_a_writer_leaves_the_array_as_it_is(tmp_path: Path) -> None:
    create(tmp_path / "a", **{**KIND, "shape": (0, 1024)})
    with zarr.config.set({"codec_pipeline.path": OURS, "zarrs_cuda.backend": "cuda"}):
        array = zarr.open_array(tmp_path / "a", mode="r+")
        with pytest.raises(zarrs_cuda.BackendUnavailable), zarrs_cuda.ArrayWriter(array) as writer:
            writer.append(np.ones((2, 1024), "uint16"))
        assert zarr.open_array(tmp_path / "a").shape == (0, 1024)
        # As the README says of zarr-python's own.
        with pytest.raises(zarrs_cuda.BackendUnavailable):
            array.append(np.ones((2, 1024), "uint16"))
        assert zarr.open_array(tmp_path / "a").shape == (2, 1024)


@without_driver
def test_an_error_after_a_fork_says_how_to_start_workers() -> None:
    code = """
import os, zarr, zarrs_cuda
zarr.config.set({"codec_pipeline.path": "zarrs_cuda.CodecPipeline"})
kind = dict(shape=(1024, 1024), chunks=(64, 64), shards=(1024, 1024), dtype="uint16")
zarrs_cuda.configure(backend="auto")
zarrs_cuda.explain(zarr.create_array({}, **kind))
zarrs_cuda.configure(backend="cuda")
array = zarr.create_array({}, **kind)
child = os.fork()
if child == 0:
    code, remedy = 1, 'start workers by "spawn" or "forkserver", or before the first read or write'
    try:
        array[...] = 1
    except zarrs_cuda.BackendUnavailable as error:
        code = 0 if str(error).count(remedy) == 1 and remedy in zarrs_cuda.doctor() else 2
        print(error)
    os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@without_driver
@pytest.mark.parametrize("by", ["zarr.config", "ZARRS_CUDA_DEVICES"])
def test_a_named_gpu_that_is_missing_is_warned_of_once(by: str, tmp_path: Path) -> None:
    code = f"""
import warnings, zarr, zarrs_cuda
zarr.config.set({{"codec_pipeline.path": {OURS!r}}})
if {by!r} == "zarr.config":
    zarrs_cuda.configure(devices=[3])
kind = dict(shape=(1024, 1024), chunks=(64, 64), shards=(1024, 1024), dtype="uint16")
array = zarr.create_array({str(tmp_path / "a")!r}, compressors=zarr.codecs.ZstdCodec(level=1), **kind)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    assert zarrs_cuda.metrics()["named_devices_missing"] == 0
    for value in range(3):
        array[...] = value + 1
    zarrs_cuda.explain(array)
assert (array[...] == 3).all()
assert zarrs_cuda.metrics()["named_devices_missing"] == 1
told = [str(each.message) for each in told if each.category is RuntimeWarning]
assert len(told) == 1, told
assert told[0].startswith("CUDA device 3, which was named by {by}, cannot be used"), told
assert "no CUDA driver is installed" in told[0], told
"""
    environment = dict(os.environ) if by == "zarr.config" else {**os.environ, by: "3"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@without_driver
@pytest.mark.parametrize(
    ("settings", "variables", "said"),
    [
        ({}, {}, "arrays use no GPU: no GPU was asked for"),
        ({"backend": "auto"}, {}, "arrays use no GPU: initialize CUDA: no CUDA driver is installed"),
        ({"devices": [0]}, {}, "WRONG: arrays use no GPU: `zarrs_cuda.devices` names GPU 0, and initialize"),
        ({"devices": "all"}, {}, "arrays use no GPU: initialize CUDA: no CUDA driver is installed"),
        (
            {"backend": "cuda"},
            {},
            "WRONG: the backend is `cuda`, so every read and every write of an array is ",
        ),
        ({"backend": "host"}, {}, "arrays use no GPU: `zarrs_cuda.backend` is 'host'"),
        ({"devices": [0]}, {"ZARRS_CUDA_BACKEND": "host"}, "arrays use no GPU: ZARRS_CUDA_BACKEND asked for"),
        ({}, {"ZARRS_CUDA_BACKEND": "host"}, "arrays use no GPU: ZARRS_CUDA_BACKEND asked for the host"),
        ({}, {"ZARRS_CUDA_DEVICES": "2"}, "WRONG: arrays use no GPU: ZARRS_CUDA_DEVICES names GPU 2, and"),
        ({"backend": "auto"}, {"ZARRS_CUDA_BACKEND": "cuda"}, "arrays use no GPU: initialize CUDA: no CUDA"),
    ],
)
def test_doctor_says_in_one_sentence_whether_gpus_are_used(
    settings: dict[str, Any], variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with zarr.config.set({f"zarrs_cuda.{key}": value for key, value in settings.items()}):
        doctor = zarrs_cuda.doctor().splitlines()
    verdicts = [line for line in doctor if "arrays use" in line or "every write" in line]
    assert len(verdicts) == 1, doctor
    assert verdicts[0].startswith(said), verdicts


@without_driver
def test_doctor_in_a_forked_child() -> None:
    code = """
import os, zarr, zarrs_cuda
zarr.config.set({"codec_pipeline.path": "zarrs_cuda.CodecPipeline"})
zarrs_cuda.configure(backend="auto")
kind = dict(shape=(1024, 1024), chunks=(64, 64), shards=(1024, 1024), dtype="uint16")
array = zarr.create_array({}, compressors=zarr.codecs.ZstdCodec(level=1), **kind)
zarrs_cuda.explain(array)
child = os.fork()
if child == 0:
    said = [line for line in zarrs_cuda.doctor().splitlines() if "WRONG" in line]
    is_said = len(said) == 1 and said[0].startswith("WRONG: arrays use no GPU: this process was forked")
    os._exit(0 if is_said else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@without_driver
def test_a_driver_that_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crash = "#include <stdlib.h>\nint cuDriverGetVersion(int *version) { abort(); }"
    monkeypatch.setenv("LD_LIBRARY_PATH", driver(tmp_path, 999, crash))
    doctor = zarrs_cuda.doctor().splitlines()
    wrong = [line for line in doctor if line.startswith("WRONG")]
    assert len(wrong) == 1, doctor
    assert "ended by the signal 6 (SIGABRT)" in wrong[0], wrong


def test_numbers_of_gpus_have_many_forms() -> None:
    for given, kept in (
        (np.int64(1), (1,)),
        (range(3), (0, 1, 2)),
        (np.arange(2), (0, 1)),
        ({2}, (2,)),
        ("all", "all"),
        ("ALL", "all"),
    ):
        with zarr.config.set({"zarrs_cuda.devices": given}):
            assert _devices.settings().devices == kept
        zarrs_cuda.configure(devices=given)
        assert _devices.settings().devices == kept
        code = "from zarrs_cuda import _devices; print(_devices.settings().devices)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(kept)
        # The native module takes them.
        assert "no GPU was asked for" not in why()


def test_values_have_many_forms() -> None:
    for key, given, kept in (
        ("backend", "CUDA", "cuda"),
        ("backend", " Host ", "host"),
        ("device_memory", np.int64(2**30), 2**30),
        ("device_memory", np.uint8(7), 7),
        ("device_timeout", np.int32(90), 90.0),
        ("device_timeout", np.float32(0.5), 0.5),
        ("device_timeout", Fraction(1, 4), 0.25),
        ("device_check", np.uint16(8), 8),
        ("device_check", "ALL", 1),
    ):
        with zarr.config.set({f"zarrs_cuda.{key}": given}):
            assert getattr(_devices.settings(), key) == kept
        zarrs_cuda.configure(**{key: given})
        assert getattr(_devices.settings(), key) == kept
        # A process that is started later can read it.
        assert "np." not in os.environ[f"ZARR_ZARRS_CUDA__{key.upper()}"]
        # The native module takes it.
        assert zarrs_cuda.explain(create(MemoryStore(), **KIND)).stages
        zarrs_cuda.configure(**{key: None})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        *((key, key) for key in _devices._KNOWN),
        ("backends", "backend"),
        ("device", "devices"),
        ("device-memory", "device_memory"),
        ("Devices", "devices"),
    ],
)
def test_settings_of_gpus_under_another_name_are_errors(key: str, meant: str) -> None:
    for value in (None, "cuda", 0):
        with zarr.config.set({"codec_pipeline.path": OURS, f"codec_pipeline.{key}": value}):
            with pytest.raises(ValueError, match=f"did you mean `zarrs_cuda.{meant}`") as error:
                create(MemoryStore(), **KIND)
            assert f"WRONG: {error.value}" in zarrs_cuda.doctor().splitlines()
    assert set(_devices._KNOWN) == set(_settings.OF_DEVICES)


def test_a_missing_file_of_nvcomp_is_warned_of_at_once(tmp_path: Path) -> None:
    file = tmp_path / "libnvcomp.so.6"
    with pytest.warns(RuntimeWarning, match="libnvcomp.so.6', and there is no such file") as told:
        zarrs_cuda.configure(nvcomp=file)
    assert told[0].filename == __file__
    file.write_bytes(b"")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zarrs_cuda.configure(nvcomp=file)
        # The loader looks for it.
        zarrs_cuda.configure(nvcomp="libnvcomp.so.6")


@pytest.mark.filterwarnings("ignore:.*there is no such file")
def test_the_path_of_nvcomp_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for given, kept in (
        ("lib/libnvcomp.so.6", tmp_path / "lib/libnvcomp.so.6"),
        ("~/libnvcomp.so.6", tmp_path / "home/libnvcomp.so.6"),
        ("libnvcomp.so.6", "libnvcomp.so.6"),
    ):
        zarrs_cuda.configure(nvcomp=given)
        monkeypatch.chdir("/")
        assert _devices.settings().nvcomp == str(kept)
        monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="a folder, and must be the path of a file"):
        zarrs_cuda.configure(nvcomp=".")


def test_misspelt_variables_are_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZARRS_CUDA_DEVICE", "0")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            create(MemoryStore(), **KIND)
    assert len(told) == 1, told
    assert "ZARRS_CUDA_DEVICE in the environment does nothing" in str(told[0].message)
    assert "Did you mean ZARRS_CUDA_DEVICES?" in str(told[0].message)
