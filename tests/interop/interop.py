"""What the two Python scripts share: the cases, the comparison, and the report.

A script is called as `SCRIPT read DIRECTORY` or `SCRIPT write DIRECTORY`. In the directory,
`cases.json` lists the cases, and each case has its values as raw little-endian bytes in C order
in `NAME.raw` and its array in `NAME/`. `read` compares the array with the values; `write` makes
the array out of the values, and then compares what the same implementation reads back.

One line of JSON per case goes to stdout, for tests/interop.rs to judge: the error, if there was
one, and the error that is expected, with the reason, if the case is known not to work.
"""

import json
import sys
from pathlib import Path

import numpy as np


class Case:
    def __init__(self, directory, name, metadata):
        self.name = name
        self.metadata = metadata
        self.path = directory / name
        dtype = np.dtype(metadata["data_type"]).newbyteorder("<")
        raw = (directory / f"{name}.raw").read_bytes()
        self.values = np.frombuffer(raw, dtype).reshape(metadata["shape"])

    def slabs(self):
        """Two parts of the array, cut inside a shard, so that the second part updates it."""
        cut = self.metadata["shape"][0] * 5 // 8
        return slice(0, cut), slice(cut, None)

    def compare(self, read):
        """Compare, bit for bit, all that `read` returns, and a box from the middle."""
        for selection in (
            tuple(slice(0, n) for n in self.values.shape),
            tuple(slice(n // 3, n - n // 4) for n in self.values.shape),
        ):
            found = np.asarray(read(selection))
            expected = self.values[selection]
            assert found.shape == expected.shape, f"shape {found.shape}, not {expected.shape}"
            assert found.dtype == expected.dtype, f"dtype {found.dtype}, not {expected.dtype}"
            bits = f"V{expected.itemsize}"
            found = np.ascontiguousarray(found).view(bits)
            wrong = np.argwhere(found != np.ascontiguousarray(expected).view(bits))
            assert not len(wrong), f"{len(wrong)} wrong values, first at {wrong[0].tolist()}"


def unsupported(reason, error, *cases):
    """Entries for a table of the cases that fail; `error` is a part of what is said then."""
    return {case: {"reason": reason, "error": error} for case in cases}


def run(**operations):
    """Run the operation that was asked for, "read" or "write", over all cases.

    Each is given as a function of a case, and the table of the cases that are known to fail.
    """
    operation, directory = sys.argv[1], Path(sys.argv[2])
    function, expected = operations[operation]
    cases = json.loads((directory / "cases.json").read_text())
    for name, metadata in cases.items():
        error = None
        try:
            function(Case(directory, name, metadata))
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
        report = {"case": name, "error": error, "unsupported": expected.get(name)}
        print(json.dumps(report), flush=True)
