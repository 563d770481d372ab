"""What the two Python scripts share: how benches/array/peers.rs asks for calls, and the answers.

A script is called as `SCRIPT DATA`, where DATA has the little-endian uint16 elements of the array in
C order. Each line of stdin is a request, as JSON:

- `open`: `metadata`, the array's `zarr.json`, `path`, the folder for it or null for memory, and `sync`, whether
  files are synced by an implementation that can. A new array is created there.
- `store`: write all elements by one call.
- `read`: read `boxes`, each a list of `[start, end]` for each axis, into new memory. Several boxes
  are asked for at once, if there is a call for that.
- `read_into`: the same into memory that was written before, if there is a call for that.

- `places`: make the call `of`, `read` or `read_into`, at one of `places` after the other, each a list of
  boxes, for `turn` seconds or longer. The answer is the seconds of one call.
- `write_places`: write one box of `places` after the other, for `turn` seconds or longer and at least `least`
  times, and each time other elements than before. The answer is the seconds of one call.

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


class Updates:
    """Writes boxes at `places` of an array of `elements`: first all with the lowest bit changed, then all with the
    second bit changed, and so on in turns, as `Updates` in writing.rs does.
    """

    def __init__(self, elements, places):
        self.places = places
        self.boxes = [slices(box) for [box] in places]
        old = [np.ascontiguousarray(elements[box]) for box in self.boxes]
        self.values = [[one ^ np.uint16(mask) for one in old] for mask in (1, 2)]
        self.calls = 0

    def of_places(self, peer, request):
        """The seconds of a call."""
        before, start = self.calls, time.perf_counter()
        while (
            self.calls < before + request["least"]
            or time.perf_counter() - start < request["turn"]
        ):
            version, place = divmod(self.calls, len(self.boxes))
            peer.write(self.boxes[place], self.values[version % 2][place])
            self.calls += 1
        return (time.perf_counter() - start) / (self.calls - before)


def serve(peer):
    """Answer requests with `peer`: `open(metadata, path, sync)`, `store(elements)`, `read(boxes)`, which
    returns arrays, `read_into(boxes, arrays)` or None, and `write(box, elements)`.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
    elements = np.fromfile(sys.argv[1], dtype="<u2")
    warm = {}
    updates = None
    for line in sys.stdin:
        request = json.loads(line)
        answer = {"seconds": None}
        read = None
        try:
            call = request["call"]
            if call == "open":
                elements = elements.reshape(request["metadata"]["shape"])
                peer.open(request["metadata"], request["path"], request["sync"])
            elif call == "store":
                updates = None
                start = time.perf_counter()
                peer.store(elements)
                answer["seconds"] = time.perf_counter() - start
            elif call == "places":
                answer["seconds"] = of_places(peer, request)
            elif call == "write_places":
                if updates is None or updates.places != request["places"]:
                    updates = Updates(elements, request["places"])
                answer["seconds"] = updates.of_places(peer, request)
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
