"""zarr-python's part of the benchmark of peers; peer.py says how it is called."""

from create import zarr_python
from peer import serve


def create(metadata, path):
    array = zarr_python(metadata, path)
    return array.__setitem__, array.__getitem__


serve(create)
