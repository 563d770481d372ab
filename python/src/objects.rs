//! The objects of zarr-python's `ObjectStore`, which keeps a store of obstore.
//!
//! obstore is another module, with a copy of its own of the Rust library `object_store`: its stores cannot be
//! used here. So each process makes a store of its own with the same settings. Nothing here calls Python, but for
//! the settings.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use object_store::ObjectStore;
use pyo3::prelude::*;
use pyo3_object_store::PyExternalObjectStore;
use zarrs_cuda::objects::BlockingObjectStore;
use zarrs_storage::{
    ListableStorageTraits, ReadableStorageTraits, StorageError, StoreKey, StorePrefix,
    WritableStorageTraits,
};

use crate::error::Error;
use crate::files::frame_of;
use crate::pool::{self, each};
use crate::value::Value;

/// The objects of a store.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) store: BlockingObjectStore,
    /// Whether the store lists them. Those of plain HTTP servers do not.
    pub(crate) are_listed: bool,
    /// How many requests of one call are made at once.
    pub(crate) requests: NonZeroUsize,
}

/// The objects of a store, as a class of Python.
#[pyclass(frozen, name = "Objects", module = "zarrs_cuda._internal")]
pub(crate) struct PyObjects(pub(crate) Arc<Objects>);

#[pymethods]
impl PyObjects {
    /// The objects of `store`, of obstore. A call makes up to `requests` requests at once.
    #[new]
    fn new(store: &Bound<'_, PyAny>, requests: NonZeroUsize) -> PyResult<Self> {
        let made = |settings: &Bound<'_, PyAny>| -> PyResult<Arc<dyn ObjectStore>> {
            Ok(settings.extract::<PyExternalObjectStore>()?.into_dyn())
        };
        let (class, settings) = (store.get_type().name()?, store.clone().unbind());
        let mut objects = BlockingObjectStore::new(made(store)?)
            .made_again_by(move || Ok(Python::attach(|py| made(settings.bind(py)))?))
            .with_requests(requests);
        if class == "LocalStore" {
            objects = objects.without_conditions("files are not replaced under conditions");
        }
        Ok(Self(Arc::new(Objects {
            store: objects,
            are_listed: class != "HTTPStore",
            requests,
        })))
    }
}

impl Objects {
    /// The same objects, with permits for requests of their own.
    pub(crate) fn of_one_array(&self) -> Self {
        Self {
            store: self.store.clone().with_requests(self.requests),
            ..*self
        }
    }

    /// How many values are in memory at once, at most.
    pub(crate) fn at_once(&self) -> usize {
        self.requests.get() * 2
    }

    /// Does something for each of `items`, several at once.
    pub(crate) fn each<I: Sync, T: Send>(
        &self,
        items: &[I],
        one: impl Fn(&I) -> Result<T, Error> + Sync,
    ) -> Result<Vec<T>, Error> {
        let requests = self.requests;
        pool::run(requests, || each(items, requests, |item, _| one(item)))?
    }

    /// The value of `key`; `None` if there is none.
    pub(crate) fn value(&self, key: &str) -> Result<Option<Value>, Error> {
        let value = StoreKey::new(key).map_err(Into::into);
        let value = value.and_then(|key| self.store.get(&key));
        let value = value.map_err(|error| Error::store("read", key, &error))?;
        Ok(value.map(Value::Whole))
    }

    /// Stores or erases a value.
    pub(crate) fn change(&self, key: &str, value: Option<Bytes>) -> Result<(), Error> {
        let doing = if value.is_some() { "write" } else { "erase" };
        let done = StoreKey::new(key).map_err(Into::into);
        let done = done.and_then(|key| match value {
            Some(value) => self.store.set(&key, value),
            None => self.store.erase(&key),
        });
        done.map_err(|error| Error::store(doing, key, &error))
    }

    /// Whether subchunks of the shard `key` are stored beside it. It costs a request.
    pub(crate) fn has_frame(&self, key: &str) -> Result<bool, StorageError> {
        let frame = StorePrefix::new(format!("{}/", frame_of(key)))?;
        let stored = self.store.list_prefix(&frame)?;
        let mut names = stored.iter().map(|key| Path::new(key.as_str()));
        Ok(names.any(|name| name.extension().is_some_and(|kind| kind == "chunk")))
    }

    /// When the object `key` was stored, and those below `prefix`, as far as they are there.
    pub(crate) fn times(
        &self,
        key: &StoreKey,
        prefix: &StorePrefix,
    ) -> Result<Vec<(StoreKey, SystemTime)>, StorageError> {
        let mut objects = Vec::new();
        self.store
            .for_each_object(prefix, |object| objects.push(object.clone()))?;
        objects.extend(self.store.object(key)?);
        let times = objects.into_iter().map(|object| {
            let key = StoreKey::new(object.location)?;
            Ok((key, object.last_modified.into()))
        });
        times.collect()
    }
}
