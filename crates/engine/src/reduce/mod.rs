//! Reduces slices to slices of half the extent: one element for each window of the level above.
//!
//! Along an axis of factor 2, a window has two elements, or one at the end of an odd extent. So the number of
//! elements of a window is a power of two. They are taken in C order:
//!
//! | reduction | element of the level below |
//! |---|---|
//! | mean | the sum over the count. Integers: exact, and rounded to the nearest, half to even. `float16` and `float32`: summed in 64 bits, in order, and rounded once. `float64`: summed in order |
//! | minimum, maximum | -0.0 is less than 0.0 |
//! | median | the middle element, or the mean of the two in the middle, rounded like a mean |
//! | mode | the most frequent bits; if several are equally frequent, those that come first |
//! | decimate | the first element |
//!
//! If an element of a window is a NaN, its mean, minimum, maximum and median are the quiet NaN without sign
//! and payload. A boolean counts as the integer 0 or 1.

mod elements;
mod fold;
#[cfg(any(test, feature = "fakes"))]
pub mod oracle;

use std::num::NonZeroUsize;

pub use elements::Elements;

use crate::contract::EngineError;
use crate::process::along::Along;
use fold::Rows;

/// The function that makes one element from a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reduction {
    /// The mean.
    Mean,
    /// The smallest element.
    Minimum,
    /// The largest element.
    Maximum,
    /// The middle element, or the mean of the two in the middle.
    Median,
    /// The most frequent element, for labels.
    Mode,
    /// The first element.
    Decimate,
}

impl Reduction {
    /// All reductions.
    pub const ALL: [Self; 6] = [
        Self::Mean,
        Self::Minimum,
        Self::Maximum,
        Self::Median,
        Self::Mode,
        Self::Decimate,
    ];

    /// Returns the name of the reduction, in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Minimum => "minimum",
            Self::Maximum => "maximum",
            Self::Median => "median",
            Self::Mode => "mode",
            Self::Decimate => "decimate",
        }
    }
}

/// The most axes along which a window has two elements. With 8, a sum of 2⁸ elements of 16 bits fits 32 bits.
pub(crate) const MOST_AXES: usize = 8;

/// The number of output bytes that are made at once, about. Their input stays in the cache of a thread, and
/// is smaller than a share that the thread copies (`disjoint/slices.rs`).
const SHARE: usize = 16 << 10;

/// Reduces slices of one shape to slices of the level below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reducer {
    reduction: Reduction,
    elements: Elements,
    /// The extents of an input slice along all axes except for the last. They are the numbers of rows.
    rows: Vec<usize>,
    row: usize,
    /// The extents of a window along these axes, without the axis along which slices are appended.
    factors: Vec<usize>,
    row_factor: usize,
}

impl Reducer {
    /// Returns a reducer for slices of `shape`. Each of `factors` is 1 or 2.
    ///
    /// # Errors
    /// The reason, if these elements have no such reduction, or if there are too many axes.
    pub fn new(
        reduction: Reduction,
        elements: Elements,
        shape: &[usize],
        factors: &[usize],
    ) -> Result<Self, String> {
        if !elements.can(reduction) {
            let others = Reduction::ALL
                .into_iter()
                .filter(|other| elements.can(*other));
            let others: Vec<_> = others.map(Reduction::name).collect();
            return Err(format!(
                "they have no {}: use one of {}",
                reduction.name(),
                others.join(", ")
            ));
        }
        if factors.iter().any(|factor| !(1..=2).contains(factor)) {
            return Err(format!("factors are 1 or 2, and not {factors:?}"));
        }
        // The axis along which slices are appended is one more.
        if factors.iter().filter(|factor| **factor == 2).count() >= MOST_AXES {
            return Err(format!("more than {MOST_AXES} axes are halved"));
        }
        let (row, rows) = shape.split_last().unwrap_or((&1, &[]));
        let (row_factor, factors) = factors.split_last().unwrap_or((&1, &[]));
        Ok(Self {
            reduction,
            elements,
            rows: rows.to_vec(),
            row: *row,
            factors: factors.to_vec(),
            row_factor: *row_factor,
        })
    }

    /// Returns the reduction.
    pub(crate) fn reduction(&self) -> Reduction {
        self.reduction
    }

    /// Returns the data type of the elements that are reduced.
    pub(crate) fn elements(&self) -> Elements {
        self.elements
    }

    /// Returns, for each axis, the extent of an input slice and the extent of a window.
    pub(crate) fn axes(&self) -> impl Iterator<Item = (usize, usize)> {
        let rows = self.rows.iter().copied().zip(self.factors.iter().copied());
        rows.chain([(self.row, self.row_factor)])
    }

