//! Sparse shards in the files of a machine that has too little of something, or where other things lie
//! than there should be.

mod array;
mod descriptors;
mod limits;
mod names;
mod objects;
mod process;
mod strategies;
