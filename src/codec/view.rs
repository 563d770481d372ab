//! zarrs' view of an output array, written subchunk by subchunk from many threads.
//!
//! One more helper for disjoint writes, beside those of `engine::disjoint`: here the memory is
//! zarrs', and so is the function that must be called.

use zarrs::array::ArraySubset;
use zarrs_codec::{ArrayBytesFixedDisjointView, CodecError};

use super::error::sourced;
use crate::engine::disjoint::{Claims, Window};
use crate::engine::{Decoded, EngineError};
use crate::layout::{Part, SubchunkGrid};

/// A part of a shard that a view shows: each subchunk that meets it writes its share of it once.
pub(super) struct ViewOfShard<'a, 'v> {
    view: &'a ArrayBytesFixedDisjointView<'v>,
    grid: &'a SubchunkGrid,
    /// The first element of the shard that the view shows.
    start: Vec<usize>,
    /// How much of the shard the view shows, in elements.
    shape: Vec<usize>,
    claims: Claims,
}

impl<'a, 'v> ViewOfShard<'a, 'v> {
    /// `view` shows the part of a shard of `grid` from `start`, of shape `shape`. `None` if the
    /// view has another shape.
    pub(super) fn new(
        view: &'a ArrayBytesFixedDisjointView<'v>,
        grid: &'a SubchunkGrid,
        start: Vec<usize>,
        shape: Vec<usize>,
    ) -> Option<Self> {
        let shown = view.subset().shape().iter().map(|&d| usize::try_from(d));
        if !shown.eq(shape.iter().map(|&d| Ok(d))) {
            return None;
        }
        Some(Self {
            view,
            grid,
            start,
            shape,
            claims: Claims::new(grid.num_subchunks()),
        })
    }

    /// The share of subchunk `number`.
    pub(super) fn part(&self, number: usize) -> Part {
        Part::new(self.grid, number, &self.start, &self.shape)
    }

    /// Write the share of subchunk `number`, given all its elements.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if it was written before; [`EngineError::Foreign`] if zarrs
    /// refuses it.
    pub(super) fn write(
        &self,
        number: usize,
        decoded: &Decoded<'_>,
        fill_value: &[u8],
    ) -> Result<(), EngineError> {
        match decoded {
            Decoded::Fill => self.with_share(number, |share, _| Ok(share.fill(fill_value)?)),
            Decoded::Bytes(elements) => self.with_share(number, |share, part| {
                if part.is_whole() {
                    return Ok(share.copy_from_slice(elements)?);
                }
                let dense = part.cut(self.grid, elements).map_err(sourced)?;
                Ok(share.copy_from_slice(&dense)?)
            }),
        }
    }

    /// Write the share of subchunk `number`: just its elements, in C order.
    pub(super) fn write_part(&self, number: usize, elements: &[u8]) -> Result<(), EngineError> {
        self.with_share(number, |share, _| Ok(share.copy_from_slice(elements)?))
    }

    fn with_share(
        &self,
        number: usize,
        write: impl FnOnce(&mut ArrayBytesFixedDisjointView<'_>, &Part) -> Result<(), CodecError>,
    ) -> Result<(), EngineError> {
        self.claims.claim(number)?;
        let part = self.part(number);
        let start = std::iter::zip(self.view.subset().start(), part.start_in_window())
            .map(|(start, within)| start + *within as u64)
            .collect();
        let shape = part.shape().iter().map(|&extent| extent as u64).collect();
        let subset = ArraySubset::new_with_start_shape(start, shape)
            .map_err(|error| EngineError::Foreign(Box::new(CodecError::from(error))))?;
        // SAFETY: the shares of different subchunks do not overlap, and the share of this one was
        // claimed above, which cannot be done again.
        let subdivided = unsafe { self.view.subdivide(subset) };
        subdivided
            .map_err(CodecError::from)
            .and_then(|mut share| write(&mut share, &part))
            .map_err(|error| EngineError::Foreign(Box::new(error)))
    }
}

impl Part {
    /// The elements of the part alone, cut out of its subchunk.
    fn cut(&self, grid: &SubchunkGrid, elements: &[u8]) -> Result<Vec<u8>, EngineError> {
        let subchunk = grid.one_subchunk();
        let (start, shape) = (self.start_in_subchunk().to_vec(), self.shape().to_vec());
        let window = Window::new(&subchunk, start, shape, false)?;
        window.write(0, elements)?;
        window.finish()
    }
}
