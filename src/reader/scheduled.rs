//! A reader over a store of `storage/schedules.rs`, which decides whose call comes next.

use std::sync::Arc;

use bytes::Bytes;
use zarrs::array::ArraySubset;
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{StorageError, StoreKey};

use super::cache::Caches;
use super::metrics::Counters;
use super::newer_subchunks::ListsNewerSubchunks;
use super::source::{FetchedBytes, ReadInto, ShardSource, Store};
use super::threads::{Each, Later, Task};
use super::{ArrayReader, DecodedBy, Inner, KeptByReader, Output, OutputPlace, ReaderError};
use crate::store::Reads;
use crate::store::parts::RangeCost;
use crate::store::ranges::slice;
use zarrs_cuda_engine::process::per_process::PerProcess;

/// A store whose shards are open files: what is found when one is opened is what is read of it.
struct Opened<R>(R);

type Result<T, E = StorageError> = std::result::Result<T, E>;

impl<R: Reads> ShardSource for Opened<R> {
    type Shard = Bytes;

    const STAYS: bool = true;

    fn request_bytes(_range_cost: RangeCost) -> usize {
        1
    }

    fn open<'a>(&'a self, key: &'a StoreKey) -> Later<'a, Result<Option<Bytes>>> {
        Box::pin(self.0.get(key))
    }

    fn read<'a>(
        &'a self,
        shard: &'a Bytes,
        ranges: &'a [ByteRange],
        _into: ReadInto<'a>,
    ) -> Later<'a, Result<Option<Vec<FetchedBytes<'a>>>>> {
        Box::pin(async move {
            let parts = ranges.iter().map(|range| slice(shard, *range));
            let parts = parts.map(|part| part.map(FetchedBytes::Value));
            parts.collect::<Result<_>>().map(Some)
        })
    }

    fn range_cost(&self, _shard: &Bytes, _offset: u64) -> RangeCost {
        RangeCost::CACHED
    }

    fn size<'a>(&'a self, shard: &'a Bytes) -> Later<'a, Result<Option<u64>>> {
        Box::pin(async { Ok(Some(shard.len() as u64)) })
    }
}

/// Does the tasks of a call one after the other.
fn in_turn<'a>(
    count: usize,
    _at_once: std::num::NonZeroUsize,
    one: &'a (dyn Fn(usize) -> Task<'a, ReaderError> + Sync),
) -> Task<'a, ReaderError> {
    Box::pin(async move {
        for number in 0..count {
            one(number).await?;
        }
        Ok(())
    })
}

impl ArrayReader<()> {
    /// Returns a reader as this one, which keeps nothing yet, with `newer_subchunks`.
    pub(crate) fn with_newer_subchunks(
        &self,
        newer_subchunks: Arc<dyn ListsNewerSubchunks>,
    ) -> Self {
        let Inner {
            array,
            settings,
            decoded_by,
            files,
            ..
        } = &*self.0;
        Self(Arc::new(Inner {
            array: array.with_storage(array.storage()),
            settings: settings.clone(),
            decoded_by: decoded_by.clone(),
            files: files.clone(),
            newer_subchunks: Some(newer_subchunks),
            kept: Arc::new(KeptByReader {
                caches: PerProcess::new(Caches::default),
                counters: Counters::default(),
            }),
        }))
    }

    /// Reads `subset` from `store`, whose shards are open files or not.
    pub(crate) async fn read_from<R: Reads>(
        &self,
        store: R,
        are_open_files: bool,
        subset: &ArraySubset,
    ) -> Result<Vec<u8>, ReaderError> {
        let mut elements = vec![0; subset.num_elements_usize() * self.element_size()?];
        let mut output = Output::contiguous(&mut elements);
        let (boxes, place) = self.one_box(subset, &mut output)?;
        let DecodedBy::ThisCrate(codec) = &self.0.decoded_by else {
            panic!("{}", self.explain());
        };
        let requests = self.0.settings.requests;
        if are_open_files {
            let source = (&Opened(store), requests, in_turn as Each<_>);
            self.read_shards(codec, &boxes, source, OutputPlace::Host(&place))
                .await?;
        } else {
            let store = Store {
                reads: store,
                range_cost: RangeCost::CACHED,
            };
            let source = (&store, requests, in_turn as Each<_>);
            self.read_shards(codec, &boxes, source, OutputPlace::Host(&place))
                .await?;
        }
        Ok(elements)
    }
}
