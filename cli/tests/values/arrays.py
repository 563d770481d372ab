"""Makes arrays of every data type and codec, and compares what becomes of them.

`arrays.py make FOLDER` makes the groups FOLDER/v2 and FOLDER/v3, of arrays that are converted, and
arrays in FOLDER/refused. It prints the names of the latter as JSON, each with a word that the
refusal says.

`arrays.py types FOLDER` makes FOLDER, a group of Zarr v3 with arrays of every data type.

`arrays.py raw FOLDER` compares every array FOLDER/NAME, as others read it, with the bytes of
FOLDER/NAME.raw. It prints their number.

`arrays.py compare IN OUT` compares every array of the group IN with that of the group OUT, both as
zarr-python reads them: data type, bits of all elements, fill value. tensorstore reads those in OUT
whose data type it knows. It prints the number of arrays, and fails at differences.
"""

import json
import lzma
import sys
import warnings
from pathlib import Path

import numcodecs as nc
import numpy as np
import tensorstore as ts
import zarr
import zarr.codecs as zc
from zarr.codecs import numcodecs as zn
from zarr.core.dtype import VariableLengthBytes, VariableLengthUTF8

warnings.simplefilter("ignore")
SHAPE, CHUNK = (11, 7), (4, 3)
RNG = np.random.default_rng(5)
NUMBERS = (
    "|b1 |i1 <i2 >i2 <i4 >i4 <i8 >i8 |u1 <u2 >u2 <u4 >u4 <u8 >u8 <f2 >f2 <f4 >f4 <f8 >f8 <c8 >c8 <c16 >c16"
).split()
OTHERS = "<M8[ns] >M8[s] <M8[25us] <M8[D] <M8[Y] <m8[ms] >m8[ns] <M8 |S1 |S3 <U1 <U5 >U5 |V1 |V3 |V8".split()


