//! Sparse shards in files: on a machine that lacks some resource, or with unexpected files in their
//! place.

mod array;
mod descriptors;
mod limits;
mod names;
mod objects;
mod process;
mod strategies;
