//! Writing arrays and views of `ndarray`.

use ndarray::{ArrayBase, Data, Dimension};
use zarrs::array::{ArraySubsetTraits, Element};
use zarrs_storage::{ListableStorageTraits, ReadableWritableStorageTraits};

use super::error::BoxWriterErrorKind as Kind;
use super::{BoxReport, BoxWriter, BoxWriterError, Input, extents};

impl<TStorage> BoxWriter<TStorage>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + ListableStorageTraits + 'static,
{
    /// Writes the elements of `elements`, which may be a view, to the box `subset`.
    ///
    /// An array whose elements are contiguous in memory is written without a copy, whatever the order of its axes.
    /// Another view is copied first.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write), and
    /// [`BoxWriterErrorKind::Input`](crate::writer::BoxWriterErrorKind::Input) if `elements` has another shape.
    pub fn write_ndarray<S, D>(
        &self,
        subset: &dyn ArraySubsetTraits,
        elements: &ArrayBase<S, D>,
    ) -> Result<BoxReport, BoxWriterError>
    where
        S: Data<Elem: Element + bytemuck::Pod>,
        D: Dimension,
    {
        if elements.shape() != extents(&subset.shape())? {
            return Err(Kind::Input {
                reason: format!(
                    "an array of shape {:?} for a box of shape {:?}",
                    elements.shape(),
                    subset.shape()
                ),
            }
            .into());
        }
        let strides = elements.strides().iter();
        let strides: Result<Vec<usize>, _> = strides
            .map(|stride| usize::try_from(*stride).map(|stride| stride * size_of::<S::Elem>()))
            .collect();
        match (elements.as_slice_memory_order(), strides) {
            (Some(slice), Ok(strides)) => {
                // The type is checked as for a slice of elements.
                self.bytes(slice.get(..1).unwrap_or_default())?;
                let bytes = bytemuck::must_cast_slice(slice);
                self.write_bytes(subset, Input::strided(bytes, &strides))
            }
            _ => self.write(subset, &elements.iter().copied().collect::<Vec<_>>()),
        }
    }
}
