"""tensorstore's part of the benchmark of peers; peer.py says how it is called.

Its thread pools are as large as it makes them: a thread for each core that copies and encodes, and
more for files. It is allowed to refer to the source instead of copying it. Its file store syncs each
file and renames it, as ours does.
"""

import tensorstore as ts

from peer import serve


def create(metadata, path):
    kvstore = {"driver": "memory"} if path is None else {"driver": "file", "path": f"{path}/"}
    # A context of its own: with it goes what is stored in memory.
    context = ts.Context()
    spec = {"driver": "zarr3", "kvstore": kvstore, "metadata": metadata}
    array = ts.open(spec, create=True, context=context).result()

    def write(part, elements):
        array[part].write(elements, can_reference_source_data_indefinitely=True).result()

    return write, lambda part: array[part].read().result()


serve(create)
