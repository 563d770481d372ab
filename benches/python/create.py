"""How the Python scripts of the benchmarks create an array with the metadata `metadata` (a `zarr.json`),
in the folder `path` or, if it is None, in memory."""


def tensorstore(metadata, path, sync=True):
    """Its thread pools are as large as it makes them: a thread for each core that copies and encodes,
    and more for files. Its file store syncs each file if `sync` is true, its default, and renames it, as ours does.
    """
    import tensorstore as ts

    kvstore = {"driver": "memory"} if path is None else {"driver": "file", "path": f"{path}/"}
    # A context of its own: with it goes what is stored in memory.
    context = ts.Context({"file_io_sync": sync})
    spec = {"driver": "zarr3", "kvstore": kvstore, "metadata": metadata}
    return ts.open(spec, create=True, context=context).result()


def zarr_python(metadata, path):
    """Its settings are its own. Its file store does not sync."""
    import zarr
    from zarr.core.metadata import ArrayV3Metadata

    store = zarr.storage.MemoryStore() if path is None else zarr.storage.LocalStore(path)
    parsed = ArrayV3Metadata.from_dict(dict(metadata))
    return zarr.create(
        store=store,
        shape=parsed.shape,
        chunks=parsed.chunk_grid.chunk_shape,
        dtype=parsed.data_type,
        fill_value=parsed.fill_value,
        codecs=parsed.codecs,
        zarr_format=3,
        config={"write_empty_chunks": False},
    )
