//! The input and output arrays of a run, as arrays of zarrs.

use std::sync::Arc;

use zarrs::array::{Array, ArrayBuilder, ArrayMetadata, ArrayMetadataOptions};
use zarrs_codec::ArrayToArrayCodecTraits;
use zarrs_cuda::CudaShardingCodecBuilder;

use super::Job;
use super::shapes::Shapes;
use super::target::Target;
use super::xarray;
use crate::data_types;
use crate::failure::Failure;
use crate::open::Store;
use crate::shapes::edges;
use crate::words::shape_text;

pub(crate) type Input = Array<Store>;
/// The output array. Its store makes each value appear at once, as a whole.
pub(crate) type OutputArray = Array<Store>;

/// Creates the output array in memory. Writes nothing to the store.
pub(super) fn describe(
    job: &Job<'_>,
    target: &Target,
    input: &Input,
    shapes: &Shapes,
    has_no_fill_value: bool,
) -> Result<OutputArray, Failure> {
    let doing = format!("describe {} in Zarr v3", job.input);
    let data_type = input.data_type();
    data_types::must_be_read_elsewhere(data_type)?;
    must_be_readable(job, input)?;
    let sharding = CudaShardingCodecBuilder::new(shapes.subchunk.clone(), data_type)
        .bytes_to_bytes_codecs(
            job.settings
                .codec
                .for_elements(data_type)
                .map_err(Failure::to(&doing))?,
        )
        .index_location(job.settings.index)
        .build_arc()
        .map_err(Failure::to(&doing))?;

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
        ArrayMetadata::V2(metadata) => {
            let has_none = has_no_fill_value || metadata.fill_value.is_null();
            let fill_value = (!has_none).then(|| input.fill_value());
            if let Some(xarray) = xarray::in_v3(metadata, data_type, fill_value) {
                builder
                    .attributes(xarray.attributes)
                    .dimension_names(Some(xarray.dimension_names));
                if let Some(note) = xarray.note {
                    job.say(&format!("{}: {note}", job.input));
                }
            }
            if let Some(axes) = &job.axes {
                if axes.len() == metadata.shape.len() {
                    builder.dimension_names(Some(axes.clone()));
                } else {
                    job.say(&format!(
                        "note: {} has {} dimensions, and its image has the axes {}",
                        job.input,
                        metadata.shape.len(),
                        axes.join(", ")
                    ));
                }
            }
        }
    }

    // Create the array from metadata: then the registry of zarrs chooses our codec, as in any application.
    let metadata = builder.build_metadata().map_err(Failure::to(&doing))?;
    let metadata = data_types::as_others_read(metadata, input.fill_value());
    Array::new_with_metadata(target.store.clone(), "/", metadata.into())
        .map_err(Failure::to(&doing))
}

/// Checks that zarrs can read parts of the input's chunks. zarrs cannot if a codec changes the order of the
/// dimensions of text or byte strings, unless all extents of a chunk are equal.
fn must_be_readable(job: &Job<'_>, input: &Input) -> Result<(), Failure> {
    let origin = vec![0; input.dimensionality()];
    let shape = input.chunk_shape(&origin).unwrap_or_default();
    let is_same = |codec: &Arc<dyn ArrayToArrayCodecTraits>| {
        let encoded = codec.encoded_shape(&shape);
        encoded.is_ok_and(|encoded| encoded[..] == shape[..])
    };
    let codecs = input.codecs();
    if input.data_type().is_fixed() || codecs.array_to_array_codecs().iter().all(is_same) {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "cannot read {}: its chunks of {} keep text or byte strings in another order of dimensions (order \
         F, or the codec transpose), and zarrs does not read parts of them",
        job.input,
        shape_text(&edges(&shape))
    ))
    .with_remedy(
        "let zarr-python decode it: `python -m zarrs_cuda reencode --decode-with zarr-python IN OUT`",
    ))
}

/// Returns the text of the output's `zarr.json`. It leaves out zarrs' own attribute, so that the attributes
/// are the input's.
pub(crate) fn metadata_json(output: &OutputArray) -> Result<Vec<u8>, Failure> {
    let options = ArrayMetadataOptions::default().with_include_zarrs_metadata(false);
    data_types::as_json(&output.metadata_opt(&options))
        .map_err(Failure::to("write the metadata as JSON"))
}
