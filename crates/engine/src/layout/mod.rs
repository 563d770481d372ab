//! Integers only: how a shard divides into subchunks, where their bytes lie in memory, and where
//! they lie in the encoded shard.
//!
//! Nothing here knows a data type, a codec, an engine or a store.

mod batch;
mod byte_rows;
pub mod c_order;
mod grid;
mod index;
mod lift;
pub mod permutation;
pub mod placement;
mod record;
mod space;
mod stream;
mod strided;
mod subchunk_part;
mod undo;

pub use batch::{Batch, Slab, batches, boxes, slabs};
pub use byte_rows::ByteRows;
pub use grid::SubchunkGrid;
pub use index::{ByteOrder, ENTRY_LEN, Entries, Extent, encode_entries};
pub use lift::LiftDigit;
pub use lift::{Lift, LiftBatch, LiftSlab};
pub use permutation::ShardPermutation;
pub use record::{RECORD_LEN, Record, fingerprint};
pub use space::Space;
pub use stream::{BatchGrid, ShardPart, StreamGrid};
pub use strided::{Digit, StridedBox};
pub use subchunk_part::{SubchunkPart, strides, strides_in};
pub use undo::{undo_growth, update_of_nothing};
