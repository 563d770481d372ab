//! The subchunks of a shard whose index is known: where their bytes are, how they are read, and which of them
//! are kept.

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use zarrs_storage::StorageError;
use zarrs_storage::byte_range::ByteRange;

use super::buffer::{keep_buffer, take_buffer};
use super::errors::{damage, got_no_answer, store_error};
use super::windows::WantedSubchunk;
use super::{Attempt, ReadCall, Stop, lock};
use crate::reader::cache::{Index, Subchunk};
use crate::reader::device::DeviceSink;
use crate::reader::error::Damage;
use crate::reader::metrics::add;
use crate::reader::source::{FetchedBytes, ReadInto, ShardSource, SubchunkBytes};
use crate::reader::threads::Later;
use crate::reader::{OutputPlace, ReaderError};
use crate::shard::reading::{check_last_bytes, last_bytes};
use crate::store::parts::{PartToRead, PartsToRead, RangeCost};
use zarrs_cuda_engine::contract::{EngineError, NeighbourSink};

/// A subchunk that is to be read.
#[derive(Clone)]
pub(super) struct SubchunkToRead<'p> {
    touched: WantedSubchunk<'p>,
    part: PartToRead,
}

/// A shard with its index, during one attempt to read the shard.
pub(super) struct Indexed<'a, S: ShardSource> {
    pub(super) attempt: &'a Attempt<'a, S>,
    pub(super) opened: &'a S::Shard,
    pub(super) index: &'a Arc<Index>,
    /// The decoded subchunks to keep after the attempt, with their numbers.
    pub(super) decoded: Mutex<Vec<(usize, Arc<Subchunk>)>>,
    pub(super) range_cost: OnceLock<RangeCost>,
}

