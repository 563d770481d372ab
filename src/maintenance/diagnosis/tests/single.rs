//! Objects that no history of our own updates gives: healthy ones of other software, hostile ones,
//! and those where it takes a closer look.

use zarrs::array::codec::ShardingIndexLocation::{self, End, Start};

use super::super::Diagnosis::{self, Complete, Intact, Undo, Unrecoverable};
use super::simulator::{Kind, tear};
use zarrs_cuda_engine::layout::{RECORD_LEN, Record, fingerprint};

fn kind(location: ShardingIndexLocation, big_endian: bool, checksum: bool) -> Kind {
    Kind {
        location,
        big_endian,
        checksum,
        subchunks: 1,
    }
}

/// Returns a shard of one subchunk, and so many unused bytes behind it.
fn shard(kind: Kind, subchunk: &[u8], unused: usize) -> Vec<u8> {
    let head = kind.index_len() * usize::from(kind.location == Start);
    let mut object = vec![0; head];
    object.extend(subchunk);
    object.resize(object.len() + unused, 0);
    let index = kind.encode(&[Some(head..head + subchunk.len())]);
    match kind.location {
        Start => object[..head].copy_from_slice(&index),
        End => object.extend(index),
    }
    object
}

fn record(object: &[u8], kind: Kind) -> Record {
    let size = object.len() as u64;
    let index = fingerprint(&object[kind.index_in(object)]);
    Record {
        offset: size,
        old_end: size,
        old_index: index,
        index_len: kind.index_len() as u64,
        new_end: size + 500,
        new_index: 1,
    }
}

fn put(object: &mut Vec<u8>, record: Record) {
    let write = vec![(record.offset, record.to_bytes().to_vec())];
    tear(object, &[write], RECORD_LEN);
}

fn is_unrecoverable(diagnosis: &Diagnosis) -> bool {
    matches!(diagnosis, Unrecoverable(_))
}

/// The last byte of this shard is also the first of a record, and what is before it an index: it is
/// left alone. So is one that looks like the first byte of a new shard.
#[test]
fn a_healthy_shard_that_looks_torn_is_not_changed() {
    let kind = kind(End, true, false);
    let healthy = shard(kind, &[7; 0x189], 1);
    assert!(
        kind.decode(&healthy[healthy.len() - 17..healthy.len() - 1], 0x18A)
            .is_some()
    );
    assert!(is_unrecoverable(&kind.diagnose(&healthy)));
    assert!(is_unrecoverable(
        &kind.diagnose(&shard(kind, &[0; 0x89], 0))
    ));
    // With a checksum there is no doubt.
    let kind = Kind {
        checksum: true,
        ..kind
    };
    assert_eq!(kind.diagnose(&shard(kind, &[7; 0x189], 1)), Intact);
}

/// The same, but a record says where the shard ended.
#[test]
fn a_record_says_where_the_shard_ended() {
    let kind = kind(End, true, false);
    // All in the first 256th of the object, so that the index may be shifted by a byte.
    let mut object = shard(kind, &[7; 200], 300 * 256);
    let index = object[object.len() - 16..].to_vec();
    let mut done = record(&object, kind);
    done.offset = (object.len() - 16 - RECORD_LEN) as u64;
    done.new_end = done.old_end;
    done.new_index = fingerprint(&index);
    put(&mut object, done);
    assert_eq!(kind.diagnose(&object), Intact);
    // The last sixteen bytes are an index still.
    object.push(0x89);
    assert!(
        kind.decode(&object[object.len() - 16..], object.len() as u64)
            .is_some()
    );
    assert!(matches!(kind.diagnose(&object), Undo(_)));
}

