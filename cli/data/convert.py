"""Make bold.zarr out of the file that nibabel ships. See README.md for what it is.

    python3 -m venv /tmp/bold && /tmp/bold/bin/pip install nibabel==5.4.2 zarr==3.1.6
    /tmp/bold/bin/python convert.py
"""

import hashlib
from pathlib import Path

import nibabel
import numpy as np
import zarr

HERE = Path(__file__).parent
SOURCE = Path(nibabel.__file__).parent / "tests/data/example4d.nii.gz"
SHA256 = "42097dfbab9d2a036b41ae5c97a359591cf2cf5c3f8dc6ca6455c0b8a7f22696"

assert hashlib.sha256(SOURCE.read_bytes()).hexdigest() == SHA256, "another file"
image = nibabel.load(SOURCE)

# NIfTI stores x fastest, as (x, y, z, t) in Fortran order. The first time point, reversed to
# C order, is (z, y, x) with no element moved. Nothing is scaled; no value is negative.
volume = np.asarray(image.dataobj)[..., 0].T
assert volume.dtype == np.int16 and volume.min() >= 0
volume = np.ascontiguousarray(volume, dtype=np.uint16)

array = zarr.create_array(
    HERE / "bold.zarr",
    shape=volume.shape,
    dtype=volume.dtype,
    chunks=(8, 48, 64),
    compressors=zarr.codecs.ZstdCodec(level=9),
    fill_value=0,
    dimension_names=["z", "y", "x"],
    attributes={
        "voxel_size_mm": [round(float(size), 3) for size in image.header.get_zooms()[2::-1]],
        "source": f"nibabel {nibabel.__version__}, nibabel/tests/data/{SOURCE.name}, first time point",
        "license": "MIT",
    },
    overwrite=True,
)
array[...] = volume

print(array.info_complete())
print("sha256 of the values (little-endian, C order):")
print(hashlib.sha256(array[...].astype("<u2").tobytes()).hexdigest())
