//! Tensors and views of other libraries.

use std::sync::Arc;

use ndarray::{Array2, ShapeBuilder, s};
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::storage::store::MemoryStore;
use zarrs_cuda::writer::{BoxReport, BoxWriter, BoxWriterError};
use zarrs_cuda_testing::tensors::{DataTypeCode, DeviceType, Tensor};

fn array() -> Array<MemoryStore> {
    let mut builder = ArrayBuilder::new(vec![8, 8], vec![4, 4], data_type::uint16(), 0_u16);
    builder.subchunk_shape(vec![2, 2]);
    builder.build(Arc::new(MemoryStore::new()), "/a").unwrap()
}

#[allow(unsafe_code)]
fn write(array: &Array<MemoryStore>, tensor: &Tensor) -> Result<BoxReport, BoxWriterError> {
    let writer = BoxWriter::builder(array).build().unwrap();
    // SAFETY: each test describes its own memory, which lives until the test ends.
    unsafe { writer.write_dlpack(&[2..5, 1..7], &tensor.view()) }
}

#[test]
fn tensors_with_any_strides() {
    let array = array();
    let memory: Vec<u16> = (0..100).collect();
    let mut tensor = Tensor::of_uint16(&[3, 6], memory.as_ptr().expose_provenance());
    let read = || -> Vec<u16> { array.retrieve_array_subset(&[2..5, 1..7]).unwrap() };
    write(&array, &tensor).unwrap();
    assert_eq!(read(), (0..18).collect::<Vec<_>>());
    for strides in [[10, 1], [1, 3], [0, 2], [7, 0]] {
        tensor.strides = Some(strides.to_vec());
        tensor.byte_offset = 4;
        write(&array, &tensor).unwrap();
        let expected =
            (0..3).flat_map(|i| (0..6).map(move |j| 2 + i * strides[0] + j * strides[1]));
        assert_eq!(
            read(),
            expected
                .map(|n: i64| u16::try_from(n).unwrap())
                .collect::<Vec<_>>()
        );
    }
    let refused = |tensor: &Tensor, part: &str| {
        let text = write(&array, tensor).unwrap_err().to_string();
        assert!(text.contains(part), "{part:?} in {text}");
    };
    tensor.strides = Some(vec![-6, 1]);
    refused(&tensor, "in reverse");
    tensor.strides = None;
    tensor.shape = vec![6, 3];
    refused(&tensor, "[6, 3]");
    tensor.shape = vec![3, 6];
    tensor.device = (DeviceType::Cuda, 0);
    refused(&tensor, "copy it to the host");
    tensor.device = (DeviceType::Cpu, 0);
    tensor.data_type = (DataTypeCode::Int, 16, 1);
    refused(&tensor, "uint16");
}

#[test]
fn views_of_any_layout() {
    let array = array();
    let writer = BoxWriter::builder(&array).build().unwrap();
    let owned = Array2::from_shape_fn((8, 8), |(i, j)| (10 * i + j) as u16);
    let by_columns = {
        let mut by_columns = Array2::<u16>::zeros((8, 8).f());
        by_columns.assign(&owned);
        by_columns
    };
    for view in [
        owned.slice(s![2..5, 1..7]),
        by_columns.slice(s![2..5, 1..7]),
        owned.slice(s![2..8;2, 1..7]),
        owned.slice(s![2..5;-1, 1..7]),
    ] {
        writer.write_ndarray(&[2..5, 1..7], &view).unwrap();
        let found: Vec<u16> = array.retrieve_array_subset(&[2..5, 1..7]).unwrap();
        assert_eq!(found, view.iter().copied().collect::<Vec<_>>());
    }
    writer.write_ndarray(&[0..8, 0..8], &by_columns).unwrap();
    let found: Vec<u16> = array.retrieve_array_subset(&array.subset_all()).unwrap();
    assert_eq!(found, owned.into_raw_vec_and_offset().0);
    let other = Array2::<u16>::zeros((3, 3));
    writer.write_ndarray(&[0..3, 0..4], &other).unwrap_err();
    let other = Array2::<i16>::zeros((3, 3));
    writer.write_ndarray(&[0..3, 0..3], &other).unwrap_err();
}
