//! Lets an array grow along its first axis, after the shards of a call are stored.
//!
//! The metadata are read again under their lock, and only the first extent of the shape is changed: to the maximum
//! of the stored extent and the wanted one. So the array never becomes shorter. In a store with conditional
//! writes, the metadata are replaced only if they are still those that were read.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use zarrs::array::Array;
use zarrs::node::meta_key_v3;
use zarrs_storage::{StorageError, StoreKey};

use super::error::BoxWriterErrorKind as Kind;
use super::target::{NewShard, Target};
use crate::metadata::json::Document;
use crate::store::conditional::ConditionalStore;

/// The number of attempts to replace metadata that other processes change.
const ATTEMPTS: u32 = 20;

/// The time by which each attempt waits longer than the one before.
const PAUSE: Duration = Duration::from_millis(2);

/// The operation, in errors.
const GROW: &str = "let the array grow in";

/// Lets an array grow.
#[derive(Clone, Default)]
pub(super) struct Growth {
    /// The array's store, if it has conditional writes.
    pub(super) conditional: Option<Arc<dyn ConditionalStore>>,
    /// The largest extent that this writer has stored or found.
    known: Arc<AtomicU64>,
}

impl fmt::Debug for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Growth")
            .field("is_conditional", &self.conditional.is_some())
            .field("known", &self.known)
            .finish()
    }
}

impl Growth {
    /// Returns the growth of an array in `store`, which has conditional writes.
    pub(super) fn conditional(store: Arc<dyn ConditionalStore>) -> Self {
        Self {
            conditional: Some(store),
            known: Arc::default(),
        }
    }

    /// Returns the largest extent that this writer has stored or found, if it is at least `wanted`.
    fn known(&self, wanted: u64) -> Option<u64> {
        let known = self.known.load(Ordering::Relaxed);
        (known >= wanted).then_some(known)
    }

    /// Checks, before shards are stored, that the stored array can have `wanted` elements along its first axis.
    ///
    /// # Errors
    /// [`BoxWriterErrorKind::Store`](crate::writer::BoxWriterErrorKind::Store) if the metadata are missing, invalid,
    /// or those of another array, or if the store with
    /// conditional writes has other metadata; the errors of the store.
    pub(super) async fn check<T: Target>(
        &self,
        array: &Array<()>,
        target: &T,
        wanted: u64,
    ) -> Result<(), Kind> {
        if self.known(wanted).is_some() {
            return Ok(());
        }
        let key = meta_key_v3(array.path());
        let failed = Kind::store(GROW, &key);
        let metadata = stored(target, &key).await.map_err(&failed)?;
        let (length, grown) = grown(&metadata, inner(array), wanted).map_err(&failed)?;
        if grown.is_none() {
            self.known.fetch_max(length, Ordering::Relaxed);
            return Ok(());
        }
        if let Some(store) = &self.conditional {
            let conditional = store.get_with_version(&key).map_err(&failed)?;
            let is_other = conditional.is_none_or(|(bytes, _)| bytes != metadata);
            // Another process may have changed the metadata between the two requests.
            if is_other && metadata == stored(target, &key).await.map_err(&failed)? {
                return Err(failed(StorageError::Other(
                    "the store for `with_conditional_writes` has other metadata: give it the store that the array is in, with the same root".to_owned(),
                )));
            }
        }
        Ok(())
    }

    /// Lets the stored `array` have at least `wanted` elements along its first axis. Returns the stored extent.
    ///
    /// # Errors
    /// The errors of [`check`](Self::check).
    pub(super) async fn grow<T: Target>(
        &self,
        array: &Array<()>,
        target: &T,
        wanted: u64,
    ) -> Result<u64, Kind> {
        if let Some(known) = self.known(wanted) {
            return Ok(known);
        }
        let length = self.grow_stored(array, target, wanted).await?;
        self.known.fetch_max(length, Ordering::Relaxed);
        Ok(length)
    }

