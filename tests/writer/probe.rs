//! A store that keeps the given `Bytes` and records every change in order. Tests can make it wait
//! or fail before a change.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use zarrs::storage::byte_range::ByteRangeIterator;
use zarrs::storage::{
    AtomicRenameStorageTraits, Bytes, ListableStorageTraits, MaybeBytes, MaybeBytesIterator,
    OffsetBytesIterator, ReadableStorageTraits, StorageError, StoreKey, StoreKeys,
    StoreKeysPrefixes, StorePrefix, WritableStorageTraits,
};

use super::watchdog;

/// A change of a store.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Set(StoreKey, Bytes),
    /// Bytes at offsets of a value.
    Write(StoreKey, Vec<(u64, Bytes)>),
    Erase(StoreKey),
    Rename(StoreKey, StoreKey),
}

impl Change {
    /// The changed key.
    pub(crate) fn key(&self) -> &str {
        match self {
            Self::Set(key, _) | Self::Write(key, _) | Self::Erase(key) | Self::Rename(_, key) => {
                key.as_str()
            }
        }
    }

    /// Whether the change affects a shard or its temporary.
    pub(crate) fn is_shard(&self) -> bool {
        self.key().contains("/c/")
    }
}

/// Omits the bytes.
impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set(key, value) => write!(f, "set {key}: {} bytes", value.len()),
            Self::Write(key, parts) => {
                let parts = parts.iter().map(|(at, bytes)| (*at, bytes.len()));
                write!(f, "write {key}: {:?}", parts.collect::<Vec<_>>())
            }
            Self::Erase(key) => write!(f, "erase {key}"),
            Self::Rename(from, to) => write!(f, "rename {from} to {to}"),
        }
    }
}

/// Whether `key` is the key of a temporary.
pub(crate) fn is_temporary(key: &str) -> bool {
    std::path::Path::new(key).extension() == Some("tmp".as_ref())
}

type Hook = Arc<dyn Fn(&Change) -> Result<(), StorageError> + Send + Sync>;

#[derive(Default)]
pub(crate) struct Probe {
    values: Mutex<BTreeMap<StoreKey, Bytes>>,
    changes: Mutex<Vec<Change>>,
    hook: Mutex<Option<Hook>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Probe {
    pub(crate) fn new() -> Arc<Self> {
        watchdog::of_the_process();
        Arc::default()
    }

    /// Calls `hook` before every change from now on. If it fails, nothing is changed.
    pub(crate) fn before_changes(
        &self,
        hook: impl Fn(&Change) -> Result<(), StorageError> + Send + Sync + 'static,
    ) {
        *lock(&self.hook) = Some(Arc::new(hook));
    }

    /// Makes shards wait at a gate before they are stored.
    pub(crate) fn gate_shards(&self) -> Arc<Gate> {
        let gate = Arc::new(Gate::default());
        let passing = gate.clone();
        self.before_changes(move |change| {
            if change.is_shard() {
                passing.pass();
            }
            Ok(())
        });
        gate
    }

    /// Returns every change until now, in order.
    pub(crate) fn changes(&self) -> Vec<Change> {
        lock(&self.changes).clone()
    }

    /// Returns the stored values.
    pub(crate) fn values(&self) -> BTreeMap<String, Bytes> {
        let values = lock(&self.values);
        let values = values.iter();
        values
            .map(|(key, value)| (key.to_string(), value.clone()))
            .collect()
    }

    fn change(&self, change: Change) -> Result<(), StorageError> {
        let hook = lock(&self.hook).clone();
        if let Some(hook) = hook {
            hook(&change)?;
        }
        let mut values = lock(&self.values);
        match &change {
            Change::Set(key, value) => {
                values.insert(key.clone(), value.clone());
            }
            Change::Write(key, parts) => {
                let mut value = values
                    .get(key)
                    .map_or_else(Vec::new, |value| value.to_vec());
                for (offset, bytes) in parts {
                    let start = usize::try_from(*offset).unwrap();
                    value.resize(value.len().max(start + bytes.len()), 0);
                    value[start..start + bytes.len()].copy_from_slice(bytes);
                }
                values.insert(key.clone(), value.into());
            }
            Change::Erase(key) => {
                values.remove(key);
            }
            Change::Rename(from, to) => {
                let value = values
                    .remove(from)
                    .ok_or_else(|| StorageError::Other(format!("there is no {from}")))?;
                values.insert(to.clone(), value);
            }
        }
        // The values are still locked, so that the changes are recorded in order.
        lock(&self.changes).push(change);
        Ok(())
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Probe")
    }
}

impl ReadableStorageTraits for Probe {
    fn get(&self, key: &StoreKey) -> Result<MaybeBytes, StorageError> {
        Ok(lock(&self.values).get(key).cloned())
    }

    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        let Some(value) = self.get(key)? else {
            return Ok(None);
        };
        Ok(Some(Box::new(byte_ranges.map(move |range| {
            Ok(value.slice(range.to_range_usize(value.len() as u64)))
        }))))
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        Ok(self.get(key)?.map(|value| value.len() as u64))
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

impl WritableStorageTraits for Probe {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        self.change(Change::Set(key.clone(), value))
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator,
    ) -> Result<(), StorageError> {
        self.change(Change::Write(key.clone(), offset_values.collect()))
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.change(Change::Erase(key.clone()))
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        let keys = self.list_prefix(prefix)?;
        keys.iter().try_for_each(|key| self.erase(key))
    }

