//! The CUDA kernels of `zarrs_cuda`, compiled to PTX. No promise of semantic versioning covers them.
//!
//! Written by `cargo xtask kernels`: do not edit.

/// The PTX of one file of kernels.
#[derive(Debug)]
pub struct Module {
    /// The name of the file, without its extension.
    pub name: &'static str,
    /// The PTX of the module.
    pub text: &'static str,
}

static AGGREGATE: Module = Module {
    name: "aggregate",
    text: include_str!("../ptx/aggregate.ptx"),
};
static CHUNK_TABLES: Module = Module {
    name: "chunk_tables",
    text: include_str!("../ptx/chunk_tables.ptx"),
};
static CRC32: Module = Module {
    name: "crc32",
    text: include_str!("../ptx/crc32.ptx"),
};
static CRC32C: Module = Module {
    name: "crc32c",
    text: include_str!("../ptx/crc32c.ptx"),
};
static FRAMES: Module = Module {
    name: "frames",
    text: include_str!("../ptx/frames.ptx"),
};
static PLACE: Module = Module {
    name: "place",
    text: include_str!("../ptx/place.ptx"),
};
static REDUCE: Module = Module {
    name: "reduce",
    text: include_str!("../ptx/reduce.ptx"),
};
static SCATTER: Module = Module {
    name: "scatter",
    text: include_str!("../ptx/scatter.ptx"),
};
static SHUFFLE: Module = Module {
    name: "shuffle",
    text: include_str!("../ptx/shuffle.ptx"),
};
static SPLIT: Module = Module {
    name: "split",
    text: include_str!("../ptx/split.ptx"),
};
static UNSCATTER: Module = Module {
    name: "unscatter",
    text: include_str!("../ptx/unscatter.ptx"),
};

/// Every kernel, and the module that it is in.
pub static KERNELS: &[(&str, &Module)] = &[
    ("permute_sizes", &AGGREGATE),
    ("scan_whole", &AGGREGATE),
    ("scan_sums", &AGGREGATE),
    ("scan_add", &AGGREGATE),
    ("gather", &AGGREGATE),
    ("chunk_tables", &CHUNK_TABLES),
    ("crc32", &CRC32),
    ("crc32c_append", &CRC32C),
    ("crc32c_verify", &CRC32C),
    ("frame_zstd", &FRAMES),
    ("frame_gzip", &FRAMES),
    ("frame_blosc_layout", &FRAMES),
    ("frame_blosc_streams", &FRAMES),
    ("place_1", &PLACE),
    ("place_2", &PLACE),
    ("place_4", &PLACE),
    ("place_8", &PLACE),
    ("place_16", &PLACE),
    ("reduce_mean_1", &REDUCE),
    ("reduce_mean_2", &REDUCE),
    ("reduce_mean_4", &REDUCE),
    ("reduce_mean_8", &REDUCE),
    ("reduce_order_1", &REDUCE),
    ("reduce_order_2", &REDUCE),
    ("reduce_order_4", &REDUCE),
    ("reduce_order_8", &REDUCE),
    ("reduce_bits_1", &REDUCE),
    ("reduce_bits_2", &REDUCE),
    ("reduce_bits_4", &REDUCE),
    ("reduce_bits_8", &REDUCE),
    ("reduce_bits_16", &REDUCE),
    ("scatter_1", &SCATTER),
    ("scatter_2", &SCATTER),
    ("scatter_4", &SCATTER),
    ("scatter_8", &SCATTER),
    ("scatter_16", &SCATTER),
    ("scatter_tile_1", &SCATTER),
    ("scatter_tile_2", &SCATTER),
    ("scatter_tile_4", &SCATTER),
    ("scatter_tile_8", &SCATTER),
    ("scatter_tile_16", &SCATTER),
    ("shuffle", &SHUFFLE),
    ("unshuffle", &SHUFFLE),
    ("bit_shuffle", &SHUFFLE),
    ("bit_unshuffle", &SHUFFLE),
    ("split", &SPLIT),
    ("unscatter_1", &UNSCATTER),
    ("unscatter_2", &UNSCATTER),
    ("unscatter_4", &UNSCATTER),
    ("unscatter_8", &UNSCATTER),
    ("unscatter_16", &UNSCATTER),
    ("unscatter_tile_1", &UNSCATTER),
    ("unscatter_tile_2", &UNSCATTER),
    ("unscatter_tile_4", &UNSCATTER),
    ("unscatter_tile_8", &UNSCATTER),
    ("unscatter_tile_16", &UNSCATTER),
];
