// zarrita.js's part of the interoperability test; interop.py says how it is called.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import FileSystemStore from "@zarrita/storage/fs";
import * as zarr from "zarrita";

const COMPLEX = ["complex64", "complex64_near_zero", "complex64_nan", "complex64_near_nan"]
  .flatMap((name) => [name, `${name}_blosc`]);

/** What zarrita cannot read: a part of what it says, the reason, and the cases. */
const CANNOT_READ = [
  [
    "no such range",
    "looks for every index at the end of the shard",
    [
      "index_at_start",
      "index_at_start_zstd",
      "index_at_start_without_crc32c",
      "nested_index_at_start",
    ],
  ],
  [
    "Unknown codec: sharding_indexed",
    "no sharding inside sharding",
    ["nested", "nested_zstd"],
  ],
  ["unsupported dataType: complex64", "no complex numbers", COMPLEX],
  [
    "wrong value",
    "reads no fill value in hexadecimal",
    ["float32_nan_payload", "float32_nan_payload_blosc"],
  ],
  [
    "wrong value",
    "takes a bool for four bytes when it turns their order",
    ["bool", "bool_fill"],
  ],
];

/** What zarrita cannot write, in the same way: where no cases are named, all that remain. */
const CANNOT_WRITE = [
  ["unsupported dataType: complex64", "no complex numbers", COMPLEX],
  ["set on sharded arrays", "writes no shards"],
];

/** A directory, where a range that no shard has is an error: Node aborts on a very long one. */
class Store extends FileSystemStore {
  async getRange(key, range, options) {
    if (!((range.suffixLength ?? range.offset + range.length) < 1 << 24)) {
      throw new RangeError(`no such range: ${JSON.stringify(range)}`);
    }
    return super.getRange(key, range, options);
  }
}

/** Compare, bit for bit, the whole array with the values. */
async function read({ path, values }) {
  const array = await zarr.open.v3(new Store(path), { kind: "array" });
  const { data, shape, stride } = await zarr.get(array);
  const found = inCOrder(data, shape, stride);
  if (found.length !== values.length) {
    throw new Error(`${found.length} bytes, not ${values.length}`);
  }
  const wrong = values.findIndex((byte, at) => byte !== found[at]);
  if (wrong !== -1) {
    throw new Error(`wrong value, first at byte ${wrong}`);
  }
}

/** Make the array out of the values. */
async function write({ path, values, metadata }) {
  const array = await zarr.create(new Store(path), {
    shape: metadata.shape,
    chunkShape: metadata.chunk_grid.configuration.chunk_shape,
    dtype: metadata.data_type,
    codecs: metadata.codecs,
    fillValue: metadata.fill_value,
  });
  const { data, shape, stride } = await zarr.get(array);
  bytesOf(data).set(values);
  await zarr.set(array, null, { data, shape, stride });
  await read({ path, values });
}

function bytesOf(data) {
  // zarrita keeps bool in a class of its own, around a Uint8Array's buffer.
  return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
}

/** The bytes of an array in C order: zarrita returns a transposed array as it is stored. */
function inCOrder(data, shape, stride) {
  const bytes = bytesOf(data);
  const size = bytes.length / data.length;
  const out = new Uint8Array(bytes.length);
  const index = shape.map(() => 0);
  for (let element = 0; element < data.length; element++) {
    const from = index.reduce((sum, at, axis) => sum + at * stride[axis], 0);
    out.set(bytes.subarray(from * size, (from + 1) * size), element * size);
    for (let axis = shape.length - 1; axis >= 0 && ++index[axis] === shape[axis]; axis--) {
      index[axis] = 0;
    }
  }
  return out;
}

const operations = {
  read: [read, CANNOT_READ],
  write: [write, CANNOT_WRITE],
};
const [operation, directory] = process.argv.slice(2);
const [run, table] = operations[operation];
const cases = JSON.parse(readFileSync(join(directory, "cases.json"), "utf8"));
for (const [name, metadata] of Object.entries(cases)) {
  const path = join(directory, name);
  const values = readFileSync(join(directory, `${name}.raw`));
  let error = null;
  try {
    await run({ path, values, metadata });
  } catch (caught) {
    error = String(caught.cause ? `${caught}: ${caught.cause}` : caught);
  }
  const listed = table.find(([, , cases]) => !cases || cases.includes(name));
  const unsupported = listed && { error: listed[0], reason: listed[1] };
  console.log(JSON.stringify({ case: name, error, unsupported }));
}
