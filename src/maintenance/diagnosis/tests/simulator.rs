//! Shards and their updates, as `docs/reference/updates.md` describes them, written by hand on bytes.

use std::ops::Range;

use zarrs::array::codec::ShardingIndexLocation::{self, End, Start};

use super::super::{Diagnosis, Geometry, diagnose};
use zarrs_cuda_engine::layout::{RECORD_LEN, Record, fingerprint};

/// Numbers that look random, and are the same in every run (`SplitMix64`).
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub(super) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// How a shard keeps its index, and of how many subchunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) location: ShardingIndexLocation,
    pub(super) big_endian: bool,
    pub(super) checksum: bool,
    pub(super) subchunks: usize,
}

impl Kind {
    pub(super) fn index_len(self) -> usize {
        16 * self.subchunks + if self.checksum { 4 } else { 0 }
    }

    pub(super) fn encode(self, extents: &[Option<Range<usize>>]) -> Vec<u8> {
        let mut index = Vec::new();
        for extent in extents {
            let entry = extent
                .clone()
                .map_or([u64::MAX; 2], |e| [e.start as u64, e.len() as u64]);
            for word in entry {
                index.extend(if self.big_endian {
                    word.to_be_bytes()
                } else {
                    word.to_le_bytes()
                });
            }
        }
        if self.checksum {
            index.extend(crc32c::crc32c(&index).to_le_bytes());
        }
        index
    }

    pub(super) fn decode(self, index: &[u8], size: u64) -> Option<Vec<Option<Range<usize>>>> {
        let (words, checksum) = index.split_at(16 * self.subchunks);
        if self.checksum && crc32c::crc32c(words).to_le_bytes() != checksum {
            return None;
        }
        let entries = words.as_chunks::<16>().0.iter().map(|entry| {
            let from = |bytes: &[u8]| {
                let bytes = bytes.try_into().unwrap();
                if self.big_endian {
                    u64::from_be_bytes(bytes)
                } else {
                    u64::from_le_bytes(bytes)
                }
            };
            match (from(&entry[..8]), from(&entry[8..])) {
                (u64::MAX, u64::MAX) => Some(None),
                (offset, len) => {
                    let end = offset.checked_add(len).filter(|&end| end <= size)?;
                    Some(Some(offset as usize..end as usize))
                }
            }
        });
        entries.collect()
    }

    pub(super) fn diagnose(self, object: &[u8]) -> Diagnosis {
        let is_index = |index: &[u8], size| self.decode(index, size).is_some();
        diagnose(
            object,
            &Geometry {
                location: self.location,
                index_len: self.index_len(),
                checksum: self.checksum,
                is_index: &is_index,
            },
        )
    }

    /// Returns where the index of a whole object is.
    pub(super) fn index_in(self, object: &[u8]) -> Range<usize> {
        match self.location {
            Start => 0..self.index_len(),
            End => object.len() - self.index_len()..object.len(),
        }
    }

    /// Returns the subchunks that a reader finds in `object`, or `None` if the index does not decode.
    pub(super) fn read(self, object: &[u8]) -> Option<Vec<Option<Vec<u8>>>> {
        let extents = self.decode(&object[self.index_in(object)], object.len() as u64)?;
        let subchunk = |extent: Option<Range<usize>>| extent.map(|extent| object[extent].to_vec());
        Some(extents.into_iter().map(subchunk).collect())
    }

    /// Returns bytes that end as a nested shard of as many subchunks does.
    pub(super) fn like_a_shard(self, rng: &mut Rng) -> Vec<u8> {
        let mut shard = bytes(rng, 3);
        let extents: Vec<_> = (0..self.subchunks).map(|_| Some(0..rng.below(4))).collect();
        shard.extend(self.encode(&extents));
        shard
    }
}

pub(super) fn bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    (0..len).map(|_| rng.next() as u8).collect()
}

/// One call of a store: ranges, written in this order.
pub(super) type Write = Vec<(u64, Vec<u8>)>;

/// Writes the first `len` bytes of what `writes` write.
pub(super) fn tear(object: &mut Vec<u8>, writes: &[Write], mut len: usize) {
    for (offset, bytes) in writes.iter().flatten() {
        let bytes = &bytes[..bytes.len().min(len)];
        len -= bytes.len();
        let end = *offset as usize + bytes.len();
        if !bytes.is_empty() {
            object.resize(object.len().max(end), 0);
            object[*offset as usize..end].copy_from_slice(bytes);
        }
    }
}

pub(super) fn total(writes: &[Write]) -> usize {
    writes.iter().flatten().map(|(_, bytes)| bytes.len()).sum()
}

