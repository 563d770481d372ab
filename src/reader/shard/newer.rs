//! Reads subchunks that are newer than their shard.

use std::sync::{Mutex, PoisonError};

use super::errors::store_error;
use super::windows::WantedSubchunk;
use super::{Attempt, ReadCall, Stop, lock};
use crate::reader::OutputPlace;
use crate::reader::metrics::add;
use crate::reader::newer_subchunks::{NewerSubchunks, NewestSubchunk};
use crate::reader::source::{ShardSource, SubchunkBytes};
use crate::reader::threads::Later;
use zarrs_cuda_engine::contract::EncodedBytes;

impl<S: ShardSource> Attempt<'_, S> {
    /// Reads the subchunks of `touched` that `newer` lists, and writes their elements. Returns the other
    /// subchunks. If `each`, reads every subchunk by itself, from beside the shard or from the shard.
    pub(super) async fn read_newer<'p>(
        &self,
        newer: &dyn NewerSubchunks,
        touched: Vec<WantedSubchunk<'p>>,
        each: bool,
    ) -> Result<Vec<WantedSubchunk<'p>>, Stop> {
        /// The number of bytes of subchunks that are decoded together, so that long rows of elements are
        /// written.
        const AT_ONCE: usize = 1 << 20;
        let ReadCall {
            settings,
            requests,
            requests_of_shard,
            ..
        } = self.call;
        let is_listed = |touched: &WantedSubchunk<'_>| each || newer.has(touched.number());
        let (beside, in_shard): (Vec<_>, Vec<_>) = touched.into_iter().partition(is_listed);
        let share = AT_ONCE.min(settings.memory / *requests);
        let most = (share / self.shard.sharding.grid.subchunk_bytes()).max(1);
        let len = beside.len().div_ceil(requests_of_shard.get()).min(most);
        let groups: Vec<&[WantedSubchunk<'_>]> = beside.chunks(len.max(1)).collect();
        let in_shard = Mutex::new(in_shard);
        let (groups, others) = (&*groups, &in_shard);
        let read = |number: usize| -> Later<'_, Result<(), Stop>> {
            Box::pin(async move {
                let mut in_shard = self.read_objects(newer, groups[number], each).await?;
                lock(others).append(&mut in_shard);
                Ok(())
            })
        };
        self.each(groups.len(), &read).await?;
        let mut in_shard = in_shard
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        in_shard.sort_unstable_by_key(|touched| touched.number());
        Ok(in_shard)
    }

    /// Reads the newest versions of the subchunks of `group`, and writes their elements. Returns the
    /// subchunks that have no version beside the shard.
    async fn read_objects<'p>(
        &self,
        newer: &dyn NewerSubchunks,
        group: &[WantedSubchunk<'p>],
        each: bool,
    ) -> Result<Vec<WantedSubchunk<'p>>, Stop> {
        let ReadCall { counters, .. } = self.call;
        let (mut found, mut empty, mut in_shard) = (Vec::new(), Vec::new(), Vec::new());
        for &touched in group {
            let number = touched.number();
            let newest = if each {
                let read = newer.read(number).await;
                read.map(|read| read.map_or(NewestSubchunk::Empty, NewestSubchunk::Data))
            } else {
                newer.newest(number).await
            };
            match newest.map_err(|error| store_error(self.shard, error))? {
                NewestSubchunk::Data(bytes) => {
                    add(&counters.requests, 1);
                    add(&counters.ranges, 1);
                    add(&counters.subchunks_read, 1);
                    add(&counters.bytes_read, bytes.len());
                    found.push((touched, bytes));
                }
                NewestSubchunk::Empty => empty.push(touched),
                NewestSubchunk::InShard => in_shard.push(touched),
                NewestSubchunk::Gone => return Err(Stop::Changed),
            }
        }
        self.fill(empty)?;
        if let OutputPlace::Device(sink) = self.call.place {
            let found = found.into_iter();
            let kept = |bytes| SubchunkBytes::Kept(EncodedBytes::new(bytes));
            self.prepare(sink, found.map(|(of, bytes)| (of, kept(bytes))))?;
            return Ok(in_shard);
        }
        let found: Vec<_> = found.iter().map(|(of, bytes)| (*of, &**bytes)).collect();
        self.decode(&found, None)?;
        Ok(in_shard)
    }
}
