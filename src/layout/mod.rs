//! Integers only: how a shard divides into subchunks, where their bytes lie in memory, and where
//! they lie in the encoded shard.
//!
//! Nothing here knows a data type, a codec, an engine or a store.

mod batch;
pub(crate) mod c_order;
mod grid;
mod index;
mod lift;
mod part;
pub(crate) mod permutation;
pub(crate) mod placement;
mod record;
mod space;
mod stream;
mod strided;
mod undo;

pub(crate) use batch::{Batch, Slab, batches, boxes, slabs};
pub use grid::SubchunkGrid;
pub(crate) use index::{ByteOrder, ENTRY_LEN, Entries, Extent, encode_entries};
pub(crate) use lift::LiftDigit;
pub use lift::{Lift, LiftBatch, LiftSlab};
pub(crate) use part::{Part, strides, strides_in};
pub(crate) use permutation::ShardPermutation;
pub(crate) use record::{RECORD_LEN, Record, fingerprint};
pub(crate) use space::Space;
pub(crate) use stream::{BatchGrid, ShardPart, StreamGrid};
pub(crate) use strided::{Digit, StridedBox};
pub(crate) use undo::{undo_growth, update_of_nothing};