/// The kind of an update, from `docs/reference/updates.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    DataOnly,
    Growing,
    Rewriting,
    Creating,
}

/// An update: what is written, and what a reader then finds.
#[derive(Clone, Debug)]
pub(super) struct Update {
    pub(super) protocol: Protocol,
    pub(super) writes: Vec<Write>,
    /// Whether bytes of the old shard that are live are overwritten.
    pub(super) in_place: bool,
    pub(super) touched: Vec<usize>,
    pub(super) after: Vec<Option<Vec<u8>>>,
}

/// Returns for each byte of a shard whether the byte is live.
fn live(kind: Kind, object: &[u8], extents: &[Option<Range<usize>>]) -> Vec<bool> {
    let mut live = vec![false; object.len()];
    live[kind.index_in(object)].fill(true);
    for extent in extents.iter().flatten() {
        live[extent.clone()].fill(true);
    }
    live
}

/// Somewhere in `bytes` with `len` that are unused.
fn find(rng: &mut Rng, live: &[bool], bytes: Range<usize>, len: usize) -> Option<Range<usize>> {
    let places = bytes.end.checked_sub(len)?.checked_sub(bytes.start)? + 1;
    let first = rng.below(places);
    (0..places)
        .map(|n| bytes.start + (first + n) % places)
        .map(|at| at..at + len)
        .find(|place| live[place.clone()].iter().all(|live| !live))
}

/// Changes some subchunks of `object`, which is a shard or empty, in some of the ways that there are.
#[allow(
    clippy::too_many_lines,
    reason = "one update, from its data to its index"
)]
pub(super) fn update(rng: &mut Rng, kind: Kind, object: &[u8], scale: usize) -> Update {
    if object.is_empty() {
        return create(rng, kind, scale);
    }
    let (size, index_len) = (object.len(), kind.index_len());
    let old_index = object[kind.index_in(object)].to_vec();
    let old = kind.decode(&old_index, size as u64).unwrap();
    let mut live = live(kind, object, &old);
    let mut after = kind.read(object).unwrap();
    let mut touched: Vec<usize> = (0..kind.subchunks).filter(|_| !rng.one_in(3)).collect();
    if touched.is_empty() {
        touched.push(rng.below(kind.subchunks));
    }

    // The number of bytes at the end that must be unused, so that the index can be rewritten where it is.
    let reserve = match kind.location {
        Start => index_len + RECORD_LEN,
        End => 2 * index_len + RECORD_LEN,
    };
    let last_live = old.iter().flatten().map(|e| e.end).max().unwrap_or(0);
    let can_rewrite = size
        .saturating_sub(last_live.max(index_len * usize::from(kind.location == Start)))
        >= reserve;
    let rewrite = can_rewrite && !rng.one_in(3);
    let room = if rewrite { size - reserve } else { size };

    let mut extents = old.clone();
    let (mut data, mut behind) = (Write::new(), Vec::new());
    let mut in_place = false;
    for &number in &touched {
        if rng.one_in(5) {
            (extents[number], after[number]) = (None, None);
            continue;
        }
        let mut new = if rng.one_in(3) {
            kind.like_a_shard(rng)
        } else {
            let len = (1 + rng.below(24)) * scale;
            bytes(rng, len)
        };
        let place = match &old[number] {
            Some(place) if !place.is_empty() && rng.one_in(3) => {
                in_place = true;
                new.truncate(place.len());
                Some(place.start..place.start + new.len())
            }
            _ if rewrite || rng.one_in(2) => find(rng, &live, 0..room, new.len()),
            _ => None,
        };
        let place = match place {
            Some(place) => {
                live[place.clone()].fill(true);
                data.push((place.start as u64, new.clone()));
                place
            }
            None if rewrite => continue,
            None => {
                let start = size + RECORD_LEN + behind.len();
                behind.extend(&new);
                start..start + new.len()
            }
        };
        (extents[number], after[number]) = (Some(place), Some(new));
    }
    let new_index = kind.encode(&extents);
    if extents == old {
        return Update {
            protocol: Protocol::DataOnly,
            writes: vec![data],
            in_place,
            touched,
            after,
        };
    }
    let record = |offset: usize, new_end: usize| {
        let record = Record {
            offset: offset as u64,
            old_end: size as u64,
            old_index: fingerprint(&old_index),
            index_len: index_len as u64,
            new_end: new_end as u64,
            new_index: fingerprint(&new_index),
        };
        (offset as u64, record.to_bytes().to_vec())
    };
    let (mut first, mut second) = (Write::new(), Write::new());
    if rewrite && behind.is_empty() {
        first.extend(data);
        match kind.location {
            Start => {
                let place = size - index_len - RECORD_LEN;
                first.push(record(place, size));
                first.push(((place + RECORD_LEN) as u64, new_index.clone()));
                second.push((0, new_index));
            }
            End => {
                let place = size - index_len - RECORD_LEN;
                first.push(((place - index_len) as u64, new_index.clone()));
                first.push(record(place, size));
                second.push(((size - index_len) as u64, new_index));
            }
        }
    } else {
        let data_end = size + RECORD_LEN + behind.len();
        let second_record = if behind.is_empty() { 0 } else { RECORD_LEN };
        let new_end = data_end + second_record + index_len;
        first.extend(data);
        first.push(record(size, new_end));
        if second_record > 0 {
            behind.extend(record(data_end, new_end).1);
        }
        behind.extend(&new_index);
        first.push(((size + RECORD_LEN) as u64, behind));
        if kind.location == Start {
            second.push((0, new_index));
        }
    }
    Update {
        protocol: if rewrite {
            Protocol::Rewriting
        } else {
            Protocol::Growing
        },
        writes: [first, second]
            .into_iter()
            .filter(|w| !w.is_empty())
            .collect(),
        in_place,
        touched,
        after,
    }
}

