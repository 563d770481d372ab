//! Tensors as other libraries describe them through `DLPack`.

use std::ffi::c_void;

use dlpark::ffi;
pub use dlpark::ffi::{DataTypeCode, DeviceType};
use dlpark::traits::TensorView;

/// A tensor whose fields a test can all choose. It borrows nothing: the test owns its memory.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub shape: Vec<i64>,
    /// In elements. `None` means C order, as for libraries that omit the strides.
    pub strides: Option<Vec<i64>>,
    /// The code, the bits, and the lanes of an element.
    pub data_type: (DataTypeCode, u8, u16),
    pub device: (DeviceType, i32),
    /// The address of the memory. The elements begin `byte_offset` bytes after it.
    pub address: usize,
    pub byte_offset: u64,
}

impl Tensor {
    /// A tensor of `uint16` in C order on the host.
    pub fn of_uint16(shape: &[i64], address: usize) -> Self {
        Self {
            shape: shape.to_vec(),
            strides: None,
            data_type: (DataTypeCode::UInt, 16, 1),
            device: (DeviceType::Cpu, 0),
            address,
            byte_offset: 0,
        }
    }

    /// A view of the tensor, valid while `self` lives.
    pub fn view(&self) -> View<'_> {
        View {
            raw: ffi::Tensor {
                data: std::ptr::with_exposed_provenance_mut::<c_void>(self.address),
                device: self.device.into(),
                ndim: i32::try_from(self.shape.len()).unwrap(),
                dtype: self.data_type.into(),
                shape: self.shape.as_ptr().cast_mut(),
                strides: self
                    .strides
                    .as_ref()
                    .map_or(std::ptr::null_mut(), |strides| strides.as_ptr().cast_mut()),
                byte_offset: self.byte_offset,
            },
            _tensor: self,
        }
    }
}

/// The description that `DLPack` passes on.
#[derive(Debug)]
pub struct View<'a> {
    raw: ffi::Tensor,
    _tensor: &'a Tensor,
}

impl TensorView for View<'_> {
    fn dl_tensor(&self) -> &ffi::Tensor {
        &self.raw
    }
}
