//! Writing tensors of other libraries through `DLPack`.

use dlpark::ffi::DeviceType;
use dlpark::traits::TensorView;
use zarrs::array::{ArraySubsetTraits, DataType};
use zarrs_storage::{ListableStorageTraits, ReadableWritableStorageTraits};

use super::error::BoxWriterErrorKind as Kind;
use super::{BoxReport, BoxWriter, BoxWriterError, Input, extents};
use crate::writer::dlpack::dlpack_type;

impl<TStorage> BoxWriter<TStorage>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + ListableStorageTraits + 'static,
{
    /// Writes the elements of `tensor`, which has the shape of the box `subset`, and is in host memory. Its strides
    /// may be any that are not negative. Elements on a device have to be copied to the host first.
    ///
    /// # Errors
    /// The errors of [`write_bytes`](Self::write_bytes), and
    /// [`BoxWriterErrorKind::Input`](crate::writer::BoxWriterErrorKind::Input) if the tensor is of another shape or
    /// data type, has an axis in reverse, or is in memory that the host does not read.
    ///
    /// # Safety
    /// `tensor` describes memory that can be read, and that nobody writes, until this returns.
    pub unsafe fn write_dlpack(
        &self,
        subset: &dyn ArraySubsetTraits,
        tensor: &impl TensorView,
    ) -> Result<BoxReport, BoxWriterError> {
        let shape = extents(&subset.shape())?;
        let strides = strides_of(tensor, &shape, self.0.grid.data_type())?;
        let size = self.element_size()?;
        let span = match &*shape {
            _ if shape.contains(&0) => 0,
            _ => {
                std::iter::zip(&shape, &strides)
                    .map(|(extent, stride)| (extent - 1) * stride)
                    .sum::<usize>()
                    + size
            }
        };
        let bytes: &[u8] = if span == 0 {
            &[]
        } else {
            // SAFETY: the caller lets this call read the elements, which end after `span` bytes.
            unsafe {
                let start = tensor.data_ptr().cast::<u8>().add(tensor.byte_offset());
                std::slice::from_raw_parts(start, span)
            }
        };
        self.write_bytes(subset, Input::strided(bytes, &strides))
    }
}

/// Returns the strides of `tensor` in bytes, along axes with more than one element.
fn strides_of(
    tensor: &impl TensorView,
    shape: &[usize],
    data_type: &DataType,
) -> Result<Vec<usize>, Kind> {
    let wrong = |reason: String| Kind::Input { reason };
    let dtype = tensor.data_type();
    if dtype.lanes != 1 || dlpack_type(data_type) != Some((dtype.code, dtype.bits)) {
        return Err(wrong(format!(
            "the tensor is of {dtype:?}, and the array of {data_type}"
        )));
    }
    let device = tensor.dl_tensor().device;
    if !matches!(
        device.device_type,
        DeviceType::Cpu | DeviceType::CudaHost | DeviceType::CudaManaged
    ) {
        return Err(wrong(format!(
            "the tensor is on a device of type {:?}: copy it to the host first",
            device.device_type
        )));
    }
    // The pointers of a tensor without axes may be null.
    let (of_tensor, strides) = if tensor.dl_tensor().ndim <= 0 {
        (&[][..], None)
    } else {
        (tensor.shape(), tensor.strides())
    };
    let is_same = of_tensor.len() == shape.len()
        && std::iter::zip(of_tensor, shape).all(|(one, other)| usize::try_from(*one) == Ok(*other));
    if !is_same {
        return Err(wrong(format!(
            "a tensor of shape {of_tensor:?} for a box of shape {shape:?}"
        )));
    }
    let size = usize::from(dtype.bits / 8);
    let Some(strides) = strides else {
        return Ok(zarrs_cuda_engine::layout::strides(shape, size));
    };
    let in_bytes = std::iter::zip(strides, shape).map(|(stride, extent)| match *extent {
        // The stride of such an axis is never used.
        0 | 1 => Some(0),
        _ => usize::try_from(*stride).ok()?.checked_mul(size),
    });
    let in_bytes = in_bytes.collect::<Option<Vec<usize>>>();
    in_bytes.ok_or_else(|| {
        wrong(format!(
            "a tensor of shape {of_tensor:?} with strides {strides:?} has an axis in reverse: copy it first"
        ))
    })
}
