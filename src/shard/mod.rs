//! The format of a shard, without zarrs' codec traits and without a store.
//!
//! | file | content |
//! |---|---|
//! | `codec_parts`, `spec` | a configuration of `sharding_indexed`, and the shards that it has |
//! | `recognise`, `foreign` | inner codecs as the engines know them, or called by the engines |
//! | `sharding`, `subchunk_len`, `selection` | shards of one shape, the size of a subchunk, elements of a subchunk |
//! | `index`, `reading`, `stored`, `packed` | the index of a stored shard, its subchunks, and a copy without unused bytes |
//! | `jobs`, `stream` | the work on a shard, or on a stream of shards, for an engine |
//! | `error` | this crate's errors as zarrs' `CodecError` |

pub(crate) mod codec_parts;
pub(crate) mod error;
mod foreign;
pub(crate) mod index;
mod jobs;
pub(crate) mod packed;
pub(crate) mod reading;
pub(crate) mod recognise;
pub(crate) mod selection;
pub(crate) mod sharding;
pub(crate) mod spec;
pub(crate) mod stored;
pub(crate) mod stream;
pub(crate) mod subchunk_len;