    async fn grow_stored<T: Target>(
        &self,
        array: &Array<()>,
        target: &T,
        wanted: u64,
    ) -> Result<u64, Kind> {
        let key = meta_key_v3(array.path());
        let failed = Kind::store(GROW, &key);
        let inner = inner(array);
        if let Some(store) = &self.conditional {
            for attempt in 0..ATTEMPTS {
                std::thread::sleep(PAUSE * attempt);
                let (metadata, version) = store
                    .get_with_version(&key)
                    .map_err(&failed)?
                    .ok_or_else(|| failed(missing()))?;
                let (length, grown) = grown(&metadata, inner, wanted).map_err(&failed)?;
                let Some(grown) = grown else {
                    return Ok(length);
                };
                let stored = store.set_if(&key, grown.into(), Some(&version));
                if stored.map_err(&failed)?.is_some() {
                    return Ok(length);
                }
            }
            return Err(failed(StorageError::Other(format!(
                "other processes changed it each of {ATTEMPTS} times that it was about to be replaced: try again"
            ))));
        }
        let mut locked = target.lock(&key).await.map_err(&failed)?;
        let metadata = stored(target, &key).await.map_err(&failed)?;
        let (length, grown) = grown(&metadata, inner, wanted).map_err(&failed)?;
        if let Some(grown) = grown {
            let value = NewShard::Encoded(grown.into_bytes());
            let stored = target.replace(&mut locked, &key, value).await;
            stored.map_err(&failed)?;
        }
        Ok(length)
    }
}

/// Returns the extents of the array along all axes but the first.
fn inner(array: &Array<()>) -> &[u64] {
    array.shape().get(1..).unwrap_or_default()
}

/// Returns the stored metadata.
async fn stored<T: Target>(target: &T, key: &StoreKey) -> Result<Vec<u8>, StorageError> {
    let metadata = target.stored(key).await?.ok_or_else(missing)?;
    Ok(metadata.into_bytes()?)
}

fn missing() -> StorageError {
    StorageError::Other("it does not exist: store the array's metadata first".to_owned())
}

/// Returns the first extent of the stored shape, but at least `wanted`, and the metadata with it; `None` if the
/// stored extent is not shorter.
fn grown(
    metadata: &[u8],
    inner: &[u64],
    wanted: u64,
) -> Result<(u64, Option<String>), StorageError> {
    let invalid = StorageError::Other;
    let document = Document::parse(metadata).map_err(invalid)?;
    let shape = document.elements("shape").map_err(invalid)?;
    let extents = shape.iter().map(|extent| extent.parse().ok());
    let Some(extents) = extents.collect::<Option<Vec<u64>>>() else {
        return Err(invalid("its shape is not one of whole numbers".to_owned()));
    };
    match (&*shape, &*extents) {
        ([first, ..], [extent, rest @ ..]) if rest == inner => {
            if *extent >= wanted {
                return Ok((*extent, None));
            }
            let grown = document.with_part(first, &wanted.to_string());
            let grown = grown.ok_or_else(|| invalid("its shape is not in its text".to_owned()))?;
            Ok((wanted, Some(grown)))
        }
        _ => Err(invalid(format!(
            "its shape is {extents:?}, and boxes of an array of extents {inner:?} behind the first axis were written: another array was stored in its place"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_never_shrink() {
        let text = r#"{"a": 1, "shape": [ 7, 3], "b": [2]}"#;
        let change = |wanted| grown(text.as_bytes(), &[3], wanted).unwrap();
        assert_eq!(change(6), (7, None));
        assert_eq!(change(7), (7, None));
        let longer = r#"{"a": 1, "shape": [ 8, 3], "b": [2]}"#;
        assert_eq!(change(8), (8, Some(longer.to_owned())));
        assert!(grown(text.as_bytes(), &[4], 8).is_err());
        assert!(grown(b"{", &[4], 8).is_err());
        assert!(grown(br#"{"shape": []}"#, &[], 8).is_err());
    }
}
