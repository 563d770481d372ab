//! Checks, merges and cuts out ranges of bytes of values, and writes over them.

use std::ops::Range;

use bytes::Bytes;
use zarrs_storage::byte_range::{ByteRange, InvalidByteRangeError};
use zarrs_storage::{StorageError, StoreKey};

/// Returns the bytes that `range` names in a value of `len` bytes. A store that reads parts of its values
/// needs it.
///
/// ```
/// use zarrs::storage::byte_range::ByteRange;
/// use zarrs_cuda::storage::within;
///
/// assert_eq!(within(ByteRange::Suffix(4), 10)?, 6..10);
/// assert_eq!(within(ByteRange::FromStart(3, None), 10)?, 3..10);
/// assert!(within(ByteRange::FromStart(8, Some(4)), 10).is_err());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`StorageError::InvalidByteRangeError`] if the range begins or ends outside of the value.
pub fn within(range: ByteRange, len: u64) -> Result<Range<u64>, StorageError> {
    bytes_of(range, len).ok_or_else(|| match range {
        // The error for invalid ranges adds the start and the count when it is shown, which would overflow
        // here.
        ByteRange::FromStart(start, Some(count)) if start.checked_add(count).is_none() => {
            StorageError::Other(format!(
                "invalid byte range of {count} bytes from {start} on for bytes of length {len}"
            ))
        }
        _ => InvalidByteRangeError::new(range, len).into(),
    })
}

/// Returns the bytes that `range` names in a value of `len` bytes; `None` if not all of them are in the
/// value.
pub(crate) fn bytes_of(range: ByteRange, len: u64) -> Option<Range<u64>> {
    let bytes = match range {
        ByteRange::FromStart(start, None) => start..len,
        ByteRange::FromStart(start, Some(count)) => start..start.checked_add(count)?,
        ByteRange::Suffix(count) => len.checked_sub(count)?..len,
    };
    (bytes.start <= bytes.end && bytes.end <= len).then_some(bytes)
}

/// Disjoint ranges in ascending order. No range is empty, and no two ranges touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Merged(Vec<Range<u64>>);

impl Merged {
    /// Merges `ranges` to the bytes that are in at least one of them.
    pub(crate) fn of(ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        Self::near(0, ranges)
    }

    /// Merges `ranges` to the bytes that are in one of them, or between two of them that are at most `gap`
    /// bytes apart.
    pub(crate) fn near(gap: u64, ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        let joins = |last: &Range<u64>, next: &Range<u64>| {
            last.start <= next.start && next.start <= last.end.saturating_add(gap)
        };
        let mut merged: Vec<Range<u64>> = Vec::new();
        let mut is_sorted = true;
        for range in ranges.into_iter().filter(|range| !range.is_empty()) {
            match merged.last_mut() {
                // Most ranges follow the range before them.
                Some(last) if joins(last, &range) => last.end = last.end.max(range.end),
                last => {
                    is_sorted &= last.is_none_or(|last| last.start < range.start);
                    merged.push(range);
                }
            }
        }
        if !is_sorted {
            merged.sort_by_key(|range| range.start);
            merged.dedup_by(|next, last| {
                let joins = joins(last, next);
                if joins {
                    last.end = last.end.max(next.end);
                }
                joins
            });
        }
        Self(merged)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Range<u64>> {
        self.0.iter()
    }

    /// Returns the ranges of bytes before `end` that are in none of the merged ranges.
    pub(crate) fn gaps(&self, end: u64) -> Vec<Range<u64>> {
        let mut from = 0;
        let mut gaps = Vec::new();
        for range in self.0.iter().chain([&(end..end)]) {
            if from < range.start.min(end) {
                gaps.push(from..range.start.min(end));
            }
            from = range.end;
        }
        gaps
    }

    /// Returns the number of bytes in all ranges; [`u64::MAX`] if there are more.
    pub(crate) fn total(&self) -> u64 {
        let lens = self.0.iter().map(|range| range.end - range.start);
        lens.fold(0, u64::saturating_add)
    }

    pub(crate) fn byte_ranges(&self) -> Vec<ByteRange> {
        let ranges = self.0.iter();
        ranges
            .map(|range| ByteRange::FromStart(range.start, Some(range.end - range.start)))
            .collect()
    }

    /// Returns whether the lengths of `read` are the lengths of the merged ranges.
    pub(crate) fn fits(&self, read: &[impl AsRef<[u8]>]) -> bool {
        let ranges = self.0.iter();
        let lens = ranges.map(|range| range.end - range.start);
        lens.eq(read.iter().map(|bytes| bytes.as_ref().len() as u64))
    }

    /// Returns where the bytes of `range` lie in the buffers `read`, which have the merged ranges: the index
    /// of the buffer, and the place in the buffer. `range` was merged and is not empty. Returns `None` if a
    /// buffer is missing or too short.
    pub(crate) fn place(
        &self,
        read: &[impl AsRef<[u8]>],
        range: &Range<u64>,
    ) -> Option<(usize, Range<usize>)> {
        let after = self.0.partition_point(|merged| merged.start <= range.start);
        let at = after.checked_sub(1)?;
        let (merged, read) = (self.0.get(at)?, read.get(at)?);
        let start = usize::try_from(range.start.checked_sub(merged.start)?).ok()?;
        let end = start.checked_add(usize::try_from(range.end - range.start).ok()?)?;
        (end <= read.as_ref().len()).then_some((at, start..end))
    }

    /// Returns the bytes of `range`, which was merged, from the buffers `read`; `None` if a buffer is missing
    /// or too short.
    pub(crate) fn slice(&self, read: &[Bytes], range: &Range<u64>) -> Option<Bytes> {
        if range.is_empty() {
            return Some(Bytes::new());
        }
        let (at, place) = self.place(read, range)?;
        Some(read[at].slice(place))
    }
}

/// The requests for ranges of a value in a store whose requests take long: near ranges are one request.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "object_store"),
    allow(dead_code, reason = "of a store that has them")
)]
pub(crate) struct Requests {
    ranges: Vec<ByteRange>,
    /// For each range that was asked for: its request, and the range's place in the bytes of the request; `None`
    /// for all bytes.
    places: Vec<(usize, Option<Range<usize>>)>,
}

