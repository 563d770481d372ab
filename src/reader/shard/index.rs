//! Requests and decodes the index of a shard.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use zarrs_storage::StorageError;
use zarrs_storage::byte_range::ByteRange;

use super::buffer::{keep_buffer, take_buffer};
use super::errors::{damage, failed, got_no_answer, not_decoded, other_bytes, store_error};
use super::{ReadCall, ShardToRead};
use crate::reader::ReaderError;
use crate::reader::cache::Index;
use crate::reader::metrics::add;
use crate::reader::source::{FetchedBytes, ReadInto, ShardSource};
use crate::shard::reading::check_memory;

impl<S: ShardSource> ReadCall<'_, S> {
    /// Reads and decodes the index. Returns `None` if the shard does not exist.
    pub(super) async fn index(
        &self,
        shard: &ShardToRead<'_>,
        opened: &S::Shard,
    ) -> Result<Option<Arc<Index>>, ReaderError> {
        let index = &shard.sharding.index;
        check_memory(index.len()).map_err(|error| failed(shard, None, error))?;
        let Some(encoded) = self.encoded_index(shard, opened).await? else {
            return Ok(None);
        };
        let options = &self.settings.codec_options;
        let entries = index.decode(Cow::Owned(encoded.clone()), i64::MAX as u64, options);
        let entries = entries.map_err(|error| not_decoded(shard, None, error))?;
        Ok(Some(Arc::new(Index::new(encoded, entries))))
    }

    /// Reads the encoded index. Returns `None` if the shard does not exist.
    pub(super) async fn encoded_index(
        &self,
        shard: &ShardToRead<'_>,
        opened: &S::Shard,
    ) -> Result<Option<Vec<u8>>, ReaderError> {
        let index = &shard.sharding.index;
        let range = [index.byte_range()];
        let mut buffer = take_buffer();
        let len = index.len() as u64;
        let into = ReadInto::buffer(&mut buffer);
        let read = match self.request(opened, &range, len, into).await {
            Ok(read) => read,
            Err(error) if got_no_answer(&error) => return Err(store_error(shard, error)),
            Err(error) => {
                return Err(match self.source.size(opened).await {
                    Ok(Some(size)) if size < len => {
                        let short = format!("it takes {len} bytes, and the shard has {size}");
                        damage(shard, None, short)
                    }
                    _ => store_error(shard, error),
                });
            }
        };
        let first = |read: Vec<FetchedBytes<'_>>| read.first().map(|read| read.as_ref().to_vec());
        let encoded = read.map(|read| first(read).unwrap_or_default());
        keep_buffer(buffer);
        if let Some(encoded) = &encoded
            && encoded.len() as u64 != len
        {
            // Some stores return only those bytes of a range that exist, and some return too few bytes.
            let got = encoded.len();
            return Err(match self.source.size(opened).await {
                Ok(Some(size)) if size < len => {
                    let short = format!("it takes {len} bytes, and the shard has {size}");
                    damage(shard, None, short)
                }
                _ => store_error(shard, other_bytes(got as u64, len)),
            });
        }
        Ok(encoded)
    }

    /// Reads `ranges`, which have the given number of bytes in total, and counts the request.
    pub(super) async fn request<'b>(
        &'b self,
        opened: &'b S::Shard,
        ranges: &'b [ByteRange],
        bytes: u64,
        into: ReadInto<'b>,
    ) -> Result<Option<Vec<FetchedBytes<'b>>>, StorageError> {
        let begin = Instant::now();
        let read = self.source.read(opened, ranges, into).await;
        self.counters.waited(begin.elapsed());
        add(&self.counters.requests, 1);
        add(&self.counters.ranges, ranges.len());
        if matches!(read, Ok(Some(_))) {
            self.counters.bytes_read.fetch_add(bytes, Ordering::Relaxed);
        }
        read
    }
}
