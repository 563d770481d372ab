//! Appends arrays and views of `ndarray`.

use ndarray::{ArrayBase, Data, Dimension};
use zarrs::array::Element;

use super::appending::Appending;
use super::error::WriterError;
use super::handle::Writer;

impl<W: Appending> Writer<W> {
    /// Appends the elements of `array`, which may be a view, in C order of its axes. Any number of elements
    /// is allowed.
    ///
    /// An array in standard layout is appended without a copy of its elements. Otherwise rows along the last
    /// axis are
    /// appended one by one, and copied first if they are not contiguous.
    ///
    /// # Errors
    /// The errors of [`append`](Self::append).
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
