//! The output of a run: a directory, or a prefix of an object store.

use std::collections::BTreeSet;
use std::sync::Arc;

use zarrs::storage::{StorageError, StoreKey};

use super::found::{Found, GROUP_METADATA, INCOMPLETE, Node, Start, prefix_of};
use super::same_run::Run;
use super::{Mode, directory, objects};
use crate::claim::Claim;
use crate::evidence::Changes;
use crate::failure::Failure;
use crate::open::{self, Place, Store};
use crate::replace::{KeptTemporaries, ReplacingFiles};
use crate::shared_run;

/// The place of an output, which is an array or a group.
pub(super) struct Target {
    place: Place,
    /// The store of the output, in which each value appears at once, as a whole.
    pub(super) store: Arc<Store>,
}

impl Target {
    pub(super) fn new(place: &Place) -> Result<Self, Failure> {
        let stores = open::output(place)?;
        Ok(Self {
            place: place.clone(),
            store: match stores.files {
                Some(files) => Arc::new(ReplacingFiles::new(files)),
                None => stores.store,
            },
        })
    }

    /// Returns the state of the target.
    pub(super) fn look_at(&self) -> Result<Found, Failure> {
        self.look(None, false)
    }

    /// Returns whether a run without parts has claimed the target.
    pub(super) fn is_claimed(&self) -> Result<bool, Failure> {
        let marker = objects::get(&*self.store, INCOMPLETE);
        let marker = marker.map_err(Failure::to(format_args!("look at {}", self.place)))?;
        Ok(marker.is_some())
    }

    /// Returns the state of the target. `is_of_parts`: whether a run in parts makes it as an array of a group.
    fn look(&self, claim: Option<&Claim>, is_of_parts: bool) -> Result<Found, Failure> {
        let is_of_parts = is_of_parts || self.is_in_parts()?;
        let mut found = match &self.place {
            Place::Directory(path) => directory::look(path, claim, is_of_parts)?,
            Place::Url(_) => objects::look(&self.place, &self.store)?,
        };
        // A run that replaces what a run in parts has stored takes it for the output of an interrupted run.
        if found.marker.is_none() && is_of_parts {
            found.marker = Some(Vec::new());
        }
        Ok(found)
    }

    /// Returns whether a run in parts makes this output.
    pub(super) fn is_in_parts(&self) -> Result<bool, Failure> {
        shared_run::is_begun(&self.place, &self.store)
    }

    /// Returns whether a run in parts makes this output, and an array at `path` in it.
    pub(super) fn has_array_in_parts(&self, path: &str) -> Result<bool, Failure> {
        let nodes = shared_run::nodes(&self.place, &self.store)?;
        let mut nodes = nodes.into_iter().flatten();
        Ok(nodes.any(|(node, is_array)| is_array && node == path))
    }

    /// Checks that no run in parts makes this output, unless this run replaces it.
    fn must_not_be_in_parts(&self, mode: Mode) -> Result<(), Failure> {
        if mode.replaces_parts || !self.is_in_parts()? {
            return Ok(());
        }
        shared_run::must_not_be_begun(&self.place)
    }

