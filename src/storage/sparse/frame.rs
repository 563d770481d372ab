//! Names, encodes and recognises the objects of a frame.
//!
//! A frame consists of the objects under `<shard key>.frame/`. Its objects are versions of subchunks, each
//! stored once and never changed:
//!
//! ```text
//! 0000002E.0000000000000003.9F31C02E5B7A44D00000000A.chunk
//! number   version          writer
//! ```
//!
//! The number is that of the subchunk in its shard, in C order, as in Blosc2's sparse frames. Of two versions
//! of a subchunk, the one with the higher version number is newer; among equal numbers, the one with the
//! greater writer is newer. So there is always one newest version. The writer is a random name of the
//! process's writer, and how many versions that writer had written before: no name is ever used twice.
//!
//! Beside the versions there may be receipts of consolidations, `0000000000001F40.9F31C02E.packed`, with the
//! length and the checksum of a shard (`changed.rs`).
//!
//! An object has the encoded subchunk, or nothing if the subchunk was erased, and then 16 bytes of trailer. A
//! store that does not set values atomically may leave a part of an object behind. The trailer shows whether
//! an object is complete.
//!
//! | bytes | |
//! |---|---|
//! | 3 | `ZSF` |
//! | 1 | `D` (data) or `T` (tombstone: the subchunk is empty) |
//! | 8 | the length of what comes before the trailer, little-endian |
//! | 4 | CRC32C of everything before it, little-endian |

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use zarrs_storage::{StorageError, StoreKey, StorePrefix};

use crate::storage::chunk_keys::ChunkKeys;
use crate::store::Lists;
use crate::store::files::NOT_UTF_8;

/// The suffix that makes the name of a frame's directory from the key of its shard.
const FRAME: &str = ".frame";
const CHUNK: &str = "chunk";
const RECEIPT: &str = "packed";
const MAGIC: [u8; 3] = *b"ZSF";

/// The size of a trailer, in bytes.
pub(super) const TRAILER_LEN: usize = 16;

/// Returns the prefix of the frame of `shard`.
///
/// # Errors
/// [`StorageError::Other`], which cannot happen: the text is always a prefix.
pub(super) fn prefix_of(shard: &StoreKey) -> Result<StorePrefix, StorageError> {
    StorePrefix::new(format!("{shard}{FRAME}/"))
        .map_err(|error| StorageError::Other(error.to_string()))
}

/// Returns whether `store` has versions of subchunks in the frame of `shard`.
///
/// # Errors
/// The errors of the store.
pub(crate) async fn is_framed<O: Lists>(store: &O, shard: &StoreKey) -> Result<bool, StorageError> {
    let listed = store.list_dir(&prefix_of(shard)?).await?;
    let is_version = |key: &StoreKey| {
        let suffix = key.as_str().rsplit_once('.').map(|(_, suffix)| suffix);
        suffix == Some(CHUNK)
    };
    Ok(listed.keys().iter().any(is_version))
}

/// Returns the key of the shard whose frame contains `path`, or is the directory `path`; `None` if there is
/// no such shard.
pub(super) fn shard_of<'a>(keys: &ChunkKeys, path: &'a str) -> Option<&'a str> {
    let mut from = 0;
    // The path of the array itself may contain `.frame`.
    while let Some(at) = path.get(from..)?.find(FRAME) {
        let (shard, rest) = path.split_at(from + at);
        from += at + FRAME.len();
        let is_directory = rest.get(FRAME.len()..)?.starts_with('/');
        if is_directory && keys.parse(shard).is_some() {
            return Some(shard);
        }
    }
    None
}

/// Returns the key of the shard whose frame has the object `key`, if the shard needs a consolidation because
/// of the object. By its name, the object is a version of one of `subchunks` subchunks, or a receipt of an
/// interrupted consolidation; or the name is not UTF-8.
pub(super) fn shard_with<'a>(keys: &ChunkKeys, key: &'a str, subchunks: usize) -> Option<&'a str> {
    let shard = shard_of(keys, key)?;
    let name = key.strip_prefix(shard)?.strip_prefix(FRAME)?;
    let name = name.strip_prefix('/')?;
    let is_version = || parse(name).is_some_and(|(number, _)| (number as usize) < subchunks);
    let is_receipt = || Receipt::parse(name).is_some();
    (name.contains(NOT_UTF_8) || is_version() || is_receipt()).then_some(shard)
}