def values(dtype):
    """Elements of a data type, the unusual ones among them."""
    dtype = np.dtype(dtype)
    size, words = dtype.itemsize, "aß€🎉xyz"
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        found = RNG.integers(info.min, info.max, SHAPE, dtype.newbyteorder("="), endpoint=True)
        found[0, :2] = info.min, info.max
    elif dtype.kind == "f":
        found = RNG.normal(0, 100, SHAPE)
        found[0, :5] = 0.0, -0.0, np.nan, np.inf, -np.inf
    elif dtype.kind == "c":
        found = RNG.normal(0, 100, SHAPE) + 1j * RNG.normal(0, 1, SHAPE)
        found[0, 0] = complex(np.nan, -0.0)
    elif dtype.kind == "b":
        found = RNG.integers(0, 2, SHAPE)
    elif dtype.kind in "mM":
        found = RNG.integers(-(10**6), 10**6, SHAPE)
        found[0, 0] = np.iinfo("i8").min  # NaT
        found = found.view(dtype.newbyteorder("="))
    elif dtype.kind == "S":
        found = np.array([b"abcdefgh"[: k % (size + 1)] for k in range(77)]).reshape(SHAPE)
    elif dtype.kind == "U":
        found = np.array([words[: k % (size // 4 + 1)] for k in range(77)]).reshape(SHAPE)
    else:
        found = RNG.integers(0, 256, (77, size), "u1").view(dtype).reshape(SHAPE)
    return found.astype(dtype)


def fills(dtype):
    """Fill values of a data type, beside its default."""
    dtype = np.dtype(dtype)
    kind, size = dtype.kind, dtype.itemsize
    if kind in "iu":
        yield from (5, np.iinfo(dtype).min, np.iinfo(dtype).max)
    elif kind == "f":
        yield from (-99.9, np.nan, np.inf, -np.inf, -0.0)
    elif kind == "c":
        yield from (1.5 - 2j, complex(np.nan, 1))
    elif kind == "b":
        yield True
    elif kind in "mM":
        yield np.array(7, "i8").view(dtype.newbyteorder("="))[()]
    elif kind == "S":
        yield b"ab"[:size]
    elif kind == "U":
        yield "ß"
    else:
        yield np.void(bytes(range(1, size + 1)))


class Maker:
    def __init__(self, folder, zarr_format):
        self.folder, self.zarr_format = folder, zarr_format
        self.count = 0
        zarr.create_group(str(folder), zarr_format=zarr_format)

    def __call__(self, name, dtype, data=None, **options):
        """Makes an array whose last row of chunks is missing."""
        name = "".join(c if c.isalnum() else {"<": "l", ">": "b", "-": "m"}.get(c, "_") for c in name)
        options = {"compressors": None, "chunks": CHUNK} | options
        array = zarr.create_array(
            store=str(self.folder / name),
            shape=SHAPE,
            dtype=dtype,
            zarr_format=self.zarr_format,
            config={"write_empty_chunks": True},
            **options,
        )
        array[:8] = (values(dtype) if data is None else data)[:8]
        self.count += 1


TEXT = np.array(["aß€🎉xyz"[: k % 7] for k in range(77)], object).reshape(SHAPE)
BYTES = np.array([b"\xff\x00\xc8\x03"[: k % 5] for k in range(77)], object).reshape(SHAPE)


def types(make):
    for dtype in NUMBERS + OTHERS:
        make(f"type {dtype}", dtype)
        for number, fill in enumerate(fills(dtype)):
            make(f"fill {number} {dtype}", dtype, fill_value=fill)
        if make.zarr_format == 2:
            make(f"order F {dtype}", dtype, order="F")
    for name, dtype, data, fill in (
        ("text", VariableLengthUTF8(), TEXT, "none"),
        ("bytes", VariableLengthBytes(), BYTES, b"\xff\x00x"),
    ):
        make(name, dtype, data)
        make(f"{name} fill", dtype, data, fill_value=fill)
        zstd = zc.ZstdCodec() if make.zarr_format == 3 else nc.Zstd(1)
        make(f"{name} zstd", dtype, data, compressors=zstd)


FIELDS = {
    "pair": [("a", "<i4"), ("b", "<f8")],
    "bytes": [("a", "|u1"), ("b", "|b1"), ("c", "|S3"), ("d", "|V2")],
    "text": [("ß", "<U2"), ("t", "<M8[ns]"), ("d", "<m8[25us]"), ("c", "<c8"), ("h", "<f2")],
    "nested": [("n", [("x", "|i1"), ("m", [("y", "<c16"), ("z", "<U1")])]), ("w", "<u2")],
}


def structures(make):
    """Structures, with fill values of all of their fields."""
    for name, fields in FIELDS.items():
        dtype = np.dtype(fields)
        data = np.zeros(SHAPE, dtype)
        for field in dtype.names:
            part = data[field]
            for inner in part.dtype.names or [None]:
                if inner is None:
                    part[...] = values(part.dtype)
                elif part.dtype[inner].names is None:
                    part[inner] = values(part.dtype[inner])
        make(f"struct {name}", dtype, data)
        make(f"struct {name} fill", dtype, data, fill_value=data[3, 3])
        codec = zc.ZstdCodec() if make.zarr_format == 3 else nc.LZMA()
        make(f"struct {name} compressed", dtype, data, compressors=codec)
        if make.zarr_format == 2:
            make(f"struct {name} F", dtype, data, order="F", filters=[nc.Shuffle(4)])
        else:
            make(f"struct {name} big", dtype, data, serializer=zc.BytesCodec(endian="big"))


FLOATS = "<f2 >f2 <f4 >f4 <f8 >f8".split()
INTEGERS = "|i1 <i2 >i2 <i4 >i4 <i8 >i8 |u1 <u2 >u2 <u4 >u4 <u8 >u8".split()


def small(dtype):
    """Elements that each data type of numbers can have, also as differences."""
    low = 0 if np.dtype(dtype).kind == "u" else -9
    return RNG.integers(low, 30, SHAPE).astype(dtype)


def of_numcodecs(make):
    """Filters of elements and of bytes, over data types and parameters."""
    for number, dtype in enumerate(INTEGERS + FLOATS):
        make(f"delta {dtype}", dtype, filters=[nc.Delta(dtype)])
        make(f"delta zlib {dtype}", dtype, order="F", filters=[nc.Delta(dtype)], compressors=nc.Zlib(1))
        for astype in (INTEGERS + FLOATS)[number % 3 :: 3]:  # some of them: there are 361 pairs
            # numpy adds up floats then, and what becomes of negative ones depends on the processor.
            is_undefined = np.promote_types(dtype, astype).kind == "f" and np.dtype(dtype).kind in "iu"
            if not is_undefined or "u" not in dtype + astype:
                make(f"delta {dtype} {astype}", dtype, small(dtype), filters=[nc.Delta(dtype, astype)])
            make(f"astype {dtype} {astype}", dtype, small(dtype), filters=[nc.AsType(astype, dtype)])
    for dtype, astype in ("<i8", "<i4"), ("<u2", ">i8"), ("|i1", "<u8"), ("<f4", "<i8"), ("<f2", "<u8"):
        # Integers that do not fit are taken modulo the number of values; large ones are rounded.
        make(f"wide {dtype} {astype}", dtype, values(astype).astype(dtype), filters=[nc.AsType(astype, dtype)])
    for dtype in FLOATS:
        for astype in FLOATS:
            make(f"quantize {dtype} {astype}", dtype, small(dtype), filters=[nc.Quantize(1, dtype, astype)])
        for wide in "<f8", "<f4":  # the sums are rounded once
            make(f"sums {dtype} {wide}", dtype, np.arange(77).reshape(SHAPE) / 7, filters=[nc.Delta(dtype, wide)])
        make(f"quantize {dtype}", dtype, filters=[nc.Quantize(2, dtype)])
        for keepbits in (0, 3, 10) if dtype[0] == "<" else ():  # numcodecs encodes no others
            codec = nc.BitRound(keepbits)
            make(f"bitround {keepbits} {dtype}", dtype, filters=[codec], compressors=nc.Zstd(1))
    for dtype in "<f8 >i2 |S3".split():
        for name, codec in {
            "crc32": nc.CRC32(),
            "crc32 end": nc.CRC32(location="end"),
            "crc32c": nc.CRC32C(),
            "crc32c start": nc.CRC32C(location="start"),
            "lz4": nc.LZ4(),
            "lz4 9": nc.LZ4(9),
            "lzma": nc.LZMA(),
            "lzma 0": nc.LZMA(preset=0),
            "lzma 9": nc.LZMA(preset=9 | lzma.PRESET_EXTREME),
            "lzma none": nc.LZMA(check=lzma.CHECK_NONE),
            "lzma crc64": nc.LZMA(check=lzma.CHECK_CRC64),
            "lzma sha": nc.LZMA(check=lzma.CHECK_SHA256),
            "lzma alone": nc.LZMA(format=lzma.FORMAT_ALONE),
        }.items():
            make(f"{name} {dtype}", dtype, compressors=codec)
            make(f"filter {name} {dtype}", dtype, filters=[codec], compressors=nc.Zlib(1))
        for number, chain in enumerate(RAW):
            codec = nc.LZMA(format=lzma.FORMAT_RAW, filters=chain)
            make(f"lzma raw {number} {dtype}", dtype, compressors=codec)
    make("packbits", "|b1", filters=[nc.PackBits()])
    make("packbits lzma", "|b1", order="F", filters=[nc.PackBits()], compressors=nc.LZMA())
    make("packbits one", "|b1", chunks=(4, 2), filters=[nc.PackBits()])
    text = [VariableLengthUTF8(), TEXT], [VariableLengthBytes(), BYTES]
    for name, (dtype, data) in zip(("text", "bytes"), text, strict=True):
        for codec in nc.LZ4(), nc.LZMA(), nc.CRC32():
            make(f"{name} {codec.codec_id}", dtype, data, compressors=codec)


RAW = [
    [{"id": lzma.FILTER_LZMA2}],
    [{"id": lzma.FILTER_LZMA2, "preset": 1}],
    [{"id": lzma.FILTER_LZMA1}],
    [{"id": lzma.FILTER_LZMA1, "lc": 1, "lp": 2, "pb": 0, "dict_size": 5000}],
    [{"id": lzma.FILTER_LZMA2, "dict_size": 100_000}],
    [{"id": lzma.FILTER_DELTA, "dist": 8}, {"id": lzma.FILTER_LZMA2, "preset": 9}],
    [{"id": lzma.FILTER_DELTA}, {"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2}],
    [{"id": lzma.FILTER_ARM, "start_offset": 16}, {"id": lzma.FILTER_LZMA2}],
]


def orders(make):
    """Filters that numcodecs runs in an order of its own."""
    quarters = RNG.integers(0, 100, SHAPE) / 4
    lists = {
        "bytes first": [nc.Shuffle(8), nc.FixedScaleOffset(0, 1, "u1", "u1")],
        "delta of scaled": [nc.FixedScaleOffset(0, 4, "<f8", "<i4"), nc.Delta("<i4", "<i2")],
        "all": [nc.FixedScaleOffset(0, 4, "<f8", ">i4"), nc.Delta(">i4"), nc.Shuffle(4), nc.CRC32()],
        "bits": [nc.Quantize(2, "<f8", "<f4"), nc.BitRound(9), nc.Fletcher32(), nc.LZ4()],
        "other type": [nc.Delta("<i8")],
        "half": [nc.AsType("<f4", "<f8"), nc.Delta("<f4", "<f8")],
    }
    for name, chain in lists.items():
        make(name, "<f8", quarters, filters=chain, compressors=nc.LZMA())
        make(f"{name} F", "<f8", quarters, order="F", filters=chain)


def scaled(make):
    """`fixedscaleoffset`, of elements that numcodecs can decode to."""
    number = 0
    for dtype in "<f8 >f8 <f4 >f4 <f2 <i2 <i4 <i8 |u1 <u2".split():
        for astype in "|u1 |i1 <i2 >i2 <u2 <i4 >i4 <u4 <i8 <u8 <f2 <f4 >f4 <f8".split() + [None]:
            one_byte = np.dtype(dtype).itemsize == 1
            if one_byte and np.dtype(astype or dtype).itemsize > 1 and make.zarr_format == 3:
                continue  # zarr-python cannot make it
            scale, offset = ((10, 100), (0.1, 3.7), (1 / 3, 27.315), (-7.3, 120.5))[number % 4]
            number += 1
            encoded = RNG.integers(0, 20, SHAPE)
            data = encoded / abs(scale) + offset if scale > 0 else offset - encoded / 7.3
            data = np.clip(data, 20, 250 if one_byte else 1e4).astype(dtype)
            name = f"scaled {dtype} {astype}"
            options = {"offset": offset, "scale": scale, "dtype": dtype, "astype": astype or dtype}
            if make.zarr_format == 2:
                options = {"filters": [nc.FixedScaleOffset(**options)], "compressors": nc.Zlib(1)}
            else:
                options = {"filters": [zn.FixedScaleOffset(**options)]}
            make(name, dtype, data, fill_value=25, **options)


def v2(make):
    types(make)
    for dtype in "<f8 >i2 |u1 <U5".split():
        for name in "lz4 lz4hc blosclz zstd zlib".split():
            for shuffle in (0, 1, 2, -1):
                codec = nc.Blosc(cname=name, clevel=5, shuffle=shuffle)
                make(f"blosc {name} {shuffle} {dtype}", dtype, compressors=codec)
        make(f"blosc blocks {dtype}", dtype, compressors=nc.Blosc(shuffle=1, blocksize=64))
        for name, codec in {
            "zstd": nc.Zstd(3),
            "zstd checksum": nc.Zstd(3, checksum=True),
            "gzip": nc.GZip(4),
            "zlib": nc.Zlib(4),
            "bz2": nc.BZ2(3),
        }.items():
            make(f"{name} {dtype}", dtype, compressors=codec)
        for name, codec in {
            "shuffle": nc.Shuffle(np.dtype(dtype).itemsize),
            "shuffle 4": nc.Shuffle(4),
            "fletcher32": nc.Fletcher32(),
            "adler32": nc.Adler32(),
            "adler32 end": nc.Adler32(location="end"),
        }.items():
            make(f"filter {name} {dtype}", dtype, filters=[codec])
            make(f"filter {name} zlib {dtype}", dtype, filters=[codec], compressors=nc.Zlib(1))
            make(f"compressor {name} {dtype}", dtype, compressors=codec)
    for dtype in "<i2 <i4 <i8 <u2 <u4 <u8 <f2 <f4 <f8".split():
        make(f"pcodec {dtype}", dtype, compressors=nc.PCodec(level=5))
    scaled(make)
    of_numcodecs(make)
    orders(make)
    structures(make)
    quarters = RNG.integers(0, 100, SHAPE) / 4
    filters = [nc.FixedScaleOffset(0, 4, ">f8", "<i2"), nc.Shuffle(2)]
    make("scaled F", ">f8", quarters.astype(">f8"), order="F", filters=filters, compressors=nc.Zlib(1))
    filters = [nc.FixedScaleOffset(0, 4, "<f8", "<f4"), nc.FixedScaleOffset(1, 8, "<f4", ">i4")]
    make("scaled twice", "<f8", quarters, filters=filters)
    make("two of bytes", "<f8", filters=[nc.Fletcher32(), nc.Shuffle(4)], compressors=nc.Zlib(1))
    make("slashes", "<i4", chunk_key_encoding={"name": "v2", "separator": "/"})


def v3(make):
    types(make)
    for dtype in "<f8 <i2 |u1 <c8".split():
        size = np.dtype(dtype).itemsize
        for name, codec in {
            "gzip": zc.GzipCodec(level=5),
            "zstd": zc.ZstdCodec(level=3),
            "zstd checksum": zc.ZstdCodec(level=3, checksum=True),
            "crc32c": zc.Crc32cCodec(),
            "bz2": zn.BZ2(level=3),
            "zlib": zn.Zlib(level=3),
            "shuffle": zn.Shuffle(elementsize=size),
            "fletcher32": zn.Fletcher32(),
            "adler32": zn.Adler32(),
            "adler32 end": zn.Adler32(location="end"),
        }.items():
            make(f"{name} {dtype}", dtype, compressors=[codec])
            make(f"{name} zstd {dtype}", dtype, compressors=[codec, zc.ZstdCodec()])
        for name in "lz4 lz4hc blosclz zstd zlib".split():
            for shuffle in ("noshuffle", "shuffle", "bitshuffle"):
                codec = zc.BloscCodec(cname=name, shuffle=shuffle, typesize=size)
                make(f"blosc {name} {shuffle} {dtype}", dtype, compressors=[codec])
        make(f"big {dtype}", dtype, serializer=zc.BytesCodec(endian="big"))
        make(f"transpose {dtype}", dtype, filters=[zc.TransposeCodec(order=(1, 0))])
        make(f"shards {dtype}", dtype, shards=(8, 6))
        start = {"shape": (8, 6), "index_location": "start"}
        make(f"shards start {dtype}", dtype, shards=start, compressors=[zc.GzipCodec()])
        make(f"keys {dtype}", dtype, chunk_key_encoding={"name": "v2", "separator": "."})
    for dtype in "<i2 <i4 <i8 <u2 <u4 <u8 <f2 <f4 <f8".split():
        make(f"pcodec {dtype}", dtype, serializer=zn.PCodec(level=5))
    scaled(make)
    structures(make)


def refused(folder):
    """Makes arrays that cannot be converted, and tells a word of the reason."""
    reasons = {}

    def v2(reason, name, dtype, data=None, **options):
        make(name, dtype, data, **options)
        reasons["v2/" + name] = reason

    def v3(reason, name, dtype, data=None, **options):
        make3(name, dtype, data, **options)
        reasons["v3/" + name] = reason

    make, make3 = Maker(folder / "v2", 2), Maker(folder / "v3", 3)
    v2("its checksum is not known", "jenkins", "<f8", filters=[nc.JenkinsLookup3(initval=0)])
    for name, filters in {
        "base64": [nc.Base64()],
        "datatype": [nc.Delta("<c8")],
        "pcodec": [nc.Delta("<i4")],
    }.items():
        compressor = nc.PCodec(level=5) if name == "pcodec" else None
        reason = {"base64": "not decoded here", "datatype": "not a data type of integers", "pcodec": "takes elements"}
        dtype = "<c8" if name == "datatype" else "<i4"
        v2("", name, dtype, small("<i4").astype(dtype), filters=filters, compressors=compressor)
        reasons["v2/" + name] = reason[name]
    for name, reason in {
        "pickle": "runs code",
        "json2": "holds Python objects",
        "msgpack2": "holds Python objects",
        "categorize": "holds Python objects",
        "zfpy": "decoded by the library zfp",
        "unheard": "not supported",
    }.items():
        v2(reason, name, "<f8")
        path = folder / f"v2/{name}/.zarray"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"filters": [{"id": name}]}))
    for codec in (zn.LZ4(), zn.LZMA(), zn.Blosc(), zn.Zstd(), zn.GZip(), zn.CRC32(), zn.CRC32C()):
        v3(f"codec {codec.codec_name}", codec.codec_name.split(".")[1], "<f8", compressors=[codec])
    v3("codec numcodecs.delta", "delta", "<f8", filters=[zn.Delta(dtype="<f8")])
    v3("codec scale_offset", "scale", "<f8", filters=[zc.ScaleOffset(offset=5, scale=0.1)])
    unsigned = [nc.FixedScaleOffset(-3.7, 0.1, "<u2", "u1")]
    v2("cannot hold", "range", "<u2", np.zeros(SHAPE, "<u2"), filters=unsigned)
    v2("order F", "text", VariableLengthUTF8(), TEXT, order="F")
    v3("transpose", "text", VariableLengthUTF8(), TEXT, filters=[zc.TransposeCodec(order=(1, 0))])
    fields = np.dtype([("a", "<i4"), ("b", ">f8")])
    v2("big-endian", "fields", fields, np.zeros(SHAPE, fields))
    for name, dtype, reason in (
        ("shape", [["a", "<i4", [2]], ["b", "|V4"]], "is an array of a shape"),
        ("object", [["a", "<i4"], ["b", "|O"]], "Python objects"),
        ("twice", [["a", "<i4"], ["a", "<f8"]], "two of its fields"),
        ("none", [], "no fields"),
        ("unknown", [["a", "<f16"]], "field \"a\" is `<f16`"),
    ):
        v2(reason, f"fields_{name}", fields, np.zeros(SHAPE, fields))
        path = folder / f"v2/fields_{name}/.zarray"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"dtype": dtype}))
    v2("Python objects", "objects", VariableLengthUTF8(), TEXT)
    metadata = folder / "v2/objects/.zarray"
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"filters": None}))
    return reasons


