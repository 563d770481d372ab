//! Stores of shards that look like stores of chunks: `ShardedStore` and `ShardingTransformer`. They
//! are compared with the text of the sharding storage transformer draft, with a plain map of
//! chunks, and with zarrs.

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
