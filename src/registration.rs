//! Registration of the codec for every `sharding_indexed` array of the process.

use std::sync::{Arc, Mutex, PoisonError};

use zarrs::array::StorageTransformerTraits;
use zarrs::array::storage_transformer::{
    STORAGE_TRANSFORMER_RUNTIME_REGISTRY, StorageTransformerRuntimePlugin,
    StorageTransformerRuntimeRegistryHandle, register_storage_transformer,
};

use crate::codec::registry;
use crate::error::Error;
use crate::options::Options;
use crate::storage::ShardingTransformer;

/// This crate's entry in zarrs' registry of storage transformers, once it is there. The lock is held during a
/// registration.
static TRANSFORMER: Mutex<Option<StorageTransformerRuntimeRegistryHandle>> = Mutex::new(None);

/// Makes zarrs use this crate's codec for every `sharding_indexed` array that the process opens or
/// creates from metadata afterwards, until the [`Registration`] is dropped.
///
/// A write of part of a shard still decodes and stores the whole shard, so two threads that write parts of one
/// shard lose each other's data, without an error. zarrs' `experimental_partial_encoding` on a store that writes
/// byte ranges, or a [`BoxWriter`](crate::writer::BoxWriter), loses nothing: see the [guide](crate::guide::write).
///
/// Arrays that are already open keep their codec. Arrays whose metadata have the sharding storage
/// transformer are read through a [`ShardingTransformer`].
///
/// Call this function early. The first call takes the write lock of zarrs' registry. If another library has
/// registered codecs at run time, make the call before other threads open arrays: zarrs takes the lock again
/// while it creates nested codecs, and could deadlock.
///
/// [`ArrayBuilder::build`] makes zarrs' own codec without asking the registry, if the builder has a
/// `subchunk_shape`. Build such an array by [`build_sharded`](crate::build_sharded).
///
/// [`ArrayBuilder::build`]: zarrs::array::ArrayBuilder::build
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// # array.store_metadata()?;
/// use zarrs::array::Array;
/// use zarrs_cuda::{Backend, Options};
///
/// let options = Options::default().with_backend(Backend::Host);
/// let _registration = zarrs_cuda::register(options)?; // as long as this value lives
/// let array = Array::open(store, "/volume")?;
/// assert_eq!(zarrs_cuda::explain(&array)?.engine, "host");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// - [`Error::AlreadyRegistered`] while another registration is in force.
/// - [`Error::NameTaken`] if zarrs would find another codec for the name first.
/// - [`Error::BackendUnavailable`] if the options ask for a backend that cannot be used.
pub fn register(options: Options) -> Result<Registration, Error> {
    crate::check_backend(&options)?;
    let backend = options.backend();
    registry::enable(options, push_transformer)?;
    tracing::debug!(%backend, "sharding_indexed is zarrs_cuda's");
    Ok(Registration { _private: () })
}

/// A registration of the codec, which stays in force until this value is dropped. See [`register`].
///
/// ```
/// use zarrs_cuda::{Error, Options, register};
///
/// let registration = register(Options::default())?;
/// assert!(matches!(register(Options::default()), Err(Error::AlreadyRegistered)));
/// drop(registration); // arrays that are opened from now on have zarrs' own codec
///
/// register(Options::default())?.leak(); // in `main`, for the life of the process
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping a registration switches it off; `leak()` keeps it for the life of the process"]
pub struct Registration {
    _private: (),
}

impl Registration {
    /// Keeps the codec registered for the life of the process.
    pub fn leak(self) {
        std::mem::forget(self);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        registry::disable();
    }
}

/// Adds this crate's storage transformer to zarrs' registry, unless it is there already.
fn push_transformer() {
    let mut entry = TRANSFORMER.lock().unwrap_or_else(PoisonError::into_inner);
    let is_there = entry.as_ref().is_some_and(|ours| {
        STORAGE_TRANSFORMER_RUNTIME_REGISTRY
            .with_plugins(|entries| entries.iter().any(|entry| Arc::ptr_eq(entry, ours)))
    });
    if !is_there {
        let matches = |name: &str| registry::is_enabled() && ShardingTransformer::is_name(name);
        *entry = Some(register_storage_transformer(
            StorageTransformerRuntimePlugin::new(matches, ShardingTransformer::create),
        ));
    }
}
