//! Reading into arrays of `ndarray`.

use ndarray::{ArrayD, ArrayViewMut, Dimension, IxDyn};
use zarrs::array::{ArraySubsetTraits, Element};
use zarrs_storage::ReadableStorageTraits;

use super::{ArrayReader, Output, ReadReport, ReaderError, extents};

impl<TStorage: ?Sized + ReadableStorageTraits + 'static> ArrayReader<TStorage> {
    /// Reads the elements of `subset` into a new array.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn read_ndarray<T: Element + bytemuck::Pod>(
        &self,
        subset: &dyn ArraySubsetTraits,
    ) -> Result<ArrayD<T>, ReaderError> {
        let shape = IxDyn(&extents(&subset.shape())?);
        let elements = self.read(subset)?;
        ArrayD::from_shape_vec(shape, elements).map_err(|error| ReaderError::Output {
            reason: format!("ndarray refuses the elements: {error}"),
        })
    }

    /// Reads the elements of `subset` into `output`. The strides of its axes may be any that are not
    /// negative.
    ///
    /// # Errors
    /// The errors of [`read_into`](Self::read_into), and [`ReaderError::Output`] if `output` has another
    /// shape, or an axis is reversed.
    pub fn read_into_ndarray<T: Element + bytemuck::Pod, D: Dimension>(
        &self,
        subset: &dyn ArraySubsetTraits,
        mut output: ArrayViewMut<'_, T, D>,
    ) -> Result<ReadReport, ReaderError> {
        self.check_type::<T>()?;
        let wrong = |what: &str| ReaderError::Output {
            reason: format!(
                "a view of shape {:?} and strides {:?} for a box of shape {:?}: {what}",
                output.shape(),
                output.strides(),
                subset.shape()
            ),
        };
        if output.shape() != extents(&subset.shape())? {
            return Err(wrong("the shapes differ"));
        }
        if output.is_empty() {
            return Ok(ReadReport::default());
        }
        let (mut strides, mut span) = (Vec::new(), 1);
        for (extent, stride) in std::iter::zip(output.shape(), output.strides()) {
            // The stride of an axis with one element is never used.
            let stride = if *extent == 1 { 0 } else { *stride };
            let stride = usize::try_from(stride).map_err(|_| wrong("an axis is reversed"))?;
            strides.push(stride * size_of::<T>());
            span += (extent - 1) * stride;
        }
        let (start, len) = (output.as_mut_ptr().cast(), span * size_of::<T>());
        // SAFETY: the view borrows its elements mutably for the whole call, and the output changes no other
        // bytes.
        let output = unsafe { Output::of_elements(start, len, strides) };
        self.read_bytes_into(subset, output)
    }
}