    /// Checks that no run in parts makes a group at one of `paths` in this output, as an output of its own. The plan of an
    /// array looks for such a run itself.
    pub(super) fn must_have_no_parts_in<'p>(
        &self,
        mut paths: impl Iterator<Item = &'p str>,
    ) -> Result<(), Failure> {
        paths.try_for_each(|path| {
            shared_run::must_not_be_begun_below(&self.place, &*self.store, path)
        })
    }

    /// Deletes what runs in parts have left beside their shards. What they have stored is then the output of an
    /// interrupted run.
    pub(super) fn forget_parts(&self) -> Result<(), Failure> {
        shared_run::give_up(&self.place, &self.store, INCOMPLETE)
    }

    /// Checks that a run in parts makes no other nodes here than `members`, which this run replaces.
    fn must_be_replaced(&self, members: &BTreeSet<&str>, node: Node) -> Result<(), Failure> {
        let Some(nodes) = shared_run::nodes(&self.place, &self.store)? else {
            return Ok(());
        };
        let is_other = |(path, is_array): &&(String, bool)| {
            let is_root = path.is_empty() && *is_array != (node == Node::Array);
            is_root || !members.contains(&**path)
        };
        let Some((path, _)) = nodes.iter().find(is_other) else {
            return Ok(());
        };
        Err(Failure::failed(format!(
            "a run in parts makes {}, which this run would not replace",
            self.place.join(path)
        ))
        .with_remedy("name another OUT, or delete OUT as a whole"))
    }

    /// Checks that `run` may write an array to this target, and returns how the run begins. Writes nothing.
    /// `is_of_parts`: whether a run in parts makes it as an array of a group.
    pub(super) fn check(&self, mode: Mode, run: &Run, is_of_parts: bool) -> Result<Start, Failure> {
        self.must_not_be_in_parts(mode)?;
        self.must_be_replaced(&BTreeSet::from([""]), Node::Array)?;
        let found = self.look(None, is_of_parts)?;
        found.start(mode, run, &self.place, Node::Array)
    }

    /// Checks that `run` may write a group to this target, with arrays and groups at the paths `members`.
    /// Writes nothing. If the run continues an interrupted one, returns the keys of the input that were
    /// written since that run began.
    pub(super) fn check_group(
        &self,
        mode: Mode,
        run: &Run,
        members: &BTreeSet<&str>,
    ) -> Result<Option<Changes>, Failure> {
        self.must_not_be_in_parts(mode)?;
        self.must_be_replaced(members, Node::Group)?;
        let found = self.look(None, false)?;
        let start = found.start(mode, run, &self.place, Node::Group)?;
        let nodes = self.nodes()?;
        if let Some(foreign) = nodes.iter().find(|node| !members.contains(node.as_str())) {
            return Err(Failure::failed(format!(
                "{} is in OUT, and this run has nothing for it",
                self.place.join(foreign)
            ))
            .with_remedy(
                "name another OUT. One array of a group is made again by `reencode IN/ARRAY OUT/ARRAY --overwrite`. \
                 Delete what you do not need yourself",
            ));
        }
        Ok(match start {
            Start::Anew => None,
            Start::GoOn(goes_on) => goes_on.changes,
        })
    }

    /// Returns the paths of the arrays and groups below the target.
    pub(super) fn nodes(&self) -> Result<BTreeSet<String>, Failure> {
        match &self.place {
            Place::Directory(path) => directory::nodes_in(path),
            Place::Url(_) => objects::nodes_in(&self.place, &self.store),
        }
    }

    /// Claims the target for `run`, which writes an array or a group. Deletes the arrays that the run
    /// replaces, and hides the group from readers.
    pub(super) fn begin<'a>(
        &'a self,
        mode: Mode,
        run: &'a Run,
        node: Node,
    ) -> Result<Begun<'a>, Failure> {
        self.must_not_be_in_parts(mode)?;
        // Otherwise a part of an earlier run could take this output for that of its own run.
        self.forget_parts()?;
        let claim = match &self.place {
            Place::Directory(path) => Some(directory::claim(path)?),
            Place::Url(_) => None,
        };
        // Check again: another run may have written since `check`.
        let start = self
            .look(claim.as_ref(), false)?
            .start(mode, run, &self.place, node)?;
        let mut begun = Begun {
            target: self,
            run,
            claim,
            changes: None,
            marker: run.marker(),
        };
        match (start, node) {
            (Start::GoOn(goes_on), _) => {
                (begun.marker, begun.changes) = (goes_on.marker, goes_on.changes);
            }
            (Start::Anew, Node::Array) => begun.delete_array()?,
            (Start::Anew, Node::Group) if mode.overwrite => begun.delete_members()?,
            (Start::Anew, Node::Group) => {}
        }
        begun.write_marker(&begun.marker.clone())?;
        // A part that has made a plan meanwhile looks for the marker afterwards: one of both withdraws.
        if let Err(failure) = self.must_not_be_in_parts(mode) {
            begun.remove_marker()?;
            return Err(failure);
        }
        if node == Node::Group {
            self.hide_group("")?;
        }
        Ok(begun)
    }

    /// Hides the group with this path from readers; the root has the path "".
    fn hide_group(&self, path: &str) -> Result<(), Failure> {
        GROUP_METADATA.into_iter().try_for_each(|name| {
            let key = StoreKey::new(prefix_of(path) + name).map_err(StorageError::from);
            key.and_then(|key| self.store.erase(&key))
                .map_err(Failure::to(format_args!(
                    "make {} ready",
                    self.place.join(path)
                )))
        })
    }

    /// Deletes the temporaries of runs that have ended, and returns the other temporaries. With `group`, the
    /// path of a group, it looks only at temporaries of that group's metadata; without, at all of the array.
    pub(super) fn remove_temporaries(
        &self,
        group: Option<&str>,
    ) -> Result<KeptTemporaries, Failure> {
        match &self.place {
            Place::Directory(root) => directory::remove_temporaries(root, group),
            Place::Url(_) => Ok(KeptTemporaries::default()), // an upload that is not complete makes no object
        }
    }

    /// Returns whether the complete array of `run` is at the target.
    pub(super) fn is_published(&self, run: &Run) -> Result<bool, Failure> {
        let get = |key| {
            objects::get(&*self.store, key)
                .map_err(Failure::to(format_args!("read {key} of {}", self.place)))
        };
        let is_there = get("zarr.json")?.is_some_and(|stored| *stored == *run.metadata());
        Ok(is_there && get(INCOMPLETE)?.is_none())
    }

    /// Returns the metadata of the array or group at `path` below the target; `None` if readers do not see
    /// it.
    pub(super) fn metadata(&self, path: &str) -> Result<Option<Vec<u8>>, Failure> {
        let stored = objects::get(&*self.store, &format!("{path}/zarr.json"));
        let stored = stored.map_err(|error| {
            let node = self.place.join(path);
            Failure::failed(format!("cannot read the metadata of {node}: {error}"))
        })?;
        Ok(stored.map(|stored| stored.to_vec()))
    }

    /// Writes the metadata of a group at `path` below the target.
    pub(super) fn write_group(&self, path: &str, metadata: &[u8]) -> Result<(), Failure> {
        let key = format!("{path}/zarr.json");
        objects::set(&*self.store, &key, metadata).map_err(|error| {
            let group = self.place.join(path);
            Failure::failed(format!("cannot write the group {group}: {error}"))
                .with_remedy("run the same command with --resume to go on")
        })
    }
}

