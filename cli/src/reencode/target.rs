//! Where the output goes: a directory, or a prefix of an object store.

use std::path::PathBuf;
use std::sync::Arc;

use zarrs::storage::storage_adapter::atomic_write::AtomicWriteStorageAdapter;

use super::arrays::{Output, metadata_json};
use super::{Args, directory, objects};
use crate::failure::Failure;
use crate::open::{self, Place, Store};

/// The name of `zarr.json` until the array or group is complete.
pub(super) const INCOMPLETE: &str = "zarr.json.incomplete";
/// What is the metadata of an array, of Zarr v2 or v3.
pub(super) const METADATA: [&str; 5] =
    ["zarr.json", ".zarray", ".zattrs", ".zmetadata", INCOMPLETE];

/// Where an array or a group goes.
pub(super) struct Target {
    place: Place,
    /// A value of it appears at once, as a whole.
    pub(super) store: Arc<Store>,
}

/// The state of a target before anything is written.
pub(super) struct Found {
    pub(super) is_empty: bool,
    /// The output of an interrupted run.
    pub(super) is_incomplete: bool,
    /// Something else than `reencode` writes.
    pub(super) is_foreign: bool,
}

impl Found {
    /// Checks that a run may write there. `what` it writes is an array or a group.
    pub(super) fn must_be_free(
        &self,
        args: &Args,
        shown: &dyn std::fmt::Display,
        what: &str,
    ) -> Result<(), Failure> {
        if self.is_foreign {
            return Err(
                Failure::failed(format!("{shown} is not empty, and not a Zarr {what}"))
                    .with_remedy("name another OUT, or empty it yourself"),
            );
        }
        if self.is_incomplete && !args.resume && !args.overwrite {
            return Err(
                Failure::failed(format!("{shown} holds the output of an interrupted run"))
                    .with_remedy("go on with --resume, or start again with --overwrite"),
            );
        }
        if !self.is_empty && !self.is_incomplete && !args.overwrite {
            let replaced = if what == "group" { "its arrays" } else { "it" };
            return Err(
                Failure::failed(format!("{shown} holds a Zarr {what}")).with_remedy(format!(
                    "name another OUT, or replace {replaced} with --overwrite"
                )),
            );
        }
        Ok(())
    }
}

/// The incomplete output at `shown` has other metadata than this run writes.
pub(super) fn of_another_command(shown: &dyn std::fmt::Display) -> Failure {
    Failure::failed(format!(
        "{shown} is the incomplete output of another command"
    ))
    .with_remedy("resume with that one, or start again with --overwrite")
}

/// For example `c`, `0`, `0.1.2`, `c.0.1`.
pub(super) fn is_part_of_chunk_key(name: &str) -> bool {
    let digits = name.strip_prefix('c').unwrap_or(name);
    !name.is_empty() && digits.bytes().all(|b| b == b'.' || b.is_ascii_digit())
}

impl Target {
    pub(super) fn new(place: &Place) -> Result<Self, Failure> {
        let stores = open::output(place)?;
        Ok(Self {
            place: place.clone(),
            store: match stores.files {
                Some(files) => Arc::new(AtomicWriteStorageAdapter::new(files)),
                None => stores.store,
            },
        })
    }

    /// Checks that only values of this run are there, or deletes the array that is to be replaced.
    pub(super) fn prepare(&self, args: &Args, output: &Output) -> Result<(), Failure> {
        let metadata = metadata_json(output)?;
        match &self.place {
            Place::Directory(path) => directory::prepare(path, args, &self.store, metadata),
            Place::Url(_) => objects::prepare(&self.place, args, &self.store, metadata),
        }
    }

    /// Checks that nothing is there but nodes with the paths `members`, and hides the root from readers.
    pub(super) fn prepare_group(
        &self,
        args: &Args,
        members: &[&str],
        metadata: Vec<u8>,
    ) -> Result<(), Failure> {
        match &self.place {
            Place::Directory(path) => directory::prepare_group(path, args, members, &metadata),
            Place::Url(_) => {
                objects::prepare_group(&self.place, args, &self.store, members, metadata)
            }
        }
    }

    /// Deletes what a killed run, or a full disk, left beside the values.
    pub(super) fn remove_temporaries(&self) -> Result<(), Failure> {
        match &self.place {
            Place::Directory(path) => directory::remove_temporaries(path),
            Place::Url(_) => Ok(()), // a value that was not sent to its end does not exist
        }
    }

    /// Whether the array `output` is there and readers see it.
    pub(super) fn is_published(&self, output: &Output) -> Result<bool, Failure> {
        let metadata = metadata_json(output)?;
        let stored = objects::get(&*self.store, "zarr.json");
        Ok(stored.is_ok_and(|stored| stored.is_some_and(|stored| stored == metadata)))
    }

    /// Makes the array or group visible to readers.
    pub(super) fn publish(&self) -> Result<(), Failure> {
        match &self.place {
            Place::Directory(path) => directory::publish(path),
            Place::Url(_) => objects::publish(&self.place, &self.store),
        }
    }

    /// Writes a group with the path `path` below.
    pub(super) fn write_group(&self, path: &str, metadata: &[u8]) -> Result<(), Failure> {
        let written = match &self.place {
            Place::Directory(root) => {
                let group: PathBuf = root.join(path);
                directory::write_group(&group, metadata)
            }
            Place::Url(_) => {
                let key = format!("{path}/zarr.json");
                objects::set(&*self.store, &key, metadata.to_vec())
                    .map_err(|error| error.to_string())
            }
        };
        written.map_err(|error| {
            let group = self.place.join(path);
            Failure::failed(format!("cannot write the group {group}: {error}"))
                .with_remedy("run the same command with --resume to go on")
        })
    }
}
