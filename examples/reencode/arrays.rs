//! The input and the output as zarrs' arrays.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use zarrs::array::{Array, ArrayBuilder, ArrayMetadata, ArrayMetadataOptions};
use zarrs::filesystem::FilesystemStore;
use zarrs::plugin::{ExtensionName, ZarrVersion};
use zarrs::storage::storage_adapter::atomic_write::AtomicWriteStorageAdapter;
use zarrs_cuda::CudaShardingCodecBuilder;

use crate::codec::bytes_to_bytes_codecs;
use crate::job::Job;
use crate::shapes::Shapes;

pub(crate) type Input = Array<FilesystemStore>;
/// The output array. Each value is stored in a temporary file first, which is then renamed.
pub(crate) type Output = Array<AtomicWriteStorageAdapter<FilesystemStore>>;

pub(crate) fn open(path: &Path) -> Result<Input, String> {
    if !path.is_dir() {
        return Err(format!("{} is not a directory", path.display()));
    }
    let cannot = |error: &dyn fmt::Display| {
        let error = error.to_string();
        let within: Vec<_> = arrays_in(path)
            .iter()
            .take(5)
            .map(|array| array.display().to_string())
            .collect();
        let hint = if !within.is_empty() {
            format!(". There are arrays in it, though: {}", within.join(", "))
        } else if error.contains("codec") && error.contains("not supported") {
            // For example zlib and bz2.
            ". If zarrs has a feature for the codec, enable it in Cargo.toml".to_string()
        } else {
            String::new()
        };
        format!(
            "cannot open {} as a Zarr array: {}{hint}",
            path.display(),
            error.trim_end()
        )
    };
    let store = FilesystemStore::new(path).map_err(|error| cannot(&error))?;
    Array::open(Arc::new(store), "/").map_err(|error| cannot(&error))
}

/// The directories in `path` that are Zarr arrays.
pub(crate) fn arrays_in(path: &Path) -> BTreeSet<PathBuf> {
    fs::read_dir(path)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| is_array(path))
        .collect()
}

/// Whether `path` is a Zarr array, not a group.
pub(crate) fn is_array(path: &Path) -> bool {
    let metadata = fs::read(path.join("zarr.json")).unwrap_or_default();
    let metadata: Value = serde_json::from_slice(&metadata).unwrap_or_default();
    metadata["node_type"] == "array" || path.join(".zarray").is_file()
}

/// Describes the output. Nothing is written to disk yet.
pub(crate) fn describe(job: &Job, input: &Input, shapes: &Shapes) -> Result<Output, String> {
    let cannot = |error: &dyn fmt::Display| {
        format!(
            "cannot describe {} in Zarr v3: {error}",
            job.input.display()
        )
    };
    let data_type = input.data_type();
    if data_type.name(ZarrVersion::V3).is_none() {
        return Err(cannot(&format!(
            "there is no such data type: {data_type:?}"
        )));
    }
    let sharding = CudaShardingCodecBuilder::new(shapes.subchunk.clone(), data_type)
        .bytes_to_bytes_codecs(bytes_to_bytes_codecs(&job.codec, data_type)?)
        .index_location(job.index)
        .build_arc()
        .map_err(|error| cannot(&error))?;

    let mut builder = ArrayBuilder::new(
        shapes.array.clone(),
        shapes.shard.clone(),
        data_type.clone(),
        input.fill_value().clone(),
    );
    builder
        .array_to_bytes_codec(sharding)
        .attributes(input.attributes().clone());
    match input.metadata() {
        ArrayMetadata::V3(metadata) => {
            builder
                .dimension_names(input.dimension_names().clone())
                .additional_fields(metadata.additional_fields.clone());
        }
        // xarray's convention for v2, whose metadata cannot hold dimension names.
        ArrayMetadata::V2(metadata) => {
            let names = metadata.attributes.get("_ARRAY_DIMENSIONS");
            let names: Option<Vec<String>> =
                names.and_then(|names| serde_json::from_value(names.clone()).ok());
            builder.dimension_names(names.filter(|names| names.len() == shapes.array.len()));
        }
    }

    let store = FilesystemStore::new(&job.output).map_err(|error| cannot(&error))?;
    let store = Arc::new(AtomicWriteStorageAdapter::new(Arc::new(store)));
    // The array is created from metadata, so that the registry chooses our codec, as in any
    // application.
    let metadata = builder.build_metadata().map_err(|error| cannot(&error))?;
    Array::new_with_metadata(store, "/", metadata.into()).map_err(|error| cannot(&error))
}

/// The output's `zarr.json`. zarrs' own attribute is left out, so that the attributes are the
/// input's.
pub(crate) fn metadata_json(output: &Output) -> Result<Vec<u8>, String> {
    let options = ArrayMetadataOptions::default().with_include_zarrs_metadata(false);
    serde_json::to_vec_pretty(&output.metadata_opt(&options))
        .map_err(|error| format!("cannot write the metadata as JSON: {error}"))
}