    fn supports_set_partial(&self) -> bool {
        true
    }
}

impl AtomicRenameStorageTraits for Probe {
    fn rename(&self, source: &StoreKey, destination: &StoreKey) -> Result<(), StorageError> {
        self.change(Change::Rename(source.clone(), destination.clone()))
    }
}

impl ListableStorageTraits for Probe {
    fn list(&self) -> Result<StoreKeys, StorageError> {
        Ok(lock(&self.values).keys().cloned().collect())
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        let keys = self.list()?.into_iter();
        Ok(keys.filter(|key| key.has_prefix(prefix)).collect())
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        let (mut keys, mut prefixes) = (Vec::new(), std::collections::BTreeSet::new());
        for key in self.list_prefix(prefix)? {
            match key.as_str()[prefix.as_str().len()..].split_once('/') {
                Some((directory, _)) => {
                    let directory = format!("{}{directory}/", prefix.as_str());
                    prefixes.insert(StorePrefix::new(directory)?);
                }
                None => keys.push(key),
            }
        }
        Ok(StoreKeysPrefixes::new(keys, prefixes.into_iter().collect()))
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        let keys = self.list_prefix(prefix)?;
        let sizes = keys.iter().map(|key| self.size_key(key));
        sizes.map(|size| Ok(size?.unwrap_or(0))).sum()
    }
}

/// A gate that is closed at first.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    /// How many more threads may pass; `None` before any was admitted.
    tickets: Option<usize>,
    open: bool,
    waiting: usize,
}

impl Gate {
    /// Waits until the gate is open, or for a ticket.
    pub(crate) fn pass(&self) {
        let mut state = lock(&self.state);
        state.waiting += 1;
        while !state.open && state.tickets.unwrap_or(0) == 0 {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
        state.tickets = state.tickets.map(|tickets| tickets.saturating_sub(1));
    }

    /// Lets every thread pass.
    pub(crate) fn open(&self) {
        lock(&self.state).open = true;
        self.changed.notify_all();
    }

    /// Opens the gate when the result is dropped, even if the test fails: a dropped writer waits
    /// for its store. Call it when the writer exists.
    pub(crate) fn open_at_the_end(self: &Arc<Self>) -> OpenAtTheEnd {
        OpenAtTheEnd(self.clone())
    }

    /// Lets this many threads pass.
    pub(crate) fn admit(&self, tickets: usize) {
        let mut state = lock(&self.state);
        state.tickets = Some(state.tickets.unwrap_or(0) + tickets);
        self.changed.notify_all();
    }

    /// The number of waiting threads.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.state).waiting
    }
}

/// Opens a gate when it is dropped.
pub(crate) struct OpenAtTheEnd(Arc<Gate>);

impl Drop for OpenAtTheEnd {
    fn drop(&mut self) {
        self.0.open();
    }
}
