"""tensorstore's part of the benchmark of peers; peer.py says how it is called.

It is allowed to refer to the source instead of copying it.
"""

from create import tensorstore
from peer import serve


def create(metadata, path):
    array = tensorstore(metadata, path)

    def write(part, elements):
        array[part].write(elements, can_reference_source_data_indefinitely=True).result()

    return write, lambda part: array[part].read().result()


serve(create)
