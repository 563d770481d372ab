//! Metadata of which some fields are read or replaced, and nothing else is touched.

use std::collections::HashMap;

use serde_json::value::RawValue;
use zarrs_storage::{StorageError, StoreKey};

/// The JSON object at a key: its text, and where its fields are in it.
#[derive(Debug)]
pub(super) struct Document<'a> {
    text: &'a str,
    fields: HashMap<String, &'a RawValue>,
}

impl<'a> Document<'a> {
    /// # Errors
    /// [`StorageError::InvalidMetadata`] if `bytes`, which are those of `key`, are not a JSON object.
    pub(super) fn parse(key: &StoreKey, bytes: &'a [u8]) -> Result<Self, StorageError> {
        let invalid = |reason: String| StorageError::InvalidMetadata(key.clone(), reason);
        let text = str::from_utf8(bytes).map_err(|error| invalid(error.to_string()))?;
        let fields = serde_json::from_str(text).map_err(|error| invalid(error.to_string()))?;
        Ok(Self { text, fields })
    }

    /// The text of a field.
    pub(super) fn field(&self, name: &str) -> Option<&'a str> {
        self.fields.get(name).map(|value| value.get())
    }

    /// The text with other values of some fields, those of which there are.
    pub(super) fn with(&self, values: &[(&str, &str)]) -> String {
        let mut places: Vec<_> = values
            .iter()
            .filter_map(|(name, value)| {
                let old = self.field(name)?;
                // A field is a part of the text.
                let start = old.as_ptr().addr() - self.text.as_ptr().addr();
                Some((start..start + old.len(), *value))
            })
            .collect();
        places.sort_by_key(|(place, _)| place.start);
        let mut text = String::with_capacity(self.text.len());
        let mut from = 0;
        for (place, value) in places {
            text.push_str(&self.text[from..place.start]);
            text.push_str(value);
            from = place.end;
        }
        text.push_str(&self.text[from..]);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_replaced_where_they_are() {
        let key = StoreKey::new("zarr.json").unwrap();
        let text =
            r#" {"b" : [1, {"a": 2}],"a":3 , "n": 123456789012345678901234567890, "c": "ü"} "#;
        let document = Document::parse(&key, text.as_bytes()).unwrap();
        assert_eq!(document.field("b"), Some(r#"[1, {"a": 2}]"#));
        assert_eq!(document.field("d"), None);
        assert_eq!(document.with(&[]), text);
        let changed = document.with(&[("c", "null"), ("b", "{}"), ("d", "4")]);
        assert_eq!(
            changed,
            r#" {"b" : {},"a":3 , "n": 123456789012345678901234567890, "c": null} "#
        );
        for invalid in [&b"[]"[..], b"{", b"\xff", b""] {
            assert!(Document::parse(&key, invalid).is_err());
        }
    }
}
