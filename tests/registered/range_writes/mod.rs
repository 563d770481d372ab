//! `RangeWrites`: parts of objects in stores that only replace whole ones, against a store that
//! writes parts itself, and with zarrs' partial encoding over it.

mod objects;
mod shards;
mod waiting;