/// A target that a run has claimed and writes to.
pub(super) struct Begun<'a> {
    target: &'a Target,
    run: &'a Run,
    /// The lock on the marker of a directory; `None` for objects.
    claim: Option<Claim>,
    marker: Vec<u8>,
    /// The keys of the input that were written since the interrupted run began; `None` if this run continues
    /// none.
    pub(super) changes: Option<Changes>,
}

impl Begun<'_> {
    fn write_marker(&mut self, marker: &[u8]) -> Result<(), Failure> {
        let place = &self.target.place;
        let written = match &mut self.claim {
            Some(claim) => claim.write(marker).map_err(StorageError::from),
            None => objects::set(&*self.target.store, INCOMPLETE, marker),
        };
        written.map_err(Failure::to(format_args!("make {place} ready")))
    }

    fn delete_array(&mut self) -> Result<(), Failure> {
        match (&self.target.place, &mut self.claim) {
            (Place::Directory(path), Some(claim)) => {
                directory::delete_array(path, claim).map(|_| ())
            }
            (place, _) => objects::delete_array(place, &self.target.store),
        }
    }

    /// Deletes the arrays below the target, and hides the groups. Otherwise a later run could take an old
    /// array for one of this run.
    fn delete_members(&mut self) -> Result<(), Failure> {
        let target = self.target;
        self.write_marker(b"")?;
        target.hide_group("")?;
        for path in target.nodes()? {
            let member = Target::new(&target.place.join(&path))?;
            let found = member.look(None, false)?;
            if found.is_array || found.marker.is_some() {
                let mut begun = Begun {
                    target: &member,
                    run: self.run,
                    claim: match &member.place {
                        Place::Directory(path) => Some(directory::claim(path)?),
                        Place::Url(_) => None,
                    },
                    marker: Vec::new(),
                    changes: None,
                };
                begun.delete_array()?;
            } else {
                target.hide_group(&path)?;
            }
        }
        Ok(())
    }

    /// Makes the array or group visible to readers.
    pub(super) fn publish(self) -> Result<(), Failure> {
        self.show(self.run.metadata())?;
        self.remove_marker()
    }

    /// Stores the metadata that readers see, and leaves the marker.
    pub(super) fn show(&self, metadata: &[u8]) -> Result<(), Failure> {
        let (place, store) = (&self.target.place, &*self.target.store);
        let finish = format!("finish {place}");
        if let Place::Url(_) = place {
            let marker = objects::get(store, INCOMPLETE).map_err(Failure::to(&finish))?;
            if marker.is_none_or(|marker| *marker != *self.marker) {
                return Err(Failure::failed(format!(
                    "cannot finish {place}: another run has begun to write there"
                ))
                .with_remedy(
                    "let one run at a time write there, and start again with --overwrite",
                ));
            }
        }
        objects::set(store, "zarr.json", metadata).map_err(Failure::to(&finish))
    }

    /// Deletes the marker, because the output is complete.
    pub(super) fn remove_marker(self) -> Result<(), Failure> {
        let place = &self.target.place;
        let removed = match self.claim {
            Some(claim) => claim.remove().map_err(StorageError::from),
            None => StoreKey::new(INCOMPLETE)
                .map_err(StorageError::from)
                .and_then(|marker| self.target.store.erase(&marker)),
        };
        removed.map_err(Failure::to(format_args!("finish {place}")))
    }
}
