//! Blocking stores over object stores: S3, Google Cloud Storage, Azure, HTTP servers, memory (feature
//! `object_store`).
//!
//! A [`BlockingObjectStore`] is a synchronous store of zarrs over any [`ObjectStore`]. With its conditional
//! requests, an [`ArrayWriter`](crate::writer::ArrayWriter) can take the lease of its array, and does not
//! overwrite changes that other programs make to the metadata.
//!
//! ```standalone_crate
//! use std::sync::Arc;
//!
//! use zarrs::array::{Array, ArrayBuilder, data_type};
//! use zarrs_cuda::objects::BlockingObjectStore;
//! use zarrs_cuda::objects::object_store::memory::InMemory;
//! use zarrs_cuda::writer::ArrayWriter;
//!
//! let _registration = zarrs_cuda::register(zarrs_cuda::Options::default())?;
//! let store = Arc::new(BlockingObjectStore::new(Arc::new(InMemory::new())));
//! let metadata = ArrayBuilder::new(vec![0, 64], vec![16, 64], data_type::uint16(), 0_u16)
//!     .subchunk_shape(vec![4, 16])
//!     .build_metadata()?;
//! let array = Array::new_with_metadata(store.clone(), "/stream", metadata.into())?;
//! array.store_metadata()?;
//!
//! let builder = ArrayWriter::builder(&array).with_conditional_writes(store.clone());
//! let mut writer = builder.build()?;
//! assert!(writer.explain().to_string().contains("lease: held"));
//! writer.append(&vec![7_u16; 32 * 64])?;
//! writer.finish()?;
//!
//! let array = Array::open(store, "/stream")?;
//! assert_eq!(array.shape(), [32, 64]);
//! assert_eq!(array.retrieve_chunk::<Vec<u16>>(&[1, 0])?, [7; 16 * 64]);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

mod error;
#[cfg(all(test, target_os = "linux"))]
mod forked;
mod one_object;
mod runtime;
mod zarrs_traits;

use std::fmt;
use std::future::Future;
use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};

use futures_util::TryStreamExt;
pub use object_store;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use tokio::sync::Semaphore;
use zarrs_cuda_engine::process::per_process::PerProcess;
use zarrs_storage::{StorageError, StoreKey, StorePrefix};

pub use error::message;

type Result<T, E = StorageError> = std::result::Result<T, E>;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A synchronous store of zarrs over an object store.
///
/// - Requests wait on a runtime of this module, on the calling thread. A method panics on a thread that runs
///   asynchronous tasks of tokio: on such a thread, call it through `tokio::task::spawn_blocking`.
/// - Keys are the paths of objects, unchanged: no character is encoded.
/// - Each part of a value is requested by one request, without asking for the size of the value first. All
///   parts are of one version: if the value is replaced between the requests, all parts are requested again.
/// - Values of 64 MiB and more are sent in parts, several at the same time.
/// - [`ConditionalStore`](crate::writer::ConditionalStore) is implemented by requests with conditions.
/// - In a forked child process, requests use a runtime of the child. A store that keeps connections has to be
///   [made again](Self::made_again_by) in the child.
///
/// Clones share the object store and the limit of requests.
///
/// ```
/// # use std::sync::Arc;
/// # use zarrs::array::{ArrayBuilder, data_type};
/// use zarrs_cuda::objects::BlockingObjectStore;
/// use zarrs_cuda::objects::object_store::memory::InMemory;
///
/// // Or `AmazonS3Builder::from_env()`, by the feature `aws` of `object_store`.
/// let bucket = Arc::new(InMemory::new());
/// let store = Arc::new(BlockingObjectStore::new(bucket).with_requests(64.try_into()?));
/// let array = ArrayBuilder::new(vec![64, 64], vec![32, 32], data_type::uint16(), 0_u16)
///     .build(store.clone(), "/volume")?;
/// array.store_chunk(&[0, 0], vec![7_u16; 32 * 32])?;
/// let object = store.object(&array.chunk_key(&[0, 0]))?.ok_or("no such object")?;
/// assert_eq!(object.size, 32 * 32 * 2);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// An error of the object store is a [`StorageError::IOError`], whose source is the [`object_store::Error`].
/// Its kind is `TimedOut` if the server was not reached, `PermissionDenied` if the server refuses,
/// `Unsupported` if the object store does not support the request, and `Other` otherwise. Its text is one
/// line, without passwords in addresses: [`message`]. For a listing or a conditional request that a server
/// does not support, the error is [`StorageError::Unsupported`].
#[derive(Clone)]
pub struct BlockingObjectStore {
    store: Arc<PerProcess<OnceLock<Arc<dyn ObjectStore>>>>,
    /// Makes the object store again, in a forked child process.
    make: Arc<dyn Fn() -> Result<Arc<dyn ObjectStore>, BoxError> + Send + Sync>,
    /// The permits for requests for parts of values. A forked child process has its own permits, because no
    /// thread of it would return the permits that threads of its parent hold.
    permits: Arc<PerProcess<OnceLock<Semaphore>>>,
    requests: NonZeroUsize,
    words: fn(String) -> String,
    no_listings: Option<&'static str>,
    no_writes: Option<&'static str>,
    no_conditions: Option<&'static str>,
}

impl fmt::Debug for BlockingObjectStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingObjectStore")
            .field("store", &self.store.get().get())
            .finish_non_exhaustive()
    }
}

