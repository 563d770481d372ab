//! Arrays by their place: a directory, or with the feature `remote` an address.

mod files;
mod fill_value;
mod forward;
mod json;
mod kind;
mod lenient;
mod member;
mod place;

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use zarrs::array::Array;
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::maintenance::{ArrayLease, Shards};
use zarrs_cuda::writer::ConditionalStore;
use zarrs_storage::{ReadableWritableListableStorageTraits, StorageError, StoreKey, StorePrefix};

pub use self::files::{Files, is_missing, no_file, read_file};
pub(crate) use self::forward::{forward_listing, forward_writes};
pub use self::kind::{Kind, arrays_in, is_array, is_group, must_be_free, parsed, unreadable};
use self::lenient::Lenient;
pub use self::lenient::repairs_of;
use self::member::Member;
#[cfg(feature = "remote")]
pub(crate) use self::place::is_http;
pub use self::place::{Place, must_be_local};
use crate::failure::Failure;
use crate::version2;

/// A store of any kind.
pub type Store = dyn ReadableWritableListableStorageTraits;

/// An array that is open, and its store.
pub struct Opened {
    pub place: Place,
    pub array: Array<Store>,
    pub stores: Stores,
}

/// The keys of all objects, and their sizes in bytes.
pub type Sizes = Box<dyn Fn() -> Result<Vec<(String, u64)>, StorageError> + Send + Sync>;

impl Opened {
    /// Checks that the metadata are read as they are stored, before the array is changed. `doing` names the
    /// change.
    pub fn must_be_plain(&self, doing: &str) -> Result<(), Failure> {
        must_be_plain(&self.place, doing, &self.stores.not_json())
    }

    /// The reason that the objects of the array cannot be listed; `None` if they can be, or if a listing
    /// fails for another reason.
    pub fn has_no_listing(&self) -> Option<String> {
        if self.place.is_http() {
            return Some("HTTP has no listing".to_string());
        }
        if matches!(self.place, Place::Directory(_)) {
            return None;
        }
        match self.array.storage().list_dir(&StorePrefix::root()) {
            Err(StorageError::Unsupported(reason)) => Some(reason),
            _ => None,
        }
    }

    /// The bytes of a decoded shard; a guess if elements differ in size.
    pub fn shard_bytes(&self) -> u64 {
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
pub fn shards(opened: &Opened) -> Result<Shards<'_, Store>, Failure> {
    Shards::of(&opened.array).map_err(|error| {
        Failure::failed(format!("cannot look into {}: {error}", opened.place)).with_remedy(
            "`zarrs-cuda reencode` makes a sharded array of any Zarr array, and `zarrs-cuda reshard` \
             of chunks that need not be decoded",
        )
    })
}

/// Opens the array at `place`, with the codecs that are registered.
pub fn array(place: &Place) -> Result<Opened, Failure> {
    let stores = store(place)?;
    let array = Array::open(stores.store.clone(), "/");
    let array = array.map_err(|error| cannot_open(place, &*stores.store, &error))?;
    let array = as_numcodecs_reads(place, array)?;
    Ok(Opened {
        place: place.clone(),
        array,
        stores,
    })
}

/// The array at `place`, whose codecs decode as numcodecs does.
///
/// # Errors
/// zarrs would decode an array of Zarr v2 otherwise.
pub fn as_numcodecs_reads(place: &Place, array: Array<Store>) -> Result<Array<Store>, Failure> {
    version2::as_numcodecs_reads(array).map_err(|reason| {
        Failure::failed(format!("cannot read {place} as numcodecs does: {reason}"))
            .with_remedy("re-encode the array with zarr-python")
    })
}

/// Checks that metadata at `place` are read as they are stored, before something there is changed.
/// `not_json` says how they differ, and `doing` names the change.
pub fn must_be_plain(place: &Place, doing: &str, not_json: &[String]) -> Result<(), Failure> {
    if not_json.is_empty() {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "cannot {doing} {place}, whose metadata are no JSON: {}",
        not_json.join("; ")
    ))
    .with_remedy(
        "nothing was written. `zarrs-cuda reencode` makes a copy whose metadata are JSON; or put these \
         values in quotation marks",
    ))
}

/// Opens the store at `place` to write an array or a group, which need not be there yet.
pub fn output(place: &Place) -> Result<Stores, Failure> {
    place.must_be_written("write to")?;
    match place {
        Place::Directory(path) => files(place, path),
        Place::Url(url) => remote(place, url),
    }
}

/// A store of any kind, and what it can do beyond the others.
pub struct Stores {
    /// Reads metadata leniently: see [`repairs`](Self::repairs).
    pub store: Arc<Store>,
    /// The same store, if it is a directory.
    pub files: Option<Arc<FilesystemStore>>,
    /// Lists the keys of all objects and their sizes in bytes, if it is no directory.
    pub sizes: Option<Sizes>,
    /// The same store, if its requests may have conditions.
    pub conditional: Option<Arc<dyn ConditionalStore>>,
    lenient: Arc<Lenient>,
}

impl Stores {
    fn new(store: Arc<Store>, files: Option<Arc<FilesystemStore>>, sizes: Option<Sizes>) -> Self {
        let lenient = Arc::new(Lenient::new(store));
        Self {
            store: lenient.clone(),
            files,
            sizes,
            conditional: None,
            lenient,
        }
    }

