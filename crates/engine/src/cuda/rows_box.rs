//! Boxes of rows that are copied from one layout of bytes to another, in few operations of the driver.

use std::ops::Range;

use super::driver::{Rows, RowsShape, Span};

/// A box of rows, which lie on the side that is read and on the side that is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowsBox {
    /// The offset at which the box begins on the side that is read, and on the side that is written.
    pub(super) from: usize,
    pub(super) to: usize,
    /// The extent along each axis; the last axis counts bytes.
    pub(super) shape: Vec<usize>,
    /// The strides along each axis, in bytes.
    pub(super) from_strides: Vec<usize>,
    pub(super) to_strides: Vec<usize>,
}

/// The rows of a [`RowsBox`] that one operation of the driver copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowsCopy {
    pub(super) shape: RowsShape,
    pub(super) from: RowsPlace,
    pub(super) to: RowsPlace,
}

/// The places of the rows of a [`RowsCopy`], on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowsPlace {
    /// The offset at which the first row begins, in bytes.
    pub(super) start: usize,
    /// The number of bytes from the begin of one row to the begin of the next.
    pub(super) pitch: usize,
    /// The number of rows from the begin of one plane to the begin of the next.
    pub(super) height: usize,
}

impl RowsPlace {
    /// Returns the range from the beginning of the first row to the end of the last one, in bytes.
    pub(super) fn bytes(&self, shape: RowsShape) -> Range<usize> {
        let last = ((shape.planes - 1) * self.height + shape.rows - 1) * self.pitch;
        self.start..self.start + last + shape.row
    }

    /// Returns the rows at this place, whose bytes are `span`.
    pub(super) fn in_span(self, span: Span) -> Rows {
        Rows {
            span,
            pitch: self.pitch,
            height: self.height,
        }
    }
}

impl RowsBox {
    /// Returns the box of `len` contiguous bytes.
    pub(super) fn bytes(from: usize, to: usize, len: usize) -> Self {
        Self {
            from,
            to,
            shape: vec![len],
            from_strides: vec![1],
            to_strides: vec![1],
        }
    }

    /// Divides the box into few copies, with pitches of at most `largest_pitch` bytes. A copy of rows has
    /// three dimensions, so each step along further axes needs a separate copy. Rows that are farther from
    /// each other than the largest pitch are copied one by one.
    pub(super) fn copies(&self, largest_pitch: usize) -> impl Iterator<Item = RowsCopy> + use<> {
        let (row, mut axes) = self.merged();
        let alone = |rows: RepeatedAxis| RepeatedAxis {
            extent: 1,
            from: rows.from * rows.extent,
            to: rows.to * rows.extent,
        };
        let bytes = RepeatedAxis {
            extent: row,
            from: 1,
            to: 1,
        };
        let are_rows = |step: &mut RepeatedAxis| {
            step.from.min(step.to) >= row && step.from.max(step.to) <= largest_pitch
        };
        let rows = axes.pop_if(are_rows).unwrap_or(alone(bytes));
        let are_planes = |step: &mut RepeatedAxis| {
            let heights = (step.from / rows.from, step.to / rows.to);
            (heights.0 * rows.from, heights.1 * rows.to) == (step.from, step.to)
                && heights.0.min(heights.1) >= rows.extent
                && rows.extent > 1
        };
        let planes = axes.pop_if(are_planes).unwrap_or(alone(rows));
        let shape = RowsShape {
            planes: planes.extent,
            rows: rows.extent,
            row,
        };
        let (from, to) = (self.from, self.to);
        let place = |start, pitch, plane| RowsPlace {
            start,
            pitch,
            height: plane / pitch,
        };
        (0..axes.iter().map(|step| step.extent).product()).map(move |number: usize| {
            let (mut rest, mut from, mut to) = (number, from, to);
            for step in axes.iter().rev() {
                from += rest % step.extent * step.from;
                to += rest % step.extent * step.to;
                rest /= step.extent;
            }
            RowsCopy {
                shape,
                from: place(from, rows.from, planes.from),
                to: place(to, rows.to, planes.to),
            }
        })
    }

    /// Returns the number of bytes of a row, and the axes over which rows repeat, the slowest first. An axis
    /// that has no gaps on both sides is part of the row, or of the axis behind
    /// it.
    fn merged(&self) -> (usize, Vec<RepeatedAxis>) {
        let mut row = 1;
        let mut axes: Vec<RepeatedAxis> = Vec::new();
        let strides = std::iter::zip(&self.from_strides, &self.to_strides);
        for (&extent, (&from, &to)) in std::iter::zip(&self.shape, strides).rev() {
            if extent == 1 {
                continue;
            }
            match axes.last_mut() {
                None if (from, to) == (row, row) => row *= extent,
                Some(faster)
                    if from == faster.from * faster.extent && to == faster.to * faster.extent =>
                {
                    faster.extent *= extent;
                }
                _ => axes.push(RepeatedAxis { extent, from, to }),
            }
        }
        axes.reverse();
        (row, axes)
    }

    /// Returns the rows of the box: the offset of each on both sides, and its length.
    #[cfg(test)]
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let (row, outer) = self
            .shape
            .split_last()
            .map_or((0, &[][..]), |(r, o)| (*r, o));
        (0..outer.iter().product()).map(move |number| {
            let mut rest: usize = number;
            let (mut from, mut to) = (self.from, self.to);
            for (axis, extent) in outer.iter().enumerate().rev() {
                from += rest % extent * self.from_strides[axis];
                to += rest % extent * self.to_strides[axis];
                rest /= extent;
            }
            (from, to, row)
        })
    }
}

/// An axis over which rows repeat. The steps are the bytes from one row to the next, on both sides.
#[derive(Clone, Copy, Debug)]
struct RepeatedAxis {
    extent: usize,
    from: usize,
    to: usize,
}
