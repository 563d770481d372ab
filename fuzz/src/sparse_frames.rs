//! The objects of a frame, their names, and the shard beside them. Reads through an adapter must
//! follow the format, and packing must not change their results.

use std::collections::BTreeMap;
use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use serde_json::json;
use zarrs::array::BytesRepresentation;
use zarrs::array::codec::ZstdCodec;
use zarrs::storage::byte_range::ByteRange;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    Bytes, ListableStorageTraits, ReadableStorageTraits, StoreKey, StorePrefix,
    WritableStorageTraits,
};
use zarrs_codec::BytesToBytesCodecTraits;
use zarrs_cuda::storage::SparseShardStore;

use crate::memory::limited;
use zarrs_cuda_testing::index::IndexLayout;

/// The number of subchunks in the shard.
const SUBCHUNKS: u8 = 4;
/// The number of elements in a subchunk, of one byte each.
const ELEMENTS: u8 = 100;
const SHARD: &str = "a/c/0";

/// Reads any objects as the versions in a frame.
pub fn sparse_frames(input: &[u8]) {
    let _too_short = judge(&mut Unstructured::new(input));
}

/// An object of the frame.
#[derive(Arbitrary, Clone, Debug)]
struct Object {
    number: u8,
    version: Number,
    writer: u8,
    name: Name,
    value: Value,
}

/// The number of a version.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Number {
    Small(u8),
    Top(u8),
    Any(u64),
}

/// The way in which the name is written.
#[derive(Arbitrary, Clone, Debug)]
enum Name {
    Right,
    AlsoRight,
    Lower,
    Suffix(u8),
    Replaced(u8, u8),
    Short,
    Below,
    Any(String),
}

/// The content of the object.
#[derive(Arbitrary, Clone, Debug)]
enum Value {
    Data(Vec<u8>),
    Tombstone,
    /// A tombstone with data.
    TombstoneOf(Vec<u8>),
    /// Valid except for this byte.
    Flipped(Vec<u8>, u8, u8),
    Cut(Vec<u8>, u8),
    OtherLength(Vec<u8>, i8),
    OtherKind(Vec<u8>, u8),
    Bytes(Vec<u8>),
}

/// An operation of the adapter.
#[derive(Arbitrary, Clone, Debug)]
enum Step {
    Set(u8, Vec<u8>),
    Erase(u8),
    Consolidate,
    ConsolidateAll,
    Reopen,
}

/// The expected subchunks.
type Model = [Option<Vec<u8>>; SUBCHUNKS as usize];

fn judge(u: &mut Unstructured<'_>) -> Result<()> {
    let store = Arc::new(MemoryStore::new());
    let location = if u.ratio(1, 4)? { "start" } else { "end" };
    let metadata = metadata(location).to_string();
    store.set(&key("a/zarr.json"), metadata.into()).unwrap();
    let mut model = Model::default();
    let mut shard_is_valid = true;
    if u.ratio(2, 3)? {
        let shard = shard(u, location, &mut model)?;
        shard_is_valid = shard.1;
        store.set(&key(SHARD), shard.0.into()).unwrap();
    }
    let mut objects = BTreeMap::new();
    for _ in 0..u.int_in_range(0..=6)? {
        let object = Object::arbitrary(u)?;
        if let Ok(name) = StoreKey::new(format!("{SHARD}.frame/{}", object.name())) {
            objects.insert(name, object.value.bytes());
        }
    }
    for (name, value) in &objects {
        store.set(name, value.clone().into()).unwrap();
    }
    let frame = newest(&objects);
    for (number, data) in &frame.newest {
        model[usize::from(*number)].clone_from(data);
    }

    let mut sparse = Arc::new(SparseShardStore::open(store.clone(), "/a").unwrap());
    let bytes: usize = objects.values().map(Vec::len).sum();
    // Subchunks outside of the frame are read from the shard.
    let in_frame: Vec<bool> = (0..SUBCHUNKS)
        .map(|number| frame.newest.contains_key(&number))
        .collect();
    limited(16 * bytes + (1 << 20), "reading a frame", || {
        check(&sparse, &model, shard_is_valid, &in_frame);
    });
    if !shard_is_valid {
        let before = all(&store);
        let consolidated = sparse.consolidate(&[0]);
        if consolidated.is_err() {
            // An invalid shard is not replaced.
            assert_eq!(all(&store), before);
        } else {
            check(&sparse, &model, false, &in_frame);
        }
        return Ok(());
    }
    for _ in 0..u.int_in_range(0..=5)? {
        let step = Step::arbitrary(u)?;
        let shown = format!("{step:?}, {objects:?}");
        match step {
            Step::Set(number, data) => {
                let number = number % SUBCHUNKS;
                let set = sparse.set(&chunk(number), Bytes::from(data.clone()));
                if set.is_err() && frame.is_full[usize::from(number)] {
                    return Ok(());
                }
                if data.len() > most_bytes() {
                    set.expect_err("longer than a subchunk can be");
                    continue;
                }
                set.unwrap_or_else(|error| panic!("{error}: {shown}"));
                model[usize::from(number)] = Some(data);
            }
            Step::Erase(number) => {
                let number = number % SUBCHUNKS;
                let erased = sparse.erase(&chunk(number));
                if erased.is_err() && frame.is_full[usize::from(number)] {
                    return Ok(());
                }
                erased.unwrap_or_else(|error| panic!("{error}: {shown}"));
                model[usize::from(number)] = None;
            }
            Step::Consolidate | Step::ConsolidateAll => {
                if matches!(step, Step::Consolidate) {
                    sparse.consolidate(&[0]).map(drop)
                } else {
                    sparse.consolidate_all(&|_| {}).map(drop)
                }
                .unwrap_or_else(|error| panic!("{error}: {shown}"));
                check_packed(&store, location, &model, &objects, &shown);
            }
            Step::Reopen => {
                sparse = Arc::new(SparseShardStore::open(store.clone(), "/a").unwrap());
            }
        }
        check(&sparse, &model, true, &in_frame);
    }
    Ok(())
}

