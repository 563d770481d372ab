"""A process of locks.rs: tensorstore increments element 0 of an array, whose element 1 another process increments.

It is called as `locks.py DIRECTORY TIMES`, says `ready`, and waits for a line. Then it begins. At the end it says by
how much the other process incremented element 1 meanwhile.
"""

import sys

import tensorstore as ts

path, times = sys.argv[1], int(sys.argv[2])
array = ts.open(
    {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}},
    context=ts.Context({"file_io_sync": False}),
    open=True,
).result()
print("ready", flush=True)
sys.stdin.readline()
first = int(array[1].read().result())
for _ in range(times):
    array[0].write(array[0].read().result() + 1).result()
print(int(array[1].read().result()) - first)
