//! `SparseShardStore`: a sharded array as an unsharded one, against a map of chunks, and through zarrs.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and says where"
)]

#[path = "common/faulty.rs"]
mod faulty;

#[path = "sparse_store/arrays.rs"]
mod arrays;
#[path = "sparse_store/awaited.rs"]
mod awaited;
#[path = "sparse_store/hostile.rs"]
mod hostile;
#[path = "sparse_store/model.rs"]
mod model;
#[path = "sparse_store/replaced.rs"]
mod replaced;
#[path = "sparse_store/requests.rs"]
mod requests;
#[path = "sparse_store/stores.rs"]
mod stores;
#[path = "sparse_store/view.rs"]
mod view;
