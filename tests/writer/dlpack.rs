//! `append_dlpack` on the host. A tensor is appended like its bytes. An unreadable one is rejected
//! before anything is appended.

use std::sync::Arc;

use zarrs::storage::store::MemoryStore;
use zarrs_cuda::writer::{ArrayWriter, WriterError};
use zarrs_cuda_testing::tensors::{DataTypeCode, DeviceType, Tensor};

use super::simple::{SLICE, array, builder, check, slices};

#[allow(unsafe_code)]
fn append(writer: &mut ArrayWriter, tensor: &Tensor) -> Result<(), WriterError> {
    // SAFETY: each test describes its own memory, which lives until the test ends; no stream is
    // used.
    unsafe { writer.append_dlpack(&tensor.view(), 0) }
}

/// A tensor of slices that holds `elements`.
fn tensor(elements: &[u16]) -> Tensor {
    let slices = i64::try_from(elements.len() / SLICE).unwrap();
    Tensor::of_uint16(&[slices, 6, 8], elements.as_ptr().expose_provenance())
}

#[test]
fn tensors_of_the_host() {
    let store = Arc::new(MemoryStore::new());
    let mut writer = builder(&array(&store)).build().unwrap();
    let elements = slices(0..12);
    let (three, others) = elements.split_at(3 * SLICE);
    append(&mut writer, &tensor(three)).unwrap();

    // The same with strides. The stride of an axis with one index does not matter.
    let (one, others) = others.split_at(SLICE);
    let mut strided = tensor(one);
    strided.strides = Some(vec![777, 8, 1]);
    append(&mut writer, &strided).unwrap();

    // At an offset into the memory, which is page-locked.
    let mut behind = tensor(&others[..2 * SLICE]);
    behind.address -= 2 * SLICE;
    behind.byte_offset = 2 * SLICE as u64;
    behind.device = (DeviceType::CudaHost, 0);
    append(&mut writer, &behind).unwrap();

    // Parts of slices with any number of dimensions; a scalar is one element.
    let (part, others) = others[2 * SLICE..].split_at(5);
    let mut row = tensor(part);
    row.shape = vec![5];
    append(&mut writer, &row).unwrap();
    let (one, others) = others.split_at(1);
    let mut scalar = tensor(one);
    scalar.shape = vec![];
    append(&mut writer, &scalar).unwrap();
    let mut rest = tensor(others);
    rest.shape = vec![i64::try_from(others.len()).unwrap() / 2, 1, 2];
    append(&mut writer, &rest).unwrap();

    // The address is invalid, but there are no elements to read.
    let mut empty = tensor(&[]);
    (empty.shape, empty.address) = (vec![3, 0, 8], 0);
    append(&mut writer, &empty).unwrap();

    assert_eq!(writer.finish().unwrap().finished_slices, 12);
    check(&store, 12);
}

#[test]
fn tensors_that_are_refused() {
    let store = Arc::new(MemoryStore::new());
    let mut writer = builder(&array(&store)).build().unwrap();
    let elements = slices(0..2);
    let good = tensor(&elements);
    let refused = |reason: &str, tensor: &Tensor, writer: &mut ArrayWriter| {
        let error = append(writer, tensor).unwrap_err();
        assert!(
            matches!(&error, WriterError::Unsupported { reason: r } if r.contains(reason)),
            "{reason}: {error:?}"
        );
        assert_eq!(writer.progress().appended_bytes, 0, "{reason}");
    };
    for data_type in [
        (DataTypeCode::Int, 16, 1),
        (DataTypeCode::UInt, 8, 1),
        (DataTypeCode::UInt, 32, 1),
        (DataTypeCode::UInt, 16, 2),
        (DataTypeCode::Bfloat, 16, 1),
    ] {
        let mut other = good.clone();
        other.data_type = data_type;
        refused("and the array of uint16", &other, &mut writer);
    }
    for strides in [[48, 1, 6], [96, 8, 1], [48, 8, 2], [-48, 8, 1], [0, 0, 0]] {
        let mut strided = good.clone();
        strided.strides = Some(strides.to_vec());
        refused("is not contiguous in C order", &strided, &mut writer);
    }
    for shape in [vec![i64::MAX, 2, 2], vec![1 << 40, 1 << 30], vec![-1, 6, 8]] {
        let mut large = good.clone();
        large.shape = shape;
        refused("is too large", &large, &mut writer);
    }
    for device in [DeviceType::Metal, DeviceType::Rocm, DeviceType::Vulkan] {
        let mut elsewhere = good.clone();
        elsewhere.device = (device, 0);
        refused("is on a device of type", &elsewhere, &mut writer);
    }
    let mut unnumbered = good.clone();
    unnumbered.device = (DeviceType::Cuda, -1);
    refused("is on device -1", &unnumbered, &mut writer);
    // This writer encodes on the host.
    for device in [DeviceType::Cuda, DeviceType::CudaManaged] {
        let mut on_device = good.clone();
        on_device.device = (device, 0);
        let error = append(&mut writer, &on_device).unwrap_err();
        assert!(
            matches!(error, WriterError::Unsupported { .. }),
            "{error:?}"
        );
        assert_eq!(writer.progress().appended_bytes, 0);
    }
    // The writer continues as if the call had not happened.
    append(&mut writer, &good).unwrap();
    assert_eq!(writer.finish().unwrap().finished_slices, 2);
    check(&store, 2);
}
