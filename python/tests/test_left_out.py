"""Arrays that cannot be re-encoded beside others that are, and notes of reports."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zarrs_cuda
from zarrs_cuda import _tasks

VALUES = np.arange(100.0)
KEEP: dict[str, Any] = {"recursive": True, "keep_going": True}
UNKNOWN = r"old/bad as a Zarr array: .*codec mine is not supported\. .*zarr-python"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A group of Zarr v2, of which one array has an unknown codec."""
    group = zarr.open_group(tmp_path / "old", mode="w", zarr_format=2)
    for name in ("good", "bad"):
        group.create_array(name, data=VALUES, chunks=(10,), compressors=None)
    compressor(tmp_path / "old", {"id": "mine"})
    return tmp_path / "old"


def compressor(group: Path, value: dict[str, str] | None) -> None:
    path = group / "bad/.zarray"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"compressor": value}))


def check(path: Path, *names: str) -> None:
    group = zarr.open_group(path, mode="r")
    assert set(group.array_keys()) == set(names)
    for name in names:
        np.testing.assert_array_equal(zarr.open_array(path / name, mode="r")[:], VALUES)


@pytest.mark.parametrize("more", [{}, {"dry_run": True}, {"part": (1, 2)}], ids=str)
def test_one_array_keeps_all_from_being_written(old: Path, tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match=rf"{UNKNOWN}.*\nNothing was written\..*`keep_going=True` makes"):
        zarrs_cuda.reencode(old, tmp_path / "new", recursive=True, **more)
    assert not (tmp_path / "new").exists()


def test_others_are_made_and_the_rest_is_added(old: Path, tmp_path: Path) -> None:
    said = rf"{UNKNOWN}.*\nThe other arrays are made \(1\)\. .*`resume=True` adds the rest$"
    for more in ({}, {"resume": True}):
        with pytest.raises(RuntimeError, match=said):
            zarrs_cuda.reencode(old, tmp_path / "new", **KEEP, **more)
        check(tmp_path / "new", "good")
    compressor(old, None)
    assert len(zarrs_cuda.reencode(old, tmp_path / "new", **KEEP, resume=True)["arrays"]) == 2
    check(tmp_path / "new", "good", "bad")


def test_parts_make_the_others(old: Path, tmp_path: Path) -> None:
    for number in (1, 2):
        said = rf"{UNKNOWN}.*\nPart {number}/2 of the other arrays is made\. .*by themselves"
        with pytest.raises(RuntimeError, match=said):
            zarrs_cuda.reencode(old, tmp_path / "new", **KEEP, part=(number, 2))
    check(tmp_path / "new", "good")
    compressor(old, None)
    zarrs_cuda.reencode(old / "bad", tmp_path / "new/bad")
    check(tmp_path / "new", "good", "bad")


def test_tasks_make_the_others(old: Path, tmp_path: Path) -> None:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        with pytest.raises(RuntimeError, match=rf"{UNKNOWN}.*\nNothing was written"):
            zarrs_cuda.reencode(old, tmp_path / "new", recursive=True, client=client)
        # Another time nothing is left to make.
        for _ in range(2):
            with pytest.raises(RuntimeError, match=rf"{UNKNOWN}.*\nThe other arrays are made\. .*themselves"):
                zarrs_cuda.reencode(old, tmp_path / "new", **KEEP, client=client, parts=3, retries=0)
            check(tmp_path / "new", "good")


def test_arrays_that_zarr_python_cannot_decode_are_a_warning(old: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"conversion: \S+old/bad is left out: .*'mine'"):
        report = zarrs_cuda.reencode(old, tmp_path / "new", **KEEP, decode_with="zarr-python")
    assert len(report["left_out"]) == 1
    check(tmp_path / "new", "good")


def test_an_error_without_a_remedy_ends_with_itself(old: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"3 dimensions, but \S+ has 1: \[100\]$"):
        zarrs_cuda.reencode(old / "good", tmp_path / "new", shard=(1, 2, 3))


def test_notes_are_warnings(old: Path, tmp_path: Path) -> None:
    compressor(old, None)
    zarrs_cuda.reencode(old, tmp_path / "new", recursive=True)
    # Consolidated metadata of another form cannot be renewed.
    group = tmp_path / "new/zarr.json"
    other = {"consolidated_metadata": {"kind": "other"}}
    group.write_text(json.dumps({**json.loads(group.read_text()), **other}))
    with pytest.warns(UserWarning, match="conversion: a group has consolidated") as caught:
        report = zarrs_cuda.reencode(old / "bad", tmp_path / "new/more")
    assert str(caught[0].message).endswith(report["notes"][0].removeprefix("note: "))
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_notes_of_arrays_and_of_a_status_are_warnings_or_notes_of_an_error() -> None:
    notes = [{"notes": ["note: one"]}, {"notes": []}, {}]
    for report in ({"arrays": notes}, {"arrays": 3, "notes": ["one"]}, {"status": notes[0]}):
        with pytest.warns(UserWarning, match="^a note of the conversion: one$"):
            _tasks._check(0, report, "")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(RuntimeError, match="why") as caught:
                _tasks._check(1, report, "why")
        assert caught.value.__notes__ == ["one"]


def test_failures_without_a_remedy_or_because_of_a_stop() -> None:
    assert _tasks._text({"error": "a", "help": None}) == "a"
    assert _tasks._text({"interrupted": "a", "help": "b"}) == "a. b"