    /// The metadata that were read otherwise than they are stored, as lines for people.
    pub fn repairs(&self) -> Vec<String> {
        lenient::lines(&self.lenient.repairs())
    }

    /// The same, without those of the keys that `is_left_out` accepts.
    pub fn repairs_without(&self, is_left_out: impl Fn(&str) -> bool) -> Vec<String> {
        let mut repairs = self.lenient.repairs();
        repairs.retain(|key, _| !is_left_out(key.as_str()));
        lenient::lines(&repairs)
    }

    /// Whether the metadata of an array of Zarr v2 have no fill value, though the array has to have one here.
    pub(crate) fn has_no_fill_value(&self) -> bool {
        self.lenient.has_no_fill_value()
    }

    /// The metadata among them that are no JSON.
    pub fn not_json(&self) -> Vec<String> {
        lenient::not_json(&self.lenient.repairs())
    }

    /// Checks that nothing is at `place`, so that a node of `what` may be made there.
    pub fn must_be_empty(&self, place: &Place, what: &str) -> Result<(), Failure> {
        if let Place::Directory(path) = place {
            return must_be_free(path, what, |_| false);
        }
        let below = self
            .store
            .list_dir(&StorePrefix::root())
            .map_err(Failure::to(format_args!("list {place}")))?;
        // Consoles of S3 make objects without a name for folders.
        let keys = below.keys().iter().map(StoreKey::as_str);
        let mut entries = keys.chain(below.prefixes().iter().map(StorePrefix::as_str));
        match entries.find(|entry| !entry.is_empty() && !ArrayLease::is_key(entry)) {
            None => Ok(()),
            Some(entry) => Err(kind::foreign(&place.to_string(), entry, what)),
        }
    }
}

/// Opens the store at `place`, which has an array or a group at its root.
pub fn store(place: &Place) -> Result<Stores, Failure> {
    let path = match place {
        Place::Directory(path) => path,
        Place::Url(url) => return remote(place, url),
    };
    // The store takes a directory that is not there, or no directory, for an empty one.
    fs::read_dir(path).map_err(|error| {
        Failure::failed(format!("cannot open {place}: {error}")).with_remedy(
            "name the directory of a Zarr array: it has a zarr.json or a .zarray in it",
        )
    })?;
    files(place, path)
}

fn files(place: &Place, path: &Path) -> Result<Stores, Failure> {
    let files = FilesystemStore::new(path);
    let files = files.map_err(Failure::to(format_args!("open {place}")))?;
    let files = Arc::new(files);
    Ok(Stores::new(
        Arc::new(Files::new(files.clone())),
        Some(files),
        None,
    ))
}

#[cfg(feature = "remote")]
fn remote(place: &Place, url: &str) -> Result<Stores, Failure> {
    let remote = Arc::new(crate::remote::open(place, url)?);
    let listed = remote.clone();
    let sizes: Sizes = Box::new(move || {
        let mut sizes = Vec::new();
        listed.for_each_object(&StorePrefix::root(), |object| {
            sizes.push((object.location.to_string(), object.size));
        })?;
        Ok(sizes)
    });
    Ok(Stores {
        conditional: Some(remote.clone()),
        ..Stores::new(remote, None, Some(sizes))
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

/// The failure to open an array, with the member of its metadata that is the reason, if one is.
fn in_member(place: &Place, store: &Store, failure: Failure) -> Failure {
    // `failure` is the error to tell where this function finds none.
    let value = |name: &str| store.get(&StoreKey::new(name).ok()?).ok()?;
    let file = |name: &'static str| {
        let metadata = serde_json::from_slice(&value(name)?).ok()?;
        Some((place.join(name), metadata))
    };
    let Some((file, metadata)) = file("zarr.json").or_else(|| file(".zarray")) else {
        return failure;
    };
    let Some(member) = member::not_understood(&metadata) else {
        return failure.with_remedy("correct the metadata, or write the array again");
    };
    let Member {
        path,
        value,
        reason,
    } = member;
    Failure::failed(format!(
        "cannot open {place} as a Zarr array: `{path}` in {file} is {value}, and is not understood: {reason}"
    ))
    .with_remedy(
        "correct this value, or re-encode the array with a program that knows it, such as zarr-python",
    )
}

/// The error of an array that zarrs cannot open: what is at `place` in its stead, and what to do.
fn cannot_open(place: &Place, store: &Store, error: &dyn fmt::Display) -> Failure {
    let error = error.to_string();
    let error = error.trim_end();
    let failure = Failure::failed(format!("cannot open {place} as a Zarr array: {error}"));
    let failure = match Kind::of(store, place) {
        Err(unreadable) => return unreadable,
        Ok(Kind::Array) => return in_member(place, store, failure),
        Ok(Kind::Group) => Failure::failed(format!("{place} is a Zarr group, not an array")),
        Ok(Kind::Nothing) => failure,
    };
    let Place::Directory(path) = place else {
        return failure.with_remedy("name an array: it has a zarr.json or a .zarray");
    };
    let within = match arrays_in(path) {
        Ok(within) => within,
        Err(unreadable) => return failure.with_remedy(unreadable),
    };
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
