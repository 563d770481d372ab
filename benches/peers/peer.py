"""What the two Python scripts share: how benches/peers/main.rs asks for writes, and the answers.

A script is called as `SCRIPT DATA`, where DATA has the little-endian uint16 elements of the array in
C order. Each line of stdin is a request, as JSON:

- `metadata`: the array's `zarr.json`;
- `path`: the folder for it, or null for memory;
- `way`: "epochs", a write for each layer of shards along the first axis, one after the other, or
  "whole", one write of all of it;
- `verify`: whether to read the array again, and compare.

For each request a line of JSON goes to stdout: the `seconds` from the first write to the end of the
last, and the `cpu_seconds` of all threads of the process, or the `error`.
"""

import ctypes
import json
import sys
import time

import numpy as np


def parts(metadata, way):
    """The ranges along the first axis that are written at once."""
    extent = metadata["shape"][0]
    if way == "whole":
        return [slice(0, extent)]
    depth = metadata["chunk_grid"]["configuration"]["chunk_shape"][0]
    return [slice(start, min(start + depth, extent)) for start in range(0, extent, depth)]


def equal(read, data, metadata):
    """Compare part by part, so that only one more part is in memory."""
    for part in parts(metadata, "epochs"):
        found = np.asarray(read(part))
        if found.shape != data[part].shape or not np.array_equal(found, data[part]):
            return False
    return True


def serve(create):
    """Answer requests with `create(metadata, path)`, which returns a new array as two functions:
    one that writes elements to a range along the first axis and returns when they are stored, and
    one that reads such a range.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
    elements = np.fromfile(sys.argv[1], dtype="<u2")
    for line in sys.stdin:
        request = json.loads(line)
        metadata = request["metadata"]
        try:
            data = elements.reshape(metadata["shape"])
            write, read = create(metadata, request["path"])
            ranges = parts(metadata, request["way"])
            start, cpu_start = time.perf_counter(), time.process_time()
            for part in ranges:
                write(part, data[part])
            seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
            if request["verify"] and not equal(read, data, metadata):
                raise ValueError("it reads something else than it wrote")
            del write, read
            # Back to the system with the memory that a heap keeps of the array that was: everyone
            # begins without memory that another array was in.
            malloc_trim(0)
            answer = {"seconds": seconds, "cpu_seconds": cpu}
        except Exception as caught:
            answer = {"error": f"{type(caught).__name__}: {caught}"}
        print(json.dumps(answer), flush=True)
