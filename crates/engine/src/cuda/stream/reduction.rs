//! The plan by which a stream's slices are made from those of another stream. It is computed with the
//! stream's memory.

use super::padding::Padding;
use crate::contract::stream::{ReducedFrom, StreamJob};
use crate::cuda::arena::{Arenas, Region};
use crate::cuda::kernels::reduce::Reduce;
use crate::layout::StreamGrid;

/// The plan and the memory with which the device makes the slices of a stream.
#[derive(Clone, Debug)]
pub(super) struct Reduction {
    pub(super) plan: Reduce,
    pub(super) from: ReducedFrom,
    /// The padding of slices of the level above.
    pub(super) above: Padding,
    /// The regions for one slice of the level above: on the device, and in pinned memory. `None` if every
    /// window has one slice.
    pub(super) kept: Option<(Region, Region)>,
}

/// Returns the number of elements along each axis of a slice, with its padding.
fn padded(grid: &StreamGrid) -> Vec<usize> {
    std::iter::zip(grid.inner(), &grid.shard().subchunk()[1..])
        .map(|(extent, subchunk)| extent.next_multiple_of(*subchunk))
        .collect()
}

impl Reduction {
    /// Plans the reduction of `job`; `None` if the job has no reduction that a device can run.
    pub(super) fn new(job: &StreamJob) -> Option<Self> {
        let from = job.reduced_from.as_ref()?;
        let (above, below) = (&from.above, &job.grid);
        let size = from.reducer.elements().size();
        let fits = |grid: &StreamGrid| grid.shard().element_size() == size;
        let extents: Vec<usize> = from.reducer.axes().map(|(extent, _)| extent).collect();
        let inner = above.inner();
        let is_slice = extents == inner || inner.is_empty() && extents == [1];
        if !(1..=2).contains(&from.slices)
            || !fits(above)
            || !fits(below)
            || !is_slice
            || from.reducer.reduced_bytes() != below.slice_bytes()
        {
            return None;
        }
        Some(Self {
            plan: Reduce::new(&from.reducer, &padded(above), &padded(below)).ok()?,
            from: from.clone(),
            above: Padding::new(above),
            kept: None,
        })
    }

    /// Reserves memory for a kept slice. `None` if the memory is more than this machine can address.
    pub(super) fn reserve(mut self, arenas: &mut Arenas) -> Option<Self> {
        if self.from.slices == 2 {
            let len = self.above.padded_slice();
            self.kept = Some((arenas.device.region(len)?, arenas.pinned_out.region(len)?));
        }
        Some(self)
    }

    /// Returns whether the level above is `grid`.
    pub(super) fn is_from(&self, grid: &StreamGrid) -> bool {
        self.from.above == *grid
    }
}
