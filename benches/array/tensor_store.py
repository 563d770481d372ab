"""tensorstore's part of the benchmark of calls; peer.py says how it is called.

Nothing is cached between calls: that is its default.
"""

import tensorstore as ts

from create import tensorstore
from peer import serve


class Peer:
    def open(self, metadata, path, sync):
        self.array = tensorstore(metadata, path, sync)

    def store(self, elements):
        self.array.write(elements, can_reference_source_data_indefinitely=True).result()

    def write(self, box, elements):
        self.array[box].write(elements, can_reference_source_data_indefinitely=True).result()

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