fn key(key: &str) -> StoreKey {
    StoreKey::new(key).unwrap()
}

fn chunk(number: u8) -> StoreKey {
    key(&format!("a/c/{number}"))
}

fn all(store: &MemoryStore) -> BTreeMap<StoreKey, Option<Bytes>> {
    let keys = store.list().unwrap().into_iter();
    keys.map(|key| (key.clone(), store.get(&key).unwrap()))
        .collect()
}

fn metadata(location: &str) -> serde_json::Value {
    let bytes = json!({ "name": "bytes", "configuration": { "endian": "little" } });
    // The encoded sizes of subchunks vary.
    let zstd = json!({ "name": "zstd", "configuration": { "level": 1, "checksum": false } });
    json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": [u64::from(SUBCHUNKS) * u64::from(ELEMENTS)],
        "data_type": "uint8",
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": [u64::from(SUBCHUNKS) * u64::from(ELEMENTS)] } },
        "chunk_key_encoding": { "name": "default", "configuration": { "separator": "/" } },
        "fill_value": 0,
        "codecs": [{
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [ELEMENTS],
                "codecs": [bytes, zstd],
                "index_codecs": [bytes, { "name": "crc32c" }],
                "index_location": location,
            },
        }],
        "attributes": {},
    })
}

fn index(location: &str) -> IndexLayout {
    use zarrs::array::codec::ShardingIndexLocation::{End, Start};
    IndexLayout {
        location: if location == "start" { Start } else { End },
        ..IndexLayout::default()
    }
}

/// A shard, and whether it is entirely valid.
fn shard(u: &mut Unstructured<'_>, location: &str, model: &mut Model) -> Result<(Vec<u8>, bool)> {
    let mut parts = Vec::new();
    for subchunk in model.iter_mut() {
        let data: Option<Vec<u8>> = u.arbitrary()?;
        let data = data.map(|mut data| {
            data.truncate(ELEMENTS.into());
            data
        });
        parts.push((usize::from(u.arbitrary::<u8>()? % 4), data.clone()));
        *subchunk = data;
    }
    let index = index(location);
    let mut shard = index.shard(&parts);
    if u.ratio(3, 4)? {
        return Ok((shard, true));
    }
    if u.arbitrary()? {
        // The index is well-formed, but has another entry.
        let mut entries = index.entries(&shard, SUBCHUNKS.into());
        let which = usize::from(u.arbitrary::<u8>()? % SUBCHUNKS);
        entries[which] = u.arbitrary()?;
        shard = index.replace(&shard, &entries);
    } else {
        let at = usize::from(u.arbitrary::<u8>()?) % shard.len();
        shard[at] ^= u.arbitrary::<u8>()?;
        shard.truncate(shard.len() - usize::from(u.arbitrary::<u8>()? % 80).min(shard.len()));
    }
    Ok((shard, false))
}