/// Someone else has rewritten the index where it is, after our update did.
#[test]
fn an_index_of_other_software_stays() {
    for location in [Start, End] {
        let kind = kind(location, false, true);
        let mut object = shard(kind, &[7; 30], 2 * kind.index_len() + RECORD_LEN);
        let size = object.len();
        let copy = kind.encode(&[None]);
        let ours = Record {
            offset: (size - kind.index_len() - RECORD_LEN) as u64,
            new_end: size as u64,
            old_index: 5,
            new_index: fingerprint(&copy),
            ..record(&object, kind)
        };
        put(&mut object, ours);
        let at = match location {
            Start => size - kind.index_len(),
            End => size - 2 * kind.index_len() - RECORD_LEN,
        };
        object[at..at + copy.len()].copy_from_slice(&copy);
        assert_eq!(kind.diagnose(&object), Intact);
        // Where it is torn, the copy is what it was to be.
        let index = kind.index_in(&object);
        object[index.start] ^= 1;
        let completed = Complete(vec![(index.start as u64, copy)]);
        assert_eq!(kind.diagnose(&object), completed);
        // A copy with other bytes does not count as a copy.
        object[at] ^= 1;
        assert!(is_unrecoverable(&kind.diagnose(&object)));
    }
}

/// The index that an update would be undone with has to be the one that it found.
#[test]
fn nothing_is_undone_with_another_index() {
    let kind = kind(End, false, false);
    let mut object = shard(kind, &[7; 30], 0);
    let (mut pending, size) = (record(&object, kind), object.len());
    put(&mut object, pending);
    assert!(matches!(kind.diagnose(&object), Undo(_)));
    object[size - 1] ^= 1;
    assert!(is_unrecoverable(&kind.diagnose(&object)));
    for old_end in [1, 15, 1000, u64::MAX] {
        pending.old_end = old_end;
        put(&mut object, pending);
        assert!(is_unrecoverable(&kind.diagnose(&object)));
    }
    for new_end in [u64::MAX, u64::MAX - 1] {
        let mut object = shard(kind, &[7; 30], 0);
        let pending = record(&object, kind);
        put(&mut object, Record { new_end, ..pending });
        assert!(matches!(kind.diagnose(&object), Undo(_)));
    }
}

/// The record of what was undone does not come back, when the record of a rewrite in the same place
/// is torn: it begins with the same bytes.
#[test]
fn what_was_undone_stays_undone() {
    for checksum in [false, true] {
        let kind = kind(End, false, checksum);
        let mut object = shard(kind, &[7; 30], 0);
        let pending = record(&object, kind);
        put(&mut object, pending);
        let Undo(writes) = kind.diagnose(&object) else {
            panic!("nothing is undone");
        };
        let len = writes.iter().map(|(_, bytes)| bytes.len()).sum();
        tear(&mut object, &[writes], len);
        assert_eq!(kind.diagnose(&object), Intact);
        let mut rewrite = record(&object, kind);
        assert_eq!(
            rewrite.old_end,
            pending.offset + (RECORD_LEN + kind.index_len()) as u64
        );
        (rewrite.offset, rewrite.new_end) = (pending.offset, rewrite.old_end);
        for torn in 0..=RECORD_LEN {
            let mut object = object.clone();
            let write = vec![(rewrite.offset, rewrite.to_bytes().to_vec())];
            tear(&mut object, &[write], torn);
            assert_eq!(kind.diagnose(&object), Intact, "{torn}");
        }
    }
}

/// The shard that was being created has an index by now.
#[test]
fn a_shard_with_an_index_is_not_erased() {
    let kind = kind(Start, false, false);
    let mut object = shard(kind, &[7; 30], 0);
    let mut created = record(&object, kind);
    (created.old_end, created.old_index) = (0, 0);
    put(&mut object, created);
    assert_eq!(kind.diagnose(&object), Intact);
    object[..16].fill(0);
    assert_eq!(kind.diagnose(&object), Diagnosis::Erase);
}

#[test]
fn what_is_no_shard_is_reported() {
    for location in [Start, End] {
        for checksum in [false, true] {
            let kind = kind(location, false, checksum);
            for object in [
                vec![],
                vec![0; 10],
                vec![0; 100],
                vec![0x89; 10],
                vec![0x89; 100],
            ] {
                assert!(is_unrecoverable(&kind.diagnose(&object)), "{object:?}");
            }
        }
    }
}
