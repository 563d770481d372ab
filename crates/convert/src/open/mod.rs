//! Opens arrays at their place: a directory or, with the feature `remote`, an address.

mod files;
mod fill_value;
mod forward;
mod json;
mod kind;
mod lenient;
mod member;
mod place;
mod zip;

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use zarrs::array::Array;
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::maintenance::Shards;
use zarrs_cuda::writer::ConditionalStore;
use zarrs_storage::{ReadableWritableListableStorageTraits, StorageError, StoreKey, StorePrefix};

pub use self::files::{Files, is_missing, no_file, read_file};
pub(crate) use self::forward::{forward_listing, forward_writes};
pub use self::kind::{
    Kind, RUN, arrays_in, is_array, is_group, is_of_run, is_of_writer, must_be_free, parsed,
    unreadable,
};
use self::lenient::Lenient;
pub use self::lenient::repairs_of;
use self::member::Member;
pub(crate) use self::place::canonical;
#[cfg(feature = "remote")]
pub(crate) use self::place::is_http;
pub use self::place::{Place, must_be_local};
use crate::failure::Failure;
use crate::v2;

/// A store of any kind.
pub type Store = dyn ReadableWritableListableStorageTraits;

/// An array that is open, and its store.
pub struct Opened {
    pub place: Place,
    pub array: Array<Store>,
    pub stores: Stores,
}

/// A function that lists the keys of all objects, and their sizes in bytes.
pub type Sizes = Box<dyn Fn() -> Result<Vec<(String, u64)>, StorageError> + Send + Sync>;

/// A function that lists the keys of all objects, and the times at which they were stored.
pub type Times = Box<dyn Fn() -> Result<Vec<(String, SystemTime)>, StorageError> + Send + Sync>;

impl Opened {
    /// Checks that zarrs read the metadata exactly as they are stored. Call it before the array is changed;
    /// `doing` names the change.
    pub fn must_be_plain(&self, doing: &str) -> Result<(), Failure> {
        must_be_plain(&self.place, doing, &self.stores.not_json())
    }

    /// Returns the reason why the objects of the array can never be listed; `None` if they can, even if a
    /// listing may fail.
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

    /// Returns the bytes of a decoded shard; a guess if elements differ in size.
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

/// Returns the shards of an array, for maintenance.
pub fn shards(opened: &Opened) -> Result<Shards<'_, Store>, Failure> {
    Shards::of(&opened.array).map_err(|error| {
        Failure::failed(format!("cannot look into {}: {error}", opened.place)).with_remedy(
            "`zarrs-cuda reencode` makes a sharded array of any Zarr array, and `zarrs-cuda reshard` \
             of chunks that need not be decoded",
        )
    })
}

/// Opens the array at `place`, with the codecs that are registered at the time.
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

/// Returns `array`, which is at `place`, with codecs that decode its elements as numcodecs does.
///
/// # Errors
/// zarrs would decode elements of an array of Zarr v2 otherwise than numcodecs.
pub fn as_numcodecs_reads(place: &Place, array: Array<Store>) -> Result<Array<Store>, Failure> {
    v2::as_numcodecs_reads(array).map_err(|reason| {
        Failure::failed(format!("cannot read {place} as numcodecs does: {reason}"))
            .with_remedy(
                "let zarr-python decode it: `python -m zarrs_cuda reencode --decode-with zarr-python IN OUT`",
            )
    })
}

/// Checks that no metadata at `place` were repaired when they were read. Call it before something there is
/// changed: `doing` names the change. `not_json` are the repairs as lines for people.
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

/// Opens the store at `place`, for a new array or group there.
pub fn output(place: &Place) -> Result<Stores, Failure> {
    place.must_be_written("write to")?;
    match place {
        Place::Directory(path) => files(place, path),
        Place::Url(url) => remote(place, url),
    }
}

