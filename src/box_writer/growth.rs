//! Lets an array grow along its first axis, after the shards of a call are stored.
//!
//! The metadata are read again under their lock, and only the first extent of the shape is changed: to the maximum
//! of the stored extent and the wanted one. So the array never becomes shorter. In a store with conditional
//! writes, the metadata are replaced only if they are still those that were read.

use std::fmt;
use std::sync::Arc;

use zarrs::array::Array;
use zarrs::node::meta_key_v3;
use zarrs_storage::StorageError;

use super::error::BoxWriterErrorKind as Kind;
use super::target::{NewShard, Target};
use crate::metadata::json::Document;
use crate::store::conditional::ConditionalStore;

/// The number of attempts to replace metadata that other processes change.
const ATTEMPTS: usize = 20;

/// The operation, in errors.
const GROW: &str = "let the array grow in";

/// Lets an array grow.
#[derive(Clone, Default)]
pub(super) struct Growth {
    /// The array's store, if it has conditional writes.
    pub(super) conditional: Option<Arc<dyn ConditionalStore>>,
}

impl fmt::Debug for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Growth")
            .field("is_conditional", &self.conditional.is_some())
            .finish()
    }
}

impl Growth {
    /// Lets the stored `array` have at least `wanted` elements along its first axis. Returns the stored extent.
    ///
    /// # Errors
    /// [`Kind::Store`] if the metadata are missing, invalid, or those of another array; the errors of the store.
    pub(super) async fn grow<T: Target>(
        &self,
        array: &Array<()>,
        target: &T,
        wanted: u64,
    ) -> Result<u64, Kind> {
        let key = meta_key_v3(array.path());
        let failed = Kind::store(GROW, &key);
        let inner = array.shape().get(1..).unwrap_or_default();
        if let Some(store) = &self.conditional {
            for _ in 0..ATTEMPTS {
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
        let metadata = target.stored(&key).await.map_err(&failed)?;
        let metadata = metadata.ok_or_else(|| failed(missing()))?;
        let metadata = metadata
            .into_bytes()
            .map_err(|error| failed(error.into()))?;
        let (length, grown) = grown(&metadata, inner, wanted).map_err(&failed)?;
        if let Some(grown) = grown {
            let value = NewShard::Encoded(grown.into_bytes());
            target
                .replace(&mut locked, &key, value)
                .await
                .map_err(&failed)?;
        }
        Ok(length)
    }
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
            let grown = (*extent < wanted).then(|| document.with_part(first, &wanted.to_string()));
            Ok((wanted.max(*extent), grown.flatten()))
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
