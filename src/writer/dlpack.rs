//! Appends tensors of other libraries through `DLPack`.

use dlpark::ffi::{DataTypeCode, DeviceType};
use dlpark::traits::TensorView;
use zarrs::array::DataType;
use zarrs::plugin::{ExtensionName, ZarrVersion};

use super::appending::Appending;
use super::device::DeviceSlice;
use super::error::WriterError;
use super::from_device::append_where_it_encodes;
use super::handle::Writer;
use super::stream::Stream;

impl<W: Appending> Writer<W> {
    /// Appends the elements of `tensor`, which may be any number of elements. The tensor must be contiguous
    /// in C order and of the array's data type. All of it has been read when this function returns.
    ///
    /// Elements on a CUDA device are appended as by [`append_device`](Self::append_device).
    /// Elements in host memory are copied as by [`append_bytes`](Self::append_bytes). `stream` is
    /// the stream that produces elements on a device: see [`DeviceSlice::stream`].
    ///
    /// # Errors
    /// - [`WriterError::Unsupported`] if the tensor is of another data type, is not contiguous, or
    ///   is in memory that this writer cannot read. Nothing was appended.
    /// - The errors of [`append_device`](Self::append_device).
    ///
    /// # Safety
    /// `tensor` describes memory that can be read until this returns, and `stream` is a stream of
    /// the device's primary context, or 0.
    pub unsafe fn append_dlpack(
        &mut self,
        tensor: &impl TensorView,
        stream: u64,
    ) -> Result<(), WriterError> {
        self.with(|writer| {
            // SAFETY: the preconditions are those of this function.
            match unsafe { elements_of(writer.top(), tensor, stream)? } {
                Elements::Host(bytes) => writer.put(bytes, true).map(drop),
                Elements::Device(slice) => {
                    // SAFETY: the caller keeps the tensor readable until this function returns, which waits
                    // for the device.
                    let taken = unsafe { append_where_it_encodes(writer, &slice)? };
                    taken.wait()
                }
            }
        })
    }
}

/// The elements of a tensor, in the memory where they are.
enum Elements<'a> {
    Host(&'a [u8]),
    Device(DeviceSlice),
}

/// Returns the elements of `tensor` if `writer` can append them.
///
/// # Errors
/// [`WriterError::Unsupported`], where [`append_dlpack`](Writer::append_dlpack) returns it.
///
/// # Safety
/// The preconditions of [`append_dlpack`](Writer::append_dlpack), as long as the elements are used.
unsafe fn elements_of<'a>(
    writer: &Stream,
    tensor: &'a impl TensorView,
    stream: u64,
) -> Result<Elements<'a>, WriterError> {
    let unsupported = |reason| Err(WriterError::Unsupported { reason });
    let expected = dlpack_type(writer.shared.setup.array.data_type());
    let dtype = tensor.data_type();
    if dtype.lanes != 1 || expected != Some((dtype.code, dtype.bits)) {
        return unsupported(format!(
            "the tensor is of {dtype:?}, and the array of {}",
            writer.shared.setup.array.data_type()
        ));
    }
    // The shape of a tensor without dimensions may be a null pointer.
    let shape = if tensor.dl_tensor().ndim <= 0 {
        &[]
    } else {
        tensor.shape()
    };
    let strides = if shape.is_empty() {
        None
    } else {
        tensor.strides()
    };
    if !is_contiguous(shape, strides) {
        return unsupported(format!(
            "a tensor of shape {shape:?} with strides {strides:?} is not contiguous in C order: copy it first"
        ));
    }
    let size = writer.job.grid.shard().element_size();
    let len = shape.iter().try_fold(size, |len, &extent| {
        len.checked_mul(usize::try_from(extent).ok()?)
    });
    let Some(len) = len.filter(|&len| isize::try_from(len).is_ok()) else {
        return unsupported(format!("a tensor of shape {shape:?} is too large"));
    };
    if len == 0 {
        return Ok(Elements::Host(&[]));
    }
    let device = tensor.dl_tensor().device;
    match device.device_type {
        DeviceType::Cpu | DeviceType::CudaHost => {
            // SAFETY: the tensor can be read, as the caller promises, and its elements take `len` bytes.
            Ok(Elements::Host(unsafe {
                let start = tensor.data_ptr().cast::<u8>().add(tensor.byte_offset());
                std::slice::from_raw_parts(start, len)
            }))
        }
        DeviceType::Cuda | DeviceType::CudaManaged => {
            let Ok(number) = usize::try_from(device.device_id) else {
                return unsupported(format!("the tensor is on device {}", device.device_id));
            };
            Ok(Elements::Device(DeviceSlice {
                device: number,
                pointer: (tensor.data_ptr().addr() as u64)
                    .saturating_add(tensor.byte_offset() as u64),
                len,
                stream,
            }))
        }
        other => unsupported(format!("the tensor is on a device of type {other:?}")),
    }
}

/// Returns whether elements of this shape and these strides follow one another in C order.
fn is_contiguous(shape: &[i64], strides: Option<&[i64]>) -> bool {
    let Some(strides) = strides else { return true };
    let mut expected = 1_i64;
    std::iter::zip(shape, strides)
        .rev()
        .all(|(&extent, &stride)| {
            let here = extent == 1 || stride == expected;
            expected = expected.saturating_mul(extent);
            here
        })
        || shape.contains(&0)
}

/// Returns the type code and the number of bits by which `DLPack` names a data type; `None` if `DLPack` has
/// no name for the type.
pub(crate) fn dlpack_type(data_type: &DataType) -> Option<(DataTypeCode, u8)> {
    use DataTypeCode::{Bfloat, Bool, Complex, Float, Int, UInt};
    let name = data_type.name(ZarrVersion::V3)?;
    Some(match &*name {
        "bool" => (Bool, 8),
        "int8" => (Int, 8),
        "int16" => (Int, 16),
        "int32" => (Int, 32),
        "int64" => (Int, 64),
        "uint8" => (UInt, 8),
        "uint16" => (UInt, 16),
        "uint32" => (UInt, 32),
        "uint64" => (UInt, 64),
        "float16" => (Float, 16),
        "float32" => (Float, 32),
        "float64" => (Float, 64),
        "bfloat16" => (Bfloat, 16),
        "complex64" => (Complex, 64),
        "complex128" => (Complex, 128),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_of_axes_with_one_index_do_not_matter() {
        assert!(is_contiguous(&[2, 3, 4], None));
        assert!(is_contiguous(&[2, 3, 4], Some(&[12, 4, 1])));
        assert!(is_contiguous(&[2, 1, 4], Some(&[4, 99, 1])));
        assert!(is_contiguous(&[], Some(&[])));
        assert!(is_contiguous(&[0, 3], Some(&[7, 7])));
        assert!(!is_contiguous(&[2, 3, 4], Some(&[4, 8, 1])));
        assert!(!is_contiguous(&[2, 3], Some(&[4, 1])));
        assert!(!is_contiguous(&[2, 3], Some(&[-3, 1])));
    }
}
