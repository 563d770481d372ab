"""Datasets and trees of xarray, as a climate archive has them, in Zarr v2 and v3, consolidated and not.

`climate.py make FOLDER` makes them, and prints their names. `climate.py compare IN OUT...` demands that all
are identical. `climate.py chosen IN OUT NAME...` demands that OUT has the variables NAME, as IN has them.
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import xarray as xr
import zarr

warnings.simplefilter("ignore")
DAYS = 365
WAYS = [{}, {"mask_and_scale": False, "decode_times": False, "decode_timedelta": False}, {"decode_timedelta": True}]
KEPT = ("_FillValue", "missing_value", "scale_factor", "add_offset", "units", "calendar", "dtype", "coordinates")
ENCODING = {
    "t2m": {"_FillValue": np.float32(np.nan), "chunks": (30, 9, 18)},
    "pr": {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32767, "chunks": (50, 18, 36)},
    "time": {"units": "hours since 1900-01-01", "calendar": "standard", "dtype": "i4", "chunks": (1,)},
    "bounds": {"units": "hours since 1900-01-01", "calendar": "standard", "dtype": "f8", "_FillValue": -1.0},
    "lat": {"_FillValue": None},
    "quality": {"_FillValue": -1},
    "elevation": {"dtype": "f4", "_FillValue": np.float32(-9e20)},
}


def dataset():
    rng = np.random.default_rng(0)
    time = np.arange("2001-01-01", "2002-01-01", dtype="M8[D]").astype("M8[ns]")
    grid = ("time", "lat", "lon")
    warm = rng.normal(280, 10, (DAYS, 18, 36)).astype("f4")
    rain = rng.normal(280, 10, (DAYS, 18, 36))
    warm[3, 4, 5] = rain[0, 0] = np.nan
    name = np.array(["Zürich", "Ås", "", "x"], object)
    return xr.Dataset(
        {
            "t2m": (grid, warm, {"units": "K", "valid_range": np.array([0, 400], "f4"), "flag": np.int16(3)}),
            "pr": (grid, rain, {"cell_methods": "time: mean"}),
            "mask": (("lat", "lon"), rng.random((18, 36)) > 0.5),
            "quality": ("time", rng.integers(0, 4, DAYS).astype("i1")),
            "name": ("station", name),
            "code": ("station", np.array([b"abc", b"de", b"f", b""])),
            "word": ("station", np.array(["aa", "bbb", "", "c"])),
            "spell": ("time", np.arange(DAYS).astype("m8[D]").astype("m8[ns]")),
            "bounds": (("time", "nv"), np.stack([time, time + np.timedelta64(1, "D")], 1)),
            "crs": ((), np.int32(0), {"grid_mapping_name": "latitude_longitude"}),
            "empty": (("none", "lat"), np.zeros((0, 18), "f4")),
            "wave": ("lat", (rng.random(18) + 1j).astype("c8")),
        },
        coords={
            "time": ("time", time, {"bounds": "bounds", "standard_name": "time"}),
            "lat": ("lat", np.linspace(-85, 85, 18), {"units": "degrees_north"}),
            "lon": ("lon", np.linspace(0, 350, 36).astype("f4")),
            "station": ("station", np.array(["a1", "b2", "c3", "d4"])),
            "height": ((), 2.0, {"units": "m"}),
            "reference": ((), np.datetime64("2000-01-01", "ns")),
            "elevation": (("lat", "lon"), rng.random((18, 36))),
        },
        attrs={"title": "climate", "number": 3, "list": [1, 2.5], "nested": {"a": [1]}},
    )


def tree():
    whole = dataset()
    fine = whole[["t2m", "mask"]].isel(time=slice(0, 10)).rename(time="hour", lat="y", lon="x")
    nodes = {
        "/": xr.Dataset(attrs={"of": "root"}),
        "/surface": whole[["t2m", "pr"]],
        "/surface/fine": fine,
        "/ocean": whole[["mask"]],
    }
    return xr.DataTree.from_dict(nodes)


def make(root):
    for version in (2, 3):
        for consolidated in (False, True):
            how = {"zarr_format": version, "consolidated": consolidated}
            end = f"v{version}-{'consolidated' if consolidated else 'plain'}"
            encoding = {name: dict(value) for name, value in ENCODING.items()}
            dataset().to_zarr(root / f"dataset-{end}", encoding=encoding, **how)
            some = {name: dict(ENCODING[name]) for name in ("t2m", "pr", "time")}
            tree().to_zarr(root / f"tree-{end}", encoding={"/surface": some}, **how)
            print(f"dataset-{end}", f"tree-{end}")


def opened(folder, consolidated, how):
    found = xr.open_datatree(folder, engine="zarr", consolidated=consolidated, **how).load()
    return {node.path: node.to_dataset(inherit=False) for node in found.subtree}


def must_be_identical(before, after):
    xr.testing.assert_identical(before, after)
    for name in before.variables:
        [one, other] = [{key: of[name].encoding[key] for key in KEPT if key in of[name].encoding} for of in (before, after)]
        assert one.keys() == other.keys(), (name, one, other)
        np.testing.assert_equal(one, other)


def compare(before, *outputs):
    for after in outputs:
        must_be_the_same(before, Path(after))


def must_be_the_same(before, after):
    consolidated = [zarr.open_group(folder).metadata.consolidated_metadata is not None for folder in (before, after)]
    assert consolidated[0] == consolidated[1], consolidated
    for how in WAYS:
        [one, other] = [opened(folder, consolidated[0], how) for folder in (before, after)]
        assert one.keys() == other.keys()
        for path in one:
            must_be_identical(one[path], other[path])
    if consolidated[1]:
        must_be_as_zarr_python_consolidates(after)


def must_be_as_zarr_python_consolidates(folder):
    ours = zarr.open_group(folder).metadata.consolidated_metadata.flattened_metadata
    written = json.loads((folder / "zarr.json").read_text())["consolidated_metadata"]
    zarr.consolidate_metadata(folder)
    theirs = zarr.open_group(folder).metadata.consolidated_metadata.flattened_metadata
    assert ours == theirs
    stated = json.loads((folder / "zarr.json").read_text())["consolidated_metadata"]
    for member in ("kind", "must_understand"):
        assert written[member] == stated[member]
    assert written["metadata"].keys() == stated["metadata"].keys()
    for path, node in stated["metadata"].items():
        if node["node_type"] == "group":
            assert written["metadata"][path] == node, path


def chosen(before, after, *names):
    one, other = (xr.open_dataset(folder, engine="zarr", consolidated=use).load() for folder, use in ((before, None), (after, True)))
    assert set(other.variables) == set(names), set(other.variables)
    one = one.drop_vars(set(one.variables) - set(names))
    xr.testing.assert_identical(one.reset_coords(), other.reset_coords())
    assert other["time"].encoding["chunks"] == (DAYS,)
    assert other["t2m"].encoding["chunks"] == (30, 9, 18)


task, *rest = sys.argv[1:]
folders = 1 if task == "make" else 2
{"make": make, "compare": compare, "chosen": chosen}[task](*map(Path, rest[:folders]), *rest[folders:])
