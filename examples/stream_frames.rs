//! Frames of a simulated camera become a sharded array while they arrive.
//!
//! `cargo run --release --example stream_frames`
//!
//! The camera does not wait: a frame for which there is no room is dropped, and counted. (`append`
//! would wait for room.) For frames from a program or a file there is `zarrs-cuda stream`.

use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use zarrs::array::codec::ZstdCodec;
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::CudaShardingCodecBuilder;
use zarrs_cuda::writer::ArrayWriter;

const HEIGHT: u64 = 512;
const WIDTH: u64 = 512;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sharding = CudaShardingCodecBuilder::new(
        vec![8.try_into()?, 64.try_into()?, 64.try_into()?],
        &data_type::uint16(),
    )
    .bytes_to_bytes_codecs(vec![Arc::new(ZstdCodec::new(1, false))])
    .build_arc()?;
    let directory = tempfile::tempdir()?;
    let store = Arc::new(FilesystemStore::new(directory.path())?);
    let array = ArrayBuilder::new(
        vec![0, HEIGHT, WIDTH], // no frames yet
        vec![64, 256, 256],     // a shard
        data_type::uint16(),
        0_u16,
    )
    .array_to_bytes_codec(sharding)
    .dimension_names(Some(["t", "y", "x"]))
    .build(store.clone(), "/")?;
    array.store_metadata()?;

    let mut writer = ArrayWriter::builder(&array)
        .with_atomic_rename(store.clone()) // on every filesystem
        .build()?;
    let (mut taken, mut dropped) = (0, 0);
    let mut rest: Option<(Vec<u16>, usize)> = None; // a frame that is taken in part
    for number in 0..200 {
        sleep(Duration::from_millis(1)); // the camera exposes
        if let Some((frame, at)) = rest.take() {
            let left = writer.try_append(&frame[at..])?.len();
            if left > 0 {
                let at = frame.len() - left;
                rest = Some((frame, at));
                dropped += 1; // there is no room for this one
                continue;
            }
        }
        let frame = frame(number);
        let left = writer.try_append(&frame)?.len();
        if left == frame.len() {
            dropped += 1;
            continue;
        }
        taken += 1;
        if left > 0 {
            let at = frame.len() - left;
            rest = Some((frame, at));
        }
    }
    if let Some((frame, at)) = rest {
        writer.append(&frame[at..])?; // waits
    }
    println!(
        "{taken} frames taken, {dropped} dropped: {}",
        writer.finish()?
    );

    let array = Array::open(store, "/")?;
    assert_eq!(array.shape(), [taken, HEIGHT, WIDTH]);
    Ok(())
}

/// A picture that moves by one column each frame.
fn frame(number: u64) -> Vec<u16> {
    let pixels = 0..HEIGHT * WIDTH;
    let columns = pixels.map(|pixel| (pixel + number) % WIDTH);
    columns
        .filter_map(|column| column.try_into().ok())
        .collect()
}
