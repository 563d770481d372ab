//! Arrays of other implementations, which a simulated device decodes: a table of writers and inner codecs.
//!
//! `tests/foreign/write.py` has written the arrays, and says what their elements are.

use std::path::{Path, PathBuf};

use serde_json::Value;
use zarrs::array::{Array, ArrayBuilder, ArraySubset, data_type};
use zarrs::filesystem::FilesystemStore;

use super::reading::{OnDevice, bytes_of, options, some_box};
use super::*;
use crate::codec::CudaShardingCodec;
use crate::options::Options;
use crate::reader::ArrayReader;
use zarrs_cuda_engine::fakes::Numbers;

const SHAPE: [u64; 3] = [8, 20, 28];
const FILL: u16 = 7;

/// Returns an element, as the script says.
fn element(z: u64, y: u64, x: u64) -> u16 {
    let is_absent = (y < 16 && x >= 16) || (y >= 16 && (8..16).contains(&x));
    let number = u16::try_from(3 * z + 5 * y + x).expect("small");
    if is_absent { FILL } else { number }
}

fn elements(subset: &ArraySubset) -> Vec<u16> {
    let [z, y, x] = [0, 1, 2].map(|axis| subset.to_ranges()[axis].clone());
    let planes = z.flat_map(|z| {
        let x = x.clone();
        let rows = y
            .clone()
            .flat_map(move |y| x.clone().map(move |x| element(z, y, x)));
        rows.collect::<Vec<_>>()
    });
    planes.collect()
}

/// Returns the folders of all arrays. `ZARRS_CUDA_FOREIGN_ARRAYS` names their folder on a machine without the sources.
fn arrays() -> Vec<PathBuf> {
    let root = std::env::var_os("ZARRS_CUDA_FOREIGN_ARRAYS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign"),
        PathBuf::from,
    );
    let mut found = Vec::new();
    for writer in ["tensorstore", "zarr_python"] {
        let folders = std::fs::read_dir(root.join(writer)).expect("a folder");
        found.extend(folders.map(|folder| folder.expect("an entry").path()));
    }
    found.sort();
    found
}

/// Opens the array in `path`, whose codec has the engines of `on`.
fn open(path: &Path, on: &OnDevice, options: &Options) -> Array<FilesystemStore> {
    let metadata = std::fs::read(path.join("zarr.json")).expect("metadata");
    let metadata: Value = serde_json::from_slice(&metadata).expect("JSON");
    let sharding = metadata["codecs"][0]["configuration"].clone();
    let sharding = serde_json::from_value(sharding).expect("valid");
    let options = options.clone().with_device_decode(true);
    let codec = CudaShardingCodec::new_with_configuration(&sharding, options);
    let codec = codec.expect("valid").with_engines(on.engines.clone());
    let store = Arc::new(FilesystemStore::new(path).expect("a folder"));
    ArrayBuilder::new(SHAPE.to_vec(), vec![8, 16, 16], data_type::uint16(), FILL)
        .array_to_bytes_codec(Arc::new(codec))
        .build(store, "/")
        .expect("valid")
}

/// Reads all arrays on devices that `device` returns, and compares.
pub(super) fn read_all(device: impl Fn(u64) -> OnDevice, options: &Options) {
    let arrays = arrays();
    assert_eq!(arrays.len(), 50);
    for (number, path) in arrays.into_iter().enumerate() {
        let name = path.display();
        let on = device(number as u64);
        let array = open(&path, &on, options);
        let reader = ArrayReader::builder(&array).build().expect("suits");
        let mut numbers = Numbers::new(number as u64);
        let crops = (0..4).map(|_| some_box(SHAPE, &mut numbers));
        for subset in std::iter::once(array.subset_all()).chain(crops) {
            let expected = elements(&subset);
            let by_host: Vec<u16> = reader.read(&subset).expect("reads");
            assert!(by_host == expected, "{name}: {subset}, by the host");
            let tensor = reader.read_device(&subset).expect("reads");
            assert!(on.bytes(&tensor) == bytes_of(&expected), "{name}: {subset}");
        }
        let counts = on.counts();
        assert!(counts.subchunks_read >= 7, "{name}: {counts:?}");
        assert_eq!(counts.subchunks_read_on_host, 0, "{name}");
        drop((reader, array));
        on.end();
    }
}

#[test]
fn a_device_decodes_what_others_have_written() {
    read_all(|number| OnDevice::new(schedule_of(number)), &options());
}
