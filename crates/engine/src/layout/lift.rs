//! Computes where the elements of a slab lie among the slots of a batch.
//!
//! A *batch* is a box of the grid of subchunks. Each subchunk of a batch has a *slot*, numbered in C order. A
//! *slab* is a box of the batch's elements, stored densely in C order. Lifting replaces the index of an
//! element by (slot, within). It makes each axis two digits of a mixed-radix counter over the slab: one for
//! the subchunk, and one for the place within the subchunk. Along each axis, a slab covers whole subchunks or
//! lies within one subchunk, so that all combinations of digits occur.

use std::fmt;

/// A box of subchunks, and the layout of their slots.
#[derive(Clone, Copy, Debug)]
pub struct LiftBatch<'a> {
    /// The number of subchunks along each axis.
    pub counts: &'a [usize],
    /// The number of elements of a subchunk along each axis.
    pub subchunk: &'a [usize],
    /// The size of an element in bytes.
    pub element_size: usize,
    /// The order of the axes in a slot: `order[0]` is the slowest axis, `order[n - 1]` the fastest.
    pub order: &'a [usize],
    /// The number of bytes from one slot to the next.
    pub slot_stride: usize,
}

/// A box of elements, whose `start` is relative to the first element of the batch.
#[derive(Clone, Copy, Debug)]
pub struct LiftSlab<'a> {
    pub start: &'a [usize],
    pub shape: &'a [usize],
}

/// One digit of the counter over the slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiftDigit {
    /// The number of values of the digit; at least 2.
    pub(crate) extent: usize,
    /// The number of bytes between two neighbours within a slot; 0 for a digit that steps over slots.
    pub(crate) stride: usize,
    /// The number of slots between two neighbours; 0 for a digit that steps within a slot.
    pub(crate) slot_step: usize,
}

/// The contiguous pieces of a slab. `digits`, slowest first, count the pieces in C order. Each piece is `run`
/// contiguous bytes, both in the slab and in a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lift {
    digits: Vec<LiftDigit>,
    run: usize,
    first_slot: usize,
    last_slot: usize,
    offset: usize,
    end: usize,
    slab_len: usize,
    element_size: usize,
    slot_stride: usize,
}

/// The reason why a slab cannot be lifted. Only `TooLarge` is not a mistake of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiftError {
    /// The shapes have different ranks.
    Rank,
    /// The order is no permutation of the axes.
    Order,
    /// An extent or a size is zero.
    Empty,
    /// The slab leaves the batch along `axis`.
    Outside { axis: usize },
    /// The slab covers parts of several subchunks along `axis`.
    Ragged { axis: usize },
    /// A slot is shorter than a subchunk.
    SlotStride { stride: usize, subchunk: usize },
    /// A number of bytes does not fit `usize`.
    TooLarge,
}

impl fmt::Display for LiftError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank => f.write_str("the batch and the slab have different ranks"),
            Self::Order => f.write_str("the order of the axes is no permutation"),
            Self::Empty => f.write_str("an extent of the batch or the slab is zero"),
            Self::Outside { axis } => write!(f, "the slab leaves the batch along axis {axis}"),
            Self::Ragged { axis } => {
                write!(f, "the slab covers parts of subchunks along axis {axis}")
            }
            Self::SlotStride { stride, subchunk } => write!(
                f,
                "slots of {stride} bytes cannot hold subchunks of {subchunk} bytes"
            ),
            Self::TooLarge => f.write_str("the batch is larger than the address space"),
        }
    }
}

impl std::error::Error for LiftError {}