impl Object {
    fn name(&self) -> String {
        let Self {
            number, version, ..
        } = self;
        // Some numbers have no subchunk.
        let number = number % (SUBCHUNKS + 1);
        let version = match version {
            Number::Small(version) => u64::from(*version),
            Number::Top(below) => u64::MAX - u64::from(*below),
            Number::Any(version) => *version,
        };
        let right = format!("{number:08X}.{version:016X}.{:X}.chunk", self.writer);
        match &self.name {
            Name::Right | Name::AlsoRight => right,
            Name::Lower => right.to_lowercase(),
            Name::Suffix(byte) => format!("{right}{}", char::from(byte % 128)),
            Name::Replaced(at, byte) => {
                let at = usize::from(*at) % right.len();
                let mut name = right.into_bytes();
                name[at] = byte % 128;
                String::from_utf8_lossy(&name).into_owned()
            }
            Name::Short => right[1..].to_owned(),
            Name::Below => format!("x/{right}"),
            Name::Any(name) => name.clone(),
        }
    }
}

impl Value {
    fn bytes(&self) -> Vec<u8> {
        let object = |data: &[u8], kind: u8, len: u64| {
            let mut object = [data, b"ZSF", &[kind], &len.to_le_bytes()].concat();
            object.extend(crc32c::crc32c(&object).to_le_bytes());
            object
        };
        let whole = |data: &[u8], kind| object(data, kind, data.len() as u64);
        match self {
            Self::Data(data) => whole(data, b'D'),
            Self::Tombstone => whole(&[], b'T'),
            Self::TombstoneOf(data) => whole(data, b'T'),
            Self::Flipped(data, at, xor) => {
                let mut object = whole(data, b'D');
                let at = usize::from(*at) % object.len();
                object[at] ^= xor;
                object
            }
            Self::Cut(data, count) => {
                let mut object = whole(data, b'D');
                object.truncate(object.len().saturating_sub((*count).into()));
                object
            }
            Self::OtherLength(data, more) => {
                let len = data.len() as u64;
                object(data, b'D', len.wrapping_add_signed((*more).into()))
            }
            Self::OtherKind(data, kind) => whole(data, *kind),
            Self::Bytes(bytes) => bytes.clone(),
        }
    }
}

/// The content of a version.
enum Said {
    Data(Vec<u8>),
    Empty,
}

/// The limit on a subchunk's length: twice the bound of zarrs' encoder, plus 4 KiB.
fn most_bytes() -> usize {
    let zstd = ZstdCodec::new(1, false);
    let decoded = BytesRepresentation::FixedSize(ELEMENTS.into());
    let encoded = zstd.encoded_representation(&decoded).size();
    2 * usize::try_from(encoded.unwrap()).unwrap() + 4096
}

/// The content of `object`, as the format describes it. `None` if the object is incomplete, or
/// longer than a subchunk can be.
fn said(object: &[u8]) -> Option<Said> {
    let data = object.len().checked_sub(16)?;
    let (data, trailer) = object.split_at(data);
    let checked = crc32c::crc32c(&object[..object.len() - 4]);
    let is_whole = trailer[..3] == *b"ZSF"
        && trailer[4..12] == (data.len() as u64).to_le_bytes()
        && trailer[12..] == checked.to_le_bytes();
    match trailer[3] {
        b'D' if is_whole && data.len() <= most_bytes() => Some(Said::Data(data.to_vec())),
        b'T' if is_whole && data.is_empty() => Some(Said::Empty),
        _ => None,
    }
}

/// The combined content of a frame.
struct Frame {
    /// The newest content of each subchunk that has a valid version.
    newest: BTreeMap<u8, Option<Vec<u8>>>,
    /// Whether the version numbers of a subchunk are exhausted, or nearly.
    is_full: [bool; SUBCHUNKS as usize],
}

