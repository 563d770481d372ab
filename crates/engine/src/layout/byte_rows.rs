//! The bytes of a box of elements in a larger box, as rows of equal length.

use std::ops::Range;

/// The bytes of a box of elements in the larger box that is stored: rows of equal length at regular offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByteRows {
    first: usize,
    row: usize,
    /// The number of rows along each axis, and the step between them in bytes; the shortest step first.
    axes: Vec<(usize, usize)>,
}

impl ByteRows {
    /// Returns the rows of a box of elements of `element_size` bytes. The box has `extents` elements along each
    /// axis, `strides` bytes apart, and begins at the byte `first`.
    pub fn new(first: usize, extents: &[usize], strides: &[usize], element_size: usize) -> Self {
        let is_empty = extents.contains(&0);
        let axes = std::iter::zip(extents, strides).filter(|(extent, _)| **extent != 1);
        let mut axes: Vec<(usize, usize)> = axes.map(|(extent, step)| (*extent, *step)).collect();
        if is_empty {
            axes = vec![(0, element_size)];
        }
        axes.sort_by_key(|(_, step)| *step);
        let elements = Self {
            first,
            row: element_size,
            axes,
        };
        elements.joined(0)
    }

    /// Joins rows that are at most `gap` bytes apart, with the bytes between them.
    #[must_use]
    pub fn joined(mut self, gap: u64) -> Self {
        // Rows are not closer along an axis with longer steps.
        while let Some((extent, step)) = self.axes.first().copied()
            && extent > 0
            && step.saturating_sub(self.row) as u64 <= gap
        {
            self.row += (extent - 1) * step;
            self.axes.remove(0);
        }
        self
    }

    /// Returns the number of bytes of a row.
    pub fn row_len(&self) -> usize {
        self.row
    }

    /// Returns the number of rows.
    pub fn count(&self) -> usize {
        self.axes.iter().map(|(extent, _)| extent).product()
    }

    /// Returns the range of bytes of each row, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Range<usize>> {
        (0..self.count()).map(|mut number| {
            let mut start = self.first;
            for (extent, step) in &self.axes {
                start += number % extent * step;
                number /= extent;
            }
            start..start + self.row
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::layout::{c_order, strides_in};

    proptest! {
        /// Compares the rows with the bytes of each element.
        #[test]
        fn rows_are_the_bytes_of_the_elements(
            axes in prop::collection::vec((0_usize..4, 0_usize..3, 0_usize..3), 0..4),
            order in Just(vec![0, 1, 2, 3]).prop_shuffle(),
            size in 1_usize..4,
            gap in 0_usize..40,
        ) {
            let order: Vec<usize> = order.into_iter().filter(|axis| *axis < axes.len()).collect();
            let each = |f: &dyn Fn(&(usize, usize, usize)) -> usize| -> Vec<usize> {
                axes.iter().map(f).collect()
            };
            let (extents, before) = (each(&|axis| axis.0), each(&|axis| axis.1));
            let stored = each(&|axis| axis.1 + axis.0 + axis.2);
            let strides = strides_in(&order, &stored, size);
            let offset = |at: &[usize]| -> usize {
                std::iter::zip(at, &strides).map(|(at, stride)| at * stride).sum()
            };
            let mut expected: Vec<usize> = (0..extents.iter().product())
                .map(|number| offset(&before) + offset(&c_order::coordinates(number, &extents)))
                .flat_map(|start| start..start + size)
                .collect();
            expected.sort_unstable();
            let rows = ByteRows::new(offset(&before), &extents, &strides, size);
            let found: Vec<usize> = rows.iter().flatten().collect();
            prop_assert_eq!(&found, &expected);
            prop_assert!(rows.iter().all(|row| row.len() == rows.row_len()));
            let ends = |rows: &ByteRows| rows.iter().collect::<Vec<_>>();
            let are_apart = |rows: &[Range<usize>], gap: usize| {
                rows.windows(2).all(|pair| pair[0].end + gap < pair[1].start)
            };
            prop_assert!(are_apart(&ends(&rows), 0), "as long as they can be");

            // The joined rows are those that a list of all rows gives.
            let mut merged: Vec<Range<usize>> = Vec::new();
            for row in rows.iter() {
                match merged.last_mut() {
                    Some(last) if row.start <= last.end + gap => last.end = row.end,
                    _ => merged.push(row),
                }
            }
            prop_assert_eq!(ends(&rows.joined(gap as u64)), merged);
        }
    }
}
