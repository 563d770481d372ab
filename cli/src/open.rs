//! Arrays by their place: a directory, or with the feature `remote` an address.

use std::convert::Infallible;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use serde_json::Value;
use zarrs::array::Array;
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::maintenance::Shards;
use zarrs_storage::{ReadableWritableListableStorageTraits, StorageError, StoreKey};

use crate::failure::Failure;
use crate::version2;

/// A store of any kind.
pub(crate) type Store = dyn ReadableWritableListableStorageTraits;

/// The place of an array or of a hierarchy, as the user wrote it.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Directory(PathBuf),
    /// `https://…`, `s3://…`
    Url(String),
}

impl FromStr for Place {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(if text.contains("://") {
            Self::Url(text.to_string())
        } else {
            Self::Directory(text.into())
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            Self::Url(url) => {
                // A query may be a signature; keys of S3 have none.
                let is_s3 = url.to_ascii_lowercase().starts_with("s3://");
                let query = url.find('?').filter(|_| !is_s3);
                without_user(&url[..query.unwrap_or(url.len())]).fmt(f)
            }
        }
    }
}

/// Whether the address `url` is of an HTTP server.
pub(crate) fn is_http(url: &str) -> bool {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
}

/// The address `url` without the name and password of a user.
pub(crate) fn without_user(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_string();
    };
    let host = rest.find('/').unwrap_or(rest.len());
    match rest[..host].rfind('@') {
        Some(at) => format!("{scheme}://***{}", &rest[at..]),
        None => url.to_string(),
    }
}

impl Place {
    /// The place of a member of a group, by its path within the group.
    pub(crate) fn join(&self, path: &str) -> Self {
        match self {
            Self::Directory(directory) => Self::Directory(directory.join(path)),
            Self::Url(url) => Self::Url(format!("{}/{path}", url.trim_end_matches('/'))),
        }
    }

    /// Whether it is of an HTTP server, whose files are neither listed nor written.
    pub(crate) fn is_http(&self) -> bool {
        matches!(self, Self::Url(url) if is_http(url))
    }

    /// Checks that the objects of this place can be listed. `doing` is what needs it.
    pub(crate) fn must_be_listed(&self, doing: &str, remedy: &str) -> Result<(), Failure> {
        if self.is_http() {
            return Err(Failure::failed(format!(
                "cannot {doing} {self}: that needs a listing, and HTTP has none"
            ))
            .with_remedy(remedy));
        }
        Ok(())
    }

    /// Checks that objects of this place can be written. `doing` is what needs it.
    pub(crate) fn must_be_written(&self, doing: &str) -> Result<(), Failure> {
        if self.is_http() {
            return Err(Failure::failed(format!(
                "cannot {doing} {self}: files of an HTTP server can only be read"
            ))
            .with_remedy("name a directory, or s3://BUCKET/PATH"));
        }
        Ok(())
    }

    /// The directory, for subcommands that work on files alone.
    pub(crate) fn directory(&self) -> Result<&Path, Failure> {
        match self {
            Self::Directory(path) => Ok(path),
            Self::Url(_) => Err(Failure::failed(format!(
                "{self} is not a directory, and this subcommand works on directories alone"
            ))
            .with_remedy("copy the array to this machine first")),
        }
    }
}

/// An array that is open, and its store.
pub(crate) struct Opened {
    pub(crate) place: Place,
    pub(crate) array: Array<Store>,
    /// The same store, if it is a directory.
    pub(crate) files: Option<Arc<FilesystemStore>>,
    /// Lists the keys of all objects and their sizes in bytes, if it is no directory.
    pub(crate) sizes: Option<Sizes>,
}

/// The keys of all objects, and their sizes in bytes.
pub(crate) type Sizes = Box<dyn Fn() -> Result<Vec<(String, u64)>, StorageError> + Send + Sync>;

impl Opened {
    /// The bytes of a decoded shard; a guess if elements differ in size.
    pub(crate) fn shard_bytes(&self) -> u64 {
        let element = self.array.data_type().fixed_size().unwrap_or(32) as u64;
        let origin = vec![0; self.array.dimensionality()];
        let shape = self.array.chunk_shape(&origin).unwrap_or_default();
        let elements = shape.iter().fold(1, |product: u64, extent| {
            product.saturating_mul(extent.get())
        });
        elements.saturating_mul(element)
    }
}

/// The shards of an array.
pub(crate) fn shards(opened: &Opened) -> Result<Shards<'_, Store>, Failure> {
    Shards::of(&opened.array).map_err(|error| {
        Failure::failed(format!("cannot look into {}: {error}", opened.place)).with_remedy(
            "`zarrs-cuda reencode` makes a sharded array of any Zarr array, and `zarrs-cuda reshard` \
             of chunks that need not be decoded",
        )
    })
}

/// Opens the array at `place`, with the codecs that are registered.
pub(crate) fn array(place: &Place) -> Result<Opened, Failure> {
    let Stores {
        store,
        files,
        sizes,
    } = stores(place)?;
    let array = Array::open(store.clone(), "/");
    let array = array.map_err(|error| cannot_open(place, &store, &error))?;
    let array = version2::as_numcodecs_reads(array).map_err(|reason| {
        Failure::failed(format!("cannot read {place} as numcodecs does: {reason}"))
            .with_remedy("re-encode the array with zarr-python")
    })?;
    Ok(Opened {
        place: place.clone(),
        array,
        files,
        sizes,
    })
}

/// Opens the store at `place`, which has an array or a group at its root.
pub(crate) fn store(place: &Place) -> Result<Arc<Store>, Failure> {
    Ok(stores(place)?.store)
}

