//! Finds keys that look like chunks of an array but lie where no reader looks for chunks.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use zarrs::array::ChunkKeyEncoding;
use zarrs::metadata::ChunkKeySeparator;
use zarrs::metadata::v3::MetadataV3;

use crate::failure::Failure;
use crate::open::Place;
use crate::stored::Keys;
use crate::words::counted;

/// Files of metadata. A directory with such a file is another node, whose keys do not belong to the array.
const METADATA: [&str; 3] = ["zarr.json", ".zarray", ".zgroup"];

/// Suffixes of the names of temporary files: a program renames such a file to a chunk when it is complete.
const UNFINISHED: [&str; 3] = ["tmp", "partial", "part"];

/// Suffixes of the names of files that describe a chunk, or lock it.
const NOTES: [&str; 2] = ["lock", "__lock"];

/// The most keys with a suffix that are kept in memory until all chunks are listed.
const MOST_SUFFIXED: usize = 10_000;

/// The encodings of chunk keys in the specification of Zarr: names and separators.
const ENCODINGS: [(&str, ChunkKeySeparator); 4] = [
    ("default", ChunkKeySeparator::Slash),
    ("default", ChunkKeySeparator::Dot),
    ("v2", ChunkKeySeparator::Slash),
    ("v2", ChunkKeySeparator::Dot),
];

/// Returns the encodings of chunk keys that Zarr has. Of two encodings that give the same keys for arrays of
/// `rank` dimensions, it returns one.
pub(super) fn encodings(rank: usize) -> Vec<Spelling> {
    let sample = sample(rank);
    let mut all: Vec<Spelling> = Vec::new();
    for (name, separator) in ENCODINGS {
        let metadata = json!({ "name": name, "configuration": { "separator": separator } });
        let made = serde_json::from_value::<MetadataV3>(metadata.clone()).ok();
        let Some(encoding) = made.and_then(|made| ChunkKeyEncoding::from_metadata(&made).ok())
        else {
            continue; // zarrs always has it
        };
        let key = encoding.encode(&sample);
        if all
            .iter()
            .all(|other| other.encoding.encode(&sample) != key)
        {
            all.push(Spelling {
                encoding,
                metadata,
                separator,
            });
        }
    }
    all
}

fn sample(rank: usize) -> Vec<u64> {
    (0..rank as u64).map(|axis| 10 + axis).collect()
}

/// An encoding of the indices of a chunk as a key.
#[derive(Debug)]
pub(super) struct Spelling {
    pub(super) encoding: ChunkKeyEncoding,
    metadata: Value,
    separator: ChunkKeySeparator,
}

/// Keys with the same prefix and the same spelling.
#[derive(Debug)]
struct Group {
    count: u64,
    /// One of the keys, and the indices that it spells.
    example: (String, Vec<u64>),
    /// The directory in front of the indices in each key, with a slash at the end; empty if there is none.
    prefix: String,
    /// The index of the spelling in `Elsewhere::others`; `None` for the array's own spelling, and for
    /// separators that Zarr does not have.
    spelling: Option<usize>,
}

/// Keys that look like chunks of an array, but are not the keys that the array's metadata give to chunks.
pub struct Elsewhere<'a> {
    own: &'a Keys<'a>,
    others: Vec<Spelling>,
    /// The groups of keys, by the directory in which the keys lie, and by their spelling.
    groups: BTreeMap<(String, Option<usize>), Group>,
    /// Directories within the array that have metadata of their own.
    nodes: BTreeSet<String>,
    /// The indices of a chunk and the key of a file, for each file whose name is the chunk's with a suffix.
    suffixed: BTreeSet<(Vec<u64>, String)>,
}

impl<'a> Elsewhere<'a> {
    pub fn new(own: &'a Keys<'a>) -> Self {
        let sample = sample(own.rank());
        let mut others = encodings(own.rank());
        others.retain(|other| other.encoding.encode(&sample).as_str() != own.encode(&sample));
        Self {
            own,
            others,
            groups: BTreeMap::new(),
            nodes: BTreeSet::new(),
            suffixed: BTreeSet::new(),
        }
    }

