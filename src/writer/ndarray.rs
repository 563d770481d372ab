//! Views of `ndarray`.

use ndarray::{ArrayView, Dimension};
use zarrs::array::Element;

use super::ArrayWriter;
use super::error::WriterError;

impl ArrayWriter {
    /// Append the elements of `view` in its logical order, which is C order of its axes: any number of
    /// them. A view in standard layout is appended as it lies; of others, rows along the last axis
    /// are, copied if they are not contiguous.
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub fn append_ndarray<T: Element, D: Dimension>(
        &mut self,
        view: ArrayView<'_, T, D>,
    ) -> Result<(), WriterError> {
        if let Some(elements) = view.as_slice() {
            return self.append(elements);
        }
        for row in view.rows() {
            match row.as_slice() {
                Some(elements) => self.append(elements)?,
                None => self.append(&row.to_vec())?,
            }
        }
        Ok(())
    }
}
