//! Shards that are partially updated with each strategy, before frames exist and between
//! consolidations.

use std::num::NonZeroU64;
use std::sync::Arc;

use serde_json::json;
use zarrs::array::{Array, ArrayBuilder, ArraySubset, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs_codec::CodecOptions;
use zarrs_cuda::storage::SparseShardStore;
use zarrs_cuda::{CudaShardingCodec, Options, WriteStrategy};

use super::array::{PATH, files};

const SHARD: u64 = 64;
const SUBCHUNK: u64 = 8;
const ALL: u64 = 2 * SHARD;

fn updated(store: Arc<FilesystemStore>, strategy: WriteStrategy) -> Array<FilesystemStore> {
    let configuration = json!({
        "chunk_shape": [SUBCHUNK],
        "codecs": [
            { "name": "bytes", "configuration": { "endian": "little" } },
            { "name": "gzip", "configuration": { "level": 1 } },
        ],
        "index_codecs": [
            { "name": "bytes", "configuration": { "endian": "little" } }, { "name": "crc32c" },
        ],
        "index_location": "end",
    });
    let configuration = serde_json::from_value(configuration).unwrap();
    let options = Options::default().with_write_strategy(strategy);
    let codec = CudaShardingCodec::new_with_configuration(&configuration, options).unwrap();
    let chunk = vec![NonZeroU64::new(SHARD).unwrap()];
    let mut builder = ArrayBuilder::new(vec![ALL], chunk, data_type::uint16(), 0_u16);
    builder.array_to_bytes_codec(Arc::new(codec));
    builder.build(store, PATH).unwrap()
}

fn update(array: &Array<FilesystemStore>, expected: &mut [u16], at: u64, values: &[u16]) {
    let subset = ArraySubset::new_with_ranges(&[at..at + values.len() as u64]);
    let options = CodecOptions::default().with_experimental_partial_encoding(true);
    array
        .store_array_subset_opt(&subset, values.to_vec(), &options)
        .unwrap();
    let at = usize::try_from(at).unwrap();
    expected[at..at + values.len()].copy_from_slice(values);
}

#[test]
fn shards_of_every_strategy() {
    for strategy in [
        WriteStrategy::Auto,
        WriteStrategy::Append,
        WriteStrategy::InPlace,
        WriteStrategy::Slots,
    ] {
        let folder = tempfile::tempdir().unwrap();
        let store = files(folder.path());
        let array = updated(store.clone(), strategy);
        array.store_metadata().unwrap();
        let mut expected = vec![0_u16; ALL as usize];
        let update =
            |expected: &mut Vec<u16>, at, values: &[u16]| update(&array, expected, at, values);
        // The first shard is created by a partial update. The second is never stored.
        update(&mut expected, 3, &[1, 2, 3]);
        update(&mut expected, 20, &[7; 12]);
        update(&mut expected, 5, &[9, 300, 1]);

        let sparse = Arc::new(SparseShardStore::on_filesystem(store.clone(), PATH).unwrap());
        let subchunks = Array::open(sparse.clone(), PATH).unwrap();
        let plain = Array::open(store, PATH).unwrap();
        let check = |expected: &[u16]| {
            let all = subchunks.subset_all();
            assert_eq!(
                subchunks.retrieve_array_subset::<Vec<u16>>(&all).unwrap(),
                expected,
                "{strategy:?}"
            );
        };
        check(&expected);
        for round in 1..4_u16 {
            for subchunk in [0, 2, 8 + u64::from(round)] {
                let values: Vec<u16> = (0..8).map(|at| round * at * at).collect();
                subchunks.store_chunk(&[subchunk], values.clone()).unwrap();
                let at = usize::try_from(SUBCHUNK * subchunk).unwrap();
                expected[at..at + 8].copy_from_slice(&values);
                check(&expected);
            }
            let done = sparse.consolidate_all(&|_| {}).unwrap();
            assert_eq!(done.sum.subchunks, 3, "{strategy:?}");
            check(&expected);
            let read = plain.retrieve_array_subset::<Vec<u16>>(&plain.subset_all());
            assert_eq!(read.unwrap(), expected, "{strategy:?}");
            // Without a frame the shard is partially updated again.
            update(&mut expected, 6, &[round, 17 * round, 1000 + round]);
            update(&mut expected, 90, &[round; 20]);
            check(&expected);
        }
    }
}