    /// Looks at the key of an object that is no chunk of the array, and keeps the key if it looks like one.
    pub fn look_at(&mut self, key: &str) {
        if let Some((directory, name)) = key.rsplit_once('/')
            && METADATA.contains(&name)
        {
            self.nodes.insert(directory.to_string());
            return;
        }
        // The key may have superfluous directories in front.
        let ends = key.match_indices('/').map(|(at, _)| at + 1);
        for start in std::iter::once(0).chain(ends) {
            let (prefix, rest) = key.split_at(start);
            let spelled = self.spelled(rest);
            let spelled = spelled.or_else(|| self.spelled(&without_leading_zeros(rest)?));
            let spelled = spelled.or_else(|| self.spelled_with_other_separators(rest));
            if let Some((indices, spelling)) = spelled {
                return self.add(key, prefix, indices, spelling);
            }
        }
        // A file may lie where readers look for a directory of chunks.
        if let Some(indices) = self.first_below(key) {
            return self.add(key, "", indices, None);
        }
        let name = key.rfind('/').map_or(0, |at| at + 1);
        let ends_number = |at: usize| key[..at].ends_with(|c: char| c.is_ascii_digit());
        let mut ends = key.char_indices().map(|(at, _)| at).filter(|at| *at > name);
        let chunk = ends.find_map(|at| self.own.in_grid(&key[..at]).filter(|_| ends_number(at)));
        if let Some(indices) = chunk
            && self.suffixed.len() < MOST_SUFFIXED
        {
            self.suffixed.insert((indices, key.to_string()));
        }
    }

    /// Counts `key`, which consists of `prefix` and a key of the chunk `indices`.
    fn add(&mut self, key: &str, prefix: &str, indices: Vec<u64>, spelling: Option<usize>) {
        let first = key[prefix.len()..]
            .split_once('/')
            .map_or("", |(first, _)| first);
        let directory = format!("{prefix}{first}");
        let place = (directory.trim_end_matches('/').to_string(), spelling);
        let example = (key.to_string(), indices);
        let group = self.groups.entry(place).or_insert_with(|| Group {
            count: 0,
            example: example.clone(),
            prefix: prefix.to_string(),
            spelling,
        });
        group.count += 1;
        if example.1 < group.example.1 {
            group.example = example;
        }
    }

    /// Decides about the keys with a suffix, when all keys are known: a key counts as a chunk in a wrong
    /// place, unless the chunk itself `is_stored`. Returns the number of unfinished files, by which a program
    /// was about to store a chunk, and the key of one of them; `None` if there are none.
    pub fn settle(&mut self, mut is_stored: impl FnMut(&[u64]) -> bool) -> Option<(u64, String)> {
        let mut unfinished: Option<(u64, String)> = None;
        for (indices, key) in std::mem::take(&mut self.suffixed) {
            let end = key.rsplit_once('.').map_or("", |(_, end)| end);
            if NOTES.contains(&end) || is_stored(&indices) {
                continue;
            }
            if UNFINISHED.contains(&end) {
                unfinished.get_or_insert((0, key)).0 += 1;
            } else {
                self.add(&key, "", indices, None);
            }
        }
        unfinished
    }

    /// Returns the chunk of the grid that `key` spells, and the index of the spelling in `others` (`None` for
    /// the array's own spelling).
    fn spelled(&self, key: &str) -> Option<(Vec<u64>, Option<usize>)> {
        if let Some(indices) = self.own.in_grid(key) {
            return Some((indices, None));
        }
        let mut others = self.others.iter().enumerate();
        others.find_map(|(number, other)| {
            let indices = self.own.spelled_as(&other.encoding).in_grid(key)?;
            Some((indices, Some(number)))
        })
    }

    /// Returns the chunk that `key` spells with a separator of indices that no encoding of Zarr has.
    fn spelled_with_other_separators(&self, key: &str) -> Option<(Vec<u64>, Option<usize>)> {
        let is_other = |c: char| ['_', '-', ','].contains(&c);
        if !key.contains(is_other) {
            return None;
        }
        let mut plain = ['.', '/']
            .map(|plain| key.replace(is_other, &plain.to_string()))
            .into_iter();
        plain.find_map(|plain| Some((self.spelled(&plain)?.0, None)))
    }

    /// Returns the first chunk whose key would lie below `path`; `None` if no encoded key begins with `path`
    /// as a directory.
    fn first_below(&self, path: &str) -> Option<Vec<u64>> {
        let below = (1..=self.own.rank()).map(|axes| format!("{path}{}", "/0".repeat(axes)));
        below.into_iter().find_map(|key| self.own.in_grid(&key))
    }