/// Returns a function that returns names of writers, never the same twice: a random number, and a number that
/// counts up.
pub(super) fn writers() -> impl Fn() -> String + Send + Sync {
    // The hash keys are random numbers of the system. Only a forked process has the same hash keys.
    let [a, b] = [(); 2].map(|()| RandomState::new());
    let random = move || {
        let told = (std::process::id(), std::time::SystemTime::now());
        a.hash_one(told) ^ b.hash_one(told).rotate_left(32)
    };
    let (name, count) = (AtomicU64::new(random()), AtomicU64::new(0));
    let process = AtomicU32::new(std::process::id());
    move || {
        // The check takes no lock, because a thread of the parent may have held it during the fork.
        if process.swap(std::process::id(), Ordering::Relaxed) != std::process::id() {
            name.store(random(), Ordering::Relaxed);
        }
        let (name, count) = (
            name.load(Ordering::Relaxed),
            count.fetch_add(1, Ordering::Relaxed),
        );
        format!("{name:016X}{count:08X}")
    }
}

/// A version of a subchunk.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    pub(super) version: u64,
    pub(super) writer: String,
}

/// Returns the key of the object that stores a version of a subchunk.
///
/// # Errors
/// [`StorageError::Other`], which cannot happen: the name is always a valid key.
pub(super) fn key_of(
    frame: &StorePrefix,
    number: u32,
    version: &Version,
) -> Result<StoreKey, StorageError> {
    let Version { version, writer } = version;
    let frame = frame.as_str();
    StoreKey::new(format!(
        "{frame}{number:08X}.{version:016X}.{writer}.{CHUNK}"
    ))
    .map_err(|error| StorageError::Other(error.to_string()))
}

/// The length and the checksum of a shard that a consolidation made, stored as the name of an object in its
/// frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Receipt {
    len: u64,
    checksum: u32,
}

impl Receipt {
    pub(super) fn of(shard: &Bytes) -> Self {
        Self {
            len: shard.len() as u64,
            checksum: crc32c::crc32c(shard),
        }
    }

    /// Returns the key of the object that stores the receipt.
    ///
    /// # Errors
    /// [`StorageError::Other`], which cannot happen: the name is always a valid key.
    pub(super) fn key(&self, frame: &StorePrefix) -> Result<StoreKey, StorageError> {
        let Self { len, checksum } = self;
        let frame = frame.as_str();
        StoreKey::new(format!("{frame}{len:016X}.{checksum:08X}.{RECEIPT}"))
            .map_err(|error| StorageError::Other(error.to_string()))
    }

    fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split('.');
        let [len, checksum, RECEIPT] = [(); 3].map(|()| parts.next().unwrap_or_default()) else {
            return None;
        };
        if parts.next().is_some() || !is_hexadecimal(len, 16) || !is_hexadecimal(checksum, 8) {
            return None;
        }
        Some(Self {
            len: u64::from_str_radix(len, 16).ok()?,
            checksum: u32::from_str_radix(checksum, 16).ok()?,
        })
    }
}

fn is_hexadecimal(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'A'..=b'F'))
}

/// Returns the subchunk's number and the version in the name of an object; `None` if it is not the name of a
/// version.
fn parse(name: &str) -> Option<(u32, Version)> {
    let mut parts = name.split('.');
    let [number, version, writer, CHUNK] = [(); 4].map(|()| parts.next().unwrap_or_default())
    else {
        return None;
    };
    let is_word = !writer.is_empty() && writer.bytes().all(|b| b.is_ascii_alphanumeric());
    if parts.next().is_some()
        || !is_hexadecimal(number, 8)
        || !is_hexadecimal(version, 16)
        || !is_word
    {
        return None;
    }
    let version = Version {
        version: u64::from_str_radix(version, 16).ok()?,
        writer: writer.to_owned(),
    };
    Some((u32::from_str_radix(number, 16).ok()?, version))
}

