//! Pads the slices of a batch to whole subchunks.
//!
//! On the device, a batch is one box of whole subchunks in C order, also at the edges of the array. Along
//! each axis but the first, fill values follow the elements, up to the end of the last subchunk. So the box
//! is scattered in one dense slab after the other. An application's slices have no padding. If the array
//! needs no padding, the padded slices and the application's slices have the same bytes.

use std::ops::Range;

use crate::cuda::rows_box::RowsBox;
use crate::layout::StreamGrid;

/// The places of the bytes of slices among the bytes of the padded slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Padding {
    /// The number of bytes that are contiguous with and without padding. If there is no padding, all slices
    /// are contiguous.
    row: usize,
    /// The axes over which rows repeat, the slowest first. The first axis has no limit. The list is empty if
    /// there is no padding.
    axes: Vec<Axis>,
    /// The number of bytes of a slice with its padding.
    padded_slice: usize,
}

/// An axis over which rows repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    extent: usize,
    /// The number of padded bytes from one step along the axis to the next.
    padded: usize,
    /// The number of rows from one step along the axis to the next.
    rows: usize,
}

impl Padding {
    pub(super) fn new(grid: &StreamGrid) -> Self {
        let subchunk = &grid.shard().subchunk()[1..];
        let inner = grid.inner();
        // `StreamGrid` guarantees that these products do not overflow.
        let padded: Vec<usize> = std::iter::zip(inner, subchunk)
            .map(|(extent, subchunk)| extent.next_multiple_of(*subchunk))
            .collect();
        let element = grid.shard().element_size();
        let padded_slice = padded.iter().product::<usize>() * element;
        let mut row = element;
        let mut axis = inner.len();
        let mut padded_row = element;
        while axis > 0 && row == padded_row {
            axis -= 1;
            row *= inner[axis];
            padded_row *= padded[axis];
        }
        let mut axes = Vec::new();
        if row < padded_row {
            let (mut rows, mut stride) = (1, padded_row);
            for axis in (0..axis).rev() {
                axes.push(Axis {
                    extent: inner[axis],
                    padded: stride,
                    rows,
                });
                rows *= inner[axis];
                stride *= padded[axis];
            }
            axes.push(Axis {
                extent: usize::MAX,
                padded: stride,
                rows,
            });
            axes.reverse();
        }
        Self {
            row,
            axes,
            padded_slice,
        }
    }

    /// Returns whether slices have any padding.
    pub(super) fn exists(&self) -> bool {
        !self.axes.is_empty()
    }

    /// Returns the number of bytes of a slice with its padding.
    pub(super) fn padded_slice(&self) -> usize {
        self.padded_slice
    }

    /// Returns the offset among the padded bytes of the byte at offset `at` of the slices without padding.
    pub(super) fn padded(&self, at: usize) -> usize {
        if !self.exists() {
            return at;
        }
        let mut rest = at / self.row;
        let mut padded = at % self.row;
        for axis in &self.axes {
            padded += rest / axis.rows * axis.padded;
            rest %= axis.rows;
        }
        padded
    }

    /// Returns the range of the padded bytes from the first to the last of `bytes`, with the padding between
    /// them.
    pub(super) fn around(&self, bytes: &Range<usize>) -> Range<usize> {
        if bytes.is_empty() {
            return 0..0;
        }
        self.padded(bytes.start)..self.padded(bytes.end - 1) + 1
    }

    /// Divides the bytes `at..at + len` into boxes of rows. The number of boxes is small, however many rows
    /// the bytes have.
    pub(super) fn pieces(&self, at: usize, len: usize) -> Vec<RowsBox> {
        let mut pieces = Vec::new();
        if len == 0 {
            return pieces;
        }
        if !self.exists() {
            pieces.push(RowsBox::bytes(0, at, len));
            return pieces;
        }
        let end = at + len;
        let (mut first, last) = (at / self.row, end / self.row);
        if !at.is_multiple_of(self.row) || first == last {
            let len = len.min(self.row - at % self.row);
            pieces.push(RowsBox::bytes(0, self.padded(at), len));
            first += 1;
        }
        if first < last {
            let from = first * self.row - at;
            self.boxes(&self.axes, (from, 0), first..last, &mut pieces);
        }
        if first <= last && !end.is_multiple_of(self.row) {
            let start = last * self.row;
            pieces.push(RowsBox::bytes(start - at, self.padded(start), end - start));
        }
        pieces
    }

