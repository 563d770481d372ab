"""Times an epoch of crops for training, by this package's `Crops`, by tensorstore and by zarr-python.

    python benches/python/crops.py FOLDER [--edge 512] [--per-shard 64] [--latency 20] [--rounds 5]

It needs numpy, zarr, tensorstore, obstore and zarrs-cuda of the Python that runs it. Crops of 64³ elements of uint16 lie
anywhere in an array of shards of 256³ with subchunks of 32³, zstd-1. FOLDER gets the array; with `--latency` it is also
served as S3, by a process that answers each request after so many milliseconds.

Each contender is a process, which reads one epoch after the other when it is told to, in turns with the others. All
read the same crops in the same batches, in the order of `Crops`: shuffled shard by shard. Neither tensorstore nor
zarr-python has a loader, so each is given the best one that we found:

- tensorstore asks for several batches ahead, each in one `ts.Batch`, without a cache or with one of as much memory as
  `Crops` has; or it asks for the same blocks of batches as `Crops` does, each in one `ts.Batch`.
- zarr-python asks for several batches ahead from its event loop, by either of its pipelines.
"""

import argparse
import asyncio
import collections
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np

CROP, SHARD, SUBCHUNK = (64, 64, 64), (256, 256, 256), (32, 32, 32)
BATCH, MEMORY = 8, 512 << 20
BUCKET = "bucket"


def volume(start, shape, rng, noise=5):
    """Elements like those of the other benchmarks: a smooth field, with noise in the lowest bits."""
    waves = zip((np.sin, np.cos, np.sin), (40.0, 55.0, 70.0), start, shape)
    z, y, x = (wave(np.arange(first, first + extent) / length) for wave, length, first, extent in waves)
    field = ((z[:, None, None] + y[:, None] + x) * 800 + 3000).astype("uint16")
    mask = (1 << noise) - 1
    return (field & ~np.uint16(mask)) | rng.integers(0, mask + 1, shape, "uint16")