    /// Returns the number of bytes of an input slice.
    pub fn bytes(&self) -> usize {
        self.rows.iter().product::<usize>() * self.row * self.elements.size()
    }

    /// Returns the number of bytes of an output slice.
    pub fn reduced_bytes(&self) -> usize {
        self.reduced_rows().product::<usize>() * self.reduced_row()
    }

    fn reduced_rows(&self) -> impl Iterator<Item = usize> {
        let axes = self.rows.iter().zip(&self.factors);
        axes.map(|(extent, factor)| extent.div_ceil(*factor))
    }

    /// Returns the number of bytes of a row of an output slice.
    fn reduced_row(&self) -> usize {
        self.row.div_ceil(self.row_factor) * self.elements.size()
    }

    /// Reduces `slices`, one or two consecutive slices, to `reduced`, on at most `threads` threads, including
    /// the calling thread.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if a slice has a wrong size.
    pub fn reduce(
        &self,
        slices: &[&[u8]],
        reduced: &mut [u8],
        threads: NonZeroUsize,
    ) -> Result<(), EngineError> {
        self.along(slices, reduced)?.finish(threads);
        Ok(())
    }

    /// Returns work that reduces `slices` to `reduced`, while another function copies the last slice.
    ///
    /// # Errors
    /// The errors of [`reduce`](Self::reduce).
    pub fn along<'a>(
        &'a self,
        slices: &'a [&'a [u8]],
        reduced: &'a mut [u8],
    ) -> Result<Along<'a>, EngineError> {
        let is_whole = |slice: &&[u8]| slice.len() == self.bytes();
        if !(1..=2).contains(&slices.len())
            || !slices.iter().all(is_whole)
            || reduced.len() != self.reduced_bytes()
        {
            return Err(EngineError::Internal("a slice of another size is reduced"));
        }
        let row = self.row * self.elements.size();
        // Use a power of two, so that most shares end at borders of subchunks.
        let each = 1 << (SHARE / self.reduced_row().max(1)).max(1).ilog2();
        let mut window = Window::default();
        let shares = reduced
            .chunks_mut((each * self.reduced_row()).max(1))
            .enumerate()
            .map(move |(number, share)| {
                let rows = share.len() / self.reduced_row();
                self.window(number * each, &mut window);
                let first = window.rows[0];
                self.window(number * each + rows - 1, &mut window);
                let last = window.rows[window.rows.len() - 1];
                (first * row..(last + 1) * row, share)
            });
        Ok(Along::new(shares, move |number, share| {
            self.reduce_rows(slices, number * each, share);
        }))
    }

    /// Makes the rows of the output slice from row `first` on. They become `reduced`.
    fn reduce_rows(&self, slices: &[&[u8]], first: usize, reduced: &mut [u8]) {
        let row = self.row * self.elements.size();
        let mut window = Window::default();
        let mut rows = Vec::new();
        for (number, reduced) in reduced.chunks_mut(self.reduced_row()).enumerate() {
            self.window(first + number, &mut window);
            rows.clear();
            for slice in slices {
                let of_slice = window.rows.iter().map(|&at| &slice[at * row..][..row]);
                rows.extend(of_slice);
            }
            let rows = Rows {
                rows: &rows,
                factor: self.row_factor,
            };
            self.elements.reduce(self.reduction, &rows, reduced);
        }
    }

    /// Sets `window` to the rows of an input slice that become the output row `number`, in C order.
    fn window(&self, number: usize, window: &mut Window) {
        let axes = || self.rows.iter().zip(&self.factors);
        window.at.clear();
        let mut rest = number;
        for (extent, factor) in axes().rev() {
            let count = extent.div_ceil(*factor);
            window.at.push(rest % count);
            rest /= count;
        }
        window.rows.clear();
        window.rows.push(0);
        // Divide the rows of the window by each axis in turn, from the first on.
        for ((&extent, &factor), &at) in axes().zip(window.at.iter().rev()) {
            let inside = at * factor..((at + 1) * factor).min(extent);
            let before = window.rows.len();
            window.rows.resize(before * inside.len(), 0);
            // Go from the end, so that each row is divided before its place is overwritten.
            for number in (0..before).rev() {
                let start = window.rows[number] * extent;
                for (place, at) in inside.clone().enumerate() {
                    window.rows[number * inside.len() + place] = start + at;
                }
            }
        }
    }
}

/// The rows of an input slice that become one output row.
#[derive(Default)]
struct Window {
    rows: Vec<usize>,
    /// The coordinates of the output row, from the last axis to the first.
    at: Vec<usize>,
}

#[cfg(test)]
mod tests;