impl Lift {
    /// Lifts `slab` into the slots of `batch`.
    pub fn new(batch: &LiftBatch<'_>, slab: &LiftSlab<'_>) -> Result<Self, LiftError> {
        let rank = batch.counts.len();
        let lengths = [
            batch.subchunk.len(),
            batch.order.len(),
            slab.start.len(),
            slab.shape.len(),
        ];
        if lengths.iter().any(|&len| len != rank) {
            return Err(LiftError::Rank);
        }
        let sizes = [batch.counts, batch.subchunk, slab.shape];
        if batch.element_size == 0 || sizes.iter().any(|s| s.contains(&0)) {
            return Err(LiftError::Empty);
        }
        let (strides, subchunk_len) = strides_in_slot(batch)?;
        if batch.slot_stride < subchunk_len {
            return Err(LiftError::SlotStride {
                stride: batch.slot_stride,
                subchunk: subchunk_len,
            });
        }
        // The numbers of all slots, elements and bytes of the batch fit `usize`, so the arithmetic below
        // cannot overflow.
        let (slot_steps, slots) = c_order(batch.counts, 1)?;
        times(slots, batch.slot_stride)?;

        let mut lift = Self {
            digits: Vec::with_capacity(2 * rank),
            run: batch.element_size,
            first_slot: 0,
            last_slot: 0,
            offset: 0,
            end: batch.element_size,
            slab_len: batch.element_size,
            element_size: batch.element_size,
            slot_stride: batch.slot_stride,
        };
        for axis in 0..rank {
            let (start, shape) = (slab.start[axis], slab.shape[axis]);
            let (count, subchunk) = (batch.counts[axis], batch.subchunk[axis]);
            let end = start.checked_add(shape);
            if end.is_none_or(|end| end > count * subchunk) {
                return Err(LiftError::Outside { axis });
            }
            let (first, within) = (start / subchunk, start % subchunk);
            let (outer, inner) = if within == 0 && shape.is_multiple_of(subchunk) {
                (shape / subchunk, subchunk)
            } else if within + shape <= subchunk {
                (1, shape)
            } else {
                return Err(LiftError::Ragged { axis });
            };
            lift.first_slot += first * slot_steps[axis];
            lift.last_slot += (first + outer - 1) * slot_steps[axis];
            lift.offset += within * strides[axis];
            lift.end += (within + inner - 1) * strides[axis];
            lift.slab_len *= shape;
            lift.push(LiftDigit {
                extent: outer,
                stride: 0,
                slot_step: slot_steps[axis],
            });
            lift.push(LiftDigit {
                extent: inner,
                stride: strides[axis],
                slot_step: 0,
            });
        }
        if let Some(fastest) = lift.digits.last()
            && fastest.stride == batch.element_size
        {
            lift.run = fastest.extent * batch.element_size;
            lift.digits.pop();
        }
        Ok(lift)
    }

    /// Appends a digit that is faster than all others.
    fn push(&mut self, digit: LiftDigit) {
        if digit.extent == 1 {
            return;
        }
        if let Some(slower) = self.digits.last_mut()
            && (slower.slot_step == 0) == (digit.slot_step == 0)
            && slower.stride == digit.extent * digit.stride
            && slower.slot_step == digit.extent * digit.slot_step
        {
            slower.extent *= digit.extent;
            slower.stride = digit.stride;
            slower.slot_step = digit.slot_step;
        } else {
            self.digits.push(digit);
        }
    }

    /// Returns the counter over the pieces, slowest digit first.
    pub(crate) fn digits(&self) -> &[LiftDigit] {
        &self.digits
    }

    /// Returns the size of a piece, in bytes.
    pub(crate) fn run(&self) -> usize {
        self.run
    }

    /// Returns the slot of the slab's first element, the lowest slot of the slab.
    pub(crate) fn first_slot(&self) -> usize {
        self.first_slot
    }

    /// Returns the slot of the slab's last element, the highest slot of the slab.
    pub(crate) fn last_slot(&self) -> usize {
        self.last_slot
    }

    /// Returns the offset of the slab's first element in its slot, in bytes. In every slot that the
    /// slab touches, this is the first byte that it touches.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the end of the last byte that the slab touches in a slot. It is the same in every slot that
    /// the slab touches.
    pub(crate) fn end(&self) -> usize {
        self.end
    }

    /// Returns the size of the slab, in bytes.
    pub(crate) fn slab_len(&self) -> usize {
        self.slab_len
    }

    /// Returns the size of an element, in bytes.
    pub(crate) fn element_size(&self) -> usize {
        self.element_size
    }

    /// Returns the number of bytes from one slot to the next.
    pub(crate) fn slot_stride(&self) -> usize {
        self.slot_stride
    }
}

/// Returns, for each axis, the bytes between two neighbours in a slot, and the size of a subchunk in bytes.
fn strides_in_slot(batch: &LiftBatch<'_>) -> Result<(Vec<usize>, usize), LiftError> {
    let mut strides = vec![0; batch.order.len()];
    let mut len = batch.element_size;
    for &axis in batch.order.iter().rev() {
        // A stride is never 0, so 0 marks an axis that has not come yet.
        match strides.get_mut(axis) {
            Some(stride) if *stride == 0 => *stride = len,
            _ => return Err(LiftError::Order),
        }
        len = times(len, batch.subchunk[axis])?;
    }
    Ok((strides, len))
}

/// Returns the strides of a C-order array whose fastest axis has the stride `unit`, and the array's size.
fn c_order(shape: &[usize], unit: usize) -> Result<(Vec<usize>, usize), LiftError> {
    let mut strides = vec![0; shape.len()];
    let mut len = unit;
    for (stride, &extent) in strides.iter_mut().zip(shape).rev() {
        *stride = len;
        len = times(len, extent)?;
    }
    Ok((strides, len))
}

