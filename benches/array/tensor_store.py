"""tensorstore's part of the benchmark of calls; peer.py says how it is called.

Its thread pools are as large as it makes them. Nothing is cached between calls: that is its default.
"""

import tensorstore as ts

from peer import serve


class Peer:
    def open(self, metadata, path):
        kvstore = {"driver": "memory"} if path is None else {"driver": "file", "path": f"{path}/"}
        spec = {"driver": "zarr3", "kvstore": kvstore, "metadata": metadata}
        self.array = ts.open(spec, create=True, context=ts.Context()).result()

    def store(self, elements):
        self.array.write(elements, can_reference_source_data_indefinitely=True).result()

    def read(self, boxes):
        # All are asked for before the first is waited for, and share what they decode.
        with ts.Batch() as batch:
            reads = [self.array[box].read(batch=batch) for box in boxes]
        return [read.result() for read in reads]

    def read_into(self, boxes, arrays):
        # A copy between arrays takes no batch.
        copies = [ts.array(to).write(self.array[box]) for box, to in zip(boxes, arrays)]
        for copy in copies:
            copy.result()


serve(Peer())
