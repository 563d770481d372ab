//! Reads and writes the keys of the chunks of an array, in any chunk key encoding of Zarr V3.
//!
//! | encoding | separator | key of chunk (3, 9) of `/foo` |
//! |---|---|---|
//! | `default` | `/` | `foo/c/3/9` |
//! | `default` | `.` | `foo/c.3.9` |
//! | `v2` | `/` | `foo/3/9` |
//! | `v2` | `.` | `foo/3.9` |
//!
//! The path of the array and the number of its axes are enough to tell the encodings apart.
//! Source: the Zarr V3 core specification, "Chunk key encoding".

use zarrs::node::NodePath;
use zarrs_storage::{StorageError, StoreKey, StorePrefix};

/// The encoding by which the coordinates of a chunk are written in its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum KeyEncoding {
    /// The letter `c`, then each coordinate after a separator.
    Default(char),
    /// The coordinates with separators between them; `0` if there are no coordinates.
    V2(char),
}

impl KeyEncoding {
    const fn separator(self) -> char {
        match self {
            Self::Default(separator) | Self::V2(separator) => separator,
        }
    }
}

/// The key of a chunk, split into its encoding and its coordinates.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ChunkKey {
    pub(super) encoding: KeyEncoding,
    pub(super) coordinates: Vec<u64>,
}

/// The meaning of the keys that have some prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// No key with the prefix is the key of a chunk.
    Elsewhere,
    /// The prefix covers the keys of all chunks, and other keys.
    Everything,
    /// All keys with the prefix are keys of chunks, whose first coordinates are these. There are fewer of
    /// these coordinates than axes.
    Chunks(ChunkKey),
}

/// The keys of the chunks of one array.
#[derive(Clone, Debug)]
pub(super) struct ChunkKeys {
    /// The prefix of all keys of the array. It ends with `/`, or is empty.
    prefix: String,
    axes: usize,
}

impl ChunkKeys {
    /// Returns the keys of the array at `path`, which has `axes` axes.
    pub(super) fn new(path: &NodePath, axes: usize) -> Self {
        let path = path.as_str().trim_matches('/');
        let prefix = if path.is_empty() {
            String::new()
        } else {
            format!("{path}/")
        };
        Self { prefix, axes }
    }

    /// Returns the prefix of all keys of the array.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the encoding and the coordinates in `key`; `None` if it is not the key of a chunk.
    pub(super) fn parse(&self, key: &str) -> Option<ChunkKey> {
        let rest = key.strip_prefix(&self.prefix)?;
        let parsed = self.parse_in_array(rest)?;
        (parsed.coordinates.len() == self.axes).then_some(parsed)
    }

    /// Returns which keys of chunks begin with `prefix`.
    pub(super) fn scope(&self, prefix: &StorePrefix) -> Scope {
        let prefix = prefix.as_str();
        if self.prefix.starts_with(prefix) {
            return Scope::Everything;
        }
        let within = prefix.strip_prefix(&self.prefix);
        let chunks = within.and_then(|rest| match rest.strip_suffix('/')? {
            "c" if self.axes > 0 => Some(ChunkKey {
                encoding: KeyEncoding::Default('/'),
                coordinates: Vec::new(),
            }),
            rest => {
                let mut parsed = self.parse_in_array(rest)?;
                // A single coordinate does not show its separator. The prefix ends with `/`, so the separator
                // is `/`.
                if parsed.coordinates.len() == 1 && parsed.encoding == KeyEncoding::V2('.') {
                    parsed.encoding = KeyEncoding::V2('/');
                }
                let is_part = parsed.encoding.separator() == '/'
                    && parsed.coordinates.len() < self.axes
                    && !parsed.coordinates.is_empty();
                is_part.then_some(parsed)
            }
        });
        chunks.map_or(Scope::Elsewhere, Scope::Chunks)
    }

    /// Reads the key, or the beginning of a key, behind the prefix of the array; `None` if no chunk's key
    /// begins so.
    fn parse_in_array(&self, rest: &str) -> Option<ChunkKey> {
        let (encoding, numbers) = if let Some(behind) = rest.strip_prefix('c') {
            let Some(separator) = behind.chars().next() else {
                return (self.axes == 0).then_some(ChunkKey {
                    encoding: KeyEncoding::Default('/'),
                    coordinates: Vec::new(),
                });
            };
            (
                KeyEncoding::Default(separator),
                &behind[separator.len_utf8()..],
            )
        } else if self.axes == 0 {
            return (rest == "0").then_some(ChunkKey {
                encoding: KeyEncoding::V2('.'),
                coordinates: Vec::new(),
            });
        } else {
            let separator = if rest.contains('/') { '/' } else { '.' };
            (KeyEncoding::V2(separator), rest)
        };
        if !matches!(encoding.separator(), '/' | '.') {
            return None;
        }
        let coordinates = numbers.split(encoding.separator()).map(coordinate);
        Some(ChunkKey {
            encoding,
            coordinates: coordinates.collect::<Option<_>>()?,
        })
    }

    /// Returns the key of a chunk.
    ///
    /// # Errors
    /// [`StorageError::Other`], which cannot happen: the formatted text is always a key.
    pub(super) fn key(&self, chunk: &ChunkKey) -> Result<StoreKey, StorageError> {
        StoreKey::new(self.format(chunk)).map_err(|error| StorageError::Other(error.to_string()))
    }

