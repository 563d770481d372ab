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

/// Opens the array at `place`, with the codecs that are registered.
pub(crate) fn array(place: &Place) -> Result<Opened, Failure> {
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
    let cannot = |error: &dyn fmt::Display| {
        let error = error.to_string();
        let failure = Failure::failed(format!(
            "cannot open {place} as a Zarr array: {}",
            error.trim_end()
        ));
        let within = arrays_in(path);
        if !is_array(path) && within.is_empty() {
            failure.with_remedy("an array is a directory with a zarr.json or a .zarray in it")
        } else if !is_array(path) {
            let names: Vec<_> = within
                .iter()
                .take(5)
                .map(|array| array.display().to_string())
                .collect();
            failure.with_remedy(format!(
                "name one of the arrays in it: {}",
                names.join(", ")
            ))
        } else {
            failure
        }
    };
    let files = FilesystemStore::new(path).map_err(|error| cannot(&error))?;
    let files = Arc::new(files);
    let store: Arc<Store> = files.clone();
    let array = Array::open(store.clone(), "/").map_err(|error| cannot(&error))?;
    Ok(Opened {
        place: place.clone(),
        array,
        store,
        files: Some(files),
    })
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
