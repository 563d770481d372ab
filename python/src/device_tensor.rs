//! Elements in the memory of a device, as Python's libraries take them: by `DLPack` and `__cuda_array_interface__`.
//!
//! All elements are there when a reader returns them, so no stream of a consumer has to wait. Memory is given back by
//! whichever owner is dropped last: the tensor or a consumer's copy of it, on any thread, with or without the GIL.

#![allow(
    clippy::cast_possible_truncation,
    reason = "`lib.rs` asserts that this is a machine of 64 bits"
)]

use std::convert::Infallible;
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use dlpark::SafeManagedTensorVersioned;
use dlpark::ffi::{DataType, DataTypeCode, Device, DeviceType, Flags};
use dlpark::legacy::SafeManagedTensor;
use dlpark::traits::{StridedLayout, TensorLike};
use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyTuple};
use zarrs_cuda::reader::DeviceTensor;

use crate::tensor::NAME;

/// The name of a capsule that has a tensor with a version.
pub(crate) const VERSIONED: &CStr = c"dltensor_versioned";

/// The type of elements, as Python's libraries name it.
pub(crate) struct ElementType {
    dlpack: DataType,
    /// The type in words of the array interface, such as `<u2`.
    text: String,
    numpy: Py<PyArrayDescr>,
}

impl ElementType {
    /// Returns the type of elements that numpy calls `dtype`.
    ///
    /// # Errors
    /// `ValueError` if libraries for devices have no name for such elements.
    pub(crate) fn of(dtype: &Bound<'_, PyArrayDescr>) -> PyResult<Self> {
        let code = match dtype.kind() {
            b'b' => DataTypeCode::Bool,
            b'i' => DataTypeCode::Int,
            b'u' => DataTypeCode::UInt,
            b'f' => DataTypeCode::Float,
            b'c' => DataTypeCode::Complex,
            _ => {
                return Err(PyValueError::new_err(format!(
                    "elements of the type {dtype} are not read into the memory of a GPU, because DLPack has no name \
                     for them: read them without `device`"
                )));
            }
        };
        // The elements are numbers of 16 bytes at most.
        let bits = u8::try_from(dtype.itemsize().saturating_mul(8)).unwrap_or(u8::MAX);
        Ok(Self {
            dlpack: DataType {
                code,
                bits,
                lanes: 1,
            },
            text: dtype.getattr("str")?.extract()?,
            numpy: dtype.clone().unbind(),
        })
    }
}

/// Elements in the memory of a GPU.
#[pyclass(frozen, name = "DeviceTensor", module = "zarrs_cuda")]
pub(crate) struct PyDeviceTensor {
    tensor: Arc<DeviceTensor>,
    element_type: ElementType,
}

impl PyDeviceTensor {
    pub(crate) fn new(tensor: DeviceTensor, element_type: ElementType) -> Self {
        Self {
            tensor: Arc::new(tensor),
            element_type,
        }
    }

    fn number(&self) -> usize {
        self.tensor.device()
    }

    fn exported(&self) -> Exported {
        Exported {
            tensor: self.tensor.clone(),
            dtype: self.element_type.dlpack,
        }
    }
}

#[pymethods]
impl PyDeviceTensor {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor.shape())
    }

    #[getter]
    fn dtype(&self, py: Python<'_>) -> Py<PyArrayDescr> {
        self.element_type.numpy.clone_ref(py)
    }

    #[getter]
    fn device(&self) -> String {
        format!("cuda:{}", self.number())
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.tensor.size()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (shape, dtype) = (self.shape(py)?, self.element_type.numpy.bind(py));
        Ok(format!(
            "DeviceTensor(shape={shape}, dtype={dtype}, device='{}')",
            self.device()
        ))
    }

    /// Refuses to become a numpy array, which would be one of a single object.
    #[pyo3(signature = (*_arguments, **_keywords))]
    fn __array__(
        &self,
        _arguments: &Bound<'_, PyTuple>,
        _keywords: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        Err(PyTypeError::new_err(format!(
            "the elements are in the memory of {}, where numpy does not reach: take them by `from_dlpack` of CuPy or \
             PyTorch, or read them without `device`",
            self.device()
        )))
    }

    /// Returns the kind of memory and the number of the GPU, as `DLPack` counts them.
    fn __dlpack_device__(&self) -> (i32, usize) {
        (DeviceType::Cuda as i32, self.number())
    }

    /// Returns a capsule with the elements, which keeps their memory.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i64)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // The elements were complete when the tensor was returned: no stream has to wait, and none is used.
        check_stream(stream)?;
        if copy == Some(true) {
            return Err(PyBufferError::new_err(format!(
                "the elements on {} are not copied: take them without `copy=True`, and copy them there",
                self.device()
            )));
        }
        let (kind, number) = self.__dlpack_device__();
        if let Some((other, at)) = dl_device
            && (other != kind || usize::try_from(at) != Ok(number))
        {
            return Err(PyBufferError::new_err(format!(
                "the elements are on the device ({kind}, {number}), {}, and were asked for on ({other}, {at}): take \
                 them where they are, and copy them",
                self.device()
            )));
        }
        if max_version.is_some_and(|(major, _)| major >= 1) {
            // The consumer may write, and the memory is nobody else's.
            let tensor = SafeManagedTensorVersioned::with_flags(self.exported(), Flags::empty());
            let tensor = tensor
                .unwrap_or_else(|never| match never {})
                .into_non_null();
            return capsule(py, tensor.as_ptr().cast(), VERSIONED);
        }
        let tensor = SafeManagedTensor::new(self.exported());
        let tensor = tensor
            .unwrap_or_else(|never| match never {})
            .into_non_null();
        capsule(py, tensor.as_ptr().cast(), NAME)
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let pointer = if self.tensor.size() == 0 {
            0
        } else {
            self.tensor.pointer()
        };
        let dict = PyDict::new(py);
        dict.set_item("version", 3)?;
        dict.set_item("shape", self.shape(py)?)?;
        dict.set_item("typestr", &self.element_type.text)?;
        dict.set_item("data", (pointer, false))?;
        dict.set_item("strides", py.None())?;
        dict.set_item("stream", py.None())?;
        Ok(dict)
    }
}

