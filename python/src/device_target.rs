//! Memory of a GPU that a caller gives, and the elements that are read there.

#![allow(
    clippy::cast_possible_truncation,
    reason = "`lib.rs` asserts that this is a machine of 64 bits"
)]

use std::ffi::CStr;
use std::num::NonZeroUsize;
use std::ptr::addr_of;

use dlpark::ffi::{DeviceType, Flags, ManagedTensor, ManagedTensorVersioned, Tensor};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use zarrs::array::ArraySubset;
use zarrs_cuda::reader::{ArrayReader, DevicePlace, ReaderError};

use crate::array::Opened;
use crate::batch::{Batch, Item};
use crate::device_tensor::VERSIONED;
use crate::error::{Error, of_python};
use crate::memory::Memory;
use crate::read;
use crate::store::Store;
use crate::tensor::NAME;

/// The letters of the array interface for the types that `DLPack` counts.
const LETTERS: [Option<char>; 7] = [
    Some('i'),
    Some('u'),
    Some('f'),
    None,
    None,
    Some('c'),
    Some('b'),
];

/// The memory of a tensor: the number of the GPU, the address of the first element, the shape, the strides in bytes,
/// the type of the elements for numpy, and whether the tensor says that it may be written.
type Described = (i32, u64, Vec<i64>, Vec<i64>, String, bool);

/// Returns the memory of the tensor in `capsule`, which a `__dlpack__` returned, and which keeps the tensor.
///
/// # Errors
/// `BufferError` if the elements cannot be changed there: the tensor is not on a GPU, is a copy, or may only be read.
#[pyfunction]
pub(crate) fn memory_of_capsule(capsule: &Bound<'_, PyAny>) -> PyResult<Described> {
    let capsule = capsule.cast::<PyCapsule>()?;
    let refused = |why: String| Err(PyBufferError::new_err(why));
    let mut is_writable = false;
    let tensor: *const Tensor = if let Some(managed) = pointer::<ManagedTensor>(capsule, NAME) {
        // SAFETY: a valid capsule of this name has such a tensor, and the caller holds the capsule.
        unsafe { addr_of!((*managed).dl_tensor) }
    } else if let Some(managed) = pointer::<ManagedTensorVersioned>(capsule, VERSIONED) {
        // SAFETY: a valid capsule of this name begins with a version. Of version 1, it has such a tensor.
        let (major, flags) = unsafe {
            (
                addr_of!((*managed).version.major).read(),
                addr_of!((*managed).flags).cast::<u64>().read(),
            )
        };
        if major != 1 {
            return refused(format!(
                "`__dlpack__` was asked for version 1 of DLPack, and returned version {major}"
            ));
        }
        if flags & (Flags::READ_ONLY | Flags::IS_COPIED).bits() != 0 {
            return refused(
                "the memory may only be read, or is a copy: give memory that can be written"
                    .to_owned(),
            );
        }
        is_writable = true;
        // SAFETY: the capsule has a tensor of version 1, and the caller holds the capsule.
        unsafe { addr_of!((*managed).dl_tensor) }
    } else {
        return Err(PyTypeError::new_err(
            "`__dlpack__` returned a capsule that has no tensor",
        ));
    };
    // The types are read as numbers, because an enum with any other number would be undefined behaviour.
    // SAFETY: the tensor is valid, as above.
    let (kind, number, code, bits, lanes, axes) = unsafe {
        (
            addr_of!((*tensor).device.device_type).cast::<i32>().read(),
            addr_of!((*tensor).device.device_id).read(),
            addr_of!((*tensor).dtype.code).cast::<u8>().read(),
            addr_of!((*tensor).dtype.bits).read(),
            addr_of!((*tensor).dtype.lanes).read(),
            usize::try_from(addr_of!((*tensor).ndim).read()).unwrap_or(0),
        )
    };
    if kind != DeviceType::Cuda as i32 {
        return refused(format!(
            "the memory is on a device of type {kind}, and elements are read into memory of GPUs, which is of type 2"
        ));
    }
    let letter = LETTERS.get(usize::from(code)).copied().flatten();
    let (Some(letter), 0, 1) = (letter, bits % 8, lanes) else {
        return refused(format!(
            "the memory has elements of type {code} of DLPack, of {bits} bits in {lanes} lanes, which no array has"
        ));
    };
    let bytes = i64::from(bits / 8);
    // SAFETY: the tensor is valid, as above: the shape has so many axes, and the strides, too, unless they are null.
    let (shape, strides, first) = unsafe {
        let numbers = |at: *mut i64| (0..axes).map(|axis| at.add(axis).read()).collect();
        let shape: Vec<i64> = numbers((*tensor).shape);
        let strides: Option<Vec<i64>> =
            (!(*tensor).strides.is_null()).then(|| numbers((*tensor).strides));
        let first = ((*tensor).data.addr() as u64).saturating_add((*tensor).byte_offset);
        (shape, strides, first)
    };
    let strides = strides.unwrap_or_else(|| {
        let (mut strides, mut step) = (vec![1; axes], 1_i64);
        for (stride, extent) in strides.iter_mut().zip(&shape).rev() {
            *stride = step;
            step = step.saturating_mul(*extent);
        }
        strides
    });
    let strides = strides.iter().map(|step| step.saturating_mul(bytes));
    Ok((
        number,
        first,
        shape,
        strides.collect(),
        format!("{letter}{bytes}"),
        is_writable,
    ))
}

