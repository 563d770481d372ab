//! A box of an array, read in the order in which an encoded subchunk stores its elements. The array is in
//! C order, or has any strides.
//!
//! Lifting replaces the index of an element by (subchunk, within). This module computes `within`: a
//! mixed-radix counter over the extents of the subchunk, in the order of its encoded axes. Each digit has the
//! stride of its axis in the array. Neighbouring digits that step through memory like one digit are merged,
//! so that most boxes have few digits over long contiguous runs.

use super::SubchunkGrid;
use super::subchunk_part::strides;

/// One digit of the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digit {
    /// The number of values of the digit.
    pub(crate) extent: usize,
    /// The number of bytes between two neighbours in the array.
    pub(crate) stride: usize,
}

/// The contiguous pieces of a box: `digits`, slowest first, count them. Each piece is `run` contiguous bytes
/// of the array. In the buffer of the subchunk, the pieces lie one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StridedBox {
    digits: Vec<Digit>,
    run: usize,
    /// For each axis of the grid, the number of subchunks, and the bytes from one subchunk to the next. They
    /// turn the number of a subchunk into the offset of its first byte.
    steps: Vec<Digit>,
}

impl StridedBox {
    /// Returns the box of any subchunk of `grid` in a C-order shard, read with axis `order[0]` slowest and
    /// `order[n - 1]` fastest.
    ///
    /// The caller guarantees that `order` is a permutation of the axes.
    pub(crate) fn new(grid: &SubchunkGrid, order: &[usize]) -> Self {
        Self::with_strides(grid, order, &strides(grid.shard(), grid.element_size()))
    }

    /// Returns the box of any subchunk of `grid` in a shard with the stride `strides[d]` in bytes along axis
    /// `d`.
    ///
    /// The caller guarantees that `order` is a permutation of the axes, that there is one stride for each
    /// axis, that the offset of the last element fits a `usize`, and that the stride is 0 along an axis of one
    /// element.
    pub(crate) fn with_strides(grid: &SubchunkGrid, order: &[usize], strides: &[usize]) -> Self {
        let subchunk = grid.subchunk();
        let element_size = grid.element_size();
        let mut digits: Vec<Digit> = Vec::with_capacity(order.len());
        for &axis in order {
            let digit = Digit {
                extent: subchunk[axis],
                stride: strides[axis],
            };
            if digit.extent == 1 {
                continue;
            }
            match digits.last_mut() {
                Some(slower) if slower.stride == digit.extent * digit.stride => {
                    slower.extent *= digit.extent;
                    slower.stride = digit.stride;
                }
                _ => digits.push(digit),
            }
        }
        let run = match digits.last() {
            Some(fastest) if fastest.stride == element_size => {
                let run = fastest.extent * element_size;
                digits.pop();
                run
            }
            _ => element_size,
        };
        let steps = std::iter::zip(grid.counts(), subchunk)
            .zip(strides)
            .map(|((&extent, extent_in_elements), stride)| Digit {
                extent,
                stride: extent_in_elements * stride,
            })
            .collect();
        Self { digits, run, steps }
    }

    /// Returns the different elements of the box, in the order in which they lie in memory. An axis with the
    /// stride 0 counts as one element. The arguments are those of [`with_strides`](Self::with_strides).
    pub(crate) fn in_memory_order(grid: &SubchunkGrid, strides: &[usize]) -> Self {
        let axes = 0..strides.len();
        let mut axes: Vec<usize> = axes.filter(|&axis| strides[axis] > 0).collect();
        axes.sort_by_key(|&axis| std::cmp::Reverse(strides[axis]));
        Self::with_strides(grid, &axes, strides)
    }

    /// Returns the counter over the pieces, slowest digit first.
    pub(crate) fn digits(&self) -> &[Digit] {
        &self.digits
    }

    /// Returns the size of each piece, in bytes.
    pub(crate) fn run(&self) -> usize {
        self.run
    }

    /// Returns whether the box is a single piece.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.digits.is_empty()
    }

    /// Returns the offset in the array of the first byte of subchunk `number`.
    pub(crate) fn offset(&self, mut number: usize) -> usize {
        let mut offset = 0;
        for step in self.steps.iter().rev() {
            offset += number % step.extent * step.stride;
            number /= step.extent;
        }
        offset
    }

    /// Returns the number of bytes in the array from a subchunk to the next one along the last axis.
    pub(crate) fn step(&self) -> usize {
        self.steps.last().map_or(0, |step| step.stride)
    }

    /// Returns the size of the box, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.digits
            .iter()
            .map(|digit| digit.extent)
            .product::<usize>()
            * self.run
    }

    /// Calls `f` with the offset of each piece from the first byte of the box, in order, until `f` returns
    /// `false`. Returns whether `f` returned `true` for all pieces.
    pub(crate) fn all_pieces(&self, mut f: impl FnMut(usize) -> bool) -> bool {
        let mut counter = vec![0; self.digits.len()];
        let mut offset = 0;
        loop {
            if !f(offset) {
                return false;
            }
            let mut d = self.digits.len();
            loop {
                if d == 0 {
                    return true;
                }
                d -= 1;
                counter[d] += 1;
                offset += self.digits[d].stride;
                if counter[d] < self.digits[d].extent {
                    break;
                }
                counter[d] = 0;
                offset -= self.digits[d].extent * self.digits[d].stride;
            }
        }
    }

    /// Returns the number of bytes of the array from the first byte of the box to its last,
    /// inclusive.
    pub(crate) fn span(&self) -> usize {
        self.run
            + self
                .digits
                .iter()
                .map(|digit| (digit.extent - 1) * digit.stride)
                .sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boxed(shard: &[u64], subchunk: &[u64], element_size: usize, order: &[usize]) -> StridedBox {
        let grid = SubchunkGrid::new(shard, subchunk, element_size).expect("divides");
        StridedBox::new(&grid, order)
    }

    #[test]
    fn whole_rows_merge() {
        let b = boxed(&[4, 6, 8], &[2, 3, 8], 2, &[0, 1, 2]);
        assert_eq!(b.run(), 3 * 8 * 2);
        let plane = Digit {
            extent: 2,
            stride: 6 * 8 * 2,
        };
        assert_eq!(b.digits(), [plane]);
        assert_eq!(b.len(), 2 * 3 * 8 * 2);
        assert!(boxed(&[4, 6, 8], &[1, 6, 8], 2, &[0, 1, 2]).is_contiguous());
        assert!(boxed(&[], &[], 8, &[]).is_contiguous());
    }

    #[test]
    fn a_transposed_box_steps_by_elements() {
        let b = boxed(&[4, 6], &[2, 3], 4, &[1, 0]);
        assert_eq!(b.run(), 4);
        let column = |extent, stride| Digit { extent, stride };
        assert_eq!(b.digits(), [column(3, 4), column(2, 24)]);
        assert_eq!(b.span(), 4 + 2 * 4 + 24);
        assert_eq!(b.offset(3), 2 * 24 + 3 * 4);
        let mut pieces = Vec::new();
        assert!(b.all_pieces(|offset| {
            pieces.push(offset);
            true
        }));
        assert_eq!(pieces, [0, 24, 4, 28, 8, 32]);
    }
}
