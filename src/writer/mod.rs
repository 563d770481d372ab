//! A stream of slices becomes finished shards.

mod sink;
