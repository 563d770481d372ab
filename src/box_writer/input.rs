//! The input of a write: memory of the caller.

use std::borrow::Cow;
use std::num::NonZeroU64;

use zarrs::array::codec::{BytesCodec, Endianness};
use zarrs::array::{DataType, FillValue};
use zarrs_codec::{ArrayToBytesCodecTraits, CodecOptions};

use super::error::BoxWriterErrorKind as Kind;
use zarrs_cuda_engine::layout::strides;
use zarrs_cuda_engine::memory::allocate;

/// Memory with the elements of a box.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// use zarrs::array::codec::Endianness;
/// use zarrs_cuda::writer::{BoxWriter, Input};
///
/// // A row of three elements from a file of big-endian integers.
/// let bytes = [0, 1, 0, 2, 0, 3];
/// let row = Input::contiguous(&bytes).with_byte_order(Endianness::Big);
/// BoxWriter::builder(&array).build()?.write_bytes(&[5..6, 0..3], row)?;
/// assert_eq!(array.retrieve_array_subset::<Vec<u16>>(&[5..6, 0..3])?, [1, 2, 3]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Input<'a> {
    bytes: &'a [u8],
    /// The distance from one element to the next along each axis, in bytes; `None` for C order.
    strides: Option<Vec<usize>>,
    /// The order of the bytes of an element; `None` for the order of this machine.
    order: Option<Endianness>,
}

impl<'a> Input<'a> {
    /// Returns an input of elements in C order, without gaps. `bytes` must be exactly as long as all elements.
    /// An element of `bool` is a byte that is 0 or 1.
    #[must_use]
    pub fn contiguous(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            strides: None,
            order: None,
        }
    }

    /// Returns an input whose first element is at the start of `bytes`. `strides` has, for each axis, the number
    /// of bytes from one element to the next. It may be 0: then all elements along the axis are the same.
    /// `bytes` must reach to the end of the last element, which the call that writes checks.
    ///
    /// `bytemuck` converts a slice of elements to bytes:
    ///
    /// ```
    /// # use zarrs_cuda::writer::Input;
    /// let pixels = vec![0_u16; 480 * 1024];
    /// // Rows of 640 pixels, which begin 1024 pixels apart.
    /// let input = Input::strided(bytemuck::cast_slice(&pixels), &[1024 * 2, 2]);
    /// # drop(input);
    /// ```
    #[must_use]
    pub fn strided(bytes: &'a [u8], strides: &[usize]) -> Self {
        Self {
            strides: Some(strides.to_vec()),
            ..Self::contiguous(bytes)
        }
    }

    /// Sets the order of the bytes of an element. Default: that of this machine. Elements in another order are
    /// copied first, shard by shard.
    #[must_use]
    pub fn with_byte_order(mut self, order: Endianness) -> Self {
        let native = if cfg!(target_endian = "big") {
            Endianness::Big
        } else {
            Endianness::Little
        };
        self.order = (order != native).then_some(order);
        self
    }

    /// Checks that the memory has an array of `shape` with elements of `element_size` bytes.
    pub(super) fn source(self, shape: &[usize], element_size: usize) -> Result<Source<'a>, Kind> {
        let len = shape
            .iter()
            .try_fold(element_size, |len, extent| len.checked_mul(*extent));
        let strides = match self.strides {
            None if len == Some(self.bytes.len()) => strides(shape, element_size),
            None => {
                return Err(Kind::Input {
                    reason: format!(
                        "the input has {} bytes, and {shape:?} elements of {element_size} bytes take {}",
                        self.bytes.len(),
                        len.map_or("more than memory".to_string(), |len| len.to_string())
                    ),
                });
            }
            Some(strides) => {
                check(&strides, shape, element_size, self.bytes.len())?;
                strides
            }
        };
        Ok(Source {
            bytes: self.bytes,
            strides,
            order: self.order,
            element_size,
        })
    }
}

/// Checks that all elements are within `len` bytes.
fn check(strides: &[usize], shape: &[usize], element_size: usize, len: usize) -> Result<(), Kind> {
    let wrong = |what: String| Kind::Input {
        reason: format!(
            "strides of {strides:?} bytes for {shape:?} elements of {element_size} bytes: {what}"
        ),
    };
    if strides.len() != shape.len() {
        return Err(wrong("there must be one for each axis".to_owned()));
    }
    if shape.contains(&0) {
        return Ok(());
    }
    let mut axes = std::iter::zip(strides, shape);
    if axes.any(|(stride, extent)| *extent > 1 && *stride > 0 && *stride < element_size) {
        return Err(wrong(
            "elements would share bytes: strides are numbers of bytes, and not of elements"
                .to_owned(),
        ));
    }
    let mut axes = std::iter::zip(strides, shape);
    let end = axes.try_fold(element_size, |end, (stride, extent)| {
        end.checked_add(stride.checked_mul(extent - 1)?)
    });
    match end {
        Some(end) if end <= len => Ok(()),
        Some(end) => Err(wrong(format!(
            "the last element ends at byte {end}, and the input has {len} bytes"
        ))),
        None => Err(wrong("the last element is beyond all memory".to_owned())),
    }
}

/// Memory of the caller that has all elements of its boxes.
#[derive(Debug)]
pub(super) struct Source<'a> {
    bytes: &'a [u8],
    /// The strides of all axes, in bytes.
    pub(super) strides: Vec<usize>,
    order: Option<Endianness>,
    element_size: usize,
}