/// Opens the store at `place` to write an array or a group, which need not be there yet.
pub(crate) fn output(place: &Place) -> Result<Stores, Failure> {
    place.must_be_written("write to")?;
    match place {
        Place::Directory(path) => files(place, path),
        Place::Url(url) => remote(place, url),
    }
}

/// A store of any kind, and what it can do beyond the others.
pub(crate) struct Stores {
    pub(crate) store: Arc<Store>,
    pub(crate) files: Option<Arc<FilesystemStore>>,
    sizes: Option<Sizes>,
}

fn stores(place: &Place) -> Result<Stores, Failure> {
    let path = match place {
        Place::Directory(path) => path,
        Place::Url(url) => return remote(place, url),
    };
    // The store would create the directory otherwise.
    fs::read_dir(path).map_err(|error| {
        Failure::failed(format!("cannot open {place}: {error}")).with_remedy(
            "name the directory of a Zarr array: it has a zarr.json or a .zarray in it",
        )
    })?;
    files(place, path)
}

fn files(place: &Place, path: &Path) -> Result<Stores, Failure> {
    let files = FilesystemStore::new(path);
    let files = files.map_err(|error| Failure::failed(format!("cannot open {place}: {error}")))?;
    let files = Arc::new(files);
    Ok(Stores {
        store: files.clone(),
        files: Some(files),
        sizes: None,
    })
}

#[cfg(feature = "remote")]
fn remote(place: &Place, url: &str) -> Result<Stores, Failure> {
    let remote = Arc::new(crate::remote::Remote::open(place, url)?);
    Ok(Stores {
        store: remote.clone(),
        files: None,
        sizes: Some(Box::new(move || remote.sizes())),
    })
}

#[cfg(not(feature = "remote"))]
fn remote(place: &Place, _: &str) -> Result<Stores, Failure> {
    Err(
        Failure::failed(format!("cannot open {place}: it is not a directory")).with_remedy(
            "install the command with its feature remote, as by `cargo install --path cli --features \
             remote`; or copy the array to this machine first",
        ),
    )
}

/// What is at the root of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Array,
    Group,
    Nothing,
}

impl Kind {
    pub(crate) fn of(store: &Store) -> Result<Self, StorageError> {
        let get = |name: &str| store.get(&StoreKey::new(name)?);
        let metadata = get("zarr.json")?.unwrap_or_default();
        let metadata: Value = serde_json::from_slice(&metadata).unwrap_or_default();
        Ok(match metadata["node_type"].as_str() {
            Some("array") => Self::Array,
            Some("group") => Self::Group,
            _ if get(".zarray")?.is_some() => Self::Array,
            _ if get(".zgroup")?.is_some() => Self::Group,
            _ => Self::Nothing,
        })
    }
}

fn cannot_open(place: &Place, store: &Store, error: &dyn fmt::Display) -> Failure {
    let error = error.to_string();
    let error = error.trim_end();
    let failure = Failure::failed(format!("cannot open {place} as a Zarr array: {error}"));
    let kind = Kind::of(store).unwrap_or(Kind::Nothing);
    let failure = if kind == Kind::Group {
        Failure::failed(format!("{place} is a Zarr group, not an array"))
    } else {
        failure
    };
    if kind == Kind::Array {
        let is_extension = error.contains("codec") || error.contains("data type");
        return if is_extension && error.contains("not supported") {
            // For example lz4 of Zarr v2.
            failure
                .with_remedy("re-encode the array with a program that has it, such as zarr-python")
        } else {
            failure
        };
    }
    let Place::Directory(path) = place else {
        return failure.with_remedy("name an array: it has a zarr.json or a .zarray");
    };
    let within = arrays_in(path);
    if within.is_empty() {
        return failure.with_remedy("an array is a directory with a zarr.json or a .zarray in it");
    }
    let within: Vec<_> = within.iter().take(5).collect();
    let names: Vec<_> = within
        .iter()
        .map(|array| array.display().to_string())
        .collect();
    failure.with_remedy(format!(
        "there are arrays in it: name one of them, as {}",
        names.join(", ")
    ))
}

/// Checks that `path` is no address: `what` has to be on this machine.
pub(crate) fn must_be_local(path: &Path, what: &str) -> Result<(), Failure> {
    let shown = path.to_string_lossy();
    if shown.contains("://") {
        let shown = Place::Url(shown.into_owned()); // without credentials
        return Err(
            Failure::usage(format!("{shown} is an address, and {what} on this machine"))
                .with_remedy("name a path of this machine"),
        );
    }
    Ok(())
}

/// The directories in `path` that are Zarr arrays, in order.
pub(crate) fn arrays_in(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten();
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut arrays: Vec<_> = paths.filter(|path| is_array(path)).collect();
    arrays.sort();
    arrays
}

/// Whether `path` is a Zarr array, not a group.
pub(crate) fn is_array(path: &Path) -> bool {
    let metadata = fs::read(path.join("zarr.json")).unwrap_or_default();
    let metadata: Value = serde_json::from_slice(&metadata).unwrap_or_default();
    metadata["node_type"] == "array" || path.join(".zarray").is_file()
}

/// Whether `path` is a Zarr group.
pub(crate) fn is_group(path: &Path) -> bool {
    let metadata = fs::read(path.join("zarr.json")).unwrap_or_default();
    let metadata: Value = serde_json::from_slice(&metadata).unwrap_or_default();
    metadata["node_type"] == "group" || path.join(".zgroup").is_file()
}