def bits(array, dtype):
    if dtype.kind in "OT":
        return [(type(value).__name__, value) for value in np.asarray(array).ravel().tolist()]
    order = dtype if dtype.kind == "V" else dtype.newbyteorder("<")
    return np.ascontiguousarray(array).astype(order).tobytes()


def compare(before, after):
    """The first difference of two arrays; `None` if they are equal."""
    a, b = (zarr.open_array(str(path), mode="r") for path in (before, after))
    if b.metadata.zarr_format != 3:
        return "no array of Zarr v3"
    found, expected = b[...], a[...]
    types = [dtype if dtype.kind in "OTV" else dtype.newbyteorder("=") for dtype in (a.dtype, b.dtype)]
    if types[0] != types[1]:
        return f"{types[1]}, and not {types[0]}"
    if bits(found, b.dtype) != bits(expected, a.dtype):
        return "other elements"
    if a.fill_value is not None and bits(b.fill_value, b.dtype) != bits(a.fill_value, a.dtype):
        return f"the fill value is {b.fill_value!r}, and not {a.fill_value!r}"
    if b.dtype.kind in "biufc":
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{after}/"}}
        array = ts.open(spec, open=True, read=True).result()
        if bits(array.read().result(), b.dtype) != bits(expected, a.dtype):
            return "other elements in tensorstore"
    return None


