//! A store of zarrs over the objects of zarr-python's `ObjectStore`, which has a store of obstore.
//!
//! obstore is another native module, with its own copy of the Rust library `object_store`, so its stores
//! cannot be used here. Instead each process makes its own store with the same settings. Nothing here calls
//! Python, except to get the settings.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::SystemTime;

use object_store::ObjectStore;
use pyo3::prelude::*;
use pyo3_object_store::PyExternalObjectStore;
use zarrs_cuda::objects::BlockingObjectStore;
use zarrs_storage::{ReadableStorageTraits, StorageError, StoreKey, StorePrefix};

use crate::error::Error;
use crate::pool::{self, each};
use crate::value::Value;

/// A store of objects.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) store: BlockingObjectStore,
    /// Whether the store can list its objects. Plain HTTP servers cannot.
    pub(crate) are_listed: bool,
    /// The number of requests that one call makes at once.
    pub(crate) requests: NonZeroUsize,
}

/// A store of objects, as a class of Python.
#[pyclass(frozen, name = "Objects", module = "zarrs_cuda._internal")]
pub(crate) struct PyObjects(pub(crate) Arc<Objects>);

#[pymethods]
impl PyObjects {
    /// Makes a store of objects with the settings of `store`, of obstore. A call makes up to `requests`
    /// requests at once.
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
    /// Returns the same store with its own permits for requests, which are not shared with other arrays.
    pub(crate) fn of_one_array(&self) -> Self {
        Self {
            store: self.store.clone().with_requests(self.requests),
            ..*self
        }
    }

    /// Returns the largest number of values that a call has in memory at once.
    pub(crate) fn at_once(&self) -> usize {
        self.requests.get() * 2
    }

    /// Calls `one` for each of `items`, several at once.
    pub(crate) fn each<I: Sync, T: Send>(
        &self,
        items: &[I],
        one: impl Fn(&I) -> Result<T, Error> + Sync,
    ) -> Result<Vec<T>, Error> {
        let requests = self.requests;
        pool::run(requests, || each(items, requests, |item, _| one(item)))?
    }

    /// Returns the value of `key`, or `None` if the object does not exist.
    pub(crate) fn value(&self, key: &str) -> Result<Option<Value>, Error> {
        let value = StoreKey::new(key).map_err(Into::into);
        let value = value.and_then(|key| self.store.get(&key));
        let value = value.map_err(|error| Error::store("read", key, &error))?;
        Ok(value.map(Value::Whole))
    }

    /// Returns the times at which the object `key` and the objects below `prefix` were stored. Objects that
    /// do not exist are left out.
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