/// Returns what a capsule of the name `name` has; `None` if it has another name.
fn pointer<T>(capsule: &Bound<'_, PyCapsule>, name: &CStr) -> Option<*const T> {
    // SAFETY: this is a capsule, and the caller holds it.
    unsafe {
        let is_valid = ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) != 0;
        is_valid.then(|| ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()) as *const T)
    }
}

/// Memory of a GPU for boxes of one shape, as `zarrs_cuda._gpu_reads` describes it.
#[derive(Debug, FromPyObject)]
pub(crate) struct DeviceTarget {
    /// The number of the GPU.
    #[pyo3(item(0))]
    pub(crate) device: usize,
    /// The address of the first element of the first box.
    #[pyo3(item(1))]
    pub(crate) pointer: u64,
    /// The number of bytes from one box to the next.
    #[pyo3(item(2))]
    pub(crate) step: u64,
    /// The number of bytes of a box, from its first element to the end of the last one.
    #[pyo3(item(3))]
    pub(crate) len: usize,
    /// The distance from one element of a box to the next along each axis, in bytes.
    #[pyo3(item(4))]
    pub(crate) strides: Vec<usize>,
    /// The stream in which the elements are written.
    #[pyo3(item(5))]
    pub(crate) stream: u64,
    /// Keeps the memory.
    #[pyo3(item(6))]
    pub(crate) owner: Py<PyAny>,
}

/// A C-contiguous array on a GPU, as `zarrs_cuda._pipeline` describes it.
#[derive(Debug, FromPyObject)]
pub(crate) struct DeviceOutput {
    /// The number of the GPU.
    #[pyo3(item(0))]
    device: usize,
    /// The address of the first element.
    #[pyo3(item(1))]
    pointer: u64,
    #[pyo3(item(2))]
    shape: Vec<usize>,
    /// The number of bytes of an element.
    #[pyo3(item(3))]
    element_size: usize,
    /// The stream in which the elements are written.
    #[pyo3(item(4))]
    stream: u64,
    /// Keeps the memory.
    #[pyo3(item(5))]
    owner: Py<PyAny>,
}

impl DeviceOutput {
    /// Returns the array as memory that the host does not touch.
    pub(crate) fn memory(&self) -> Memory {
        Memory::elsewhere(&self.shape, self.element_size)
    }
}

/// Whether elements were read into the memory of a device.
#[derive(Debug)]
pub(crate) enum InMemory {
    /// The copies to the memory are enqueued.
    Read,
    /// The host decodes them, and `CuPy` copies them: no device was asked for that reads them.
    NotAsked,
    /// The host decodes them, and `CuPy` copies them, because the library cannot, for this reason.
    Unusable(String),
}

