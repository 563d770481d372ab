"""`images.py make FOLDER` makes images of every data type of numbers, each of one value.

`images.py compare FOLDER` checks the data type and the value of each level of FOLDER/NAME, and prints
the number of levels.
"""

import sys
from pathlib import Path

import numpy as np
import tensorstore as ts
import zarr

TYPES = "uint8 uint16 uint32 int8 int16 int32 float32 float64".split()


def make(folder):
    for name in TYPES:
        array = zarr.create_array(str(folder / name), shape=(2, 64, 64), chunks=(1, 32, 32), dtype=name)
        array[...] = 7


def compare(folder):
    levels = 0
    for name in TYPES:
        for level in sorted((folder / name).glob("[0-9]*")):
            array = zarr.open_array(str(level), mode="r")
            spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{level}/"}}
            other = ts.open(spec, open=True, read=True).result()
            assert array.dtype == np.dtype(name) == other.dtype.numpy_dtype, level
            assert (array[...] == 7).all() and (other.read().result() == 7).all(), level
            levels += 1
    print(levels)


task, folder = sys.argv[1:]
{"make": make, "compare": compare}[task](Path(folder))