/// The listed versions of each subchunk of a shard. The newest version is the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    versions: BTreeMap<u32, Vec<Version>>,
    receipts: Vec<Receipt>,
    not_utf_8: usize,
}

impl Listing {
    /// Returns the listing of `keys`, which are under `frame`. Names of other objects are left out, and so
    /// are names of subchunks that the shard does not have. Names that are not UTF-8 are counted.
    pub(super) fn of<'a>(
        frame: &StorePrefix,
        keys: impl IntoIterator<Item = &'a StoreKey>,
        subchunks: usize,
    ) -> Self {
        let mut listing = Self::default();
        for key in keys {
            let Some(name) = key.as_str().strip_prefix(frame.as_str()) else {
                continue;
            };
            if name.contains(NOT_UTF_8) {
                listing.not_utf_8 += 1;
            }
            listing.receipts.extend(Receipt::parse(name));
            if let Some((number, version)) = parse(name)
                && (number as usize) < subchunks
            {
                listing.versions.entry(number).or_default().push(version);
            }
        }
        for versions in listing.versions.values_mut() {
            versions.sort();
        }
        listing
    }

    /// Returns the listed receipts of consolidations.
    pub(super) fn receipts(&self) -> &[Receipt] {
        &self.receipts
    }

    /// Returns how many listed names are not UTF-8.
    pub(super) fn not_utf_8(&self) -> usize {
        self.not_utf_8
    }

    pub(super) fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    /// Returns the versions of a subchunk, the newest last.
    pub(super) fn versions(&self, number: u32) -> &[Version] {
        self.versions.get(&number).map_or(&[], Vec::as_slice)
    }

    /// Returns the subchunks that have versions, each with its versions.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &[Version])> {
        let versions = self.versions.iter();
        versions.map(|(number, versions)| (*number, versions.as_slice()))
    }

    /// Returns the number of the newest version of a subchunk; 0 if it has none.
    pub(super) fn newest(&self, number: u32) -> u64 {
        let newest = self.versions(number).last();
        newest.map_or(0, |newest| newest.version)
    }

    /// Returns a subchunk whose newest version in `first`, an earlier listing, is not in this listing; `None`
    /// if there is none. Such a version was deleted by a consolidation.
    pub(super) fn misses_newest_of(&self, first: &Self) -> Option<u32> {
        let mut newest = first
            .iter()
            .filter_map(|(n, versions)| Some((n, versions.last()?)));
        let missed = newest.find(|(number, newest)| !self.versions(*number).contains(newest));
        missed.map(|(number, _)| number)
    }

    /// Adds the versions of `other` that are older than the newest version of the same subchunk here.
    pub(super) fn add_older(&mut self, mut other: Self) {
        for (number, versions) in &mut self.versions {
            let mut older = other.versions.remove(number).unwrap_or_default();
            let newest = versions.last();
            older.retain(|version| Some(version) < newest);
            versions.append(&mut older);
            versions.sort();
            versions.dedup();
        }
    }
}

/// The content of an object of a frame: one version of a subchunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// The encoded bytes of the subchunk.
    Data(Bytes),
    /// The subchunk is empty.
    Tombstone,
}

impl Entry {
    /// Returns the encoded subchunk; `None` if it is empty.
    pub(super) fn data(self) -> Option<Bytes> {
        match self {
            Self::Data(data) => Some(data),
            Self::Tombstone => None,
        }
    }

    /// Returns the object that stores this entry: the encoded subchunk and the trailer.
    ///
    /// # Errors
    /// [`StorageError::Other`] if the memory cannot be allocated.
    pub(super) fn encode(&self) -> Result<Bytes, StorageError> {
        let (data, kind) = match self {
            Self::Data(data) => (&data[..], b'D'),
            Self::Tombstone => (&[][..], b'T'),
        };
        let mut object = Vec::new();
        let len = data.len().saturating_add(TRAILER_LEN);
        object.try_reserve_exact(len).map_err(|_| {
            StorageError::Other(format!("there is no memory for {len} bytes of a subchunk"))
        })?;
        object.extend_from_slice(data);
        object.extend_from_slice(&MAGIC);
        object.push(kind);
        object.extend_from_slice(&(data.len() as u64).to_le_bytes());
        let checksum = crc32c::crc32c(&object);
        object.extend_from_slice(&checksum.to_le_bytes());
        Ok(object.into())
    }