#[cfg_attr(
    not(feature = "object_store"),
    allow(dead_code, reason = "of a store that has them")
)]
impl Requests {
    /// Merges `ranges` that are at most `gap` bytes apart. The last range keeps a request of its own, which is the
    /// last: a reader asks for the index of a shard last, and a changed index tells that the shard was replaced.
    pub(crate) fn near(gap: u64, ranges: &[ByteRange]) -> Self {
        let bounded = |range: &ByteRange| match *range {
            ByteRange::FromStart(start, Some(len)) if len > 0 => {
                Some(start..start.checked_add(len)?)
            }
            _ => None,
        };
        let (last, others) = match ranges.split_last() {
            Some((last, others)) => (Some(*last), others),
            None => (None, ranges),
        };
        let merged = Merged::near(gap, others.iter().filter_map(bounded));
        let mut requests = merged.byte_ranges();
        let mut places = Vec::with_capacity(ranges.len());
        for range in others {
            let place = bounded(range).and_then(|range| {
                let at = merged
                    .0
                    .partition_point(|merged| merged.start <= range.start);
                let at = at.checked_sub(1)?;
                let start = usize::try_from(range.start - merged.0.get(at)?.start).ok()?;
                let len = usize::try_from(range.end - range.start).ok()?;
                Some((at, start..start.checked_add(len)?))
            });
            if let Some((at, place)) = place {
                places.push((at, Some(place)));
            } else {
                requests.push(*range);
                places.push((requests.len() - 1, None));
            }
        }
        if let Some(last) = last {
            requests.push(last);
            places.push((requests.len() - 1, None));
        }
        Self {
            ranges: requests,
            places,
        }
    }

    /// Returns the ranges to request.
    pub(crate) fn ranges(&self) -> &[ByteRange] {
        &self.ranges
    }

    /// Returns the bytes of each range that was asked for, from the bytes that were `read` by the requests. They
    /// are fewer than asked for where a request returned fewer.
    pub(crate) fn cut(&self, read: &[Bytes]) -> Vec<Bytes> {
        let cut = |(request, place): &(usize, Option<Range<usize>>)| {
            let bytes = read.get(*request).cloned().unwrap_or_default();
            match place {
                Some(place) => {
                    let end = place.end.min(bytes.len());
                    bytes.slice(place.start.min(end)..end)
                }
                None => bytes,
            }
        };
        self.places.iter().map(cut).collect()
    }
}