/// Returns a shard where nothing was, perhaps with slots.
fn create(rng: &mut Rng, kind: Kind, scale: usize) -> Update {
    let index_len = kind.index_len();
    let head = index_len * usize::from(kind.location == Start);
    let mut after: Vec<_> = (0..kind.subchunks)
        .map(|_| {
            let len = (1 + rng.below(24)) * scale;
            (!rng.one_in(4)).then(|| bytes(rng, len))
        })
        .collect();
    after[0].get_or_insert_with(|| vec![7; 5]);
    let slots = rng.one_in(2);
    let slot = 24 * scale;
    let room = if slots {
        kind.subchunks * slot + index_len * usize::from(kind.location == End)
    } else {
        0
    };
    let offset = head + room;
    let mut end = offset + RECORD_LEN;
    let (mut extents, mut data) = (Vec::new(), Write::new());
    for (number, new) in after.iter().enumerate() {
        extents.push(new.as_ref().map(|new| {
            let start = if slots { head + number * slot } else { end };
            data.push((start as u64, new.clone()));
            end = end.max(start + new.len());
            start..start + new.len()
        }));
    }
    let new_index = kind.encode(&extents);
    let second_record = if end > offset + RECORD_LEN {
        RECORD_LEN
    } else {
        0
    };
    let record = |offset: usize| {
        let record = Record {
            offset: offset as u64,
            old_end: 0,
            old_index: 0,
            index_len: index_len as u64,
            new_end: (end + second_record + index_len) as u64,
            new_index: fingerprint(&new_index),
        };
        (offset as u64, record.to_bytes().to_vec())
    };
    let mut first = vec![record(offset)];
    first.extend(data);
    if second_record > 0 {
        first.push(record(end));
    }
    first.push(((end + second_record) as u64, new_index.clone()));
    let mut writes = vec![first];
    if kind.location == Start {
        writes.push(vec![(0, new_index)]);
    }
    Update {
        protocol: Protocol::Creating,
        writes,
        in_place: false,
        touched: (0..kind.subchunks).collect(),
        after,
    }
}

/// Returns a shard as other software stores it: no record, perhaps with unused bytes.
pub(super) fn foreign(rng: &mut Rng, kind: Kind, scale: usize) -> Vec<u8> {
    let index_len = kind.index_len();
    let mut object = match kind.location {
        Start => vec![0; index_len],
        End => Vec::new(),
    };
    let mut extents = Vec::new();
    for _ in 0..kind.subchunks {
        if rng.one_in(4) {
            extents.push(None);
            continue;
        }
        let gap = rng.below(3);
        object.resize(object.len() + gap, 0);
        let start = object.len();
        let len = (1 + rng.below(24)) * scale;
        let new = match rng.below(4) {
            0 => kind.like_a_shard(rng),
            1 => vec![0; len],
            _ => bytes(rng, len),
        };
        object.extend(new);
        extents.push(Some(start..object.len()));
    }
    if rng.one_in(2) {
        let gap = 2 * index_len + RECORD_LEN + rng.below(40);
        object.resize(object.len() + gap, 0);
    }
    let index = kind.encode(&extents);
    match kind.location {
        Start => object[..index_len].copy_from_slice(&index),
        End => object.extend(index),
    }
    object
}
