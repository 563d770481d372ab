//! A plate of wells with fields, each an image with a pyramid, while a microscope goes from field to field.
//!
//! `cargo run --release --example write_plate [FOLDER]`
//!
//! FOLDER is where the plate stays, for viewers and validators; without it, it is erased in the end.
//! The plate and its wells are groups that the application makes, as OME-Zarr 0.5 describes them
//! (<https://ngff.openmicroscopy.org/0.5/#hcs-layout>). Each field has a `MultiscaleWriter`.

use std::sync::Arc;

use serde_json::{Value, json};
use zarrs::array::codec::ZstdCodec;
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs::group::GroupBuilder;
use zarrs_cuda::writer::{Axis, MultiscaleWriter, Reduction};
use zarrs_cuda::{CudaShardingCodecBuilder, Options};

type AnyError = Box<dyn std::error::Error>;

const WELLS: [&str; 2] = ["A/1", "B/2"];
const FIELDS: usize = 2;
const CHANNELS: u64 = 2;
const HEIGHT: u64 = 200;
const WIDTH: u64 = 300;

fn main() -> Result<(), AnyError> {
    let temporary = tempfile::tempdir()?;
    let directory = std::env::args_os().nth(1);
    let directory = directory.map_or(temporary.path().to_owned(), Into::into);
    let store = Arc::new(FilesystemStore::new(directory)?);
    // Where each well is: its row, and its column.
    let wells = WELLS
        .iter()
        .enumerate()
        .map(|(number, path)| json!({ "path": path, "rowIndex": number, "columnIndex": number }));
    let plate = json!({ "plate": {
        "name": "a plate", "field_count": FIELDS, "wells": wells.collect::<Value>(),
        "rows": [{ "name": "A" }, { "name": "B" }], "columns": [{ "name": "1" }, { "name": "2" }],
    }});
    group(&store, "/", plate)?;
    for well in WELLS {
        let (row, _) = well.split_once('/').ok_or("a well is ROW/COLUMN")?;
        group(&store, &format!("/{row}"), json!({}))?;
        let images = (0..FIELDS).map(|field| json!({ "path": field.to_string() }));
        let images = json!({ "well": { "images": images.collect::<Value>() } });
        group(&store, &format!("/{well}"), images)?;
    }

    // All writers exist at the same time, and share this memory.
    let options = Options::default().with_host_memory(256 << 20);
    let mut fields = Vec::new();
    for well in WELLS {
        for field in 0..FIELDS {
            let array = level_0(&store, &format!("/{well}/{field}/0"), &options)?;
            let writer = MultiscaleWriter::builder(&array)
                .with_atomic_rename(store.clone()) // on every filesystem
                .with_axes([
                    Axis::time("t").with_unit("second").with_scale(60.0),
                    Axis::channel("c"),
                    Axis::space("y").with_unit("micrometer").with_scale(0.325),
                    Axis::space("x").with_unit("micrometer").with_scale(0.325),
                ])
                .with_reduction(Reduction::Mean)
                .with_levels(3)
                .build()?;
            fields.push(writer);
        }
    }
    for time in 0..6 {
        for (number, writer) in fields.iter_mut().enumerate() {
            for channel in 0..CHANNELS {
                writer.append(&frame(time, number, channel))?; // a part of a slice
            }
        }
    }
    for mut writer in fields {
        let report = writer.finish()?;
        println!("level 0: {}", report[0]);
    }

    // Level 2 of the last field, as any program reads it.
    let small = Array::open(store, "/B/2/1/2")?;
    assert_eq!(small.shape(), [6, CHANNELS, HEIGHT / 4, WIDTH / 4]);
    let corner: Vec<u16> = small.retrieve_array_subset(&[5..6, 1..2, 0..1, 0..1])?;
    assert_eq!(corner, [533]);
    Ok(())
}

/// Stores a group with these members of its attribute `ome`.
fn group(store: &Arc<FilesystemStore>, path: &str, mut ome: Value) -> Result<(), AnyError> {
    ome["version"] = json!("0.5");
    let attributes = [("ome".to_owned(), ome)].into_iter().collect();
    let mut builder = GroupBuilder::new();
    builder.attributes(attributes);
    builder.build(store.clone(), path)?.store_metadata()?;
    Ok(())
}

/// Level 0 of a field, without slices. The writer stores it.
fn level_0(
    store: &Arc<FilesystemStore>,
    path: &str,
    options: &Options,
) -> Result<Array<FilesystemStore>, AnyError> {
    let subchunk = [1, 1, 64, 64].map(u64::try_into);
    let subchunk = subchunk.into_iter().collect::<Result<Vec<_>, _>>()?;
    let codec = CudaShardingCodecBuilder::new(subchunk, &data_type::uint16())
        .bytes_to_bytes_codecs(vec![Arc::new(ZstdCodec::new(1, false))])
        .options(options.clone())
        .build_arc()?;
    let shape = vec![0, CHANNELS, HEIGHT, WIDTH];
    let shard = vec![4, CHANNELS, 256, 320];
    let mut builder = ArrayBuilder::new(shape, shard, data_type::uint16(), 0_u16);
    builder.array_to_bytes_codec(codec);
    Ok(builder.build(store.clone(), path)?)
}

/// A frame whose columns count on.
fn frame(time: u64, field: usize, channel: u64) -> Vec<u16> {
    let first = 100 * time + 10 * field as u64 + channel;
    let pixels = 0..HEIGHT * WIDTH;
    let columns = pixels.map(|pixel| first + pixel % WIDTH);
    columns
        .filter_map(|column| column.try_into().ok())
        .collect()
}
