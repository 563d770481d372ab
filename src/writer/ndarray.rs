//! Arrays of `ndarray`, and views of them.

use ndarray::{ArrayBase, Data, Dimension};
use zarrs::array::Element;

use super::ArrayWriter;
use super::error::WriterError;

impl ArrayWriter {
    /// Append the elements of `array`, which may be a view, in its logical order, which is C order of
    /// its axes: any number of them. What is in standard layout is appended as it lies; of others, rows
    /// along the last axis are, copied if they are not contiguous.
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub fn append_ndarray<S, D>(&mut self, array: &ArrayBase<S, D>) -> Result<(), WriterError>
    where
        S: Data<Elem: Element>,
        D: Dimension,
    {
        if let Some(elements) = array.as_slice() {
            return self.append(elements);
        }
        for row in array.rows() {
            match row.as_slice() {
                Some(elements) => self.append(elements)?,
                None => self.append(&row.to_vec())?,
            }
        }
        Ok(())
    }
}
