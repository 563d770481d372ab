"""What the two Python scripts share: how benches/array/peers.rs asks for calls, and the answers.

A script is called as `SCRIPT DATA`, where DATA has the little-endian uint16 elements of the array in
C order. Each line of stdin is a request, as JSON:

- `open`: `metadata`, the array's `zarr.json`, and `path`, the folder for it or null for memory. A new
  array is created there.
- `store`: write all elements by one call.
- `read`: read `boxes`, each a list of `[start, end]` for each axis, into new memory. Several boxes
  are asked for at once, if there is a call for that.
- `read_into`: the same into memory that was written before, if there is a call for that.

- `places`: make the call `of`, `read` or `read_into`, at one of `places` after the other, each a list of
  boxes, for `turn` seconds or longer. The answer is the seconds of one call.

For each request a line of JSON goes to stdout: the `seconds` of the call and the `crc32` of the bytes
that were read, box after box, if `check` is true; or the `error`. A call that does not exist answers
null seconds.
"""

import ctypes
import json
import sys
import time
import zlib

import numpy as np


def slices(box):
    return tuple(slice(start, end) for start, end in box)


def of_places(peer, request):
    """The seconds of a call, made at one place after the other until the turn ends."""
    places = [[slices(box) for box in boxes] for boxes in request["places"]]
    into = request["of"] == "read_into"
    if into and peer.read_into is None:
        return None
    arrays = [np.ones(tuple(s.stop - s.start for s in box), dtype="<u2") for box in places[0]]
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < request["turn"]:
        boxes = places[calls % len(places)]
        if into:
            peer.read_into(boxes, arrays)
        else:
            peer.read(boxes)
        calls += 1
    return (time.perf_counter() - start) / calls


def serve(peer):
    """Answer requests with `peer`: `open(metadata, path)`, `store(elements)`, `read(boxes)`, which
    returns arrays, and `read_into(boxes, arrays)` or None.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
    elements = np.fromfile(sys.argv[1], dtype="<u2")
    warm = {}
    for line in sys.stdin:
        request = json.loads(line)
        answer = {"seconds": None}
        read = None
        try:
            call = request["call"]
            if call == "open":
                elements = elements.reshape(request["metadata"]["shape"])
                peer.open(request["metadata"], request["path"])
            elif call == "store":
                start = time.perf_counter()
                peer.store(elements)
                answer["seconds"] = time.perf_counter() - start
            elif call == "places":
                answer["seconds"] = of_places(peer, request)
            else:
                boxes = [slices(box) for box in request["boxes"]]
                if call == "read":
                    start = time.perf_counter()
                    read = peer.read(boxes)
                    answer["seconds"] = time.perf_counter() - start
                elif peer.read_into is not None:
                    shapes = tuple(tuple(s.stop - s.start for s in box) for box in boxes)
                    if shapes not in warm:
                        warm = {shapes: [np.ones(shape, dtype="<u2") for shape in shapes]}
                    read = warm[shapes]
                    start = time.perf_counter()
                    peer.read_into(boxes, read)
                    answer["seconds"] = time.perf_counter() - start
                if read is not None and request["check"]:
                    crc = 0
                    for array in read:
                        crc = zlib.crc32(np.ascontiguousarray(array).data, crc)
                    answer["crc32"] = crc
        except Exception as caught:
            answer = {"error": f"{type(caught).__name__}: {caught}"}
        # Freed before the next contender begins.
        del read
        malloc_trim(0)
        print(json.dumps(answer), flush=True)
