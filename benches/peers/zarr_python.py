"""zarr-python's part of the benchmark of peers; peer.py says how it is called.

Its settings are its own. Its file store does not sync.
"""

import zarr
from zarr.core.metadata import ArrayV3Metadata

from peer import serve


def create(metadata, path):
    store = zarr.storage.MemoryStore() if path is None else zarr.storage.LocalStore(path)
    parsed = ArrayV3Metadata.from_dict(dict(metadata))
    array = zarr.create(
        store=store,
        shape=parsed.shape,
        chunks=parsed.chunk_grid.chunk_shape,
        dtype=parsed.data_type,
        fill_value=parsed.fill_value,
        codecs=parsed.codecs,
        zarr_format=3,
        config={"write_empty_chunks": False},
    )
    return array.__setitem__, array.__getitem__


serve(create)
