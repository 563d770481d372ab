//! Stores of shards that are seen as stores of chunks: `ShardedStore` and `ShardingTransformer`, held
//! against the text of the sharding storage transformer draft, a plain map of chunks, and zarrs.

mod arrays;
mod chunk_keys;
mod draft;
mod hostile;
mod metadata;
mod model;
mod requests;
mod subject;
mod threads;
mod transformer;
