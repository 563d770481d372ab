//! Lets many threads write into one buffer, each into bytes that no other thread writes.
//!
//! Three types keep the bytes disjoint. Each has a safe interface that checks this:
//!
//! - [`Segments`]: the buffer is handed out from front to back, so segments cannot overlap;
//! - [`Boxes`]: each subchunk's box of a C-order array can be claimed once, and the boxes of
//!   different subchunks do not overlap, because lifting an element gives exactly one subchunk;
//! - [`Window`]: like [`Boxes`], for a part of the array.
//!
//! The buffers start uninitialised. All types count the bytes that were written, and return their vector only
//! when it is complete.

mod boxes;
mod claims;
mod copy;
mod segments;
mod shares;
mod slices;
mod window;

pub(crate) use boxes::Boxes;
use claims::Claims;
pub(crate) use copy::{Row, scatter, unscatter};
pub(crate) use segments::{Segment, Segments};
pub use shares::Shares;
pub(crate) use slices::BatchSlices;
pub use window::Window;

use crate::contract::EngineError;
use crate::layout::SubchunkGrid;

/// Checks that `order` has each axis of `grid` once.
fn check_order(order: &[usize], grid: &SubchunkGrid) -> Result<(), EngineError> {
    let mut axes = order.to_vec();
    axes.sort_unstable();
    axes.into_iter()
        .eq(0..grid.shard().len())
        .then_some(())
        .ok_or(EngineError::Internal("the order of axes is no permutation"))
}
