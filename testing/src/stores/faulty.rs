//! A store that fails on demand.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zarrs::storage::byte_range::ByteRangeIterator;
use zarrs::storage::{
    AtomicRenameStorageTraits, Bytes, ListableStorageTraits, MaybeBytesIterator,
    OffsetBytesIterator, ReadableStorageTraits, StorageError, StoreKey, StoreKeys,
    StoreKeysPrefixes, StorePrefix, WritableStorageTraits,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Get,
    Size,
    List,
    Set,
    SetPartial,
    Erase,
    Rename,
}

/// A request to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The number of earlier requests since the store was last configured.
    pub number: usize,
    pub operation: Operation,
    /// The key or prefix. For a rename: the destination.
    pub key: String,
}

/// How a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is done, and an error is returned.
    Refused,
    /// Half of the bytes are written, then an error is returned.
    Torn,
    /// The request is carried out, but an error is returned.
    Denied,
}

impl Fault {
    pub const ALL: [Self; 3] = [Self::Refused, Self::Torn, Self::Denied];
}

type Judge = Box<dyn FnMut(&Request) -> Option<Fault> + Send>;

/// Wraps the store `inner`, and fails on demand.
pub struct Faulty<S> {
    inner: Arc<S>,
    has_parts: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    judge: Option<Judge>,
    number: usize,
    requests: Vec<Request>,
}

impl<S> fmt::Debug for Faulty<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").finish_non_exhaustive()
    }
}

impl<S> Faulty<S> {
    pub fn new(inner: Arc<S>) -> Self {
        Self {
            inner,
            has_parts: true,
            state: Mutex::default(),
        }
    }

    /// The same store without partial writes.
    pub fn without_parts(self) -> Self {
        Self {
            has_parts: false,
            ..self
        }
    }

    /// The wrapped store, which does not fail.
    pub fn inner(&self) -> &Arc<S> {
        &self.inner
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails requests from now on as `judge` says. Restarts the numbers of requests at 0.
    pub fn fail(&self, judge: impl FnMut(&Request) -> Option<Fault> + Send + 'static) {
        *self.state() = State {
            judge: Some(Box::new(judge)),
            ..State::default()
        };
    }

    /// Fails only the request with this number, counted from now.
    pub fn fail_at(&self, number: usize, fault: Fault) {
        self.fail(move |request| (request.number == number).then_some(fault));
    }

    /// Stops failing. Restarts the numbers of requests at 0.
    pub fn work(&self) {
        *self.state() = State::default();
    }

    /// Returns the requests since [`fail`](Self::fail) or [`work`](Self::work) was last called, in
    /// order.
    pub fn requests(&self) -> Vec<Request> {
        self.state().requests.clone()
    }

    fn ask(&self, operation: Operation, key: &str) -> Option<Fault> {
        let mut state = self.state();
        let request = Request {
            number: state.number,
            operation,
            key: key.to_owned(),
        };
        state.number += 1;
        let fault = state.judge.as_mut().and_then(|judge| judge(&request));
        state.requests.push(request);
        fault
    }

    fn read(&self, operation: Operation, key: &str) -> Result<(), StorageError> {
        match self.ask(operation, key) {
            Some(_) => Err(failed(operation, key)),
            None => Ok(()),
        }
    }
}

fn failed(operation: Operation, key: &str) -> StorageError {
    StorageError::Other(format!("{operation:?} of {key} failed as it was told to"))
}

impl<S: ReadableStorageTraits> ReadableStorageTraits for Faulty<S> {
    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        self.read(Operation::Get, key.as_str())?;
        self.inner.get_partial_many(key, byte_ranges)
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.read(Operation::Size, key.as_str())?;
        self.inner.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        self.inner.supports_get_partial()
    }
}

impl<S: WritableStorageTraits> WritableStorageTraits for Faulty<S> {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        let fault = self.ask(Operation::Set, key.as_str());
        match fault {
            Some(Fault::Refused) => {}
            Some(Fault::Torn) => self.inner.set(key, value.slice(..value.len() / 2))?,
            Some(Fault::Denied) | None => self.inner.set(key, value)?,
        }
        fault.map_or(Ok(()), |_| Err(failed(Operation::Set, key.as_str())))
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator,
    ) -> Result<(), StorageError> {
        let fault = self.ask(Operation::SetPartial, key.as_str());
        let mut pieces: Vec<(u64, Bytes)> = offset_values.collect();
        if fault == Some(Fault::Torn) {
            let mut left = pieces.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() / 2;
            for (_, bytes) in &mut pieces {
                bytes.truncate(left);
                left -= bytes.len();
            }
            pieces.retain(|(_, bytes)| !bytes.is_empty());
        }
        if fault != Some(Fault::Refused) {
            self.inner
                .set_partial_many(key, Box::new(pieces.into_iter()))?;
        }
        let error = |_| Err(failed(Operation::SetPartial, key.as_str()));
        fault.map_or(Ok(()), error)
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        let fault = self.ask(Operation::Erase, key.as_str());
        if matches!(fault, Some(Fault::Denied) | None) {
            self.inner.erase(key)?;
        }
        fault.map_or(Ok(()), |_| Err(failed(Operation::Erase, key.as_str())))
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        let fault = self.ask(Operation::Erase, prefix.as_str());
        if matches!(fault, Some(Fault::Denied) | None) {
            self.inner.erase_prefix(prefix)?;
        }
        fault.map_or(Ok(()), |_| Err(failed(Operation::Erase, prefix.as_str())))
    }

    fn supports_set_partial(&self) -> bool {
        self.has_parts && self.inner.supports_set_partial()
    }
}

impl<S: AtomicRenameStorageTraits> AtomicRenameStorageTraits for Faulty<S> {
    fn rename(&self, source: &StoreKey, destination: &StoreKey) -> Result<(), StorageError> {
        let fault = self.ask(Operation::Rename, destination.as_str());
        if matches!(fault, Some(Fault::Denied) | None) {
            self.inner.rename(source, destination)?;
        }
        let error = |_| Err(failed(Operation::Rename, destination.as_str()));
        fault.map_or(Ok(()), error)
    }
}

impl<S: ListableStorageTraits> ListableStorageTraits for Faulty<S> {
    fn list(&self) -> Result<StoreKeys, StorageError> {
        self.read(Operation::List, "")?;
        self.inner.list()
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        self.read(Operation::List, prefix.as_str())?;
        self.inner.list_prefix(prefix)
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        self.read(Operation::List, prefix.as_str())?;
        self.inner.list_dir(prefix)
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        self.read(Operation::List, prefix.as_str())?;
        self.inner.size_prefix(prefix)
    }
}
