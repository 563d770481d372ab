//! `SparseShardStore`: a sharded array as an unsharded one, against a map of chunks, and through zarrs.

mod arrays;
mod awaited;
mod changed_meanwhile;
mod hostile;
mod model;
mod replaced;
mod requests;
mod stores;