    /// Returns the prefix of the keys that begin with the coordinates of `chunk`, which has fewer coordinates
    /// than axes.
    ///
    /// # Errors
    /// [`StorageError::Other`], which cannot happen: the formatted text is always a prefix.
    pub(super) fn prefix_of(&self, chunk: &ChunkKey) -> Result<StorePrefix, StorageError> {
        StorePrefix::new(self.format(chunk) + "/")
            .map_err(|error| StorageError::Other(error.to_string()))
    }

    fn format(&self, chunk: &ChunkKey) -> String {
        let separator = chunk.encoding.separator().to_string();
        let coordinates = chunk.coordinates.iter().map(u64::to_string);
        let parts: Vec<String> = match chunk.encoding {
            KeyEncoding::Default(_) => std::iter::once("c".to_owned()).chain(coordinates).collect(),
            KeyEncoding::V2(_) if self.axes == 0 => vec!["0".to_owned()],
            KeyEncoding::V2(_) => coordinates.collect(),
        };
        self.prefix.clone() + &parts.join(&separator)
    }
}

/// Returns the number in `text`; `None` if zarrs would write the number otherwise, so that `text` is not part
/// of a chunk's key.
fn coordinate(text: &str) -> Option<u64> {
    let is_canonical = text == "0" || !text.starts_with(['0', '+']);
    text.parse().ok().filter(|_| is_canonical)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(path: &str, axes: usize) -> ChunkKeys {
        ChunkKeys::new(&NodePath::new(path).unwrap(), axes)
    }

    fn chunk(encoding: KeyEncoding, coordinates: &[u64]) -> ChunkKey {
        ChunkKey {
            encoding,
            coordinates: coordinates.to_vec(),
        }
    }

    #[test]
    fn keys_of_both_encodings_and_separators() {
        use KeyEncoding::{Default, V2};
        for (path, prefix) in [("/", ""), ("/foo", "foo/"), ("/foo/baz", "foo/baz/")] {
            for (axes, encoding, coordinates, key) in [
                (2, Default('/'), &[96, 18][..], "c/96/18"),
                (2, Default('.'), &[96, 18], "c.96.18"),
                (2, V2('/'), &[96, 18], "96/18"),
                (2, V2('.'), &[96, 18], "96.18"),
                (1, Default('/'), &[0], "c/0"),
                (1, Default('.'), &[7], "c.7"),
                (1, V2('.'), &[u64::MAX], "18446744073709551615"),
                (0, Default('/'), &[], "c"),
                (0, V2('.'), &[], "0"),
            ] {
                let (keys, key) = (keys(path, axes), format!("{prefix}{key}"));
                let chunk = chunk(encoding, coordinates);
                assert_eq!(keys.parse(&key), Some(chunk.clone()), "{key}");
                assert_eq!(keys.key(&chunk).unwrap().as_str(), key);
            }
        }
    }

    #[test]
    fn other_keys() {
        let keys = keys("/foo", 2);
        for key in [
            "foo/zarr.json",
            "foo/c/1",
            "foo/c/1/2/3",
            "foo/c/01/2",
            "foo/c/+1/2",
            "foo/c/-1/2",
            "foo/c/1.2",
            "foo/c.1/2",
            "foo/c-1-2",
            "foo/1",
            "foo/1.2.3",
            "foo/c//1",
            "c/1/2",
            "foo/c",
            "foo/c/1/18446744073709551616",
            "bar/c/1/2",
            "foo/c/1/2.tmp",
            "foo/c/1/2.frame/x",
            "foo/ç/1",
            "fooc/1/2",
            "foo/c/1/",
            "foo/c/ 1/2",
            "",
        ] {
            assert_eq!(keys.parse(key), None, "{key}");
        }
    }

    #[test]
    fn scopes_of_prefixes() {
        use KeyEncoding::{Default, V2};
        let of = |axes, prefix: &str| keys("/a/b", axes).scope(&StorePrefix::new(prefix).unwrap());
        for everything in ["", "a/", "a/b/"] {
            assert_eq!(of(2, everything), Scope::Everything, "{everything:?}");
        }
        for elsewhere in [
            "b/",
            "a/c/",
            "a/b/x/",
            "a/b/c/1/2/",
            "a/b/c/x/",
            "a/b/c.1/",
            "a/b/1.2/",
            "a/b/01/",
        ] {
            assert_eq!(of(2, elsewhere), Scope::Elsewhere, "{elsewhere:?}");
        }
        for (axes, prefix, encoding, coordinates) in [
            (2, "a/b/c/", Default('/'), &[][..]),
            (2, "a/b/c/3/", Default('/'), &[3]),
            (3, "a/b/c/3/4/", Default('/'), &[3, 4]),
            (2, "a/b/3/", V2('/'), &[3]),
            (3, "a/b/3/4/", V2('/'), &[3, 4]),
        ] {
            let chunk = chunk(encoding, coordinates);
            assert_eq!(of(axes, prefix), Scope::Chunks(chunk.clone()), "{prefix}");
            assert_eq!(
                keys("/a/b", axes).prefix_of(&chunk).unwrap().as_str(),
                prefix
            );
        }
        assert_eq!(of(0, "a/b/c/"), Scope::Elsewhere);
        assert_eq!(of(1, "a/b/3/"), Scope::Elsewhere);
    }
}
