//! Long subchunks without a compressor: only the wanted rows, and short gaps between them, are read.

use std::sync::Arc;

use zarrs::array::codec::{BytesCodec, Crc32cCodec, TransposeCodec, TransposeOrder};
use zarrs::array::{Array, ArrayBuilder, ArraySubset, data_type};
use zarrs::metadata::Endianness;
use zarrs::storage::store::MemoryStore;
use zarrs_cuda::CudaShardingCodecBuilder;
use zarrs_cuda::reader::ArrayReader;
use zarrs_cuda_testing::{Rng, effort};

const SHAPE: [u64; 3] = [40, 160, 100];
const SUBCHUNK: [u64; 3] = [20, 80, 50];
/// Of a subchunk, in bytes.
const LEN: u64 = 20 * 80 * 50 * 2;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Inner {
    Plain,
    /// The first axis is stored last.
    Transposed,
    BigEndian,
    Checked,
}

fn array(inner: Inner) -> (Array<MemoryStore>, Vec<u16>) {
    let subchunk = SUBCHUNK.map(|extent| extent.try_into().unwrap()).to_vec();
    let mut codec = CudaShardingCodecBuilder::new(subchunk, &data_type::uint16());
    match inner {
        Inner::Plain => {}
        Inner::Transposed => {
            let order = TransposeCodec::new(TransposeOrder::new(&[1, 2, 0]).unwrap());
            codec.array_to_array_codecs(vec![Arc::new(order)]);
        }
        Inner::BigEndian => {
            codec.array_to_bytes_codec(Arc::new(BytesCodec::new(Some(Endianness::Big))));
        }
        Inner::Checked => {
            codec.bytes_to_bytes_codecs(vec![Arc::new(Crc32cCodec::new())]);
        }
    }
    let mut builder = ArrayBuilder::new(SHAPE, SHAPE, data_type::uint16(), 0_u16);
    builder.array_to_bytes_codec(codec.build_arc().unwrap());
    let array = builder.build(Arc::new(MemoryStore::new()), "/").unwrap();
    let mut rng = Rng(3);
    let elements: Vec<u16> = (0..SHAPE.iter().product())
        .map(|_| rng.next() as u16)
        .collect();
    array.store_chunk(&[0, 0, 0], &elements).unwrap();
    (array, elements)
}

fn random_box(rng: &mut Rng) -> ArraySubset {
    let ranges = SHAPE.map(|extent| {
        let start = rng.below(extent);
        // Planes and lines, mostly.
        let most = if rng.one_in(2) { 1 } else { extent - start };
        start..start + 1 + rng.below(most)
    });
    ArraySubset::new_with_ranges(&ranges)
}

#[test]
fn any_box_has_its_elements() {
    for inner in [
        Inner::Plain,
        Inner::Transposed,
        Inner::BigEndian,
        Inner::Checked,
    ] {
        let (array, _) = array(inner);
        let keeps = ArrayReader::builder(&array).with_subchunk_cache(1 << 20);
        let readers = [
            ArrayReader::builder(&array).build().unwrap(),
            ArrayReader::builder(&array)
                .with_memory(1 << 18)
                .with_gap(0)
                .build()
                .unwrap(),
            keeps.build().unwrap(),
        ];
        for seed in effort::seeds(60) {
            let mut rng = Rng(seed);
            let subset = random_box(&mut rng);
            let expected: Vec<u16> = array.retrieve_array_subset(&subset).unwrap();
            let other = random_box(&mut rng);
            for reader in &readers {
                let found: Vec<u16> = reader.read(&subset).unwrap();
                assert!(found == expected, "{inner:?}, seed {seed}: {subset}");
            }
            // Two boxes, which may want parts of the same subchunk.
            let shape = std::iter::zip(subset.shape(), other.shape());
            let shape: Vec<u64> = shape.map(|(a, b)| *a.min(b)).collect();
            let origins = [subset.start(), other.start()];
            let len = shape.iter().product::<u64>() as usize;
            let mut found = vec![0_u16; 2 * len];
            readers[0].read_boxes(&origins, &shape, &mut found).unwrap();
            for (origin, found) in origins.into_iter().zip(found.chunks(len)) {
                let subset =
                    ArraySubset::new_with_start_shape(origin.to_vec(), shape.clone()).unwrap();
                let expected: Vec<u16> = array.retrieve_array_subset(&subset).unwrap();
                assert!(found == expected, "{inner:?}, seed {seed}: {subset}");
            }
        }
    }
}

#[test]
fn a_plane_takes_its_bytes() {
    let bytes_with_gap = |inner, gap, subset: &[std::ops::Range<u64>]| {
        let (array, elements) = array(inner);
        let builder = ArrayReader::builder(&array).with_gap(gap);
        let reader = builder.build().unwrap();
        // The index is read first, and kept.
        reader.read::<u16>(&[0..1, 0..1, 0..1]).unwrap();
        let before = reader.metrics().bytes_read;
        let subset = ArraySubset::new_with_ranges(subset);
        let found: Vec<u16> = reader.read(&subset).unwrap();
        let first = subset
            .start()
            .iter()
            .zip(SHAPE)
            .fold(0, |at, (i, d)| at * d + i);
        assert_eq!(found[0], elements[first as usize]);
        let index = 8 * 16 + 4;
        reader.metrics().bytes_read - before - index
    };
    let plane = [7..8, 0..160, 0..100];
    let bytes = |inner, subset: &[_]| bytes_with_gap(inner, 64 << 10, subset);
    // Four subchunks.
    assert_eq!(bytes(Inner::Plain, &plane), 160 * 100 * 2);
    assert_eq!(bytes(Inner::Checked, &plane), 4 * (LEN + 4));
    // A line of two subchunks along the last axis.
    assert_eq!(bytes(Inner::Plain, &[30..31, 90..91, 0..100]), 100 * 2);
    // A line along the first axis: 40 elements, of which 20 are in a subchunk, with gaps.
    let line = [0..40, 90..91, 60..61];
    assert_eq!(bytes_with_gap(Inner::Plain, 1 << 10, &line), 40 * 2);
    // Almost all of them, with the gaps.
    assert_eq!(bytes(Inner::Plain, &line), 2 * LEN);
    // Where the first axis is stored last, a plane across another axis is short.
    let plane = [0..40, 3..4, 0..100];
    assert_eq!(bytes(Inner::Transposed, &plane), 40 * 100 * 2);
}
