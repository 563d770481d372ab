//! Reduces slices to slices of half the extent: one element for each window of the level above.
//!
//! Along an axis of factor 2 a window has two elements, or one where the extent is odd and ends. So a window
//! has a power of two of elements, and these are taken in C order:
//!
//! | reduction | element of the level below |
//! |---|---|
//! | mean | the sum over the count. Integers: exact, and rounded to the nearest, half to even. `float16` and `float32`: summed in 64 bits, in order, and rounded once. `float64`: summed in order |
//! | minimum, maximum | -0.0 is less than 0.0 |
//! | median | the middle one, or the mean of the two in the middle, rounded as a mean |
//! | mode | the bits that are there most often; the first of those that are as often there |
//! | decimate | the first |
//!
//! A NaN anywhere in a window makes a mean, minimum, maximum or median the quiet NaN without sign and
//! payload. A boolean is the integer 0 or 1.

mod elements;
mod fold;
#[cfg(any(test, feature = "fakes"))]
pub mod oracle;

use std::num::NonZeroUsize;

pub use elements::Elements;

use crate::contract::EngineError;
use crate::process::along::Along;
use fold::Rows;

/// How a window becomes one element.
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
    /// The element that is there most often, for labels.
    Mode,
    /// The first element.
    Decimate,
}

impl Reduction {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Mean,
        Self::Minimum,
        Self::Maximum,
        Self::Median,
        Self::Mode,
        Self::Decimate,
    ];

    /// Returns the name, in lower case.
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

/// The most axes along which windows have two elements: sums of 2⁸ elements of 16 bits fit 32 bits.
pub(crate) const MOST_AXES: usize = 8;

/// About as many bytes are made at once. Their input stays in the cache of a thread, and is less than it copies at
/// once (`disjoint/slices.rs`).
const SHARE: usize = 16 << 10;

/// Reduces slices of one shape.
#[derive(Clone, Debug)]
pub struct Reducer {
    reduction: Reduction,
    elements: Elements,
    /// The extents of a given slice along all axes but the last: its rows follow one another.
    rows: Vec<usize>,
    row: usize,
    /// The extents of a window, without the axis that slices are appended along.
    factors: Vec<usize>,
    row_factor: usize,
}

impl Reducer {
    /// Returns a reducer of slices of `shape`, all of whose axes have a factor of 1 or 2.
    ///
    /// # Errors
    /// Why not, if elements of this kind have no such reduction, or there are too many axes.
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
        // One more for the axis that slices are appended along.
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

    /// Returns how windows are reduced.
    pub(crate) fn reduction(&self) -> Reduction {
        self.reduction
    }

    /// Returns the data type of the elements that are reduced.
    pub(crate) fn elements(&self) -> Elements {
        self.elements
    }

    /// Returns the extent of a given slice along each axis, and the extent of a window along this
    /// axis.
    pub(crate) fn axes(&self) -> impl Iterator<Item = (usize, usize)> {
        let rows = self.rows.iter().copied().zip(self.factors.iter().copied());
        rows.chain([(self.row, self.row_factor)])
    }

    /// Returns the bytes of a slice that is given.
    pub fn bytes(&self) -> usize {
        self.rows.iter().product::<usize>() * self.row * self.elements.size()
    }

    /// Returns the bytes of a slice that is made.
    pub fn reduced_bytes(&self) -> usize {
        self.reduced_rows().product::<usize>() * self.reduced_row()
    }

    fn reduced_rows(&self) -> impl Iterator<Item = usize> {
        let axes = self.rows.iter().zip(&self.factors);
        axes.map(|(extent, factor)| extent.div_ceil(*factor))
    }

    /// Returns the bytes of a row that is made.
    fn reduced_row(&self) -> usize {
        self.row.div_ceil(self.row_factor) * self.elements.size()
    }

    /// Reduces `slices`, one or two that follow each other, to `reduced`, on at most `threads` threads,
    /// including the calling thread.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if a slice has another size.
    pub fn reduce(
        &self,
        slices: &[&[u8]],
        reduced: &mut [u8],
        threads: NonZeroUsize,
    ) -> Result<(), EngineError> {
        self.along(slices, reduced)?.finish(threads);
        Ok(())
    }

    /// Reduces `slices` to `reduced` along with a copy of the last one.
    ///
    /// # Errors
    /// As for [`reduce`](Self::reduce).
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
        // A power of two, so that shares end where subchunks usually do.
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

    /// Makes the rows of `reduced`, from row `first` on.
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

    /// Sets `window` to the rows of a slice that become the row `number`, in C order.
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
        // Each axis, from the first, divides what was there.
        for ((&extent, &factor), &at) in axes().zip(window.at.iter().rev()) {
            let inside = at * factor..((at + 1) * factor).min(extent);
            let before = window.rows.len();
            window.rows.resize(before * inside.len(), 0);
            // From the end, so that none is replaced before it was divided.
            for number in (0..before).rev() {
                let start = window.rows[number] * extent;
                for (place, at) in inside.clone().enumerate() {
                    window.rows[number * inside.len() + place] = start + at;
                }
            }
        }
    }
}

/// The rows of a slice that become one row.
#[derive(Default)]
struct Window {
    rows: Vec<usize>,
    /// Where the row that is made is, along the axes from the last one on.
    at: Vec<usize>,
}

#[cfg(test)]
mod tests;
