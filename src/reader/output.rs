//! The output of a read: memory of the caller.

use std::marker::PhantomData;

use super::ReaderError;
use zarrs_cuda_engine::layout;

/// Memory for the elements of a box, each in the byte order of this machine.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// # array.store_array_subset(&array.subset_all(), (0..64 * 64).collect::<Vec<u16>>())?;
/// use zarrs_cuda::reader::{ArrayReader, Output};
///
/// let reader = ArrayReader::builder(&array).build()?;
/// // Two rows and three columns, stored column after column.
/// let mut columns = [0_u16; 6];
/// let output = Output::strided(bytemuck::cast_slice_mut(&mut columns), &[2, 2 * 2]);
/// reader.read_bytes_into(&[0..2, 0..3], output)?;
/// assert_eq!(columns, [0, 64, 1, 65, 2, 66]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Output<'a> {
    start: *mut u8,
    len: usize,
    /// The distance from one element to the next along each axis, in bytes; `None` for C order.
    strides: Option<Vec<usize>>,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: an `Output` is a mutable borrow of bytes, and nothing else.
unsafe impl Send for Output<'_> {}
// SAFETY: an `Output` is a mutable borrow of bytes; a shared reference to it gives no access to the bytes.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    /// Returns an output for elements in C order, without gaps. `bytes` must be exactly as long as all
    /// elements.
    #[must_use]
    pub fn contiguous(bytes: &'a mut [u8]) -> Self {
        Self {
            start: bytes.as_mut_ptr(),
            len: bytes.len(),
            strides: None,
            memory: PhantomData,
        }
    }

    /// Returns an output whose first element is at the start of `bytes`. `strides` has, for each axis, the
    /// number of bytes from one element to the next.
    ///
    /// Bytes between elements are not changed. Elements may not overlap: in the order of their strides, each
    /// axis must step over all elements of the axes before. `bytes` must reach to the end of the last
    /// element. The call that reads checks both conditions.
    ///
    /// `bytemuck` converts a slice of elements to bytes:
    ///
    /// ```
    /// # use zarrs_cuda::reader::Output;
    /// let mut pixels = vec![0_u16; 480 * 1024];
    /// // Rows of 640 pixels, which begin 1024 pixels apart.
    /// let output = Output::strided(bytemuck::cast_slice_mut(&mut pixels), &[1024 * 2, 2]);
    /// # drop(output);
    /// ```
    #[must_use]
    pub fn strided(bytes: &'a mut [u8], strides: &[usize]) -> Self {
        Self {
            strides: Some(strides.to_vec()),
            ..Self::contiguous(bytes)
        }
    }

    /// Returns an output of `len` bytes from `start` on, with `strides` in bytes. Other code may borrow the
    /// bytes between the elements: see [`strided`](Self::strided).
    ///
    /// # Safety
    /// All elements are within `len` bytes from `start` on, and are borrowed mutably for `'a`.
    pub unsafe fn of_elements(start: *mut u8, len: usize, strides: Vec<usize>) -> Self {
        Self {
            start,
            len,
            strides: Some(strides),
            memory: PhantomData,
        }
    }

    /// Checks that the memory fits an array of `shape` with elements of `element_size` bytes, and returns it
    /// as the place for the array.
    pub(super) fn place(
        &mut self,
        shape: &[usize],
        element_size: usize,
    ) -> Result<ArrayInMemory<'_>, ReaderError> {
        let len = shape
            .iter()
            .try_fold(element_size, |len, extent| len.checked_mul(*extent));
        let strides = match &self.strides {
            None if len == Some(self.len) => layout::strides(shape, element_size),
            None => {
                return Err(ReaderError::Output {
                    reason: format!(
                        "the output has {} bytes, and {shape:?} elements of {element_size} bytes take {}",
                        self.len,
                        len.map_or("more than memory".to_string(), |len| len.to_string())
                    ),
                });
            }
            Some(strides) => {
                check(strides, shape, element_size, self.len)?;
                strides.clone()
            }
        };
        Ok(ArrayInMemory {
            start: self.start,
            len: self.len,
            strides,
            memory: PhantomData,
        })
    }
}