/// A store of any kind, and the operations that only some kinds have.
pub struct Stores {
    /// Reads metadata leniently: see [`repairs`](Self::repairs).
    pub store: Arc<Store>,
    /// The same store as a store of files; `None` if it is not a directory.
    pub files: Option<Arc<FilesystemStore>>,
    /// Lists the keys of all objects and their sizes in bytes; `None` for a directory.
    pub sizes: Option<Sizes>,
    /// Lists the keys of all objects and the times at which they were stored; `None` for a directory.
    pub times: Option<Times>,
    /// The same store with conditional requests; `None` if the store does not support them.
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
            times: None,
            conditional: None,
            lenient,
        }
    }

    /// Returns the differences between the stored metadata and those that were read, as lines for people.
    pub fn repairs(&self) -> Vec<String> {
        lenient::lines(&self.lenient.repairs())
    }

    /// Returns the lines of [`repairs`](Self::repairs), without those for keys that `is_left_out` accepts.
    pub fn repairs_without(&self, is_left_out: impl Fn(&str) -> bool) -> Vec<String> {
        let mut repairs = self.lenient.repairs();
        repairs.retain(|key, _| !is_left_out(key.as_str()));
        lenient::lines(&repairs)
    }

    /// Returns whether the fill value in the metadata of an array of Zarr v2 is `null`. Arrays of zarrs have
    /// one anyway.
    pub(crate) fn has_no_fill_value(&self) -> bool {
        self.lenient.has_no_fill_value()
    }

    /// Returns the lines of [`repairs`](Self::repairs) for metadata that are no JSON.
    pub fn not_json(&self) -> Vec<String> {
        lenient::not_json(&self.lenient.repairs())
    }

    /// Checks that `place` is empty, so that a node of the kind `what` may be made there.
    pub fn must_be_empty(&self, place: &Place, what: &str) -> Result<(), Failure> {
        if let Place::Directory(path) = place {
            return must_be_free(path, what, |_| false);
        }
        let below = self
            .store
            .list_dir(&StorePrefix::root())
            .map_err(Failure::to(format_args!("list {place}")))?;
        // S3 consoles make objects without a name to represent folders, which do not count.
        let keys = below.keys().iter().map(StoreKey::as_str);
        let mut entries = keys.chain(below.prefixes().iter().map(StorePrefix::as_str));
        match entries.find(|entry| !entry.is_empty() && !is_of_writer(entry)) {
            None => Ok(()),
            Some(entry) => Err(kind::foreign(&place.to_string(), entry, what)),
        }
    }
}

/// Opens the store at `place`, which has an array or a group at its root.
pub fn store(place: &Place) -> Result<Stores, Failure> {
    let path = match place {
        Place::Directory(path) => path,
        Place::Url(url) if place.is_zip() => return in_zip(place, url),
        Place::Url(url) => return remote(place, url),
    };
    // Check that the directory exists: zarrs' store takes a missing directory, or a file, for an empty
    // directory.
    fs::read_dir(path).map_err(|error| {
        Failure::failed(format!("cannot open {place}: {error}")).with_remedy(
            "name the directory of a Zarr array: it has a zarr.json or a .zarray in it",
        )
    })?;
    files(place, path)
}

/// Checks that the servers of `places` answer, and let this process read. After the failure of one array it tells
/// whether others would fail for the same reason.
///
/// # Errors
/// A server cannot be reached, or refuses this process.
pub fn must_answer<'a>(places: impl IntoIterator<Item = &'a Place>) -> Result<(), Failure> {
    let is_remote = |place: &&Place| matches!(place, Place::Url(_)) && !place.is_zip();
    let mut places = places.into_iter().filter(is_remote);
    places.try_for_each(|place| store(place).map(drop))
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

fn in_zip(place: &Place, url: &str) -> Result<Stores, Failure> {
    let zip = Arc::new(zip::open(place, url)?);
    let listed = zip.clone();
    let sizes: Sizes = Box::new(move || Ok(listed.sizes()));
    Ok(Stores::new(zip, None, Some(sizes)))
}

/// Calls `on_object` with each key at `place`, which is in a zip file, its size and its version.
pub(crate) fn objects_in_zip(
    place: &Place,
    url: &str,
    mut on_object: impl FnMut(&str, u64, &str),
) -> Result<(), Failure> {
    let zip = zip::open(place, url)?;
    let version = zip.version();
    for (key, size) in zip.sizes() {
        on_object(&key, size, &version);
    }
    Ok(())
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
    let listed = remote.clone();
    let times: Times = Box::new(move || {
        let mut times = Vec::new();
        listed.for_each_object(&StorePrefix::root(), |object| {
            times.push((object.location.to_string(), object.last_modified.into()));
        })?;
        Ok(times)
    });
    Ok(Stores {
        times: Some(times),
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

/// Returns `failure`, the failure to open an array, with the member of the metadata that is its reason, if
/// one is found.
fn in_member(place: &Place, store: &Store, failure: Failure) -> Failure {
    // Where this function finds no member, the caller reports `failure`.
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
        "correct this value, or let zarr-python decode the array if it knows the value: `python -m zarrs_cuda \
         reencode --decode-with zarr-python IN OUT`",
    )
}

/// Returns the failure to open an array at `place`: which node is there instead, and a remedy.
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
    let (shown, more) = within.split_at(within.len().min(5));
    let names: Vec<_> = shown
        .iter()
        .map(|array| array.display().to_string())
        .collect();
    let more = if more.is_empty() { "" } else { ", …" };
    failure.with_remedy(format!(
        "there are arrays in it: name one of them, as {}{more}. `reencode` and `verify` take all of them, and those in \
         groups below, with --recursive",
        names.join(", ")
    ))
}