def create(path, shape):
    import zarr

    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    codecs += [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}]
    serializer = zarr.codecs.ShardingCodec(chunk_shape=SUBCHUNK, codecs=codecs)
    array = zarr.create_array(
        path, shape=shape, chunks=SHARD, dtype="uint16", serializer=serializer, compressors=None, overwrite=True
    )
    rng = np.random.default_rng(1)
    for at in np.ndindex(*(extent // side for extent, side in zip(shape, SHARD))):
        start = [number * side for number, side in zip(at, SHARD)]
        box = tuple(slice(first, first + side) for first, side in zip(start, SHARD))
        array[box] = volume(start, SHARD, rng)


class Answers(asyncio.Protocol):
    """A connection to the server: as much of HTTP as those who read ask for."""

    objects, latency, requests, folder = {}, 0.0, 0, Path()

    def connection_made(self, transport):
        self.transport, self.rest = transport, b""

    def data_received(self, data):
        *whole, self.rest = (self.rest + data).split(b"\r\n\r\n")
        for request in whole:
            asyncio.get_running_loop().call_later(self.latency, self.answer, request)

    def answer(self, request):
        first, *lines = request.split(b"\r\n")
        method, url, _ = first.split(b" ")
        key = url.partition(b"?")[0].decode().removeprefix(f"/{BUCKET}/")
        headers = dict(line.lower().split(b": ", 1) for line in lines)
        Answers.requests += 1
        if key == "/requests":
            value = b"%d" % Answers.requests
        elif key in self.objects:
            value = self.objects[key]
        elif (self.folder / key).is_file():
            value = self.objects[key] = memoryview((self.folder / key).read_bytes())
        else:
            self.send(b"404 Not Found", b"", b"")
            return
        size = len(value)
        about = b'ETag: "1"\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n'
        if b"range" not in headers:
            self.send(b"200 OK", about, value, method == b"HEAD")
            return
        start, _, last = headers[b"range"].removeprefix(b"bytes=").partition(b"-")
        start, stop = (
            (int(start), min(int(last or size) + 1, size)) if start else (max(size - int(last), 0), size)
        )
        about += b"Content-Range: bytes %d-%d/%d\r\n" % (start, stop - 1, size)
        self.send(b"206 Partial Content", about, value[start:stop])

    def send(self, status, about, body, is_head=False):
        if self.transport.is_closing():
            return
        self.transport.write(b"HTTP/1.1 %s\r\n%sContent-Length: %d\r\n\r\n" % (status, about, len(body)))
        if body and not is_head:
            self.transport.write(body)


def serve(folder, latency):
    Answers.folder, Answers.latency = Path(folder), latency / 1000

    async def run():
        server = await asyncio.get_running_loop().create_server(Answers, "127.0.0.1", 0, backlog=1024)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    asyncio.run(run())


def place(port, folder):
    """The store of zarr-python, and the key-value store of tensorstore."""
    if port is None:
        import zarr

        return zarr.storage.LocalStore(folder), {"driver": "file", "path": f"{folder}/"}
    from obstore.store import S3Store
    from zarr.storage import ObjectStore

    endpoint = f"http://127.0.0.1:{port}"
    options = {"allow_http": True}
    store = S3Store(BUCKET, endpoint=endpoint, region="us-east-1", skip_signature=True, client_options=options)
    spec = {
        "driver": "s3",
        "bucket": BUCKET,
        "endpoint": endpoint,
        "aws_region": "us-east-1",
        "aws_credentials": {"type": "anonymous"},
    }
    return ObjectStore(store), spec


def crops_of(port, folder, origins, requests, **settings):
    import zarr
    import zarrs_cuda

    zarr.config.set({"codec_pipeline.path": "zarrs_cuda.CodecPipeline", "async.concurrency": requests})
    reader = zarrs_cuda.ArrayReader(zarr.open_array(place(port, folder)[0], mode="r"))
    return zarrs_cuda.Crops(reader, origins, CROP, batch_size=BATCH, memory=MEMORY, **settings)


def ours(port, folder, origins, work):
    crops = crops_of(port, folder, origins, work["requests"], prefetch=work["ahead"])

    def epoch(number):
        crops.set_epoch(number)
        # The first batches, as `DataLoader` has them of a part of the epoch.
        return crops._batches(range(len(work["batches"][number])), number)

    return epoch


def box(origin):
    return tuple(slice(first, first + side) for first, side in zip(origin.tolist(), CROP))


def ahead(begin, end, batches, count):
    """Yield the results of batches, of which `count` are begun before the first is waited for."""
    pending = collections.deque()
    for batch in batches:
        pending.append(begin(batch))
        if len(pending) > count:
            yield from end(pending.popleft())
    for begun in pending:
        yield from end(begun)


def tensorstore(port, folder, origins, work):
    import tensorstore as ts

    limits = {"cache_pool": {"total_bytes_limit": work["cache"]}}
    limits |= {"s3_request_concurrency": {"limit": work["requests"]}} if port else {}
    spec = {"driver": "zarr3", "kvstore": place(port, folder)[1], "recheck_cached_data": "open"}
    spec["recheck_cached_metadata"] = "open"

    def opened():
        # A cache of its own for each turn: what is left of the turn before would be nothing in a larger array.
        return ts.open(spec, context=ts.Context(limits)).result()

    def begin(batches):
        with ts.Batch() as together:
            return [[turn["array"][box(origin)].read(batch=together) for origin in batch] for batch in batches]

    def end(begun):
        for batch in begun:
            yield [read.result() for read in batch] if work["loose"] else np.stack([read.result() for read in batch])

    turn = {"array": opened()}

    def epoch(number):
        turn["array"] = opened()
        blocks = work["blocks" if work["by_block"] else "batches"][number]
        return ahead(begin, end, ([origins[batch] for batch in block] for block in blocks), work["ahead"])

    return epoch


def zarr_python(port, folder, origins, work):
    import zarr
    from zarr.core.sync import _get_loop

    zarr.config.set({"codec_pipeline.path": work["pipeline"], "async.concurrency": work["requests"]})
    array = zarr.open_array(place(port, folder)[0], mode="r").async_array

    async def read(batch):
        return np.stack(await asyncio.gather(*(array.getitem(box(origin)) for origin in batch)))

    def epoch(number):
        batches = (origins[batch] for block in work["batches"][number] for batch in block)
        begin = lambda batch: asyncio.run_coroutine_threadsafe(read(batch), _get_loop())
        return ahead(begin, lambda begun: [begun.result()], batches, work["ahead"])

    return epoch


def answer(name, folder, port):
    """A contender: reads an epoch for each line of stdin, the number of the epoch."""
    work = json.loads(sys.stdin.readline())
    origins = np.array(work["origins"])
    epoch = globals()[name](port, folder, origins, work)
    for line in sys.stdin:
        number, check = json.loads(line)
        crc, crops, start = hashlib.md5(), 0, time.perf_counter()
        for batch in epoch(number):
            crops += len(batch)
            if check:
                crc.update(np.ascontiguousarray(batch).data)
        seconds = time.perf_counter() - start
        spent = os.times()
        print(json.dumps([seconds, crops, crc.hexdigest() if check else None, spent.user, spent.system]), flush=True)


class Contender:
    def __init__(self, folder, port, module, work):
        command = [sys.executable, "-W", "ignore", __file__, "--contend", module, str(folder), str(port or 0)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.tell(work)
        self.seconds, self.spent, self.before = [], [], [0.0, 0.0]

    def tell(self, what):
        print(json.dumps(what), file=self.process.stdin, flush=True)

    def epoch(self, number, check=False):
        self.tell([number, check])
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"a contender has ended: {self.process.args}")
        seconds, crops, crc, *now = json.loads(line)
        spent, self.before = [after - before for after, before in zip(now, self.before)], now
        if not check:
            self.seconds.append(seconds)
            self.spent.append(spent)
        return crops, crc

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def orders(folder, origins, epochs, turn):
    """The batches of each epoch of `Crops`, and its blocks of batches, as numbers of crops."""
    crops = crops_of(None, folder, origins, 10)
    batches, blocks = [], []
    for epoch in range(epochs):
        _, order, ends = crops._ordered(epoch)
        cut = [order[first : first + BATCH].tolist() for first in range(0, len(order), BATCH)]
        cut = cut[: turn // BATCH]
        batches.append([[batch] for batch in cut])
        blocks.append([[cut[number] for number in block] for block in crops._blocks(range(len(cut)), ends)])
    return {"batches": batches, "blocks": blocks}


def contenders(options, where):
    """The named contenders: a function of this file, and its settings."""
    few = {"requests": 10} if where == "files" else {"requests": options.requests}
    # Each of two blocks at once makes its own requests.
    made = {"ours": ("ours", few | {"ahead": 2, "requests": few["requests"] // 2})}
    # So many batches that more made no difference.
    ahead = 4 if where == "files" else 16
    theirs = few | {"by_block": False, "loose": False, "cache": 0, "ahead": ahead}
    made["tensorstore"] = ("tensorstore", theirs)
    made["tensorstore, cache"] = ("tensorstore", theirs | {"cache": MEMORY})
    made["tensorstore, blocks"] = ("tensorstore", theirs | {"by_block": True, "ahead": 1})
    made["tensorstore, cache, loose"] = ("tensorstore", theirs | {"cache": MEMORY, "loose": True})
    for name in ("Batched", "Fused"):
        path = f"zarr.core.codec_pipeline.{name}CodecPipeline"
        made[f"zarr-python {name}"] = ("zarr_python", few | {"pipeline": path, "ahead": ahead})
    return {name: each for name, each in made.items() if not options.only or any(o in name for o in options.only)}


def requests_of(port):
    """How many requests the server has answered."""
    if port is None:
        return 0
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{BUCKET}//requests") as answer:
        return int(answer.read())


def compare(options, where, port, origins, order):
    crops = sum(len(batch) for [batch] in order["batches"][0])
    size = crops * np.prod(CROP) * 2
    made = {
        name: Contender(options.folder, port, module, {"origins": origins.tolist(), **order, **work})
        for name, (module, work) in contenders(options, where).items()
    }
    checked = {name: each.epoch(0, check=True) for name, each in made.items()}
    if len(set(checked.values())) != 1:
        sys.exit(f"the contenders have read different crops: {checked}")
    requests = dict.fromkeys(made, 0)
    for number in range(options.rounds):
        for name, each in made.items():
            before = requests_of(port)
            each.epoch(1 + number)
            requests[name] += requests_of(port) - before
    print(f"\n{where}: {crops} of {len(origins)} crops, {size / 1e6:.0f} MB a turn; load {os.getloadavg()[0]:.1f}")
    best = statistics.median(next(iter(made.values())).seconds)
    for name, each in made.items():
        middle = statistics.median(each.seconds)
        print(
            f"  {name:26} {middle:7.3f} s, {size / middle / 1e6:7.0f} MB/s, {middle / best:5.2f}; "
            f"{statistics.median(map(sum, each.spent)):6.2f} s of processors, "
            f"{statistics.median(system for _, system in each.spent):.2f} of them in the system; "
            f"{min(each.seconds):.3f} to {max(each.seconds):.3f}"
            + (f"; {requests[name] / options.rounds:.0f} requests" if port else ""),
            flush=True,
        )
        each.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", type=int, nargs=3, default=[1024, 1024, 1024])
    parser.add_argument("--crops", type=int, default=1024, help="how many crops of an epoch a turn reads")
    parser.add_argument("--per-shard", type=int, default=64)
    parser.add_argument("--latency", type=float, default=20)
    parser.add_argument("--requests", type=int, default=32, help="how many requests a process makes at once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--places", nargs="*", default=["files", "server"])
    options = parser.parse_args()
    if not (options.folder / "zarr.json").exists():
        create(options.folder, options.shape)
    shape = json.loads((options.folder / "zarr.json").read_text())["shape"]
    count = options.per_shard * int(np.prod(shape) // np.prod(SHARD))
    most = np.subtract(shape, CROP)
    origins = np.random.default_rng(2).integers(0, most, (count, 3), endpoint=True)
    order = orders(options.folder, origins, options.rounds + 1, options.crops)
    if "files" in options.places:
        compare(options, "files", None, origins, order)
    if "server" in options.places:
        command = [sys.executable, __file__, "--serve", str(options.folder), str(options.latency)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            port = int(server.stdout.readline())
            compare(options, f"a server with {options.latency:.0f} ms", port, origins, order)
        finally:
            server.terminate()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], float(sys.argv[3]))
    elif sys.argv[1:2] == ["--contend"]:
        answer(sys.argv[2], sys.argv[3], int(sys.argv[4]) or None)
    else:
        main()
