"""A dataset of xarray in Zarr v2, and the same in Zarr v3.

`dataset.py make FOLDER` makes it. `dataset.py compare IN OUT` compares OUT with IN, then appends to
copies of both, and compares again.
"""

import json
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import xarray as xr

warnings.simplefilter("ignore")
NAN = np.nan
DATES = np.array(["2000-01-01", "NaT", "2000-01-03"], "M8[ns]")
DURATIONS = np.array([1, "NaT", 3], "m8[D]").astype("m8[ns]")

# For each variable: its elements, and how they are stored.
VARIABLES = {
    "nan": ([1.0, NAN, 3.0], {}),
    "filled": ([1.0, NAN, 3.0], {"_FillValue": -99.9}),
    "filled4": (np.array([1, NAN, 3], "f4"), {"_FillValue": np.float32(-99.9)}),
    "filled2": (np.array([1, NAN, 3], "f2"), {"_FillValue": np.float16(-9)}),
    "infinite": ([1.0, NAN, 3.0], {"_FillValue": np.inf}),
    "packed": ([1.5, NAN, 3.5], {"dtype": "i2", "scale_factor": 0.1, "add_offset": 5.0, "_FillValue": -32768}),
    "unsigned": ([1.5, NAN, 3.5], {"dtype": "u1", "scale_factor": 0.5, "_FillValue": 255}),
    "masked": ([1.0, NAN, 3.0], {"dtype": "i4", "_FillValue": -1}),
    "masked8": ([1.0, NAN, 3.0], {"dtype": "u8", "_FillValue": 2**64 - 1}),
    "both": ([1.0, NAN, 3.0], {"missing_value": -1.0, "_FillValue": -1.0}),
    "integers": ([1, 0, 3], {}),
    "flags": ([True, False, True], {}),
    "complex": ([1 + 1j, complex(NAN, NAN), 3], {"_FillValue": complex(-9, -9)}),
    "fixed_text": (["a", "bb", ""], {}),
    "text": (np.array(["a", "bb", ""], object), {}),
    "bytes": (np.array([b"a", b"bb", b""]), {}),
    "dates": (DATES, {}),
    "filled_dates": (DATES, {"dtype": "f8", "_FillValue": -1.0, "units": "hours since 1999-12-31"}),
    "durations": (DURATIONS, {}),
}
# Fill values that xarray does not write itself, and that zarr-python 2 wrote by default.
FILL_VALUES = {"flags": False, "fixed_text": "", "text": "", "bytes": ""}
# Attributes beside a `fill_value` of null, as netCDF writes them.
ATTRIBUTES = {"attribute": -7.0, "attributes": [-7.0], "word": "NaN", "whole": 3}


def dataset(first):
    data = {name: ("x", elements) for name, (elements, _) in VARIABLES.items()}
    data |= {name: ("x", [1.0, -7.0, 3.0]) for name in ATTRIBUTES}
    data["whole"] = ("x", [1, 2, 3])
    found = xr.Dataset(data, coords={"x": np.arange(3) + first}, attrs={"title": "t"})
    found["nan"].attrs["units"] = "K"
    found["scalar"] = ((), 5.0)
    return found


def change(path, **members):
    path.write_text(json.dumps(json.loads(path.read_text()) | members))


def make(folder):
    encoding = {name: how for name, (_, how) in VARIABLES.items() if how}
    dataset(0).to_zarr(folder, zarr_format=2, consolidated=False, encoding=encoding)
    for name, value in FILL_VALUES.items():
        change(folder / name / ".zarray", fill_value=value)
    for name, value in ATTRIBUTES.items():
        change(folder / name / ".zarray", fill_value=None)
        change(folder / name / ".zattrs", _FillValue=value)


def opened(folder):
    return xr.open_dataset(folder, engine="zarr", consolidated=False, decode_timedelta=True).load()


def must_be_identical(before, after):
    # xarray has missing byte strings in Zarr v2, where these are the fill value, and none in Zarr v3.
    known = [name for name in before.variables if name != "bytes"]
    xr.testing.assert_identical(before[known], after[known])
    assert [value or b"" for value in before["bytes"].fillna(b"").values] == list(after["bytes"].values)
    for name in before.variables:
        assert after[name].dims == before[name].dims, name
        assert "_ARRAY_DIMENSIONS" not in after[name].attrs, name


def compare(before, after):
    for name in ("nan", "filled", "masked", "packed", "both", "complex", "attribute", "text"):
        assert opened(before)[name].isnull().any(), name
    must_be_identical(opened(before), opened(after))
    copies = []
    for folder in (before, after):
        copy = folder.with_name(folder.name + "-longer")
        shutil.copytree(folder, copy)
        more = dataset(3).drop_vars("scalar")
        for name in FILL_VALUES | ATTRIBUTES:
            more = more.drop_vars(name)
        for name in FILL_VALUES | ATTRIBUTES:
            shutil.rmtree(copy / name)
        more.to_zarr(copy, append_dim="x", consolidated=False)
        copies.append(opened(copy))
    assert copies[0].sizes["x"] == 6
    xr.testing.assert_identical(*copies)


task, *folders = sys.argv[1:]
{"make": make, "compare": compare}[task](*map(Path, folders))