impl<S: ShardSource> Indexed<'_, S> {
    /// Returns the subchunks of `touched` to read, ordered by their places in the shard. Writes the elements
    /// of the other subchunks, which are empty, kept or damaged.
    pub(super) async fn stored<'p>(
        &self,
        touched: &[WantedSubchunk<'p>],
    ) -> Result<Vec<SubchunkToRead<'p>>, Stop> {
        let limit = self.attempt.shard.sharding.subchunk_len();
        let limit = limit.map_err(|error| damage(self.attempt.shard, None, error))?;
        let (mut stored, mut filled) = (Vec::new(), Vec::new());
        for &touched in touched {
            let number = touched.number();
            let Some(extent) = self.index.entries.get(number) else {
                filled.push(touched);
                continue;
            };
            if let Err(error) = limit.check(number, extent.len()) {
                self.note(number, error)?;
                filled.push(touched);
            } else if !self.write_kept(touched)? {
                let part = self.part_to_read(touched, extent);
                stored.push(SubchunkToRead { touched, part });
            }
        }
        self.attempt.fill(filled)?;
        if !limit.is_bounded() {
            stored = self.check_ends(stored).await?;
        }
        // Subchunks are read in the order in which they lie in the shard.
        stored.sort_by_key(|stored| stored.part.extent().start);
        Ok(stored)
    }

    /// Chooses the bytes to read of the subchunk `touched` at `extent`. Parts are read only if they need no
    /// decoding, and no subchunks are kept.
    fn part_to_read(&self, touched: WantedSubchunk<'_>, extent: Range<usize>) -> PartToRead {
        let (call, sharding) = (self.attempt.call, &self.attempt.shard.sharding);
        let is_plain = sharding.is_plain() && extent.len() == sharding.grid.subchunk_bytes();
        let is_device = matches!(call.place, OutputPlace::Device(_));
        if !is_plain || is_device || call.settings.subchunk_cache > 0 {
            return PartToRead::whole(extent);
        }
        let windows = touched.windows();
        let rows = windows.map(|window| self.attempt.windows[window].rows(touched.number()));
        let cost = self.range_cost(extent.start);
        PartToRead::cheapest(extent, rows, cost)
    }

    /// Returns the time that one more range of a request takes. The first request is for bytes from `offset` on.
    fn range_cost(&self, offset: usize) -> RangeCost {
        let call = self.attempt.call;
        *self.range_cost.get_or_init(|| match call.settings.gap {
            Some(gap) => RangeCost(gap),
            None => call.source.range_cost(self.opened, offset as u64),
        })
    }

    /// Reads the subchunks `stored`, writes their elements, and then reads the index again and compares it.
    pub(super) async fn read(&self, stored: &[SubchunkToRead<'_>]) -> Result<(), Stop> {
        let ReadCall {
            settings, requests, ..
        } = self.attempt.call;
        let share = settings.memory / *requests;
        let first = stored.first().map_or(0, |first| first.part.extent().start);
        let cost = self.range_cost(first);
        let groups = groups(stored, S::request_bytes(cost).min(share), cost);
        let is_strict = self.attempt.call.is_strict();
        if let [group] = &*groups
            && !is_strict
        {
            return self.read_group(group, true).await;
        }
        let groups = &*groups;
        let read = |number: usize| -> Later<'_, Result<(), Stop>> {
            Box::pin(self.read_group(groups[number], is_strict))
        };
        self.attempt.each(groups.len(), &read).await?;
        self.check_index().await
    }

    /// Puts the index and the decoded subchunks into the caches. The caller has checked that the index did
    /// not change during the read.
    pub(super) fn keep(self) {
        let ReadCall {
            settings, caches, ..
        } = self.attempt.call;
        let decoded = self
            .decoded
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        for (number, subchunk) in decoded {
            let key = (self.attempt.shard.key.clone(), number);
            caches
                .subchunks
                .keep(key, &subchunk, settings.subchunk_cache);
        }
        if !self.attempt.call.is_strict() {
            let key = self.attempt.shard.key.clone();
            caches.indices.keep(key, self.index, settings.index_cache);
        }
    }

    /// Writes the elements of a subchunk that the cache has. Returns false if the cache does not have it.
    fn write_kept(&self, touched: WantedSubchunk<'_>) -> Result<bool, ReaderError> {
        let is_device = matches!(self.attempt.call.place, OutputPlace::Device(_));
        if is_device || self.attempt.call.settings.subchunk_cache == 0 {
            return Ok(false);
        }
        let number = touched.number();
        let key = (self.attempt.shard.key.clone(), number);
        let kept = self.attempt.call.caches.subchunks.get(&key);
        let Some(kept) = kept.filter(|kept| kept.index == self.index.id) else {
            return Ok(false);
        };
        add(&self.attempt.call.counters.subchunk_hits, 1);
        for window in touched.windows() {
            let window = &self.attempt.windows[window];
            let written = window.write_neighbours(number, &[&kept.elements], &mut Vec::new());
            written.map_err(|error| damage(self.attempt.shard, Some(number), error))?;
        }
        Ok(true)
    }

    /// Records that subchunk `number` is damaged and becomes fill values.
    ///
    /// # Errors
    /// [`ReaderError::Damaged`] if the settings make damage an error.
    fn note(
        &self,
        number: usize,
        error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Result<(), ReaderError> {
        let damage = Damage::new(self.attempt.shard.key.clone(), Some(number), error);
        if !self.attempt.call.settings.fill_damaged {
            return Err(ReaderError::Damaged(damage));
        }
        lock(&self.attempt.damaged).push(damage);
        Ok(())
    }

    /// Returns the subchunks of `stored` that lie in the shard, after a read of `stored` failed. The other
    /// subchunks are damaged.
    ///
    /// # Errors
    /// `error` if all of these subchunks are in the shard, or the size of the shard is unknown.
    async fn inside<'p>(
        &self,
        stored: &[SubchunkToRead<'p>],
        error: ReaderError,
    ) -> Result<Vec<SubchunkToRead<'p>>, Stop> {
        if let ReaderError::Store {
            error: of_store, ..
        } = &error
            && got_no_answer(of_store)
        {
            return Err(error.into());
        }
        // The shard may have been replaced by a shorter one.
        self.check_index().await?;
        let Ok(Some(size)) = self.attempt.call.source.size(self.opened).await else {
            return Err(error.into());
        };
        let is_inside = |stored: &&SubchunkToRead<'_>| stored.part.extent().end as u64 <= size;
        let (inside, outside): (Vec<&SubchunkToRead<'p>>, Vec<_>) =
            stored.iter().partition(is_inside);
        if outside.is_empty() {
            return Err(error.into());
        }
        for stored in &outside {
            let (number, end) = (stored.touched.number(), stored.part.extent().end);
            let extent = EngineError::Extent {
                subchunk: number,
                end,
                shard: index(size),
            };
            self.note(number, extent)?;
        }
        let outside = outside.into_iter().map(|stored| stored.touched);
        self.attempt.fill(outside)?;
        Ok(inside.into_iter().cloned().collect())
    }

    /// Reads the last byte of each long subchunk: if the store has this byte, the stored bytes justify the
    /// memory that the index asks for. Returns the subchunks that are in the shard.
    async fn check_ends<'p>(
        &self,
        stored: Vec<SubchunkToRead<'p>>,
    ) -> Result<Vec<SubchunkToRead<'p>>, Stop> {
        let ranges = stored.iter().map(|stored| {
            let extent = stored.part.extent();
            ByteRange::FromStart(extent.start as u64, Some(extent.len() as u64))
        });
        let ranges = last_bytes(&ranges.collect::<Vec<_>>());
        if ranges.is_empty() {
            return Ok(stored);
        }
        let mut buffer = Vec::new();
        let len = ranges.len() as u64;
        let into = ReadInto::buffer(&mut buffer);
        let read = (self.attempt.call).request(self.opened, &ranges, len, into);
        let error = match read.await {
            Ok(None) => return Err(Stop::Changed),
            Ok(read) => match check_last_bytes(ranges.len(), read) {
                Ok(()) => return Ok(stored),
                // The size of the shard tells whether these bytes are in it.
                Err(_) => self.other_bytes(),
            },
            Err(error) => store_error(self.attempt.shard, error),
        };
        self.inside(&stored, error).await
    }

    /// Reads the index again, and checks that it is the one that was read before.
    pub(super) async fn check_index(&self) -> Result<(), Stop> {
        let Attempt { call, shard, .. } = self.attempt;
        match call.encoded_index(shard, self.opened).await {
            Ok(Some(encoded)) if encoded == self.index.encoded => Ok(()),
            // The shard was replaced, perhaps by one that is too short for an index.
            Ok(_) | Err(ReaderError::Damaged(_)) => Err(Stop::Changed),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the subchunks of `group`, and writes their elements. If `and_index`, the same request reads the
    /// index, which is compared.
    async fn read_group(&self, group: &[SubchunkToRead<'_>], and_index: bool) -> Result<(), Stop> {
        let mut rest = self.try_group(group, and_index).await?;
        while let Some(inside) = rest.filter(|inside| !inside.is_empty()) {
            rest = self.try_group(&inside, and_index).await?;
        }
        Ok(())
    }

    /// Tries [`read_group`](Self::read_group). If some subchunks are not in the shard, writes nothing and
    /// returns the subchunks that are in the shard.
    async fn try_group<'p>(
        &self,
        group: &[SubchunkToRead<'p>],
        and_index: bool,
    ) -> Result<Option<Vec<SubchunkToRead<'p>>>, Stop> {
        let first = group.first().map_or(0, |first| first.part.extent().start);
        let parts = group.iter().map(|subchunk| &subchunk.part);
        let parts = PartsToRead::new(parts, self.range_cost(first));
        let mut ranges = parts.byte_ranges();
        let mut bytes = parts.merged().total();
        if and_index {
            ranges.push(self.attempt.shard.sharding.index.byte_range());
            bytes += self.index.encoded.len() as u64;
        }
        let mut buffer = take_buffer();
        let slabs = match self.attempt.call.place {
            OutputPlace::Device(sink) => Some(sink.slabs()),
            OutputPlace::Host(_) => None,
        };
        let into = ReadInto {
            buffer: &mut buffer,
            slabs,
        };
        let read = (self.attempt.call).request(self.opened, &ranges, bytes, into);
        let read = read.await;
        let counters = self.attempt.call.counters;
        add(&counters.subchunks_read, group.len());
        add(
            &counters.merges,
            group.len().saturating_sub(parts.merged().iter().len()),
        );
        let done = match read {
            Err(error) => {
                let error = store_error(self.attempt.shard, error);
                self.inside(group, error).await.map(Some)
            }
            Ok(None) => Err(Stop::Changed),
            Ok(Some(mut read)) => {
                let index = if and_index { read.pop() } else { None };
                let is_same = index.is_none_or(|index| index.as_ref() == self.index.encoded);
                // Some stores return only those bytes of a range that exist.
                if is_same && !parts.merged().fits(&read) {
                    let error = self.other_bytes();
                    self.inside(group, error).await.map(Some)
                } else if is_same {
                    let decoded = self.decode(group, &parts, &read);
                    // If the shard was replaced, it is not damaged: the store may have read the ranges from
                    // several versions of it.
                    if decoded.is_err() {
                        self.check_index().await?;
                    }
                    decoded.map(|()| None).map_err(Stop::Error)
                } else {
                    Err(Stop::Changed)
                }
            }
        };
        keep_buffer(buffer);
        done
    }

    fn other_bytes(&self) -> ReaderError {
        let error = StorageError::Other("the store returned other bytes".to_string());
        store_error(self.attempt.shard, error)
    }

    /// Decodes the subchunks of `group` from the bytes that were `read` for `parts`.
    fn decode(
        &self,
        group: &[SubchunkToRead<'_>],
        parts: &PartsToRead,
        read: &[FetchedBytes<'_>],
    ) -> Result<(), ReaderError> {
        if let OutputPlace::Device(sink) = self.attempt.call.place {
            return self.give_to(sink, group, (parts, read));
        }
        let bytes_of = |range: Range<u64>| {
            let bytes = parts.bytes_of(read, &range);
            bytes.ok_or_else(|| self.other_bytes())
        };
        let mut subchunks = Vec::with_capacity(group.len());
        let mut rows = Vec::new();
        for SubchunkToRead { touched, part } in group {
            let start = part.extent().start as u64;
            match part.rows().map(|rows| rows.iter().as_slice()) {
                None => subchunks.push((*touched, bytes_of(start..part.extent().end as u64)?)),
                Some([range]) => {
                    let bytes = bytes_of(start + range.start..start + range.end)?;
                    self.attempt
                        .write_rows(*touched, bytes, index(range.start))?;
                }
                Some(_) => self.attempt.write_dense_rows(*touched, &mut rows, |row| {
                    bytes_of(start + row.start as u64..start + row.end as u64)
                })?,
            }
        }
        subchunks.sort_unstable_by_key(|(touched, _)| touched.number());
        self.attempt.decode(&subchunks, Some(self))
    }

    /// Gives the subchunks of `group` to a device, in the order of their bytes, which were `read` for `parts`.
    fn give_to(
        &self,
        sink: &DeviceSink<'_>,
        group: &[SubchunkToRead<'_>],
        (parts, read): (&PartsToRead, &[FetchedBytes<'_>]),
    ) -> Result<(), ReaderError> {
        let mut subchunks = Vec::with_capacity(group.len());
        for SubchunkToRead { touched, part } in group {
            let range = part.extent().start as u64..part.extent().end as u64;
            let bytes = if range.is_empty() {
                Some(SubchunkBytes::Borrowed(&[][..]))
            } else {
                let place = parts.place_of(read, &range);
                place.and_then(|(at, place)| read[at].part(place))
            };
            subchunks.push((*touched, bytes.ok_or_else(|| self.other_bytes())?));
        }
        in_slab(sink, &mut subchunks);
        self.attempt.prepare(sink, subchunks)
    }
}

/// Copies the borrowed bytes of `subchunks` to page-locked memory, one behind the other, if it has room for all of them.
fn in_slab(sink: &DeviceSink<'_>, subchunks: &mut [(WantedSubchunk<'_>, SubchunkBytes<'_>)]) {
    let len_of = |bytes: &SubchunkBytes<'_>| match bytes {
        SubchunkBytes::Borrowed(bytes) => bytes.len(),
        SubchunkBytes::Kept(_) => 0,
    };
    let len = subchunks.iter().map(|(_, bytes)| len_of(bytes)).sum();
    if len == 0 {
        return;
    }
    let Some(mut slab) = sink.slabs().take(len) else {
        return;
    };
    let (to, mut from) = (slab.bytes_mut(), 0);
    for (_, bytes) in &*subchunks {
        if let SubchunkBytes::Borrowed(bytes) = bytes
            && let Some(to) = to.get_mut(from..from + bytes.len())
        {
            to.copy_from_slice(bytes);
            from += bytes.len();
        }
    }
    sink.reads().copied_by_caller(len);
    let slab = slab.into_bytes();
    let mut from = 0;
    for (_, bytes) in subchunks {
        let end = from + len_of(bytes);
        if end > from
            && let Some(part) = slab.part(from..end)
        {
            *bytes = SubchunkBytes::Kept(part);
            from = end;
        }
    }
}

/// Passes subchunks on to `sink`, and keeps a copy of each.
pub(super) struct Keeping<'a, S: ShardSource> {
    pub(super) indexed: &'a Indexed<'a, S>,
    pub(super) sink: &'a dyn NeighbourSink,
}

impl<S: ShardSource> NeighbourSink for Keeping<'_, S> {
    fn row_len(&self, first: usize, count: usize) -> usize {
        self.sink.row_len(first, count)
    }

    fn most_bytes(&self) -> usize {
        self.sink.most_bytes()
    }

    fn write_neighbours(
        &self,
        first: usize,
        sources: &[&[u8]],
        buffer: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        let call = self.indexed.attempt.call;
        // The number of shards that are read at once.
        let shards = call.requests.get() / call.requests_of_shard;
        let most = call.settings.subchunk_cache / shards.max(1);
        for (number, source) in (first..).zip(sources) {
            let mut decoded = lock(&self.indexed.decoded);
            // Subchunks for which the cache has no room are not copied.
            if (decoded.len() + 1).saturating_mul(source.len()) <= most {
                let subchunk = Subchunk {
                    index: self.indexed.index.id,
                    elements: source.to_vec(),
                };
                decoded.push((number, Arc::new(subchunk)));
            }
        }
        self.sink.write_neighbours(first, sources, buffer)
    }

    fn fill_neighbours(
        &self,
        first: usize,
        count: usize,
        element: &[u8],
    ) -> Result<(), EngineError> {
        self.sink.fill_neighbours(first, count, element)
    }
}

/// Converts the offset `at` in a subchunk. It is a `usize`, because the subchunk is in memory.
fn index(at: u64) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

/// Divides subchunks into groups that take at most about `most` bytes to read, including the gaps between the
/// subchunks that are read at `cost`.
fn groups<'g, 'p>(
    stored: &'g [SubchunkToRead<'p>],
    most: usize,
    cost: RangeCost,
) -> Vec<&'g [SubchunkToRead<'p>]> {
    let mut groups = Vec::new();
    let (mut from, mut sum) = (0, 0_u64);
    let mut end: Option<u64> = None;
    for (at, subchunk) in stored.iter().enumerate() {
        let (mut start, mut last, mut len) = (None, 0, 0);
        for range in subchunk.part.ranges() {
            start.get_or_insert(range.start);
            (last, len) = (range.end, len + (range.end - range.start));
        }
        let between = end
            .zip(start)
            .and_then(|(end, start)| start.checked_sub(end));
        let between = between.filter(|between| *between <= cost.0).unwrap_or(0);
        let more = len.saturating_add(between);
        if at > from && sum.saturating_add(more) > most as u64 {
            groups.push(&stored[from..at]);
            (from, sum) = (at, len);
        } else {
            sum = sum.saturating_add(more);
        }
        end = Some(last);
    }
    if from < stored.len() {
        groups.push(&stored[from..]);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_count_the_gaps_that_are_read() {
        let touched = WantedSubchunk(&[(0, 0)]);
        let lens = |extents: &[Range<usize>], most, gap| -> Vec<usize> {
            let stored: Vec<_> = extents
                .iter()
                .map(|extent| SubchunkToRead {
                    touched,
                    part: PartToRead::whole(extent.clone()),
                })
                .collect();
            groups(&stored, most, RangeCost(gap))
                .iter()
                .map(|group| group.len())
                .collect()
        };
        assert_eq!(lens(&[], 9, 9), [0; 0]);
        assert_eq!(lens(&[0..4, 4..8, 8..12], 8, 0), [2, 1]);
        assert_eq!(
            lens(&[0..4, 4..8, 8..12], 0, 0),
            [1, 1, 1],
            "one is always allowed"
        );
        // The bytes between are read where the gap is small enough, and count.
        assert_eq!(lens(&[0..4, 10..14, 20..24], 14, 6), [2, 1]);
        assert_eq!(lens(&[0..4, 10..14, 20..24], 14, 5), [3]);
        assert_eq!(
            lens(&[20..24, 0..4, 4..4, 4..8], 12, 9),
            [4],
            "in any order"
        );
    }
}
