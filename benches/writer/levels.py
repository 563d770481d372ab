"""What the two peers' scripts share: how pyramid.rs asks for an image with its levels, and the answers.

A script is called as `SCRIPT FRAMES`, where FRAMES has the little-endian uint16 frames of one layer of
shards, which repeat. Each line of stdin is a request, as JSON:

- `metadata`: the `zarr.json` of level 0;
- `path`: the folder for the image;
- `factors`: elements along each axis that make one element of the next level;
- `levels`: how many levels there are, with level 0;
- `chain`: the name of the codecs;
- `epochs`: how often the frames are written.

For each request a line of JSON goes to stdout: the `seconds` from before the first write until all is on
the disk, and the `cpu_seconds` of all threads of the process, or the `error`.
"""

import json
import os
import sys
import time

import numpy as np


def serve(write):
    """Answer requests with `write(request, frames)`. Both peers return before their files are synced, or
    sync each; the clock stops when the disk has all of them.
    """
    elements = np.fromfile(sys.argv[1], dtype="<u2")
    for line in sys.stdin:
        request = json.loads(line)
        try:
            _, *frame = request["metadata"]["shape"]
            frames = elements.reshape([-1, *frame])
            start, cpu_start = time.perf_counter(), time.process_time()
            write(request, frames)
            os.sync()
            seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
            answer = {"seconds": seconds, "cpu_seconds": cpu}
        except Exception as caught:
            answer = {"error": f"{type(caught).__name__}: {caught}"}
        print(json.dumps(answer), flush=True)