fn times(a: usize, b: usize) -> Result<usize, LiftError> {
    a.checked_mul(b).ok_or(LiftError::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn digit(extent: usize, stride: usize, slot_step: usize) -> LiftDigit {
        LiftDigit {
            extent,
            stride,
            slot_step,
        }
    }

    #[test]
    fn a_row_of_subchunks() {
        let batch = LiftBatch {
            counts: &[2, 3, 4],
            subchunk: &[32, 32, 32],
            element_size: 2,
            order: &[0, 1, 2],
            slot_stride: 65_536,
        };
        let slab = LiftSlab {
            start: &[32, 0, 0],
            shape: &[8, 96, 128],
        };
        let lift = Lift::new(&batch, &slab).expect("a slab of the batch");
        assert_eq!(lift.run(), 64);
        let expected = [
            digit(8, 2048, 0),
            digit(3, 0, 4),
            digit(32, 64, 0),
            digit(4, 0, 1),
        ];
        assert_eq!(lift.digits(), expected);
        assert_eq!((lift.first_slot(), lift.last_slot()), (12, 23));
        assert_eq!((lift.offset(), lift.end()), (0, 8 * 2048));
        assert_eq!(lift.slab_len(), 8 * 96 * 128 * 2);
    }

    #[test]
    fn digits_that_step_alike_are_one() {
        let batch = LiftBatch {
            counts: &[5, 4, 1],
            subchunk: &[1, 1, 6],
            element_size: 4,
            order: &[0, 1, 2],
            slot_stride: 24,
        };
        let slab = LiftSlab {
            start: &[1, 0, 2],
            shape: &[3, 4, 4],
        };
        let lift = Lift::new(&batch, &slab).expect("a slab of the batch");
        assert_eq!(lift.digits(), [digit(12, 0, 1)]);
        assert_eq!((lift.run(), lift.offset(), lift.end()), (16, 8, 24));
        // Whole subchunks lie like the slab does, yet the slots stay apart.
        let slab = LiftSlab {
            start: &[0, 0, 0],
            shape: &[5, 4, 6],
        };
        let lift = Lift::new(&batch, &slab).expect("a slab of the batch");
        assert_eq!((lift.digits(), lift.run()), (&[digit(20, 0, 1)][..], 24));
    }

    #[test]
    fn an_order_of_axes() {
        let batch = LiftBatch {
            counts: &[1, 2],
            subchunk: &[2, 3],
            element_size: 4,
            order: &[1, 0],
            slot_stride: 32,
        };
        let slab = LiftSlab {
            start: &[0, 0],
            shape: &[2, 6],
        };
        let lift = Lift::new(&batch, &slab).expect("a slab of the batch");
        let expected = [digit(2, 4, 0), digit(2, 0, 1), digit(3, 8, 0)];
        assert_eq!((lift.digits(), lift.run()), (&expected[..], 4));
    }

    #[test]
    fn a_scalar() {
        let batch = LiftBatch {
            counts: &[],
            subchunk: &[],
            element_size: 7,
            order: &[],
            slot_stride: 16,
        };
        let slab = LiftSlab {
            start: &[],
            shape: &[],
        };
        let lift = Lift::new(&batch, &slab).expect("a slab of the batch");
        assert_eq!((lift.digits(), lift.run()), (&[][..], 7));
        assert_eq!((lift.slab_len(), lift.end()), (7, 7));
    }

    #[test]
    fn what_is_refused() {
        let batch = LiftBatch {
            counts: &[2, 2],
            subchunk: &[4, 4],
            element_size: 2,
            order: &[0, 1],
            slot_stride: 32,
        };
        let lift = |batch, start: [usize; 2], shape: [usize; 2]| {
            let (start, shape) = (&start, &shape);
            Lift::new(&batch, &LiftSlab { start, shape })
        };
        assert!(lift(batch, [0, 4], [8, 3]).is_ok());
        assert!(lift(batch, [4, 5], [1, 3]).is_ok());
        let ragged = LiftError::Ragged { axis: 1 };
        assert_eq!(lift(batch, [0, 1], [8, 4]), Err(ragged));
        assert_eq!(lift(batch, [0, 0], [8, 5]), Err(ragged));
        let outside = LiftError::Outside { axis: 0 };
        assert_eq!(lift(batch, [4, 0], [8, 4]), Err(outside));
        assert_eq!(lift(batch, [usize::MAX, 0], [8, 4]), Err(outside));
        assert_eq!(lift(batch, [0, 0], [0, 4]), Err(LiftError::Empty));
        let changed = |change: fn(&mut LiftBatch<'static>)| {
            let mut batch = batch;
            change(&mut batch);
            lift(batch, [0, 0], [4, 4]).unwrap_err()
        };
        assert_eq!(changed(|b| b.order = &[0, 0]), LiftError::Order);
        assert_eq!(changed(|b| b.order = &[0, 2]), LiftError::Order);
        assert_eq!(changed(|b| b.order = &[0]), LiftError::Rank);
        assert_eq!(changed(|b| b.element_size = 0), LiftError::Empty);
        assert_eq!(changed(|b| b.subchunk = &[4, 0]), LiftError::Empty);
        let short = LiftError::SlotStride {
            stride: 31,
            subchunk: 32,
        };
        assert_eq!(changed(|b| b.slot_stride = 31), short);
        assert_eq!(changed(|b| b.slot_stride = usize::MAX), LiftError::TooLarge);
        assert_eq!(
            changed(|b| b.element_size = usize::MAX),
            LiftError::TooLarge
        );
        assert_eq!(
            changed(|b| b.counts = &[usize::MAX, 2]),
            LiftError::TooLarge
        );
    }

    /// Returns, for every byte of the slab, the slot and the offset in the slot, one element after
    /// the other.
    fn naive(batch: &LiftBatch<'_>, slab: &LiftSlab<'_>) -> Vec<(usize, usize)> {
        let rank = batch.counts.len();
        let mut places = Vec::new();
        let mut counter = vec![0; rank];
        for _ in 0..slab.shape.iter().product::<usize>() {
            let (mut slot, mut within) = (0, 0);
            for (axis, index) in counter.iter().enumerate() {
                let index = slab.start[axis] + index;
                slot = slot * batch.counts[axis] + index / batch.subchunk[axis];
            }
            for &axis in batch.order {
                let index = slab.start[axis] + counter[axis];
                within = within * batch.subchunk[axis] + index % batch.subchunk[axis];
            }
            let first = within * batch.element_size;
            places.extend((first..first + batch.element_size).map(|byte| (slot, byte)));
            for axis in (0..rank).rev() {
                counter[axis] += 1;
                if counter[axis] < slab.shape[axis] {
                    break;
                }
                counter[axis] = 0;
            }
        }
        places
    }

    fn lifted(lift: &Lift) -> Vec<(usize, usize)> {
        let mut places = vec![(lift.first_slot(), lift.offset())];
        for digit in lift.digits() {
            places = places
                .iter()
                .flat_map(|&(slot, byte)| {
                    (0..digit.extent)
                        .map(move |i| (slot + i * digit.slot_step, byte + i * digit.stride))
                })
                .collect();
        }
        places
            .iter()
            .flat_map(|&(slot, first)| (first..first + lift.run()).map(move |byte| (slot, byte)))
            .collect()
    }

    #[test]
    fn agrees_with_one_element_after_the_other() {
        let axis = (
            1usize..4,
            1usize..6,
            any::<bool>(),
            any::<[prop::sample::Index; 2]>(),
        );
        let strategy = (prop::collection::vec(axis, 0..5), 1usize..20, 0usize..40).prop_flat_map(
            |(axes, element_size, padding)| {
                let order: Vec<usize> = (0..axes.len()).collect();
                let order = Just(order).prop_shuffle();
                (Just(axes), Just(element_size), Just(padding), order)
            },
        );
        zarrs_cuda_testing::effort::property(
            1000,
            &strategy,
            |(axes, element_size, padding, order)| {
                let counts: Vec<_> = axes.iter().map(|axis| axis.0).collect();
                let subchunk: Vec<_> = axes.iter().map(|axis| axis.1).collect();
                let (mut start, mut shape) = (Vec::new(), Vec::new());
                for (count, subchunk, whole, [a, b]) in axes {
                    if whole {
                        let first = a.index(count);
                        start.push(first * subchunk);
                        shape.push((1 + b.index(count - first)) * subchunk);
                    } else {
                        let first = a.index(subchunk);
                        start.push(first + b.index(count) * subchunk);
                        shape.push(1 + b.index(subchunk - first));
                    }
                }
                let batch = LiftBatch {
                    counts: &counts,
                    subchunk: &subchunk,
                    element_size,
                    order: &order,
                    slot_stride: subchunk.iter().product::<usize>() * element_size + padding,
                };
                let slab = LiftSlab {
                    start: &start,
                    shape: &shape,
                };
                let lift = Lift::new(&batch, &slab).expect("a slab of the batch");
                let places = naive(&batch, &slab);
                prop_assert_eq!(lifted(&lift), &places[..]);
                prop_assert_eq!(lift.slab_len(), places.len());
                let slots = || places.iter().map(|place| place.0);
                let bytes = || places.iter().map(|place| place.1);
                prop_assert_eq!(Some(lift.first_slot()), slots().min());
                prop_assert_eq!(Some(lift.last_slot()), slots().max());
                prop_assert_eq!(Some(lift.offset()), bytes().min());
                prop_assert_eq!(Some(lift.end() - 1), bytes().max());
                for digit in lift.digits() {
                    prop_assert!(digit.extent > 1);
                    prop_assert!((digit.stride == 0) != (digit.slot_step == 0));
                }
                Ok(())
            },
        );
    }
}
