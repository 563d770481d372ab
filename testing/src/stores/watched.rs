//! A store that records its calls, and that can be stopped in the middle of a write.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zarrs::storage::byte_range::ByteRangeIterator;
use zarrs::storage::{
    Bytes, ListableStorageTraits, MaybeBytes, MaybeBytesIterator, OffsetBytesIterator,
    ReadableStorageTraits, ReadableWritableListableStorageTraits, StorageError, StoreKey,
    StoreKeys, StoreKeysPrefixes, StorePrefix, WritableStorageTraits,
};

/// A call to the store that reads or changes a value.
#[derive(Clone, PartialEq, Eq)]
pub enum Call {
    /// Ranges of a value that were read.
    Read(Vec<Range<u64>>),
    /// Bytes that were written at offsets of a value.
    Write(Vec<(u64, Bytes)>),
    /// A value that was stored as a whole.
    Set(Bytes),
    Erase,
}

/// Omits the bytes.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(ranges) => write!(f, "read {ranges:?}"),
            Self::Write(ranges) => {
                let end = |(start, bytes): &(u64, Bytes)| *start..start + bytes.len() as u64;
                write!(f, "write {:?}", ranges.iter().map(end).collect::<Vec<_>>())
            }
            Self::Set(value) => write!(f, "set {} bytes", value.len()),
            Self::Erase => write!(f, "erase"),
        }
    }
}

impl Call {
    /// The number of steps in which the value changes: one per byte if ranges are written,
    /// otherwise one.
    pub fn steps(&self) -> usize {
        match self {
            Self::Read(_) => 0,
            Self::Write(ranges) => ranges.iter().map(|(_, bytes)| bytes.len()).sum(),
            Self::Set(_) | Self::Erase => 1,
        }
    }

    /// Applies the first `steps` steps of this call to a value.
    pub fn apply(&self, value: &mut Option<Vec<u8>>, mut steps: usize) {
        match self {
            Self::Write(ranges) => {
                for (offset, bytes) in ranges {
                    let bytes = &bytes[..steps.min(bytes.len())];
                    steps -= bytes.len();
                    if bytes.is_empty() {
                        continue;
                    }
                    let value = value.get_or_insert_default();
                    let start = usize::try_from(*offset).unwrap();
                    value.resize(value.len().max(start + bytes.len()), 0);
                    value[start..start + bytes.len()].copy_from_slice(bytes);
                }
            }
            Self::Set(bytes) if steps > 0 => *value = Some(bytes.to_vec()),
            Self::Erase if steps > 0 => *value = None,
            Self::Read(_) | Self::Set(_) | Self::Erase => {}
        }
    }
}

type Hook = Box<dyn FnOnce() + Send>;

