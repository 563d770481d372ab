//! Stores of shards that are seen as stores of chunks: `ShardedStore` and `ShardingTransformer`, held
//! against the text of the sharding storage transformer draft, a plain map of chunks, and zarrs.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and says where"
)]

mod common;

#[path = "sharded_store/arrays.rs"]
mod arrays;
#[path = "sharded_store/chunk_keys.rs"]
mod chunk_keys;
#[path = "sharded_store/draft.rs"]
mod draft;
#[path = "common/faulty.rs"]
mod faulty;
#[path = "sharded_store/hostile.rs"]
mod hostile;
#[path = "sharded_store/metadata.rs"]
mod metadata;
#[path = "sharded_store/model.rs"]
mod model;
#[path = "sharded_store/requests.rs"]
mod requests;
#[path = "sharded_store/subject.rs"]
mod subject;
#[path = "sharded_store/threads.rs"]
mod threads;
#[path = "sharded_store/transformer.rs"]
mod transformer;
