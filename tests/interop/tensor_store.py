"""tensorstore's part of the interoperability test; interop.py says how it is called."""

import tensorstore as ts

from interop import run

# There is nothing that it cannot do.
CANNOT_READ = {}
CANNOT_WRITE = {}


def spec(case):
    return {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{case.path}/"}}


def read(case):
    array = ts.open(spec(case), open=True, read=True).result()
    case.compare(lambda selection: array[selection].read().result())


def write(case):
    array = ts.open(spec(case) | {"metadata": case.metadata}, create=True).result()
    for slab in case.slabs():
        array[slab].write(case.values[slab]).result()
    read(case)


run(read=(read, CANNOT_READ), write=(write, CANNOT_WRITE))
