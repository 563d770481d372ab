//! Outputs of other libraries.

use std::sync::Arc;

use dlpark::SafeManagedTensorVersioned;
use dlpark::traits::TensorView;
use ndarray::{Array3, s};
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::storage::store::MemoryStore;
use zarrs_cuda::CudaShardingCodecBuilder;
use zarrs_cuda::reader::ArrayReader;

/// 6 × 8 × 10 uint16, which count up.
fn array() -> (Array<MemoryStore>, Array3<u16>) {
    let subchunk = [2, 2, 5].map(|extent| extent.try_into().unwrap()).to_vec();
    let codec = CudaShardingCodecBuilder::new(subchunk, &data_type::uint16());
    let (shape, shard) = (vec![6, 8, 10], vec![4, 4, 10]);
    let array = ArrayBuilder::new(shape, shard, data_type::uint16(), 0_u16)
        .array_to_bytes_codec(codec.build_arc().unwrap())
        .build(Arc::new(MemoryStore::new()), "/")
        .unwrap();
    let elements = Array3::from_shape_fn((6, 8, 10), |(i, j, k)| (i * 80 + j * 10 + k) as u16);
    let bytes: Vec<u16> = elements.iter().copied().collect();
    array
        .store_array_subset(&array.subset_all(), &bytes)
        .unwrap();
    (array, elements)
}

#[test]
fn arrays_of_ndarray() {
    let (array, elements) = array();
    let reader = ArrayReader::builder(&array).build().unwrap();
    let expected = elements.slice(s![1..5, 3..8, 0..9]);
    let read = reader.read_ndarray::<u16>(&[1..5, 3..8, 0..9]).unwrap();
    assert_eq!(read.view(), expected.into_dyn());

    // Every other element of a larger array, with its axes in another order.
    let mut around = Array3::from_elem((20, 9, 5), 9_u16);
    let output = around
        .slice_mut(s![1..19;2, ..4, ..])
        .permuted_axes([1, 2, 0]);
    reader
        .read_into_ndarray(&[1..5, 3..8, 0..9], output)
        .unwrap();
    let mut want = Array3::from_elem((20, 9, 5), 9_u16);
    want.slice_mut(s![1..19;2, ..4, ..])
        .permuted_axes([1, 2, 0])
        .assign(&expected);
    assert_eq!(around, want);

    let wrong = reader.read_into_ndarray(
        &[0..1, 0..1, 0..2],
        Array3::<u16>::zeros((1, 2, 1)).view_mut(),
    );
    assert!(wrong.unwrap_err().to_string().contains("shapes differ"));
    let mut reversed = Array3::<u16>::zeros((2, 1, 1));
    let reversed = reversed.slice_mut(s![..;-1, .., ..]);
    let wrong = reader.read_into_ndarray(&[0..2, 0..1, 0..1], reversed);
    assert!(wrong.unwrap_err().to_string().contains("reversed"));
}

#[test]
fn tensors_of_dlpack() {
    let (array, elements) = array();
    let reader = ArrayReader::builder(&array).build().unwrap();
    let tensor = reader.read_tensor(&[1..5, 3..8, 0..9]).unwrap();
    let tensor = SafeManagedTensorVersioned::new(tensor).unwrap();
    assert_eq!(tensor.shape(), [4, 5, 9]);
    let expected: Vec<u8> = elements
        .slice(s![1..5, 3..8, 0..9])
        .iter()
        .flat_map(|element| element.to_ne_bytes())
        .collect();
    assert_eq!(tensor.as_slice_untyped(), expected);
}
