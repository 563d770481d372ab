//! Arrays of the tests: made by zarrs, and read by zarrs and by hand.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;
use zarrs::array::codec::ShardingIndexLocation;
use zarrs::array::{Array, ArrayBytes, ArraySubset};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda_testing::index::IndexLayout;
use zarrs_cuda_testing::{Rng, all_indices, codecs};

/// A new directory: in memory where there is such a place, because each run makes its files durable.
pub(crate) fn temporary() -> TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

/// The layout of an array, and its codecs.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) shape: Vec<u64>,
    pub(crate) subchunk: Vec<u64>,
    /// Subchunks of a shard along each axis; `None` if the array has chunks.
    pub(crate) counts: Option<Vec<u64>>,
    pub(crate) data_type: &'static str,
    pub(crate) chain: Vec<Value>,
    pub(crate) index: IndexLayout,
    pub(crate) keys: Value,
}

/// Chunk key encodings.
pub(crate) fn every_encoding() -> Vec<Value> {
    let encoding = |name: &str, separator: &str| json!({ "name": name, "configuration": { "separator": separator } });
    vec![
        encoding("default", "/"),
        encoding("default", "."),
        encoding("v2", "/"),
        encoding("v2", "."),
        json!({ "name": "zarrs.default_suffix", "configuration": { "separator": "/", "suffix": ".c0" } }),
    ]
}

impl Layout {
    /// Any layout of an array of this shape.
    pub(crate) fn random(rng: &mut Rng) -> Self {
        let rank = rng.below(4) as usize;
        let subchunk: Vec<u64> = (0..rank).map(|_| 1 + rng.below(4)).collect();
        let shape = subchunk
            .iter()
            .map(|&extent| match rng.below(12) {
                0 => 0,
                _ => 1 + rng.below(9 * extent),
            })
            .collect();
        let data_type = ["uint8", "uint16", "float32"][rng.below(3) as usize];
        let endian = ["little", "big"][rng.below(2) as usize];
        let mut chain = vec![codecs::bytes(endian)];
        if rank > 0 && rng.one_in(4) {
            chain.insert(0, codecs::transpose(&rng.permutation(rank)));
        }
        match rng.below(5) {
            0 => chain.push(codecs::zstd(1, false)),
            1 => chain.push(codecs::gzip(1)),
            2 => {
                let size = ["uint8", "uint16", "", "float32"];
                let size = size.iter().position(|name| *name == data_type).unwrap() + 1;
                chain.push(codecs::blosc("lz4", 1, "shuffle", size));
            }
            3 => chain.push(codecs::crc32c()),
            _ => {}
        }
        let mut layout = Self {
            shape,
            subchunk,
            counts: None,
            data_type,
            chain,
            index: IndexLayout::default(),
            keys: Value::Null,
        };
        layout.vary(rng);
        layout
    }

    /// The same array in other objects.
    pub(crate) fn vary(&mut self, rng: &mut Rng) {
        let rank = self.shape.len();
        self.counts = (!rng.one_in(3)).then(|| (0..rank).map(|_| 1 + rng.below(4)).collect());
        self.index = IndexLayout {
            location: [ShardingIndexLocation::Start, ShardingIndexLocation::End]
                [rng.below(2) as usize],
            big_endian: rng.one_in(3),
            checksum: !rng.one_in(3),
        };
        let encodings = every_encoding();
        self.keys = encodings[rng.below(encodings.len() as u64) as usize].clone();
    }

    pub(crate) fn object(&self) -> Vec<u64> {
        let counts = self.counts.clone().unwrap_or(vec![1; self.shape.len()]);
        let axes = self.subchunk.iter().zip(counts);
        axes.map(|(extent, count)| extent * count).collect()
    }

    pub(crate) fn codecs(&self) -> Vec<Value> {
        if self.counts.is_none() {
            return self.chain.clone();
        }
        let location = match self.index.location {
            ShardingIndexLocation::Start => "start",
            ShardingIndexLocation::End => "end",
        };
        vec![json!({ "name": "sharding_indexed", "configuration": {
            "chunk_shape": self.subchunk,
            "codecs": self.chain,
            "index_codecs": self.index.codecs(),
            "index_location": location,
        }})]
    }

