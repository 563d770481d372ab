//! The input and the output as zarrs' arrays.

use std::fmt;

use zarrs::array::{Array, ArrayBuilder, ArrayMetadata, ArrayMetadataOptions};
use zarrs::plugin::{ExtensionName, ZarrVersion};
use zarrs_cuda::CudaShardingCodecBuilder;

use super::Job;
use super::shapes::Shapes;
use super::target::Target;
use crate::failure::Failure;
use crate::open::Store;

pub(crate) type Input = Array<Store>;
/// The output array. Each value appears at once, as a whole.
pub(crate) type Output = Array<Store>;

/// Describes the output. Nothing is written yet.
pub(super) fn describe(
    job: &Job<'_>,
    target: &Target,
    input: &Input,
    shapes: &Shapes,
) -> Result<Output, Failure> {
    let cannot = |error: &dyn fmt::Display| {
        Failure::failed(format!("cannot describe {} in Zarr v3: {error}", job.input))
    };
    let data_type = input.data_type();
    if data_type.name(ZarrVersion::V3).is_none() {
        return Err(cannot(&format!(
            "there is no such data type: {data_type:?}"
        )));
    }
    let sharding = CudaShardingCodecBuilder::new(shapes.subchunk.clone(), data_type)
        .bytes_to_bytes_codecs(job.args.codec.for_elements(data_type)?)
        .index_location(job.args.index.into())
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

    // The array is created from metadata, so that the registry chooses our codec, as in any
    // application.
    let metadata = builder.build_metadata().map_err(|error| cannot(&error))?;
    Array::new_with_metadata(target.store.clone(), "/", metadata.into())
        .map_err(|error| cannot(&error))
}

/// The output's `zarr.json`. zarrs' own attribute is left out, so that the attributes are the
/// input's.
pub(crate) fn metadata_json(output: &Output) -> Result<Vec<u8>, Failure> {
    let options = ArrayMetadataOptions::default().with_include_zarrs_metadata(false);
    serde_json::to_vec_pretty(&output.metadata_opt(&options))
        .map_err(|error| Failure::failed(format!("cannot write the metadata as JSON: {error}")))
}
