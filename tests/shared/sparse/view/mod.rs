//! `SparseShardStore`: a sharded array as an unsharded one, compared with a map of chunks, and used
//! through zarrs.

mod arrays;
mod awaited;
mod boxes;
mod changed_meanwhile;
mod hostile;
mod model;
mod replaced;
mod requests;
mod stores;