    /// Decodes `object`. Returns `None` if the object is not complete.
    pub(super) fn decode(object: &Bytes) -> Option<Self> {
        let (checked, checksum) = object.split_last_chunk::<4>()?;
        let (data, [m, a, g, kind, len @ ..]) = checked.split_last_chunk::<12>()?;
        let is_whole = [*m, *a, *g] == MAGIC
            && u64::from_le_bytes(*len) == data.len() as u64
            && crc32c::crc32c(checked) == u32::from_le_bytes(*checksum);
        match kind {
            b'D' if is_whole => Some(Self::Data(object.slice(..data.len()))),
            b'T' if is_whole && data.is_empty() => Some(Self::Tombstone),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use zarrs::node::NodePath;

    use super::*;

    fn version(version: u64, writer: &str) -> Version {
        Version {
            version,
            writer: writer.to_owned(),
        }
    }

    #[test]
    fn names_are_those_of_the_format() {
        let shard = StoreKey::new("a/c/0/1").unwrap();
        let frame = prefix_of(&shard).unwrap();
        let key = key_of(&frame, 46, &version(3, "9F31")).unwrap();
        assert_eq!(
            key.as_str(),
            "a/c/0/1.frame/0000002E.0000000000000003.9F31.chunk"
        );
        let name = &key.as_str()[frame.as_str().len()..];
        assert_eq!(parse(name), Some((46, version(3, "9F31"))));
        let (one, other) = (writers(), writers());
        let names = [one(), one(), other(), other()];
        assert!(names.iter().all(|name| name.len() == 24));
        assert_eq!(BTreeSet::from_iter(&names).len(), 4);
    }

    /// The child has all that the parent has, and counts on from there.
    #[test]
    #[cfg(target_os = "linux")]
    #[allow(unsafe_code)]
    fn a_forked_child_has_other_names() {
        use std::fs::File;
        use std::io::{Read, Write};
        use std::os::fd::FromRawFd;

        let names = writers();
        names();
        let mut ends = [0; 2];
        // SAFETY: two numbers are written.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        // SAFETY: the ends are ours, and nothing else closes them.
        let [mut reader, mut writer] = ends.map(|end| unsafe { File::from_raw_fd(end) });
        // SAFETY: the child takes no lock but the allocator's, and ends without running what the parent has
        // to run at its end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let told = writer.write_all((names() + &names()).as_bytes());
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(told.is_err())) };
        }
        drop(writer);
        let mut told = String::new();
        reader.read_to_string(&mut told).unwrap();
        let mut status = -1;
        // SAFETY: a number is written.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((status, told.len()), (0, 48));
        let (first, second) = told.split_at(24);
        let own = [names(), names()];
        let all = BTreeSet::from([first, second, own[0].as_str(), own[1].as_str()]);
        assert_eq!(all.len(), 4, "{all:?}");
        // Each has one name.
        assert_eq!(
            (&own[0][..16], &first[..16]),
            (&own[1][..16], &second[..16])
        );
    }

    #[test]
    fn receipts_have_names_of_their_own() {
        let frame = prefix_of(&StoreKey::new("c/0").unwrap()).unwrap();
        let receipt = Receipt::of(&Bytes::from_static(b"123456789"));
        let key = receipt.key(&frame).unwrap();
        assert_eq!(key.as_str(), "c/0.frame/0000000000000009.E3069283.packed");
        let version = key_of(&frame, 0, &version(1, "A")).unwrap();
        let listing = Listing::of(&frame, [&key, &version], 8);
        assert_eq!(listing.receipts(), [receipt]);
        assert_eq!(listing.iter().count(), 1);
        assert!(Listing::of(&frame, [&key], 8).is_empty());
        for other in ["9.E3069283.packed", "0000000000000009.E3069283.packed.tmp"] {
            assert_eq!(Receipt::parse(other), None, "{other}");
        }
    }

    #[test]
    fn other_names() {
        let good = "0000002E.0000000000000003.9F31.chunk";
        assert!(parse(good).is_some());
        for (from, to) in [
            ("0000002E", "0000002e"),
            ("0000002E", "2E"),
            ("0000002E", "00000002E"),
            ("0000002E", "+000002E"),
            ("0000000000000003", "3"),
            ("0000000000000003", "000000000000000G"),
            ("9F31", ""),
            ("9F31", "9/31"),
            ("9F31", "9.31"),
            (".chunk", ""),
            (".chunk", ".chunk.tmp"),
            (".chunk", ".CHUNK"),
        ] {
            assert_eq!(parse(&good.replace(from, to)), None, "{from} {to}");
        }
    }

    #[test]
    fn frames_and_their_shards() {
        let keys = ChunkKeys::new(&NodePath::new("/a.frame/b").unwrap(), 2);
        for (path, shard) in [
            ("a.frame/b/c/0/1.frame/x", Some("a.frame/b/c/0/1")),
            ("a.frame/b/c/0/1.frame/", Some("a.frame/b/c/0/1")),
            ("a.frame/b/0.1.frame/", Some("a.frame/b/0.1")),
            ("a.frame/b/c/0/1.frame", None),
            ("a.frame/b/c/0/1.frames/x", None),
            ("a.frame/b/c/0.frame/x", None),
            ("a.frame/b/c/0/1", None),
        ] {
            assert_eq!(shard_of(&keys, path), shard, "{path}");
        }
    }

    #[test]
    fn frames_with_versions() {
        let keys = ChunkKeys::new(&NodePath::root(), 1);
        let name = "0000002E.0000000000000003.9F31.chunk";
        let key = format!("c/7.frame/{name}");
        assert_eq!(shard_with(&keys, &key, 0x2F), Some("c/7"));
        assert_eq!(shard_with(&keys, &key, 0x2E), None);
        let receipt = "c/7.frame/0000000000000009.E3069283.packed";
        assert_eq!(shard_with(&keys, receipt, 64), Some("c/7"));
        for other in ["c/7.frame/.DS_Store", "c/7.frame/", "c/7"] {
            assert_eq!(shard_with(&keys, other, 64), None, "{other}");
        }
        let below = format!("c/7.frame/more/{name}");
        assert_eq!(shard_with(&keys, &below, 64), None);
    }

    #[test]
    fn the_newest_version_is_the_last() {
        let frame = StorePrefix::new("c/0.frame/").unwrap();
        let versions = [
            (7, version(2, "B")),
            (7, version(10, "A")),
            (7, version(2, "A")),
            (0, version(1, "C")),
        ];
        let mut keys: Vec<_> = versions
            .iter()
            .map(|(number, version)| key_of(&frame, *number, version).unwrap())
            .collect();
        keys.push(key_of(&frame, 8, &version(1, "A")).unwrap());
        keys.push(StoreKey::new("c/0.frame/other").unwrap());
        let listing = Listing::of(&frame, &keys, 8);
        assert_eq!(
            listing.versions(7),
            [version(2, "A"), version(2, "B"), version(10, "A")]
        );
        assert_eq!(
            listing.iter().map(|(number, _)| number).collect::<Vec<_>>(),
            [0, 7]
        );
        assert_eq!((listing.newest(7), listing.newest(1)), (10, 0));
    }

    #[test]
    fn objects_that_are_not_whole() {
        for entry in [
            Entry::Data(Bytes::from_static(b"abcdefgh")),
            Entry::Data(Bytes::new()),
            Entry::Tombstone,
        ] {
            let object = entry.encode().unwrap();
            assert_eq!(Entry::decode(&object), Some(entry));
            for len in 0..object.len() {
                assert_eq!(Entry::decode(&object.slice(..len)), None, "{len} bytes");
            }
            for bit in 0..8 * object.len() {
                let mut flipped = object.to_vec();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Entry::decode(&flipped.into()), None, "bit {bit}");
            }
            let more = [&object[..], b"x"].concat();
            assert_eq!(Entry::decode(&more.into()), None);
        }
    }
}
