//! The elements that a subchunk shares with a window of its shard.

use super::{ByteRows, SubchunkGrid};

/// The box of elements that a subchunk and a window share, with coordinates in both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubchunkPart {
    /// The coordinates in the subchunk of the first shared element.
    in_subchunk: Vec<usize>,
    /// The coordinates in the window of the first shared element.
    in_window: Vec<usize>,
    shape: Vec<usize>,
    subchunk: Vec<usize>,
    element_size: usize,
}

impl SubchunkPart {
    /// Returns the elements that subchunk `number` shares with the window from `start` of shape `shape`.
    pub fn new(grid: &SubchunkGrid, number: usize, start: &[usize], shape: &[usize]) -> Self {
        let origin = grid.origin(number);
        let mut part = Self {
            in_subchunk: Vec::with_capacity(start.len()),
            in_window: Vec::with_capacity(start.len()),
            shape: Vec::with_capacity(start.len()),
            subchunk: grid.subchunk().to_vec(),
            element_size: grid.element_size(),
        };
        for (((origin, extent), start), window) in
            origin.iter().zip(grid.subchunk()).zip(start).zip(shape)
        {
            let first = *origin.max(start);
            let end = (origin + extent).min(start + window);
            part.in_subchunk.push(first - origin);
            part.in_window.push(first - start);
            part.shape.push(end.saturating_sub(first));
        }
        part
    }

    /// Returns the extents of the part, in elements.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the coordinates in the subchunk of the part's first element.
    pub fn start_in_subchunk(&self) -> &[usize] {
        &self.in_subchunk
    }

    /// Returns the coordinates in the window of the part's first element.
    pub fn start_in_window(&self) -> &[usize] {
        &self.in_window
    }

    /// Returns the size of an element, in bytes.
    pub(crate) fn element_size(&self) -> usize {
        self.element_size
    }

    /// Returns whether the part is the whole subchunk.
    pub fn is_whole(&self) -> bool {
        self.shape == self.subchunk
    }

    /// Returns the size of the part, in bytes.
    pub fn len(&self) -> usize {
        self.shape.iter().product::<usize>() * self.element_size
    }

    /// Returns the length in bytes of a row of the part, along the last axis.
    pub fn row_len(&self) -> usize {
        self.shape.last().map_or(1, |&extent| extent) * self.element_size
    }

    /// Returns, for each row of the part, its offset in the decoded subchunk, and its offset in a window of
    /// shape `window`, in bytes.
    pub fn rows(&self, window: &[usize]) -> impl Iterator<Item = (usize, usize)> {
        let outer = self.shape.len().saturating_sub(1);
        let rows = if self.len() == 0 {
            0
        } else {
            self.shape[..outer].iter().product()
        };
        let strides = [&self.subchunk[..], window].map(|shape| strides(shape, self.element_size));
        let first = (
            self.offset_in_subchunk(&strides[0]),
            self.offset_in_window(&strides[1]),
        );
        (0..rows).map(move |mut row: usize| {
            let (mut in_subchunk, mut in_window) = first;
            for axis in (0..outer).rev() {
                let at = row % self.shape[axis];
                row /= self.shape[axis];
                in_subchunk += at * strides[0][axis];
                in_window += at * strides[1][axis];
            }
            (in_subchunk, in_window)
        })
    }

    /// Returns the bytes of the part in the decoded subchunk, whose axes have these `strides`.
    pub fn byte_rows(&self, strides: &[usize]) -> ByteRows {
        let first = self.offset_in_subchunk(strides);
        ByteRows::new(first, &self.shape, strides, self.element_size)
    }

    /// Returns the offset in bytes of the part in the decoded subchunk, whose axes have these `strides`.
    pub(crate) fn offset_in_subchunk(&self, strides: &[usize]) -> usize {
        dot(&self.in_subchunk, strides)
    }

    /// Returns the offset in bytes of the part in the window, whose axes have these `strides`.
    pub(crate) fn offset_in_window(&self, strides: &[usize]) -> usize {
        dot(&self.in_window, strides)
    }
}

fn dot(a: &[usize], b: &[usize]) -> usize {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Returns the stride in bytes of each axis of an array that is stored with its axes in `order`.
pub fn strides_in(order: &[usize], shape: &[usize], element_size: usize) -> Vec<usize> {
    let mut strides = vec![0; shape.len()];
    let mut step = element_size;
    for &axis in order.iter().rev() {
        strides[axis] = step;
        step *= shape[axis];
    }
    strides
}

/// Returns the strides of a C-order array, in bytes.
pub fn strides(shape: &[usize], element_size: usize) -> Vec<usize> {
    let mut strides = vec![element_size; shape.len()];
    for d in (0..shape.len().saturating_sub(1)).rev() {
        strides[d] = strides[d + 1] * shape[d + 1];
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_seen_from_both_sides() {
        let grid = SubchunkGrid::new(&[4, 6], &[2, 3], 2).expect("divides");
        let part = SubchunkPart::new(&grid, 3, &[1, 2], &[3, 3]);
        assert_eq!(part.shape(), [2, 2]);
        assert_eq!(part.start_in_subchunk(), [0, 0]);
        assert_eq!(part.start_in_window(), [1, 1]);
        assert_eq!(part.offset_in_window(&strides(&[3, 3], 2)), (3 + 1) * 2);
        assert!(!part.is_whole());
        assert!(SubchunkPart::new(&grid, 2, &[0, 0], &[4, 6]).is_whole());
        assert_eq!(SubchunkPart::new(&grid, 0, &[2, 3], &[2, 3]).len(), 0);
    }

    #[test]
    fn strides_follow_the_order_of_axes() {
        assert_eq!(strides(&[2, 3, 5], 4), [60, 20, 4]);
        assert_eq!(strides_in(&[0, 1, 2], &[2, 3, 5], 4), [60, 20, 4]);
        assert_eq!(strides_in(&[2, 0, 1], &[2, 3, 5], 4), [12, 4, 24]);
        assert_eq!(strides_in(&[], &[], 4), [0; 0]);
    }
}
