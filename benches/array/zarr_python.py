"""zarr-python's part of the benchmark of calls; peer.py says how it is called.

Its settings are its own. Its file store does not sync.
"""

import zarr
from zarr.core.metadata import ArrayV3Metadata

from peer import serve


class Peer:
    def open(self, metadata, path):
        store = zarr.storage.MemoryStore() if path is None else zarr.storage.LocalStore(path)
        parsed = ArrayV3Metadata.from_dict(dict(metadata))
        self.array = zarr.create(
            store=store,
            shape=parsed.shape,
            chunks=parsed.chunk_grid.chunk_shape,
            dtype=parsed.data_type,
            fill_value=parsed.fill_value,
            codecs=parsed.codecs,
            zarr_format=3,
            config={"write_empty_chunks": False},
        )

    def store(self, elements):
        self.array[...] = elements

    def read(self, boxes):
        return [self.array[box] for box in boxes]

    # The call with an output takes buffers of its own kind, not numpy's.
    read_into = None


serve(Peer())
