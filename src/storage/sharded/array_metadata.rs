//! Adds the sharding transformer to the stored metadata of an array, and hides it. Readers of the files see
//! the transformer; readers through the adapter do not.
//!
//! Everything else in the document stays as it is, byte for byte.

use std::fmt;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::BinaryFormat;
use crate::metadata::json::{Document, span};

/// The name of the transformer: the URI in the "Configuration" of the draft.
pub(in crate::storage) const NAME: &str =
    "https://purl.org/zarr/spec/storage_transformers/sharding/1.0";

/// The URI at the head of the draft, which this library also understands.
pub(in crate::storage) const OTHER_NAME: &str =
    "http://purl.org/zarr/spec/storage-transformers/sharding/1.0";

const TRANSFORMERS: &str = "storage_transformers";

/// Returns whether `name` is one of the transformer's names.
pub(in crate::storage) fn is_name(name: &str) -> bool {
    [NAME, OTHER_NAME].contains(&name)
}

/// The configuration of the transformer: the binary format, and the number of chunks in a shard along each
/// axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::storage) struct Configuration {
    pub(in crate::storage) format: BinaryFormat,
    pub(in crate::storage) chunks_per_shard: Vec<u64>,
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "type {:?} and chunks_per_shard {:?}",
            self.format.name(),
            self.chunks_per_shard
        )
    }
}

impl Configuration {
    pub(in crate::storage) fn parse(configuration: &Map<String, Value>) -> Result<Self, String> {
        let mut format = None;
        let mut chunks_per_shard = None;
        for (key, value) in configuration {
            match key.as_str() {
                "type" => format = value.as_str().and_then(BinaryFormat::of_name),
                "chunks_per_shard" => {
                    let counts = value
                        .as_array()
                        .map(|counts| counts.iter().map(Value::as_u64));
                    chunks_per_shard = counts.and_then(Iterator::collect::<Option<Vec<u64>>>);
                }
                _ => {
                    return Err(format!(
                        "its configuration has {key:?}, which nobody knows here"
                    ));
                }
            }
        }
        Ok(Self {
            format: format.ok_or("its `type` must be \"indexed\" or \"indexed_crc32c\"")?,
            chunks_per_shard: chunks_per_shard
                .ok_or("its `chunks_per_shard` must be an array of whole numbers")?,
        })
    }

    pub(in crate::storage) fn to_json(&self) -> Map<String, Value> {
        let Value::Object(configuration) = json!({
            "type": self.format.name(),
            "chunks_per_shard": self.chunks_per_shard,
        }) else {
            return Map::new();
        };
        configuration
    }

    /// Returns the configuration as an element of `storage_transformers`.
    fn metadata(&self) -> String {
        format!(
            r#"{{"name":"{NAME}","configuration":{}}}"#,
            Value::Object(self.to_json())
        )
    }
}

/// Returns the configuration of the transformer that `stored` describes; `None` if `stored` are not the
/// metadata of an array, or of an array without the transformer.
pub(super) fn configuration(stored: &[u8]) -> Result<Option<Configuration>, String> {
    ArrayDocument::parse(stored).map_or(Ok(None), |document| document.configuration())
}

/// Returns stored metadata as the adapter with the configuration `ours` shows them, without the transformer.
/// Returns `None` if they are shown as they are.
///
/// # Errors
/// The reason: the metadata describe another transformer, or one that is not understood.
pub(super) fn hidden(stored: &[u8], ours: &Configuration) -> Result<Option<String>, String> {
    let Some(document) = ArrayDocument::parse(stored) else {
        return Ok(None);
    };
    if !document.describes(ours)? {
        return Ok(None);
    }
    let hidden = document.without_first().ok_or(MALFORMED)?;
    // A member may occur twice, and the parser then takes the last one, so the result is checked.
    match ArrayDocument::parse(hidden.as_bytes()).map(|document| document.configuration()) {
        Some(Ok(None)) => Ok(Some(hidden)),
        _ => Err(format!("it has {TRANSFORMERS:?} more than once")),
    }
}

/// Returns metadata as the adapter with the configuration `ours` stores them, with the transformer. Returns
/// `None` if they are stored as they are.
///
/// # Errors
/// The reason: the metadata describe another transformer, or one that is not understood.
pub(super) fn described(given: &[u8], ours: &Configuration) -> Result<Option<String>, String> {
    let Some(document) = ArrayDocument::parse(given) else {
        return Ok(None);
    };
    if document.describes(ours)? {
        return Ok(None);
    }
    let described = document.with_first(&ours.metadata());
    Ok(Some(described.ok_or(MALFORMED)?))
}

/// Returns the number of chunks of an array along each axis, from its metadata; `None` if it has no regular
/// grid.
pub(super) fn chunk_grid(metadata: &[u8]) -> Option<Vec<u64>> {
    let document = ArrayDocument::parse(metadata)?;
    let shape = document.field("shape")?;
    let shape = shape.as_array()?;
    let grid = document.field("chunk_grid")?;
    if grid.get("name")?.as_str()? != "regular" {
        return None;
    }
    let chunk = grid.get("configuration")?.get("chunk_shape")?.as_array()?;
    if chunk.len() != shape.len() {
        return None;
    }
    let counts = shape.iter().zip(chunk).map(|(extent, chunk)| {
        let chunk = chunk.as_u64().filter(|&chunk| chunk > 0)?;
        Some(extent.as_u64()?.div_ceil(chunk))
    });
    counts.collect()
}