    /// Divides `rows` into boxes over `axes`, and adds these to `pieces`. The first of `rows` begins at
    /// `from` in the given bytes, and row 0 of `axes` begins at `to` in the padded bytes.
    fn boxes(
        &self,
        axes: &[Axis],
        (from, to): (usize, usize),
        rows: Range<usize>,
        pieces: &mut Vec<RowsBox>,
    ) {
        let Some((axis, faster)) = axes.split_first() else {
            return;
        };
        if rows.is_empty() {
            return;
        }
        let step = axis.rows;
        let (whole, whole_end) = (rows.start.div_ceil(step), rows.end / step);
        // `of_step` is the range of rows within one step, in the numbers of the faster axes.
        let mut part = |number: usize, of_step: Range<usize>| {
            let at = from + (number * step + of_step.start - rows.start) * self.row;
            self.boxes(faster, (at, to + number * axis.padded), of_step, pieces);
        };
        if whole > whole_end {
            let first = whole_end * step;
            part(whole_end, rows.start - first..rows.end - first);
            return;
        }
        if rows.start < whole * step {
            part(whole - 1, rows.start - (whole - 1) * step..step);
        }
        if whole < whole_end {
            let mut shape = vec![whole_end - whole];
            shape.extend(faster.iter().map(|axis| axis.extent));
            shape.push(self.row);
            let strides = |stride: fn(&Axis, usize) -> usize| {
                let of_rows = axes.iter().map(|axis| stride(axis, self.row));
                of_rows.chain([1]).collect()
            };
            pieces.push(RowsBox {
                from: from + (whole * step - rows.start) * self.row,
                to: to + whole * axis.padded,
                shape,
                from_strides: strides(|axis, row| axis.rows * row),
                to_strides: strides(|axis, _| axis.padded),
            });
        }
        let mut part = |number: usize, of_step: Range<usize>| {
            let at = from + (number * step + of_step.start - rows.start) * self.row;
            self.boxes(faster, (at, to + number * axis.padded), of_step, pieces);
        };
        if whole_end * step < rows.end {
            part(whole_end, 0..rows.end - whole_end * step);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cuda::driver::RowsShape;
    use crate::cuda::rows_box::{RowsCopy, RowsPlace};
    use crate::layout::SubchunkGrid;

    fn grid(first: u64, axes: &[(u64, u64)], element: usize) -> StreamGrid {
        let mut subchunk = vec![first];
        subchunk.extend(axes.iter().map(|(_, subchunk)| *subchunk));
        let inner: Vec<u64> = axes.iter().map(|(extent, _)| *extent).collect();
        let shard = SubchunkGrid::new(&subchunk, &subchunk, element).expect("divides");
        StreamGrid::new(shard, &inner).expect("fits")
    }

    #[test]
    fn without_padding_all_of_it_is_one_piece() {
        let padding = Padding::new(&grid(2, &[(6, 3), (8, 4)], 2));
        assert!(!padding.exists());
        assert_eq!(padding.pieces(5, 500), [RowsBox::bytes(0, 5, 500)]);
        assert_eq!(padding.padded(77), 77);
    }

    /// A frame is few boxes, not a copy per row.
    #[test]
    fn whole_slices_are_one_piece() {
        let grid = grid(1, &[(2304, 32), (2300, 32)], 2);
        let (padding, slice) = (Padding::new(&grid), grid.slice_bytes());
        assert_eq!(padding.padded_slice(), 2304 * 2304 * 2);
        let pieces = padding.pieces(slice, 3 * slice);
        assert_eq!(pieces.len(), 1);
        assert_eq!(pieces[0].shape, [3, 2304, 4600]);
        assert!(padding.pieces(slice + 7, 2 * slice).len() <= 6);
    }

    /// Returns the copies of the slices from the second to before the fourth.
    fn copies(axes: &[(u64, u64)], largest_pitch: usize) -> Vec<RowsCopy> {
        let grid = grid(1, axes, 2);
        let (padding, slice) = (Padding::new(&grid), grid.slice_bytes());
        let pieces = padding.pieces(slice, 2 * slice);
        assert_eq!(pieces.len(), 1);
        pieces[0].copies(largest_pitch).collect()
    }

    #[test]
    fn whole_slices_are_one_copy_of_rows() {
        let shape = |planes, rows, row| RowsShape { planes, rows, row };
        let place = |start, pitch, height| RowsPlace {
            start,
            pitch,
            height,
        };
        // Planes without padding between them are one plane.
        let padded = 2304 * 4608;
        let copy = RowsCopy {
            shape: shape(1, 2 * 2304, 4600),
            from: place(0, 4600, 2 * 2304),
            to: place(padded, 4608, 2 * 2304),
        };
        assert_eq!(copies(&[(2304, 32), (2300, 32)], 4608), [copy]);
        // All rows of a plane without padding in a row are one row.
        let (slice, padded) = (2300 * 4608, 2304 * 4608);
        let copy = RowsCopy {
            shape: shape(1, 2, slice),
            from: place(0, slice, 2),
            to: place(padded, padded, 2),
        };
        assert_eq!(copies(&[(2300, 32), (2304, 32)], padded), [copy]);
        // Padding along both axes takes all three dimensions.
        let copy = RowsCopy {
            shape: shape(2, 2300, 4600),
            from: place(0, 4600, 2300),
            to: place(padded, 4608, 2304),
        };
        assert_eq!(copies(&[(2300, 32), (2300, 32)], 4608), [copy]);
        // Further axes are looped over.
        let of_volumes = copies(&[(3, 2), (5, 3), (7, 4)], 16);
        assert_eq!(of_volumes.len(), 2);
        assert!(of_volumes.iter().all(|copy| copy.shape == shape(3, 5, 14)));
    }

    #[test]
    fn rows_that_are_too_far_from_each_other_are_copied_one_by_one() {
        let rows = copies(&[(2300, 32), (2300, 32)], 4607);
        assert_eq!(rows.len(), 2 * 2300);
        let one = |copy: &RowsCopy| (copy.shape.planes, copy.shape.rows) == (1, 1);
        assert!(rows.iter().all(one));
    }

    proptest! {
        #![proptest_config(zarrs_cuda_testing::effort::config(128))]

        /// Byte by byte.
        #[test]
        fn every_byte_is_in_its_place(
            first in 1_u64..4,
            axes in prop::collection::vec((1_u64..7, 1_u64..5), 0..4),
            element in 1_usize..4,
            largest_pitch in prop_oneof![Just(usize::MAX), 1_usize..40],
            cut in (0_usize..1000, 0_usize..1000),
        ) {
            let grid = grid(first, &axes, element);
            let padding = Padding::new(&grid);
            let bytes = 3 * grid.slice_bytes();
            // The place of a byte follows from the coordinates of its element.
            let naive = |at: usize| {
                let (mut rest, within) = (at / element, at % element);
                let mut stride = element;
                let mut to = within;
                for (extent, subchunk) in axes.iter().rev() {
                    let extent = usize::try_from(*extent).expect("small");
                    to += rest % extent * stride;
                    rest /= extent;
                    stride *= extent.next_multiple_of(usize::try_from(*subchunk).expect("small"));
                }
                to + rest * stride
            };
            let part = |share: usize| share * bytes / 1000;
            let (at, end) = (part(cut.0).min(part(cut.1)), part(cut.0).max(part(cut.1)));
            let mut places = vec![None; end - at];
            for piece in padding.pieces(at, end - at) {
                for (from, to, row) in piece.rows() {
                    for i in 0..row {
                        prop_assert_eq!(places[from + i].replace(to + i), None);
                    }
                }
                // The copies have these rows, in their order, though maybe several as one.
                let mut bytes = piece.rows().flat_map(|(from, to, row)| (from..from + row).zip(to..));
                for copy in piece.copies(largest_pitch) {
                    let RowsCopy { shape, from, to } = copy;
                    for place in [from, to] {
                        prop_assert!(place.pitch >= shape.row && place.height >= shape.rows);
                        prop_assert!(shape.rows == 1 || place.pitch <= largest_pitch);
                    }
                    for number in 0..shape.planes * shape.rows {
                        let start = |place: RowsPlace| {
                            let row = number / shape.rows * place.height + number % shape.rows;
                            place.start + row * place.pitch
                        };
                        for i in 0..shape.row {
                            prop_assert!(from.bytes(shape).contains(&(start(from) + i)));
                            prop_assert!(to.bytes(shape).contains(&(start(to) + i)));
                            prop_assert_eq!(bytes.next(), Some((start(from) + i, start(to) + i)));
                        }
                    }
                }
                prop_assert_eq!(bytes.next(), None);
            }
            for (i, place) in places.into_iter().enumerate() {
                prop_assert_eq!(place, Some(naive(at + i)));
                prop_assert_eq!(padding.padded(at + i), naive(at + i));
            }
        }
    }
}