/// Wraps the store `inner`, and records its calls.
pub struct Watched {
    inner: Arc<dyn ReadableWritableListableStorageTraits>,
    calls: Mutex<Vec<(StoreKey, Call)>>,
    /// How many steps of writing are left before every call fails.
    left: Mutex<Option<usize>>,
    /// Whether reading and erasing still work when no steps are left.
    is_full: Mutex<bool>,
    /// Whether everything works again after one write has failed.
    recovers: Mutex<bool>,
    after_read: Mutex<Option<Hook>>,
    before_write: Mutex<Option<Hook>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watched {
    pub fn new(inner: Arc<dyn ReadableWritableListableStorageTraits>) -> Self {
        Self {
            inner,
            calls: Mutex::default(),
            left: Mutex::default(),
            is_full: Mutex::default(),
            recovers: Mutex::default(),
            after_read: Mutex::default(),
            before_write: Mutex::default(),
        }
    }

    /// Returns the calls since this method was last called, in order.
    pub fn take_calls(&self) -> Vec<(StoreKey, Call)> {
        std::mem::take(&mut lock(&self.calls))
    }

    /// Stops after so many more [steps](Call::steps) of writing: every later call fails. `None`
    /// restores the store.
    pub fn stop_after(&self, steps: Option<usize>) {
        *lock(&self.left) = steps;
        *lock(&self.is_full) = false;
    }

    /// Leaves room for so many more [steps](Call::steps) of writing. As on a full disk, a write
    /// stores as much as fits, and reading and erasing still work. `None` removes the limit.
    pub fn full_after(&self, steps: Option<usize>) {
        *lock(&self.left) = steps;
        *lock(&self.is_full) = true;
        *lock(&self.recovers) = false;
    }

    /// Lets one write fail after so many more [steps](Call::steps) of writing, as on a full disk.
    /// Everything works afterwards.
    pub fn fails_once_after(&self, steps: usize) {
        self.full_after(Some(steps));
        *lock(&self.recovers) = true;
    }

    /// Calls `hook` once, between the next read and its return.
    pub fn after_next_read(&self, hook: impl FnOnce() + Send + 'static) {
        *lock(&self.after_read) = Some(Box::new(hook));
    }

    /// Calls `hook` once, before the next write is done.
    pub fn before_next_write(&self, hook: impl FnOnce() + Send + 'static) {
        *lock(&self.before_write) = Some(Box::new(hook));
    }

    fn read(&self, key: &StoreKey, ranges: Vec<Range<u64>>) {
        lock(&self.calls).push((key.clone(), Call::Read(ranges)));
        let hook = lock(&self.after_read).take();
        if let Some(hook) = hook {
            hook();
        }
    }

    fn working(&self) -> Result<(), StorageError> {
        match *lock(&self.left) {
            Some(0) if !*lock(&self.is_full) => {
                Err(StorageError::Other("the store has stopped".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Applies the part of `call` that the remaining steps allow.
    fn write(&self, key: &StoreKey, call: Call) -> Result<(), StorageError> {
        let hook = lock(&self.before_write).take();
        if let Some(hook) = hook {
            hook();
        }
        let mut steps_left = lock(&self.left);
        let steps = call.steps();
        let is_erase = matches!(call, Call::Erase) && *lock(&self.is_full);
        let steps = if is_erase { 0 } else { steps };
        let short = steps_left
            .as_mut()
            .filter(|left| **left < steps.max(1) && !is_erase);
        if let Some(left) = short {
            let mut value = self.inner.get(key)?.map(|value| value.to_vec());
            call.apply(&mut value, *left);
            if *lock(&self.is_full) {
                // A file is created before anything is written to it.
                value.get_or_insert_default();
            }
            *left = 0;
            match value {
                Some(value) => self.inner.set(key, value.into())?,
                None => self.inner.erase(key)?,
            }
            if std::mem::take(&mut *lock(&self.recovers)) {
                *steps_left = None;
            }
            return Err(StorageError::Other("the store has stopped".to_owned()));
        }
        if let Some(left) = steps_left.as_mut() {
            *left -= steps;
        }
        match &call {
            Call::Write(ranges) => {
                let ranges = ranges.clone().into_iter();
                self.inner.set_partial_many(key, Box::new(ranges))
            }
            Call::Set(value) => self.inner.set(key, value.clone()),
            Call::Erase => self.inner.erase(key),
            Call::Read(_) => Ok(()),
        }?;
        lock(&self.calls).push((key.clone(), call));
        Ok(())
    }
}

impl ReadableStorageTraits for Watched {
    fn get(&self, key: &StoreKey) -> Result<MaybeBytes, StorageError> {
        self.working()?;
        let value = self.inner.get(key)?;
        let len = value.as_ref().map_or(0, |value| value.len() as u64);
        self.read(key, vec![0..len]);
        Ok(value)
    }

    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        self.working()?;
        let byte_ranges: Vec<_> = byte_ranges.collect();
        let ranges = match self.inner.size_key(key)? {
            Some(size) => byte_ranges.iter().map(|r| r.to_range(size)).collect(),
            None => vec![],
        };
        // Reads before the hook, so that the caller gets the old value.
        let bytes = self
            .inner
            .get_partial_many(key, Box::new(byte_ranges.into_iter()))?;
        let bytes = bytes.map(Iterator::collect::<Vec<_>>);
        self.read(key, ranges);
        Ok(bytes.map(|bytes| Box::new(bytes.into_iter()) as Box<_>))
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.working()?;
        self.inner.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        self.inner.supports_get_partial()
    }
}

impl WritableStorageTraits for Watched {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        self.write(key, Call::Set(value))
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator,
    ) -> Result<(), StorageError> {
        self.write(key, Call::Write(offset_values.collect()))
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.write(key, Call::Erase)
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        self.working()?;
        self.inner.erase_prefix(prefix)
    }

    fn supports_set_partial(&self) -> bool {
        self.inner.supports_set_partial()
    }
}

impl ListableStorageTraits for Watched {
    fn list(&self) -> Result<StoreKeys, StorageError> {
        self.inner.list()
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        self.inner.list_prefix(prefix)
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        self.inner.list_dir(prefix)
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        self.inner.size_prefix(prefix)
    }
}