    /// Returns the groups of keys, without those that lie in another node within the array.
    fn groups(&self) -> impl Iterator<Item = &Group> {
        let is_in_node = |directory: &str| {
            let is_within = |inner: &str, outer: &str| {
                let rest = inner.strip_prefix(outer);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            let mut nodes = self.nodes.iter();
            !directory.is_empty()
                && nodes.any(|node| is_within(directory, node) || is_within(node, directory))
        };
        let groups = self.groups.iter();
        let groups = groups.filter(move |((directory, _), _)| !is_in_node(directory));
        groups.map(|(_, group)| group)
    }

    /// Returns a directory within the array that has metadata of its own.
    pub(super) fn node_within(&self) -> Option<String> {
        self.nodes.first().cloned()
    }

    /// Returns the separator of Zarr v2 that all keys have; `None` if there are no keys, or if keys differ
    /// from the array's in anything else.
    pub(super) fn other_separator(&self) -> Option<ChunkKeySeparator> {
        let mut found = None;
        for group in self.groups() {
            let spelling = self.others.get(group.spelling?)?;
            if !group.prefix.is_empty() || spelling.metadata["name"] != "v2" {
                return None;
            }
            found = Some(spelling.separator);
        }
        found
    }

    /// Returns a sentence for people: the number of keys, one of them, and the key that a reader looks for
    /// instead.
    pub fn note(&self) -> Option<String> {
        let count: u64 = self.groups().map(|group| group.count).sum();
        let (key, indices) = &self.groups().next()?.example;
        let looks = if count == 1 {
            "1 key looks like a chunk, and lies".to_string()
        } else {
            format!("{} look like chunks, and lie", counted(count, "key"))
        };
        Some(format!(
            "{looks} where no reader looks for them: one is {key}, and the chunk {indices:?} has the key {}",
            self.own.encode(indices)
        ))
    }

    /// Returns the error about these keys; `None` if there are no keys. `stored` says how many chunks are
    /// stored.
    pub fn told(&self, place: &Place, is_v2: bool, stored: &str) -> Option<Failure> {
        let note = self.note()?;
        let failure = Failure::failed(format!(
            "cannot take chunks of {place} that are not stored for the fill value ({stored}): {note}"
        ));
        let group = self.groups().next()?;
        let spelling = group.spelling.and_then(|number| self.others.get(number));
        Some(failure.with_remedy(match spelling {
            _ if !group.prefix.is_empty() => format!(
                "move the chunks out of {}, or move that directory away if they are not of this array",
                group.prefix
            ),
            Some(spelling) if is_v2 && spelling.metadata["name"] == "v2" => format!(
                "bring all chunks to one separator, and name it in .zarray, as \"dimension_separator\": {}",
                json!(spelling.separator)
            ),
            Some(spelling) if !is_v2 => format!(
                "if they are the chunks, write \"chunk_key_encoding\": {} to zarr.json; otherwise move \
                 them away",
                spelling.metadata
            ),
            _ => "rename them, or move them away if they are not of this array".to_string(),
        }))
    }
}

/// Returns the key without leading zeros in its numbers; `None` if no number has leading zeros.
fn without_leading_zeros(key: &str) -> Option<String> {
    let mut plain = String::with_capacity(key.len());
    let mut rest = key.chars().peekable();
    let mut is_in_number = false;
    while let Some(c) = rest.next() {
        let leads = c == '0' && !is_in_number && rest.peek().is_some_and(char::is_ascii_digit);
        if !leads {
            plain.push(c);
            is_in_number = c.is_ascii_digit();
        }
    }
    (plain.len() < key.len()).then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_in_front_of_numbers() {
        for (key, plain) in [
            ("c/0/01", Some("c/0/1")),
            ("c.00.1", Some("c.0.1")),
            ("010/100/000", Some("10/100/0")),
            ("c/0/10", None),
            ("0.0", None),
            ("c", None),
        ] {
            assert_eq!(without_leading_zeros(key).as_deref(), plain, "{key}");
        }
    }

    #[test]
    fn suffixes_count_where_the_chunk_is_not_stored() {
        let encodings = encodings(2);
        let grid = [4, 4];
        let keys = Keys::new(&encodings[0].encoding, &grid);
        let mut elsewhere = Elsewhere::new(&keys);
        for key in [
            "c/0/1.nii",
            "c/0/2.gz",
            "c/1/1.tmp",
            "c/0/2.x.partial",
            "c/9/9.nii",
            "c/3/3.lock",
            "c/3/2.__lock",
        ] {
            elsewhere.look_at(key);
        }
        let unfinished = elsewhere.settle(|indices| indices == [0, 1]);
        assert_eq!(unfinished, Some((2, "c/0/2.x.partial".to_string())));
        let note = elsewhere.note().unwrap_or_default();
        assert!(
            note.contains("1 key") && note.contains("c/0/2.gz"),
            "{note}"
        );
    }
}