/// Checks an argument `stream` by which a consumer says where it will use the elements.
fn check_stream(stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let Some(stream) = stream else {
        return Ok(());
    };
    let handle: Option<i128> = if stream.is_instance_of::<PyBool>() {
        None
    } else {
        stream.extract().ok()
    };
    match handle {
        None => Err(PyTypeError::new_err(format!(
            "`stream` is {}, and must be None, -1, or the handle of a CUDA stream as an integer",
            stream.repr()?
        ))),
        // -1 asks for no wait; 1 and 2 are the default streams; other handles are addresses.
        Some(-1 | 1..) => Ok(()),
        Some(0) => Err(PyValueError::new_err(
            "`stream` is 0, which DLPack does not allow for CUDA: 1 is the legacy default stream, 2 the default stream \
             of the thread",
        )),
        Some(other) => Err(PyValueError::new_err(format!(
            "`stream` is {other}, and must be None, -1, or the handle of a CUDA stream"
        ))),
    }
}

/// The elements that a consumer was given.
struct Exported {
    tensor: Arc<DeviceTensor>,
    dtype: DataType,
}

impl TensorLike<StridedLayout> for Exported {
    type Error = Infallible;

    fn data_ptr(&self) -> *mut c_void {
        // The host never uses the address.
        std::ptr::without_provenance_mut(self.tensor.pointer() as usize)
    }

    fn memory_layout(&self) -> StridedLayout {
        let of = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let size = self.dtype.size().max(1);
        let shape = self.tensor.shape().iter().map(|&extent| of(extent));
        // DLPack counts in elements.
        let strides = self.tensor.strides().iter();
        let strides = strides.map(|&stride| of((stride / size) as u64));
        StridedLayout::new(shape.chain(strides).collect())
    }

    fn device(&self) -> Result<Device, Infallible> {
        Ok(Device::cuda(self.tensor.device()))
    }

    fn data_type(&self) -> Result<DataType, Infallible> {
        Ok(self.dtype)
    }

    fn byte_offset(&self) -> u64 {
        0
    }
}

/// Puts `tensor`, a managed tensor of the kind that `name` says, into a capsule, which frees it if nobody takes it.
fn capsule<'py>(
    py: Python<'py>,
    tensor: *mut c_void,
    name: &'static CStr,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the tensor is not null, and the name lives for ever.
    let capsule = unsafe { ffi::PyCapsule_New(tensor, name.as_ptr(), Some(free_unused)) };
    if capsule.is_null() {
        // SAFETY: nobody else knows the tensor.
        unsafe { free(tensor, name) };
    }
    // SAFETY: the capsule is a new reference, or null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}

/// Frees the tensor of a capsule that is about to go away, unless a consumer has taken the tensor and renamed the
/// capsule.
unsafe extern "C" fn free_unused(capsule: *mut ffi::PyObject) {
    for name in [NAME, VERSIONED] {
        // SAFETY: Python calls this function with a capsule that it frees afterwards.
        let tensor = unsafe {
            if ffi::PyCapsule_IsValid(capsule, name.as_ptr()) == 0 {
                null_mut()
            } else {
                ffi::PyCapsule_GetPointer(capsule, name.as_ptr())
            }
        };
        if !tensor.is_null() {
            // SAFETY: the capsule has its first name still, so it owns the tensor.
            unsafe { free(tensor, name) };
        }
    }
}

/// Frees a managed tensor of the kind that `name` says.
///
/// # Safety
/// The tensor is of that kind, and the caller owns it.
unsafe fn free(tensor: *mut c_void, name: &CStr) {
    // SAFETY: the caller promises so.
    unsafe {
        if name == VERSIONED {
            drop(SafeManagedTensorVersioned::from_raw(tensor.cast()));
        } else {
            drop(SafeManagedTensor::from_raw(tensor.cast()));
        }
    }
}
