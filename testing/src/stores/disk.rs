//! Files as a disk has them after a power failure.
//!
//! The content of a file is on the disk when a write returns: zarrs' `FilesystemStore` syncs it. A name
//! is on the disk when its directory was synced after the name was made, replaced or erased. Before that the disk
//! may have any number of the first changes of a directory, whatever it has of other directories. A
//! journalling file system promises at least so much.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::rng::Rng;
use zarrs::storage::byte_range::ByteRangeIterator;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    AtomicRenameStorageTraits, Bytes, ListableStorageTraits, MaybeBytesIterator,
    OffsetBytesIterator, ReadableStorageTraits, StorageError, StoreKey, StoreKeys,
    StoreKeysPrefixes, StorePrefix, WritableStorageTraits,
};

/// A store that keeps a history of its names and contents. Clones are the same store.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The files as processes see them.
    now: MemoryStore,
    /// The number of each file that has a name.
    numbers: BTreeMap<String, usize>,
    /// The directories that have names.
    directories: BTreeSet<String>,
    files: usize,
    events: Vec<Event>,
}

/// Names of a directory, each with the entry that it has from now on, or none.
type Changes = Vec<(String, Option<Entry>)>;

#[derive(Clone, Debug)]
enum Event {
    /// Entries of a directory are made, replaced or erased, all at once.
    Names(String, Changes),
    /// The content of a file.
    Content(usize, Bytes),
    /// A sync of a directory begins, and ends. Both have the same number.
    Begins(usize),
    Synced(usize, String),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Entry {
    File(usize),
    Directory,
}

/// The directory and the name of a path.
fn divided(path: &str) -> (String, String) {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    (directory.to_owned(), name.to_owned())
}

impl State {
    /// Makes the names of the directories above `path`.
    fn make_above(&mut self, path: &str) {
        let (directory, _) = divided(path);
        if directory.is_empty() || !self.directories.insert(directory.clone()) {
            return;
        }
        self.make_above(&directory);
        let (above, name) = divided(&directory);
        let made = vec![(name, Some(Entry::Directory))];
        self.events.push(Event::Names(above, made));
    }

    /// Makes the name of a new file, and returns its number.
    fn make(&mut self, path: &str) -> usize {
        self.make_above(path);
        let number = self.files;
        self.files += 1;
        self.numbers.insert(path.to_owned(), number);
        let (directory, name) = divided(path);
        let made = vec![(name, Some(Entry::File(number)))];
        self.events.push(Event::Names(directory, made));
        number
    }

    /// Notes the content of the file `path` after a write.
    fn written(&mut self, path: &str) -> Result<(), StorageError> {
        let content = self.now.get(&StoreKey::new(path)?)?.unwrap_or_default();
        let known = self.numbers.get(path).copied();
        let number = known.unwrap_or_else(|| self.make(path));
        self.events.push(Event::Content(number, content));
        Ok(())
    }

    /// What a disk may have when the power fails before event number `end`: all of it, or `most` of it.
    fn disks(&self, end: usize, most: usize) -> Vec<MemoryStore> {
        let mut changes: BTreeMap<&str, Vec<&Changes>> = BTreeMap::new();
        let mut synced: BTreeMap<&str, usize> = BTreeMap::new();
        let mut contents = BTreeMap::new();
        // For each sync that has begun: how many changes each directory had.
        let mut begun: BTreeMap<usize, BTreeMap<&str, usize>> = BTreeMap::new();
        for event in &self.events[..end] {
            match event {
                Event::Names(directory, entries) => {
                    changes.entry(directory).or_default().push(entries);
                }
                Event::Content(number, content) => {
                    contents.insert(*number, content);
                }
                Event::Begins(number) => {
                    let counts = changes.iter().map(|(name, changes)| (*name, changes.len()));
                    begun.insert(*number, counts.collect());
                }
                Event::Synced(number, directory) => {
                    let count = begun[number].get(directory.as_str()).copied();
                    let synced = synced.entry(directory).or_default();
                    *synced = (*synced).max(count.unwrap_or(0));
                }
            }
        }
        let firsts = changes
            .keys()
            .map(|name| synced.get(name).copied().unwrap_or(0));
        let firsts: Vec<usize> = firsts.collect();
        let lens = std::iter::zip(&firsts, changes.values());
        let lens: Vec<usize> = lens
            .map(|(first, changes)| changes.len() - first + 1)
            .collect();
        let all = lens
            .iter()
            .try_fold(1_usize, |all, len| all.checked_mul(*len));
        let mut random = Rng(end as u64);
        let chosen: Vec<Vec<usize>> = match all.filter(|all| *all <= most) {
            Some(all) => (0..all)
                .map(|mut number| {
                    let digit = |len: &usize| {
                        let digit = number % len;
                        number /= len;
                        digit
                    };
                    lens.iter().map(digit).collect()
                })
                .collect(),
            None => (0..most)
                .map(|number| {
                    let count = |len: &usize| match number {
                        0 => 0,
                        1 => len - 1,
                        _ => random.permutation(*len)[0],
                    };
                    lens.iter().map(count).collect()
                })
                .collect(),
        };
        let disk = |more: Vec<usize>| {
            let mut disk = BTreeMap::new();
            for (((directory, changes), first), more) in changes.iter().zip(&firsts).zip(more) {
                let mut entries = BTreeMap::new();
                for (name, entry) in changes[..first + more].iter().copied().flatten() {
                    match entry {
                        Some(entry) => entries.insert(name.as_str(), *entry),
                        None => entries.remove(name.as_str()),
                    };
                }
                disk.insert(*directory, entries);
            }
            disk
        };
        let store = |disk: BTreeMap<&str, BTreeMap<&str, Entry>>| {
            let store = MemoryStore::new();
            let mut open = vec![String::new()];
            while let Some(directory) = open.pop() {
                for (name, entry) in disk.get(directory.as_str()).into_iter().flatten() {
                    let path = match directory.as_str() {
                        "" => (*name).to_owned(),
                        directory => format!("{directory}/{name}"),
                    };
                    match entry {
                        Entry::Directory => open.push(path),
                        Entry::File(number) => {
                            let content = contents.get(number).map(|content| (*content).clone());
                            let key = StoreKey::new(path).expect("a key");
                            store
                                .set(&key, content.unwrap_or_default())
                                .expect("memory");
                        }
                    }
                }
            }
            store
        };
        chosen.into_iter().map(|more| store(disk(more))).collect()
    }
}

impl Disk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the disk have the names that `directory` has now.
    pub fn sync(&self, directory: &Path) {
        let number = {
            let mut state = self.state();
            let number = state.events.len();
            state.events.push(Event::Begins(number));
            number
        };
        // Another thread may change the names meanwhile: the disk may have these changes, or not.
        std::thread::yield_now();
        let directory = directory.to_str().expect("a key").to_owned();
        self.state().events.push(Event::Synced(number, directory));
    }

