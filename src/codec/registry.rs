//! The entry of this library in zarrs' registry of codecs, and the `sharding_indexed` codecs that the entry
//! makes.
//!
//! The entry is pushed once and stays. Its removal would take the registry's lock for writing, and deadlock
//! with a thread that opens an array: that thread holds the lock for reading while nested codecs take the lock
//! again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use zarrs::array::codec::ShardingCodec;
use zarrs::metadata::v3::MetadataV3;
use zarrs::plugin::{ExtensionAliasesV3, PluginCreateError};
use zarrs_codec::{
    CODEC_RUNTIME_REGISTRY_V3, Codec, CodecRuntimePluginV3, CodecTraitsV3, register_codec_v3,
};

use crate::codec::CudaShardingCodec;
use crate::error::Error;
use crate::options::Options;

/// Whether the entry makes the codec for all metadata of `sharding_indexed`.
static ENABLED: AtomicBool = AtomicBool::new(false);

/// The options of the registration in force.
static OPTIONS: RwLock<Option<Options>> = RwLock::new(None);

/// The entry, once it is in zarrs' registry. The lock is held during a registration.
static ENTRY: Mutex<Option<Arc<CodecRuntimePluginV3>>> = Mutex::new(None);

/// The metadata of the codecs that the entry makes without a registration.
static OWNED: RwLock<Vec<Arc<MetadataV3>>> = RwLock::new(Vec::new());

/// Makes the entry create each `sharding_indexed` codec with `options`, until [`disable`]. Calls `also` under
/// the lock of the registration.
///
/// # Errors
/// [`Error::AlreadyRegistered`] if the entry creates these codecs already; [`Error::NameTaken`] if another
/// entry for the name comes first.
pub(crate) fn enable(options: Options, also: impl FnOnce()) -> Result<(), Error> {
    let mut entry = ENTRY.lock().unwrap_or_else(PoisonError::into_inner);
    if is_enabled() {
        return Err(Error::AlreadyRegistered);
    }
    push(&mut entry)?;
    also();
    *OPTIONS.write().unwrap_or_else(PoisonError::into_inner) = Some(options);
    ENABLED.store(true, Ordering::Release);
    Ok(())
}

/// Makes the entry leave `sharding_indexed` to zarrs, except for [`OwnedMetadata`].
pub(crate) fn disable() {
    let _entry = ENTRY.lock().unwrap_or_else(PoisonError::into_inner);
    ENABLED.store(false, Ordering::Release);
}

pub(crate) fn is_enabled() -> bool {
    ENABLED.load(Ordering::Acquire)
}

/// Returns the options of the registration in force; without one, the default options.
pub(crate) fn options() -> Options {
    if !is_enabled() {
        return Options::default();
    }
    let options = OPTIONS.read().unwrap_or_else(PoisonError::into_inner);
    options.clone().unwrap_or_default()
}

/// Metadata for which this library makes the codec, with or without a registration, until the value is
/// dropped.
#[derive(Debug)]
pub(crate) struct OwnedMetadata(Arc<MetadataV3>);

/// Makes the entry create the codec for this `metadata`, until the returned value is dropped. Codecs of other
/// metadata are made as before.
///
/// # Errors
/// [`Error::NameTaken`] if another entry for the name comes first.
pub(crate) fn own(metadata: MetadataV3) -> Result<OwnedMetadata, Error> {
    push(&mut ENTRY.lock().unwrap_or_else(PoisonError::into_inner))?;
    let metadata = Arc::new(metadata);
    let mut owned = OWNED.write().unwrap_or_else(PoisonError::into_inner);
    owned.push(metadata.clone());
    Ok(OwnedMetadata(metadata))
}

impl Drop for OwnedMetadata {
    fn drop(&mut self) {
        let mut owned = OWNED.write().unwrap_or_else(PoisonError::into_inner);
        owned.retain(|metadata| !Arc::ptr_eq(metadata, &self.0));
    }
}

fn push(entry: &mut Option<Arc<CodecRuntimePluginV3>>) -> Result<(), Error> {
    if !is_first(entry.as_ref()) {
        return Err(Error::NameTaken);
    }
    if !entry.as_ref().is_some_and(is_in_registry) {
        *entry = Some(register_codec_v3(CodecRuntimePluginV3::new(
            matches, create,
        )));
        // Another thread may have added an entry after the first check.
        if !is_first(entry.as_ref()) {
            return Err(Error::NameTaken);
        }
    }
    Ok(())
}

fn matches(name: &str) -> bool {
    let owns_some = || {
        !OWNED
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
    };
    ShardingCodec::matches_name_v3(name) && (is_enabled() || owns_some())
}

fn create(metadata: &MetadataV3) -> Result<Codec, PluginCreateError> {
    if !is_enabled() && !is_owned(metadata) {
        return <ShardingCodec as CodecTraitsV3>::create(metadata);
    }
    let codec = CudaShardingCodec::from_metadata(metadata, options())?;
    Ok(Codec::ArrayToBytes(Arc::new(codec)))
}

fn is_owned(metadata: &MetadataV3) -> bool {
    let owned = OWNED.read().unwrap_or_else(PoisonError::into_inner);
    owned.iter().any(|owned| **owned == *metadata)
}

/// Returns whether no other entry for the name comes before `ours`. If `ours` is `None`, returns whether the
/// registry has no entry for the name.
fn is_first(ours: Option<&Arc<CodecRuntimePluginV3>>) -> bool {
    let name = ShardingCodec::aliases_v3().default_name.clone();
    CODEC_RUNTIME_REGISTRY_V3.with_plugins(|entries| {
        entries
            .iter()
            .take_while(|entry| !ours.is_some_and(|ours| Arc::ptr_eq(entry, ours)))
            .all(|entry| !entry.match_name(&name))
    })
}

fn is_in_registry(ours: &Arc<CodecRuntimePluginV3>) -> bool {
    CODEC_RUNTIME_REGISTRY_V3
        .with_plugins(|entries| entries.iter().any(|entry| Arc::ptr_eq(entry, ours)))
}
