//! `RangeWrites`: partial writes for stores that only replace whole objects. The tests compare it
//! with a store that writes parts itself, and use zarrs' partial encoding over it.
//! `files` updates files from several processes.

mod files;
mod objects;
mod shards;
mod waiting;