const MALFORMED: &str = "it is not the JSON that it seemed to be";

/// The metadata of an array.
struct ArrayDocument<'a>(Document<'a>);

impl<'a> ArrayDocument<'a> {
    /// Reads the metadata of an array; `None` if they are not those of an array of Zarr V3. The reader of
    /// these metadata then reports the error.
    fn parse(metadata: &'a [u8]) -> Option<Self> {
        let document = Self(Document::parse(metadata).ok()?);
        let is_array = document.field("node_type")? == "array";
        is_array.then_some(document)
    }

    fn field(&self, name: &str) -> Option<Value> {
        serde_json::from_str(self.0.member(name)?).ok()
    }

    fn rank(&self) -> Option<usize> {
        Some(self.field("shape")?.as_array()?.len())
    }

    fn transformers(&self) -> Result<Vec<&'a RawValue>, String> {
        let Some(list) = self.0.member(TRANSFORMERS) else {
            return Ok(Vec::new());
        };
        serde_json::from_str(list).map_err(|error| format!("{TRANSFORMERS:?}: {error}"))
    }

    /// Checks that the adapter can recognise the keys of the array's chunks.
    ///
    /// # Errors
    /// The reason: the chunk key encoding is not one that this library recognises.
    fn check_chunk_keys(&self) -> Result<(), String> {
        let encoding = self.field("chunk_key_encoding").unwrap_or_default();
        let name = encoding.get("name").unwrap_or(&encoding);
        match name.as_str() {
            // If no encoding is given, the reader of the document reports that.
            None | Some("default" | "v2") => Ok(()),
            Some(name) => Err(format!(
                "the chunk key encoding is {name:?}, by which no key is known as that of a chunk here, so that none would be in a shard: it has to be `default` or `v2`"
            )),
        }
    }

    /// Returns the configuration of the transformer; `None` if the metadata do not name the transformer.
    ///
    /// # Errors
    /// The reason: the transformer is not understood, or is not the first and only one; or its chunk keys are
    /// not recognised.
    fn configuration(&self) -> Result<Option<Configuration>, String> {
        self.check_chunk_keys()?;
        let mut found = None;
        for (at, element) in self.transformers()?.into_iter().enumerate() {
            let element: Value =
                serde_json::from_str(element.get()).map_err(|error| error.to_string())?;
            let name = element.get("name").unwrap_or(&element);
            if !name.as_str().is_some_and(is_name) {
                continue;
            }
            if at > 0 {
                return Err(format!(
                    "the sharding transformer is number {at} in {TRANSFORMERS:?}: it has to be the first, and there can be one"
                ));
            }
            let configuration = element.get("configuration").and_then(Value::as_object);
            let configuration =
                configuration.ok_or("the sharding transformer has no `configuration`")?;
            let configuration = Configuration::parse(configuration)
                .map_err(|error| format!("the sharding transformer: {error}"))?;
            let counts = configuration.chunks_per_shard.len();
            if let Some(rank) = self.rank()
                && rank != counts
            {
                return Err(format!(
                    "the sharding transformer has {counts} chunks_per_shard, and the array {rank} axes: there is one for each axis"
                ));
            }
            found = Some(configuration);
        }
        Ok(found)
    }

    /// Returns whether the document describes the transformer, which must then be `ours`.
    fn describes(&self, ours: &Configuration) -> Result<bool, String> {
        let counts = ours.chunks_per_shard.len();
        if let Some(rank) = self.rank()
            && rank != counts
        {
            return Err(format!(
                "the array has {rank} axes, and is seen through an adapter with {counts} chunks_per_shard: there has to be one for each axis"
            ));
        }
        match self.configuration()? {
            Some(theirs) if theirs != *ours => Err(format!(
                "the array is sharded with {theirs}, and seen through an adapter with {ours}: open it with `ShardedStore::open`"
            )),
            theirs => Ok(theirs.is_some()),
        }
    }

    /// Returns the document without the first transformer.
    fn without_first(&self) -> Option<String> {
        let transformers = self.transformers().ok()?;
        let [first, second, ..] = &transformers[..] else {
            return self.0.without(TRANSFORMERS);
        };
        let list = self.0.member(TRANSFORMERS)?;
        let start = span(list, first.get())?.start;
        let end = span(list, second.get())?.start;
        let others = [list.get(..start)?, list.get(end..)?].concat();
        Some(self.0.with(&[(TRANSFORMERS, &others)]))
    }

    /// Returns the document with `transformer` as the first one. [`without_first`](Self::without_first)
    /// undoes that, except that it removes an empty list.
    fn with_first(&self, transformer: &str) -> Option<String> {
        let transformers = self.transformers().ok()?;
        let list = match (self.0.member(TRANSFORMERS), transformers.first()) {
            (Some(list), Some(first)) => {
                let at = span(list, first.get())?.start;
                [list.get(..at)?, transformer, ",", list.get(at..)?].concat()
            }
            (list, _) => {
                let all = format!("[{transformer}]");
                if list.is_none() {
                    return self.0.with_last(TRANSFORMERS, &all);
                }
                all
            }
        };
        Some(self.0.with(&[(TRANSFORMERS, &list)]))
    }
}
