//! Takes tensors on a device from other libraries, in capsules of `DLPack`.

use std::ffi::CStr;
use std::ptr::{NonNull, addr_of};

use dlpark::ffi::{DataTypeCode, DeviceType, ManagedTensor};
use dlpark::legacy::SafeManagedTensor;
use dlpark::traits::TensorView;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use zarrs_cuda::writer::{Appending, Writer, WriterError};

/// The name of a capsule that has a tensor, and the name of one whose tensor was taken.
pub(crate) const NAME: &CStr = c"dltensor";
const USED: &CStr = c"used_dltensor";

/// A tensor in the memory of a CUDA device. Dropping this value frees the tensor.
pub(crate) struct Tensor(SafeManagedTensor);

// SAFETY: a tensor describes memory on a device, and any thread may read it. It is dropped with the GIL.
unsafe impl Send for Tensor {}
// SAFETY: any thread may read a shared tensor.
unsafe impl Sync for Tensor {}

impl Tensor {
    /// Takes the tensor of `capsule`, which a `__dlpack__` returned.
    ///
    /// # Errors
    /// An exception if `capsule` is not a capsule with a tensor, or if the tensor is not on a CUDA device. In
    /// this case the capsule keeps the tensor.
    pub(crate) fn take(capsule: &Bound<'_, PyAny>) -> PyResult<Self> {
        let capsule = capsule.cast::<PyCapsule>()?.as_ptr();
        // SAFETY: `capsule` is a capsule, and the caller holds it.
        let tensor = unsafe {
            if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 0 {
                return Err(PyTypeError::new_err(
                    "`__dlpack__` returned a capsule that has no tensor, or another version of one",
                ));
            }
            ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast::<ManagedTensor>()
        };
        // The types are read as numbers, because an enum with any other number would be undefined behaviour.
        // SAFETY: a valid capsule with this name has such a tensor.
        let (device, code) = unsafe {
            let tensor = addr_of!((*tensor).dl_tensor);
            (
                addr_of!((*tensor).device.device_type).cast::<i32>().read(),
                addr_of!((*tensor).dtype.code).cast::<u8>().read(),
            )
        };
        if device != DeviceType::Cuda as i32 || code > DataTypeCode::Bool as u8 {
            return Err(PyBufferError::new_err(format!(
                "the tensor is on a device of type {device}, with elements of type {code}, and only those of \
                 CUDA devices with plain numbers are taken from there: copy it to the host first"
            )));
        }
        // SAFETY: the capsule is valid, and the code that gives it another name owns its tensor.
        unsafe {
            if ffi::PyCapsule_SetName(capsule, USED.as_ptr()) != 0 {
                return Err(PyErr::fetch(Python::assume_attached()));
            }
            Ok(Self(SafeManagedTensor::from_non_null(
                NonNull::new_unchecked(tensor),
            )))
        }
    }

    /// Returns the shape of the tensor.
    pub(crate) fn shape(&self) -> Vec<usize> {
        // The pointer to the shape may be null if the tensor has no axes.
        let shape = if self.0.dl_tensor().ndim <= 0 {
            &[]
        } else {
            self.0.shape()
        };
        // No array has the extent of a number that is no extent.
        let extents = shape.iter().map(|&extent| usize::try_from(extent));
        extents.map(|extent| extent.unwrap_or(usize::MAX)).collect()
    }

    /// Appends the elements of the tensor to the array, or to level 0 of the image, that `writer` writes.
    pub(crate) fn append_to<W: Appending>(
        &self,
        writer: &mut Writer<W>,
    ) -> Result<(), WriterError> {
        // SAFETY: the tensor is held until this call returns. Its library was told to make the default stream
        // of the device wait for the elements.
        unsafe { writer.append_dlpack(&self.0, 0) }
    }
}