    /// `zarr.json`.
    pub(crate) fn metadata(&self) -> Value {
        let names: Vec<_> = (0..self.shape.len())
            .map(|axis| format!("axis{axis}"))
            .collect();
        json!({
            "zarr_format": 3,
            "node_type": "array",
            "shape": self.shape,
            "data_type": self.data_type,
            "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": self.object() } },
            "chunk_key_encoding": self.keys,
            "fill_value": 0,
            "codecs": self.codecs(),
            "attributes": { "author": "a test", "number": 0.1, "nested": { "list": [1, 2, null] } },
            "dimension_names": names,
        })
    }

    /// Stores the metadata.
    pub(crate) fn describe(&self, path: &Path) {
        fs::create_dir_all(path).unwrap();
        fs::write(path.join("zarr.json"), self.metadata().to_string()).unwrap();
    }

    /// Stores an array of random values, in which some subchunks are empty.
    pub(crate) fn create(&self, path: &Path, rng: &mut Rng) -> Array<FilesystemStore> {
        self.describe(path);
        let array = open(path);
        let cells: Vec<u64> = self
            .shape
            .iter()
            .zip(&self.subchunk)
            .map(|(extent, subchunk)| extent.div_ceil(*subchunk))
            .collect();
        let dense = rng.one_in(3);
        for cell in all_indices(&cells) {
            if !dense && rng.one_in(2) {
                continue;
            }
            let ranges: Vec<_> = (0..cell.len())
                .map(|axis| {
                    let start = cell[axis] * self.subchunk[axis];
                    start..(start + self.subchunk[axis]).min(self.shape[axis])
                })
                .collect();
            let subset = ArraySubset::new_with_ranges(&ranges);
            let size = array.data_type().fixed_size().unwrap();
            let bytes: Vec<u8> = (0..subset.num_elements_usize() * size)
                .map(|_| rng.byte())
                .collect();
            array
                .store_array_subset(&subset, ArrayBytes::new_flen(bytes))
                .unwrap();
        }
        array
    }

    /// The encoded subchunks that are stored, by their indices in the array, read by hand.
    pub(crate) fn subchunks(&self, path: &Path) -> Vec<(Vec<u64>, Vec<u8>)> {
        let array = open(path);
        let counts = self.counts.clone().unwrap_or(vec![1; self.shape.len()]);
        let mut found = Vec::new();
        for object in all_indices(array.chunk_grid_shape()) {
            let file = path.join(array.chunk_key(&object).as_str());
            let Ok(bytes) = fs::read(file) else {
                continue;
            };
            let within: Vec<_> = all_indices(&counts).collect();
            let subchunks = match &self.counts {
                None => vec![Some(bytes)],
                Some(_) => self.index.subchunks(&bytes, within.len()),
            };
            for (within, bytes) in within.iter().zip(subchunks) {
                let cell: Vec<u64> = (0..within.len())
                    .map(|axis| object[axis] * counts[axis] + within[axis])
                    .collect();
                let is_in_array = cell
                    .iter()
                    .zip(&self.subchunk)
                    .zip(&self.shape)
                    .all(|((cell, subchunk), extent)| cell * subchunk < *extent);
                if let Some(bytes) = bytes.filter(|_| is_in_array) {
                    found.push((cell, bytes));
                }
            }
        }
        found.sort();
        found
    }
}

pub(crate) fn open(path: &Path) -> Array<FilesystemStore> {
    let store = Arc::new(FilesystemStore::new(path).unwrap());
    Array::open(store, "/").unwrap()
}

/// All elements of the array, read by zarrs.
pub(crate) fn elements(path: &Path) -> ArrayBytes<'static> {
    let array = open(path);
    if array.shape().contains(&0) {
        // zarrs asks some codecs for no elements, which is an error of theirs.
        return ArrayBytes::new_flen(Vec::new());
    }
    array.retrieve_array_subset(&array.subset_all()).unwrap()
}

/// All files of a directory, with their contents.
pub(crate) fn files(path: &Path) -> Vec<(String, Vec<u8>)> {
    let (mut files, mut directories) = (Vec::new(), vec![path.to_path_buf()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                directories.push(entry.path());
            } else {
                let name = entry.path().strip_prefix(path).unwrap().to_owned();
                files.push((
                    name.to_string_lossy().into_owned(),
                    fs::read(entry.path()).unwrap(),
                ));
            }
        }
    }
    files.sort();
    files
}