    /// Lets the disk have everything that is stored now.
    pub fn sync_all(&self) {
        let directories = self.state().directories.clone();
        for directory in directories.iter().map(String::as_str).chain([""]) {
            self.sync(Path::new(directory));
        }
    }

    /// Returns how many events there were: writes, changes of names, and syncs.
    pub fn events(&self) -> usize {
        self.state().events.len()
    }

    /// Returns everything that the disk may have if the power fails after the first `events` events, or
    /// `most` of it by chance. The first has no name that was not synced.
    pub fn after_power_failure(&self, events: usize, most: usize) -> Vec<MemoryStore> {
        self.state().disks(events, most)
    }
}

impl ReadableStorageTraits for Disk {
    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        let state = self.state();
        let read = state.now.get_partial_many(key, byte_ranges)?;
        // The iterator must not look upon the locked state.
        let read: Option<Vec<_>> = read.map(Iterator::collect);
        Ok(read.map(|read| Box::new(read.into_iter()) as _))
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.state().now.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

impl WritableStorageTraits for Disk {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        let mut state = self.state();
        state.now.set(key, value)?;
        state.written(key.as_str())
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator,
    ) -> Result<(), StorageError> {
        let mut state = self.state();
        state.now.set_partial_many(key, offset_values)?;
        state.written(key.as_str())
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        let mut state = self.state();
        state.now.erase(key)?;
        if state.numbers.remove(key.as_str()).is_some() {
            let (directory, name) = divided(key.as_str());
            state
                .events
                .push(Event::Names(directory, vec![(name, None)]));
        }
        Ok(())
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        let keys = self.list_prefix(prefix)?;
        keys.iter().try_for_each(|key| self.erase(key))
    }

    fn supports_set_partial(&self) -> bool {
        true
    }
}

impl AtomicRenameStorageTraits for Disk {
    fn rename(&self, source: &StoreKey, destination: &StoreKey) -> Result<(), StorageError> {
        let mut state = self.state();
        let (directory, from) = divided(source.as_str());
        let (other, to) = divided(destination.as_str());
        let Some(value) = state.now.get(source)?.filter(|_| directory == other) else {
            return Err(StorageError::Other(format!(
                "{source} is not there, or not in the directory of {destination}"
            )));
        };
        state.now.set(destination, value)?;
        state.now.erase(source)?;
        if let Some(number) = state.numbers.remove(source.as_str()) {
            state
                .numbers
                .insert(destination.as_str().to_owned(), number);
            let changed = vec![(from, None), (to, Some(Entry::File(number)))];
            state.events.push(Event::Names(directory, changed));
        }
        Ok(())
    }
}

impl ListableStorageTraits for Disk {
    fn list(&self) -> Result<StoreKeys, StorageError> {
        self.state().now.list()
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        self.state().now.list_prefix(prefix)
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        self.state().now.list_dir(prefix)
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        self.state().now.size_prefix(prefix)
    }
}
