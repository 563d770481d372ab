//! The format of a shard, without zarrs' codec traits and without a store.
//!
//! | file | content |
//! |---|---|
//! | `codec_parts`, `spec` | a configuration of `sharding_indexed`, and the shards that it has |
//!  `recognise`, `foreign` | chains of inner codecs that the engines run, and chains that they call |
//! | `sharding`, `subchunk_len`, `selection` | shards of one shape, the size of a subchunk, elements of a subchunk |
//! | `index`, `reading`, `stored`, `packed` | the index of a stored shard, its subchunks, and a copy without unused bytes |
//! | `jobs`, `stream` | the work on a shard, or on a stream of shards, for an engine |
//! | `error` | this crate's errors as zarrs' `CodecError` |
//!
//! A shard with the index at the end, and with the index at the start:
//!
//! ```text
//! +------------+------------+-- … --+------------+·········+------------------+
//! | subchunk   | subchunk   |       | subchunk   | record  | index            |
//! +------------+------------+-- … --+------------+·········+------------------+
//! 0                                                64 bytes  entries, checksum
//!
//! +------------------+------------+-- … --+------------+·········+···············+
//! | index            | subchunk   |       | subchunk   | record  | copy of index |
//! +------------------+------------+-- … --+------------+·········+···············+
//! 0
//!
//! index: an entry for each subchunk in C order, stored or not, and the checksum behind all entries
//! +--------------------+--------------------+-- … --+---------------------+--------------+
//! | offset 0, nbytes 0 | offset 1, nbytes 1 |       | offset n-1, nbytes  | CRC32C       |
//! +--------------------+--------------------+-- … --+---------------------+--------------+
//!   8 + 8 bytes          8 + 8 bytes                  8 + 8 bytes           4 bytes
//! ```
//!
//! - Offsets count from byte 0 of the shard, also if the index is at the start. Both words of an entry are
//!   2⁶⁴ − 1 if the subchunk is empty, for which no bytes are stored.
//! - The index codecs decide the order of the bytes of a word, and whether there is a checksum. The drawing has the
//!   usual codecs, `bytes` (little-endian) and `crc32c`.
//! - A shard that is written as a whole has its encoded subchunks densely and in C order. A partial write may leave
//!   another order, and bytes that nothing uses.
//! - The record, and behind it the copy of an index at the start, exist after a partial write that changed the index.

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