impl<'a> Source<'a> {
    /// Returns the memory from the byte `offset` on, if its elements are in the byte order of this machine.
    pub(super) fn native_from(&self, offset: usize) -> Option<&'a [u8]> {
        match self.order {
            None => self.bytes.get(offset..),
            Some(_) => None,
        }
    }

    /// Returns the elements of a box of `shape` whose first element is at the byte `offset`, in C order and in
    /// the byte order of this machine. They are borrowed if the memory has them like this.
    ///
    /// # Errors
    /// [`BoxWriterErrorKind::Memory`](crate::writer::BoxWriterErrorKind::Memory);
    /// [`BoxWriterErrorKind::Input`](crate::writer::BoxWriterErrorKind::Input) if elements of `data_type` have no
    /// such byte order.
    pub(super) fn elements(
        &self,
        shape: &[usize],
        offset: usize,
        data_type: &DataType,
    ) -> Result<Cow<'a, [u8]>, Kind> {
        let element_size = self.element_size;
        let len = shape.iter().product::<usize>() * element_size;
        let is_dense = std::iter::zip(&self.strides, strides(shape, element_size))
            .zip(shape)
            .all(|((stride, dense), extent)| *extent == 1 || *stride == dense);
        let all = if is_dense && len > 0 {
            Cow::Borrowed(&self.bytes[offset..offset + len])
        } else {
            let mut elements =
                allocate::with_capacity(len, ELEMENTS, true).map_err(|_| no_memory(len))?;
            self.copy_to(&mut elements, shape, offset);
            Cow::Owned(elements)
        };
        let Some(order) = self.order.filter(|_| len > 0) else {
            return Ok(all);
        };
        let extents = [NonZeroU64::new((len / element_size) as u64).unwrap_or(NonZeroU64::MIN)];
        let decoded = BytesCodec::new(Some(order)).decode(
            all,
            &extents,
            data_type,
            &FillValue::new(vec![0; element_size]),
            &CodecOptions::default(),
        );
        let decoded = decoded.and_then(|decoded| Ok(decoded.into_fixed()?));
        decoded.map_err(|error| Kind::Input {
            reason: format!("elements of {data_type} cannot be in another byte order: {error}"),
        })
    }

    /// Appends the elements of a box to `elements`.
    fn copy_to(&self, elements: &mut Vec<u8>, shape: &[usize], offset: usize) {
        let element_size = self.element_size;
        if shape.contains(&0) {
            return;
        }
        // The trailing axes without gaps form one run.
        let (mut run, mut outer) = (element_size, shape.len());
        while outer > 0 && (shape[outer - 1] == 1 || self.strides[outer - 1] == run) {
            run *= shape[outer - 1];
            outer -= 1;
        }
        let mut index = vec![0; outer];
        let mut at = offset;
        loop {
            elements.extend_from_slice(&self.bytes[at..at + run]);
            let mut axis = outer;
            loop {
                if axis == 0 {
                    return;
                }
                axis -= 1;
                index[axis] += 1;
                at += self.strides[axis];
                if index[axis] < shape[axis] {
                    break;
                }
                at -= shape[axis] * self.strides[axis];
                index[axis] = 0;
            }
        }
    }
}

/// The name of copied elements in errors about memory.
const ELEMENTS: &str = "the elements of a box";

pub(super) fn no_memory(bytes: usize) -> Kind {
    Kind::Memory {
        what: ELEMENTS,
        bytes,
    }
}

#[cfg(test)]
mod tests {
    use zarrs::array::data_type;

    use super::*;

    #[test]
    fn inputs_are_checked() {
        let bytes: Vec<u8> = (0..48).collect();
        let source = |strides: Option<&[usize]>, shape: &[usize]| {
            let input = match strides {
                None => Input::contiguous(&bytes),
                Some(strides) => Input::strided(&bytes, strides),
            };
            input.source(shape, 4)
        };
        assert_eq!(source(None, &[3, 4]).unwrap().strides, [16, 4]);
        let in_elements = source(Some(&[4, 1]), &[3, 4]).unwrap_err().to_string();
        assert!(
            in_elements.contains("strides are numbers of bytes"),
            "{in_elements}"
        );
        let error = source(None, &[3, 5]).unwrap_err().to_string();
        assert!(error.contains("48") && error.contains("60"), "{error}");
        assert!(source(None, &[usize::MAX, 2]).is_err());
        assert!(source(Some(&[24, 8]), &[2, 3]).is_ok());
        assert!(source(Some(&[24, 8]), &[2, 4]).is_err(), "beyond the end");
        assert!(source(Some(&[0, 4]), &[1000, 12]).is_ok(), "the same row");
        assert!(source(Some(&[4]), &[2, 2]).is_err(), "one axis is missing");
        assert!(source(Some(&[usize::MAX]), &[3]).is_err());
        assert!(source(Some(&[0, 0]), &[0, 9]).is_ok(), "no element");
    }

    #[test]
    fn elements_are_in_c_order_and_native() {
        let bytes: Vec<u8> = (0..24).collect();
        let uint16 = data_type::uint16();
        let source = Input::strided(&bytes, &[2, 8]).source(&[3, 3], 2).unwrap();
        let elements = source.elements(&[2, 2], 2, &uint16).unwrap();
        assert_eq!(*elements, [2, 3, 10, 11, 4, 5, 12, 13]);
        let big = Input::contiguous(&bytes[..4]).with_byte_order(Endianness::Big);
        let source = big.source(&[2], 2).unwrap();
        let expected = [0x0001_u16, 0x0203].map(u16::to_ne_bytes).concat();
        assert_eq!(*source.elements(&[2], 0, &uint16).unwrap(), expected);
        let whole = Input::contiguous(&bytes).source(&[3, 4], 2).unwrap();
        let row = whole.elements(&[1, 4], 8, &uint16).unwrap();
        assert!(matches!(row, Cow::Borrowed(_)));
    }
}