impl BlockingObjectStore {
    /// Returns a store of zarrs over `store`.
    #[must_use]
    pub fn new(store: Arc<dyn ObjectStore>) -> Self {
        let here = PerProcess::new(OnceLock::new);
        here.get().get_or_init(|| store.clone());
        Self {
            store: Arc::new(here),
            make: Arc::new(move || Ok(store.clone())),
            permits: Arc::new(PerProcess::new(OnceLock::new)),
            requests: const { NonZeroUsize::new(16).unwrap() },
            words: |message| message,
            no_listings: None,
            no_writes: None,
            no_conditions: None,
        }
    }

    /// Makes a forked child process call `make` for an object store of its own, at its first request.
    ///
    /// Connections belong to one process: a child that uses the connections of its parent hangs, or mixes up
    /// answers.
    #[must_use]
    pub fn made_again_by(
        mut self,
        make: impl Fn() -> Result<Arc<dyn ObjectStore>, BoxError> + Send + Sync + 'static,
    ) -> Self {
        self.make = Arc::new(make);
        self
    }

    /// Limits the number of requests for parts of values that run at once, for all threads and all clones of
    /// the returned store together. Default: 16.
    #[must_use]
    pub fn with_requests(mut self, requests: NonZeroUsize) -> Self {
        self.permits = Arc::new(PerProcess::new(OnceLock::new));
        self.requests = requests;
        self
    }

    /// Makes `words` change the message of each error, for example to hide credentials that a server repeats.
    #[must_use]
    pub fn with_words(mut self, words: fn(String) -> String) -> Self {
        self.words = words;
        self
    }

    /// Makes listings fail without a request, with [`StorageError::Unsupported`] and this reason.
    #[must_use]
    pub fn without_listings(mut self, reason: &'static str) -> Self {
        self.no_listings = Some(reason);
        self
    }

    /// Makes storing and erasing fail without a request, with [`StorageError::Unsupported`] and this reason.
    #[must_use]
    pub fn without_writes(mut self, reason: &'static str) -> Self {
        self.no_writes = Some(reason);
        self
    }

    /// Makes conditional requests fail without a request, with [`StorageError::Unsupported`] and this reason.
    #[must_use]
    pub fn without_conditions(mut self, reason: &'static str) -> Self {
        self.no_conditions = Some(reason);
        self
    }

    /// Calls `requests` with the object store, and waits for the requests that it makes.
    ///
    /// # Errors
    /// An error if the runtime cannot be started, or if a forked child process cannot make the object store.
    pub fn run<T, F>(&self, requests: impl FnOnce(Arc<dyn ObjectStore>) -> F) -> Result<T>
    where
        F: Future<Output = T>,
    {
        let here = self.store.get();
        let store = if let Some(store) = here.get() {
            store.clone()
        } else {
            // This does not happen in `get_or_init`, because `make` may wait for a lock of another thread
            // that calls this method.
            let made = (self.make)().map_err(std::io::Error::other)?;
            here.get_or_init(|| made).clone()
        };
        Ok(runtime::runtime()?.block_on(requests(store)))
    }

    /// Calls `on_object` with each object below `prefix`, in no order.
    ///
    /// # Errors
    /// The errors of listings.
    pub fn for_each_object(
        &self,
        prefix: &StorePrefix,
        mut on_object: impl FnMut(&ObjectMeta),
    ) -> Result<()> {
        must(self.no_listings)?;
        let below = below(prefix)?;
        let listed = self.run(|store| async move {
            let mut objects = store.list(below.as_ref());
            while let Some(object) = objects.try_next().await? {
                on_object(&object);
            }
            Ok(())
        })?;
        listed.map_err(|error| error::listing(error, self.words))
    }

    /// Returns the description of the object `key`, or `None` if the object does not exist.
    ///
    /// # Errors
    /// The errors of the object store.
    pub fn object(&self, key: &StoreKey) -> Result<Option<ObjectMeta>> {
        let path = path(key.as_str())?;
        self.wait(|store| async move { one_object::found(store.head(&path).await) })
    }

    /// Returns the error of zarrs for an error of the object store.
    #[must_use]
    pub fn error(&self, error: object_store::Error) -> StorageError {
        error::storage_error(error, self.words)
    }

    fn wait<T, F>(&self, requests: impl FnOnce(Arc<dyn ObjectStore>) -> F) -> Result<T>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        self.run(requests)?.map_err(|error| self.error(error))
    }

    fn permits(&self) -> &Semaphore {
        let permits = self.permits.get();
        permits.get_or_init(|| Semaphore::new(self.requests.get().min(Semaphore::MAX_PERMITS)))
    }
}

/// Returns the error [`StorageError::Unsupported`] with the reason `refusal`, if there is one.
fn must(refusal: Option<&'static str>) -> Result<()> {
    refusal.map_or(Ok(()), |reason| {
        Err(StorageError::Unsupported(reason.into()))
    })
}

/// Returns the path of the object `key`. `Path::from` would encode some characters, so that the object would
/// have another name than with programs that parse the path.
fn path(key: &str) -> Result<Path> {
    Path::parse(key.trim_end_matches('/')).map_err(|error| {
        StorageError::Other(format!("no object can have the name {key:?}: {error}"))
    })
}

/// Returns the path below which the objects with the prefix lie, or `None` for all objects.
fn below(prefix: &StorePrefix) -> Result<Option<Path>> {
    let path = path(prefix.as_str())?;
    Ok((!path.is_root()).then_some(path))
}