/// The number, version and writer in a name.
fn parsed(name: &str) -> Option<(u8, u64, String)> {
    let parts: Vec<&str> = name.split('.').collect();
    let [number, version, writer, "chunk"] = parts[..] else {
        return None;
    };
    let is_hexadecimal = |text: &str, len: usize| {
        text.len() == len && text.chars().all(|c| "0123456789ABCDEF".contains(c))
    };
    let is_word = !writer.is_empty() && writer.chars().all(|c| c.is_ascii_alphanumeric());
    if !is_hexadecimal(number, 8) || !is_hexadecimal(version, 16) || !is_word {
        return None;
    }
    let number = u32::from_str_radix(number, 16).unwrap();
    let number = u8::try_from(number).ok().filter(|n| *n < SUBCHUNKS)?;
    let version = u64::from_str_radix(version, 16).unwrap();
    Some((number, version, writer.to_owned()))
}

fn newest(objects: &BTreeMap<StoreKey, Vec<u8>>) -> Frame {
    let mut versions = BTreeMap::new();
    let mut is_full = [false; SUBCHUNKS as usize];
    for (name, object) in objects {
        let name = &name.as_str()[SHARD.len() + ".frame/".len()..];
        let Some((number, version, writer)) = parsed(name) else {
            continue;
        };
        // The margin covers all steps of a case.
        is_full[usize::from(number)] |= version > u64::MAX - 8;
        if let Some(said) = said(object) {
            versions.insert((number, version, writer), said);
        }
    }
    // In the order of versions, so that the newest is last.
    let newest = versions
        .into_iter()
        .map(|((number, ..), said)| match said {
            Said::Data(data) => (number, Some(data)),
            Said::Empty => (number, None),
        })
        .collect();
    Frame { newest, is_full }
}

/// Checks every way of reading, for subchunks with known content: all if the shard is valid,
/// otherwise those in the frame.
fn check(
    sparse: &Arc<SparseShardStore<MemoryStore>>,
    model: &Model,
    shard_is_valid: bool,
    in_frame: &[bool],
) {
    for (number, expected) in model.iter().enumerate() {
        let key = chunk(u8::try_from(number).unwrap());
        let read = sparse.get(&key);
        let size = sparse.size_key(&key);
        let part = sparse.get_partial(&key, ByteRange::FromStart(0, Some(1)));
        if !shard_is_valid && !in_frame[number] {
            // The result is an error or any bytes.
            continue;
        }
        assert_eq!(read.unwrap().as_deref(), expected.as_deref(), "{key}");
        let len = expected.as_ref().map(|expected| expected.len() as u64);
        assert_eq!(size.unwrap(), len, "{key}");
        match expected.as_ref().map(|expected| expected.first()) {
            None => assert_eq!(part.unwrap(), None, "{key}"),
            Some(None) => assert!(part.is_err(), "{key}"),
            Some(Some(first)) => assert_eq!(part.unwrap().unwrap(), [*first][..], "{key}"),
        }
    }
    let listed = sparse.list_prefix(&StorePrefix::new("a/c/").unwrap());
    // Listing reads the shard, whatever the frame holds.
    if shard_is_valid {
        let expected = (0..SUBCHUNKS).filter(|number| model[usize::from(*number)].is_some());
        let expected: Vec<StoreKey> = expected.map(chunk).collect();
        assert_eq!(listed.unwrap(), expected);
    }
}

/// Checks that the shard has all subchunks, and that only objects that are no versions are left in
/// the frame.
fn check_packed(
    store: &MemoryStore,
    location: &str,
    model: &Model,
    objects: &BTreeMap<StoreKey, Vec<u8>>,
    shown: &str,
) {
    let shard = store.get(&key(SHARD)).unwrap();
    let packed = shard.map_or_else(
        || vec![None; SUBCHUNKS.into()],
        |shard| index(location).subchunks(&shard, SUBCHUNKS.into()),
    );
    assert_eq!(packed, *model, "{shown}");
    for (name, stored) in all(store) {
        if let Some(frame) = name.as_str().strip_prefix(&format!("{SHARD}.frame/")) {
            let stored = stored.unwrap();
            let is_version = parsed(frame).is_some() && said(&stored).is_some();
            assert!(!is_version, "{name} is left: {shown}");
        }
    }
    for (name, object) in objects {
        let frame = &name.as_str()[SHARD.len() + ".frame/".len()..];
        if parsed(frame).is_none() || said(object).is_none() {
            let left = store.get(name).unwrap();
            assert_eq!(left.as_deref(), Some(&object[..]), "{name}: {shown}");
        }
    }
}