/// Checks that no two elements overlap, and that all elements are within `len` bytes.
pub(super) fn check(
    strides: &[usize],
    shape: &[usize],
    element_size: usize,
    len: usize,
) -> Result<(), ReaderError> {
    let wrong = |what: &str| ReaderError::Output {
        reason: format!(
            "strides of {strides:?} bytes for {shape:?} elements of {element_size} bytes: {what}"
        ),
    };
    if strides.len() != shape.len() {
        return Err(wrong("there must be one for each axis"));
    }
    if shape.contains(&0) {
        return Ok(());
    }
    let mut axes: Vec<(usize, usize)> = std::iter::zip(strides, shape)
        .map(|(stride, extent)| (*stride, *extent))
        .filter(|(_, extent)| *extent > 1)
        .collect();
    axes.sort_unstable();
    let mut span = element_size;
    for (stride, extent) in axes {
        if stride < span {
            return Err(wrong("elements would overlap"));
        }
        let steps = stride.checked_mul(extent - 1);
        span = steps
            .and_then(|steps| steps.checked_add(span))
            .ok_or_else(|| wrong("the last element is beyond all memory"))?;
    }
    if span > len {
        return Err(wrong(&format!(
            "the last element ends at byte {span}, and the output has {len} bytes"
        )));
    }
    Ok(())
}

/// The place of an array in memory. Its elements do not overlap, and all of them are inside the memory.
#[derive(Debug)]
pub(super) struct ArrayInMemory<'a> {
    start: *mut u8,
    len: usize,
    pub(super) strides: Vec<usize>,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: it is a mutable borrow of bytes, as an `Output` is.
unsafe impl Send for ArrayInMemory<'_> {}
// SAFETY: threads that share it write different elements through the pointer.
unsafe impl Sync for ArrayInMemory<'_> {}

impl ArrayInMemory<'_> {
    /// Returns the memory from byte `offset` on, and its length.
    pub(super) fn from(&self, offset: usize) -> (*mut u8, usize) {
        let offset = offset.min(self.len);
        // The pointer is within the allocation, or at its end.
        (self.start.wrapping_add(offset), self.len - offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_checked() {
        let mut bytes = vec![0; 48];
        let mut place = |strides: Option<&[usize]>, shape: &[usize]| {
            let mut output = match strides {
                None => Output::contiguous(&mut bytes),
                Some(strides) => Output::strided(&mut bytes, strides),
            };
            output.place(shape, 4).map(|place| place.strides)
        };
        assert_eq!(place(None, &[3, 4]).unwrap(), [16, 4]);
        let error = place(None, &[3, 5]).unwrap_err().to_string();
        assert!(error.contains("48") && error.contains("60"), "{error}");
        assert!(place(None, &[usize::MAX, 2]).is_err());
        assert_eq!(place(Some(&[4, 12]), &[3, 4]).unwrap(), [4, 12]);
        assert_eq!(place(Some(&[24, 8]), &[2, 3]).unwrap(), [24, 8]);
        assert!(place(Some(&[24, 8]), &[2, 4]).is_err(), "beyond the end");
        assert!(place(Some(&[4, 8]), &[3, 4]).is_err(), "overlap");
        assert!(place(Some(&[3]), &[2]).is_err(), "overlap");
        assert!(place(Some(&[0]), &[2]).is_err(), "overlap");
        assert!(place(Some(&[0]), &[1]).is_ok(), "one element");
        assert!(place(Some(&[4]), &[2, 2]).is_err(), "one axis is missing");
        assert!(place(Some(&[usize::MAX]), &[3]).is_err());
        assert!(place(Some(&[0, 0]), &[0, 9]).is_ok(), "no element");
    }
}