/// Reads the boxes of `batch` into `output`.
///
/// # Errors
/// [`Error::Device`] if the device has failed: it may do nothing any more, for `CuPy` either.
pub(crate) fn read_batch(
    opened: &Opened,
    store: &Store,
    batch: &Batch,
    output: &DeviceOutput,
    threads: NonZeroUsize,
) -> Result<InMemory, Error> {
    read::check_keys(opened, batch)?;
    let Some(reader) = opened.device_reader(store, threads.get())? else {
        return Ok(InMemory::NotAsked);
    };
    let joined = opened.one_box(&batch.items);
    let each = || {
        let items = batch.items.iter().cloned();
        items.map(|item| (opened.subset(&item), item)).collect()
    };
    let boxes: Vec<(ArraySubset, Item)> = joined.map_or_else(each, |joined| vec![joined]);
    let mut places = Vec::with_capacity(boxes.len());
    for (subset, item) in &boxes {
        let mut len = output.element_size;
        let mut strides = Vec::with_capacity(item.strides.len());
        for (&stride, &extent) in item.strides.iter().zip(subset.shape()) {
            // An axis that the array does not have has one index.
            let stride = usize::try_from(stride)
                .unwrap_or(0)
                .max(output.element_size);
            len = len.saturating_add(stride.saturating_mul((extent as usize).saturating_sub(1)));
            strides.push(stride);
        }
        let offset = u64::try_from(item.offset)
            .map_err(|_| Error::Value("the output has negative strides".to_owned()))?;
        places.push(DevicePlace {
            device: output.device,
            pointer: output.pointer.saturating_add(offset),
            len,
            strides,
            stream: output.stream,
        });
    }
    let subsets: Vec<ArraySubset> = boxes.into_iter().map(|(subset, _)| subset).collect();
    // SAFETY: the library asks the driver whether the places are memory of the device. The caller, in Python, holds the
    // array, uses it in the stream alone, and waits for the stream before it gives the array to anybody.
    let read = unsafe { reader.read_into_device(&subsets, &places) };
    keep_if_written(read.as_ref().err(), &output.owner);
    match read {
        Ok(()) => Ok(InMemory::Read),
        // The environment may ask for another device than that of the array.
        Err(ReaderError::DeviceNotAsked { .. }) => Ok(InMemory::NotAsked),
        Err(error @ (ReaderError::DevicePlace { .. } | ReaderError::DeviceUnusable { .. })) => {
            Ok(InMemory::Unusable(of_python(&error.to_string())))
        }
        Err(error) => Err(error.into()),
    }
}

/// Keeps the memory of `owner` for ever if the device may still write there after `error`. If the memory were freed,
/// its library would give it to other arrays.
fn keep_if_written(error: Option<&ReaderError>, owner: &Py<PyAny>) {
    if error.is_some_and(ReaderError::device_may_write) {
        Python::attach(|py| std::mem::forget(owner.clone_ref(py)));
    }
}

/// Reads the boxes of `shape` that begin at `origins` into `target`. Returns when the copies are enqueued there.
pub(crate) fn read(
    reader: &ArrayReader<Store>,
    origins: Vec<Vec<u64>>,
    shape: &[u64],
    target: &DeviceTarget,
) -> Result<(), Error> {
    let mut pointer = target.pointer;
    let mut places = Vec::with_capacity(origins.len());
    let mut boxes = Vec::with_capacity(origins.len());
    for origin in origins {
        let subset = ArraySubset::new_with_start_shape(origin, shape.to_vec());
        boxes.push(subset.map_err(|error| Error::Value(error.to_string()))?);
        places.push(DevicePlace {
            device: target.device,
            pointer,
            len: target.len,
            strides: target.strides.clone(),
            stream: target.stream,
        });
        pointer = pointer.saturating_add(target.step);
    }
    // SAFETY: the library asks the driver whether the places are memory of the device. The caller, in Python, holds the
    // owner of the memory, orders its use by the stream, and keeps the stream until the call returns.
    let read = unsafe { reader.read_into_device(&boxes, &places) };
    keep_if_written(read.as_ref().err(), &target.owner);
    Ok(read?)
}
