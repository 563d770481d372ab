"""`zips.py make FOLDER` makes a group, and zip files that have it. `zips.py compare IN OUT` compares two groups."""

import sys
import zipfile
from pathlib import Path

import numpy as np
import zarr


def create(store):
    for version in (2, 3):
        group = zarr.create_group(store, path=f"v{version}", zarr_format=version, attributes={"of": version})
        array = group.create_array("deep/a", shape=(40, 30), chunks=(7, 8), dtype="i4", fill_value=-1)
        array[5:, 3:] = np.arange(35 * 27).reshape(35, 27)
        # A chunk of 300 kB that does not compress, and one of 2 MB that does.
        noise = group.create_array("noise", shape=(300, 250), chunks=(150, 250), dtype="u8", compressors=None)
        noise[:150] = np.random.default_rng(version).integers(2**63, size=(150, 250), dtype="u8")
        ramp = group.create_array("ramp", shape=(1000, 250), chunks=(1000, 250), dtype="u8", compressors=None)
        ramp[...] = np.arange(250_000).reshape(1000, 250)


def pack(folder, path, method, within=""):
    with zipfile.ZipFile(path, "w", method) as file:
        for entry in sorted(folder.rglob("*")):
            file.write(entry, within + str(entry.relative_to(folder)))


def make(folder):
    create(folder / "plain")
    for version in ("v2", "v3"):
        plain = folder / "plain" / version
        pack(plain, folder / f"{version}-stored.zarr.zip", zipfile.ZIP_STORED)
        pack(plain, folder / f"{version}-deflated.ozx", zipfile.ZIP_DEFLATED)
        pack(plain, folder / f"{version}-folder.zip", zipfile.ZIP_DEFLATED, "image.zarr/")
    with zarr.storage.ZipStore(folder / "by-zarr.zip", mode="w") as store:
        group = zarr.create_group(store, zarr_format=3)
        array = group.create_array("a", shape=(8, 8), chunks=(4, 4), dtype="u2")
        array[...] = 1
        # The entry of a chunk is there twice: the last one counts.
        array[...] = np.arange(64).reshape(8, 8)
    whole = (folder / "v3-stored.zarr.zip").read_bytes()
    (folder / "torn.zip").write_bytes(whole[: len(whole) // 2])
    (folder / "headless.zip").write_bytes(whole[100:])
    (folder / "no.zip").write_text("this is no zip file")
    (folder / "nothing.zip").write_bytes(b"")
    pack(folder / "no such folder", folder / "empty.zip", zipfile.ZIP_STORED)
    # A byte in the middle of an entry is another one.
    for name in ("v3-stored.zarr.zip", "v3-deflated.ozx"):
        damaged = bytearray((folder / name).read_bytes())
        with zipfile.ZipFile(folder / name) as file:
            entry = file.getinfo("noise/c/0/0")
        damaged[entry.header_offset + entry.compress_size // 2] ^= 0x10
        (folder / f"damaged-{name.split('.')[0]}.zip").write_bytes(damaged)
    # Entries that are encrypted, as the flags of their headers say.
    encrypted = bytearray((folder / "v3-deflated.ozx").read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = encrypted.find(signature)
        while at >= 0:
            encrypted[at + flags] |= 1
            at = encrypted.find(signature, at + 1)
    (folder / "encrypted.zip").write_bytes(encrypted)


def compare(before, after):
    before, after = (zarr.open_group(folder, mode="r") for folder in (before, after))
    arrays = [name for name, node in before.members(max_depth=None) if isinstance(node, zarr.Array)]
    assert arrays
    assert dict(before.attrs) == dict(after.attrs)
    for name in arrays:
        np.testing.assert_array_equal(before[name][...], after[name][...])
        assert after[name].metadata.zarr_format == 3


task, *paths = sys.argv[1:]
{"make": make, "compare": compare}[task](*map(Path, paths))
