//! Arrays by their place: a directory.

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
use zarrs_storage::ReadableWritableListableStorageTraits;

use crate::failure::Failure;

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
            Self::Url(url) => url.fmt(f),
        }
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

    /// The directory, for subcommands that work on files alone.
    pub(crate) fn directory(&self) -> Result<&Path, Failure> {
        match self {
            Self::Directory(path) => Ok(path),
            Self::Url(url) => Err(Failure::failed(format!(
                "{url} is not a directory, and this subcommand works on directories alone"
            ))),
        }
    }
}

/// An array that is open, and its store.
pub(crate) struct Opened {
    pub(crate) place: Place,
    pub(crate) array: Array<Store>,
    pub(crate) store: Arc<Store>,
    /// The same store, if it is a directory.
    pub(crate) files: Option<Arc<FilesystemStore>>,
}

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
    let Stores { store, files } = stores(place)?;
    let array = Array::open(store.clone(), "/").map_err(|error| cannot_open(place, &error))?;
    Ok(Opened {
        place: place.clone(),
        array,
        store,
        files,
    })
}

/// Opens the store at `place`, which has an array or a group at its root.
pub(crate) fn store(place: &Place) -> Result<Arc<Store>, Failure> {
    Ok(stores(place)?.store)
}

struct Stores {
    store: Arc<Store>,
    files: Option<Arc<FilesystemStore>>,
}

fn stores(place: &Place) -> Result<Stores, Failure> {
    let path = match place {
        Place::Directory(path) => path,
        Place::Url(url) => {
            return Err(
                Failure::failed(format!("cannot open {url}: it is not a directory"))
                    .with_remedy("copy the array to this machine first"),
            );
        }
    };
    // The store would create the directory otherwise.
    fs::read_dir(path).map_err(|error| {
        Failure::failed(format!("cannot open {place}: {error}")).with_remedy(
            "name the directory of a Zarr array: it has a zarr.json or a .zarray in it",
        )
    })?;
    let files = FilesystemStore::new(path).map_err(|error| cannot_open(place, &error))?;
    let files = Arc::new(files);
    Ok(Stores {
        store: files.clone(),
        files: Some(files),
    })
}

fn cannot_open(place: &Place, error: &dyn fmt::Display) -> Failure {
    let error = error.to_string();
    let error = error.trim_end();
    let failure = Failure::failed(format!("cannot open {place} as a Zarr array: {error}"));
    let Place::Directory(path) = place else {
        return failure;
    };
    let failure = if is_group(path) {
        Failure::failed(format!("{place} is a Zarr group, not an array"))
    } else {
        failure
    };
    if is_array(path) {
        return if error.contains("codec") && error.contains("not supported") {
            // For example lz4 of Zarr v2.
            failure.with_remedy(
                "re-encode the array with a program that has this codec, such as zarr-python",
            )
        } else {
            failure
        };
    }
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