def compare_raw(raw):
    """The difference of an array and of bytes in native order; `None` if they are equal."""
    path = raw.with_suffix("")
    try:
        array = zarr.open_array(str(path), mode="r")[...]
        array = array.tobytes()
    except ValueError:  # a data type that zarr-python does not know
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
        array = ts.open(spec, open=True, read=True).result().read().result().tobytes()
    return None if array == raw.read_bytes() else "other elements"


def main(task, first, second=None):
    first = Path(first)
    if task == "types":
        make = Maker(first, 3)
        types(make)
        structures(make)
    elif task == "raw":
        found = {raw.stem: compare_raw(raw) for raw in first.glob("*.raw")}
        assert not any(found.values()), found
        print(len(found))
    elif task == "make":
        for name, fill in ("v2", v2), ("v3", v3):
            make = Maker(first / name, int(name[1]))
            fill(make)
            assert make.count > 200, make.count
        print(json.dumps(refused(first / "refused")))
    else:
        names = [path.name for path in sorted(first.iterdir()) if path.is_dir()]
        differences = {}
        for name in names:
            try:
                difference = compare(first / name, Path(second) / name)
            except Exception as error:
                difference = f"{type(error).__name__}: {error}"
            if difference:
                differences[name] = difference
        assert not differences, json.dumps(differences, indent=1)
        print(len(names))


main(*sys.argv[1:])