/// Returns the bytes of `value` that `range` names, without copying them.
///
/// ```
/// # use bytes::Bytes;
/// use zarrs::storage::byte_range::ByteRange;
/// use zarrs_cuda::storage::slice;
///
/// let value = Bytes::from_static(b"subchunks, then the index");
/// assert_eq!(slice(&value, ByteRange::Suffix(5))?, "index");
/// assert_eq!(slice(&value, ByteRange::FromStart(0, Some(9)))?, "subchunks");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The errors of [`within`].
pub fn slice(value: &Bytes, range: ByteRange) -> Result<Bytes, StorageError> {
    let range = within(range, value.len() as u64)?;
    match [range.start, range.end].map(usize::try_from) {
        // `within` has checked that the range ends within the value.
        [Ok(start), Ok(end)] => Ok(value.slice(start..end)),
        [Err(error), _] | [_, Err(error)] => Err(StorageError::Other(error.to_string())),
    }
}

/// Returns `value`, the value of `key`, after it has written `parts` into it, one after the other. The gap
/// between the end of `value` and a part that begins behind it is filled with zeros.
///
/// # Errors
/// [`StorageError::Other`] if the memory cannot be allocated.
pub(crate) fn with_parts(
    key: &StoreKey,
    value: Bytes,
    parts: &[(u64, Bytes)],
) -> Result<Bytes, StorageError> {
    let furthest = parts
        .iter()
        .max_by_key(|(at, part)| at.saturating_add(part.len() as u64));
    let no_memory = || {
        let (at, len) = furthest.map_or((0, 0), |(at, part)| (*at, part.len()));
        StorageError::Other(format!(
            "cannot write {len} bytes at {at} of {key}: there is no memory for a value that long"
        ))
    };
    let mut len = value.len();
    let mut places = Vec::with_capacity(parts.len());
    for (offset, part) in parts {
        let start = usize::try_from(*offset).ok();
        let place = start.and_then(|start| Some(start..start.checked_add(part.len())?));
        let place = place.ok_or_else(no_memory)?;
        len = len.max(place.end);
        places.push(place);
    }
    let mut written = if value.is_unique() {
        // No other reference to these bytes exists: they need not be copied.
        Vec::from(value)
    } else {
        let mut copy = Vec::new();
        let room = copy.try_reserve_exact(len);
        room.map_err(|_| no_memory())?;
        copy.extend_from_slice(&value);
        copy
    };
    let room = written.try_reserve_exact(len - written.len());
    room.map_err(|_| no_memory())?;
    written.resize(len, 0);
    for (place, (_, part)) in std::iter::zip(places, parts) {
        written[place].copy_from_slice(part);
    }
    Ok(written.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn gaps_are_the_other_bytes() {
        for ranges in [&[][..], &[0..3], &[2..3, 5..9], &[0..1, 4..20], &[12..14]] {
            let merged = Merged::of(ranges.iter().cloned());
            for end in 0..=16 {
                let expected: Vec<u64> = (0..end)
                    .filter(|at| !ranges.iter().any(|range| range.contains(at)))
                    .collect();
                let gaps = merged.gaps(end);
                assert!(gaps.iter().all(|gap| !gap.is_empty()), "{ranges:?} {end}");
                let found: Vec<u64> = gaps.into_iter().flatten().collect();
                assert_eq!(found, expected, "{ranges:?} {end}");
            }
        }
    }

    #[test]
    fn bytes_of_ranges() {
        use ByteRange::{FromStart, Suffix};
        for (range, bytes) in [
            (FromStart(0, None), Some(0..10)),
            (FromStart(10, None), Some(10..10)),
            (FromStart(11, None), None),
            (FromStart(3, Some(4)), Some(3..7)),
            (FromStart(10, Some(0)), Some(10..10)),
            (FromStart(3, Some(8)), None),
            (FromStart(u64::MAX, Some(2)), None),
            (Suffix(0), Some(10..10)),
            (Suffix(10), Some(0..10)),
            (Suffix(11), None),
        ] {
            assert_eq!(within(range, 10).ok(), bytes, "{range:?}");
        }
    }

    #[test]
    fn touching_ranges_are_one() {
        let ranges = [7..9, 0..2, 2..4, 3..3, 1..3, 20..30, 22..25];
        let merged = Merged::of(ranges.iter().cloned());
        assert_eq!(merged.0, [0..4, 7..9, 20..30]);
        assert_eq!(merged.total(), 16);
        let value: Vec<u8> = (0..30).collect();
        let read = [0..4, 7..9, 20..30].map(|range| Bytes::copy_from_slice(&value[range]));
        assert!(merged.fits(&read));
        for range in ranges {
            let expected = &value[range.start as usize..range.end as usize];
            assert_eq!(merged.slice(&read, &range).unwrap(), expected);
        }
        assert!(!merged.fits(&read[..2]));
        assert_eq!(merged.slice(&read[..2], &(20..21)), None);
        assert_eq!(merged.slice(&read, &(4..7)), None);
    }

    #[test]
    fn ranges_in_any_order_are_sorted() {
        let merged = Merged::of([5..7, 0..2, 2..3, 6..6, 1..2, 9..9, 6..10]);
        assert_eq!(merged.0, [0..3, 5..10]);
        assert_eq!(merged.total(), 8);
        let merged = Merged::near(3, [20..22, 10..12, 0..4, 7..8, 16..17]);
        assert_eq!(merged.0, [0..12, 16..22]);
        assert!(Merged::near(3, [4..4]).is_empty());
    }

    #[test]
    fn parts_are_written_over() {
        let key = StoreKey::new("a").unwrap();
        let part = |at, bytes: &'static str| (at, Bytes::from_static(bytes.as_bytes()));
        let shared = Bytes::from_static(b"abc");
        for value in [shared.clone(), Bytes::from(b"abc".to_vec())] {
            let with = |parts: &[(u64, Bytes)]| with_parts(&key, value.clone(), parts);
            assert_eq!(with(&[]).unwrap(), "abc");
            let parts = [part(5, "f"), part(1, "B"), part(2, "")];
            assert_eq!(with(&parts).unwrap(), &b"aBc\0\0f"[..]);
            assert_eq!(with(&[part(1, "x"), part(1, "y")]).unwrap(), "ayc");
            for far in [u64::MAX, u64::MAX - 1, 1 << 62] {
                let error = with(&[part(far, "x")]).unwrap_err().to_string();
                assert!(
                    error.contains(&far.to_string()) || error.contains("of a"),
                    "{error}"
                );
            }
        }
        let own = with_parts(&key, Bytes::from(b"abc".to_vec()), &[part(3, "d")]);
        assert_eq!(own.unwrap(), "abcd");
        assert_eq!(shared, "abc");
    }

    proptest! {
        /// Compares the bytes of merged requests with those of a request for each range. The value may be shorter
        /// than a range says.
        #[test]
        fn merged_requests_have_the_bytes_of_each_range(
            asked in prop::collection::vec((0_u64..60, prop::option::of(0_u64..12), prop::bool::weighted(0.1)), 0..8),
            gap in 0_u64..20,
            len in 0_usize..70,
        ) {
            let value = Bytes::from((0..len).map(|n| n as u8).collect::<Vec<_>>());
            let ranges: Vec<ByteRange> = asked
                .iter()
                .map(|(start, count, is_suffix)| match (count, is_suffix) {
                    (Some(count), true) => ByteRange::Suffix(*count),
                    (count, _) => ByteRange::FromStart(*start, *count),
                })
                .collect();
            // Object stores return the bytes of a range that exist.
            let get = |range: &ByteRange| {
                let bytes = match *range {
                    ByteRange::FromStart(start, count) => {
                        let start = (start as usize).min(len);
                        start..count.map_or(len, |count| (start + count as usize).min(len))
                    }
                    ByteRange::Suffix(count) => len.saturating_sub(count as usize)..len,
                };
                value.slice(bytes)
            };
            let requests = Requests::near(gap, &ranges);
            let read: Vec<Bytes> = requests.ranges().iter().map(get).collect();
            let expected: Vec<Bytes> = ranges.iter().map(get).collect();
            prop_assert_eq!(requests.cut(&read), expected);
            prop_assert!(requests.ranges().len() <= ranges.len());
            prop_assert_eq!(requests.ranges().last(), ranges.last());
        }
    }
}
