//! The array of a stream of frames, and our writer for it.

use std::sync::Arc;

use zarrs::array::{Array, ArrayBuilder, ArrayBytes, ArrayToBytesCodecTraits, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::{ReadableStorageTraits, ReadableWritableStorageTraits};
use zarrs_cuda::writer::{ArrayWriter, WriterReport};

use crate::Result;
use crate::clock::{Clock, Cost};
use crate::frames::{Frames, SHARD};

/// An array of `slices` frames whose shards are encoded by `codec`.
pub fn array<S: ?Sized>(
    store: Arc<S>,
    frames: &Frames,
    slices: u64,
    codec: Arc<dyn ArrayToBytesCodecTraits>,
) -> Result<Array<S>> {
    let [_, y, x] = frames.shape();
    let shape = vec![slices, y, x];
    let mut builder = ArrayBuilder::new(shape, vec![SHARD; 3], data_type::uint16(), 0_u16);
    builder.array_to_bytes_codec(codec);
    Ok(builder.build(store, "/")?)
}

/// Appends all frames to an empty `array`, one at a time. Returns the cost from before the writer
/// is built to the end of `finish`. With `with_atomic_rename` shards grow in files.
pub fn append<S: ReadableWritableStorageTraits + 'static>(
    array: &Array<S>,
    frames: &Frames,
    atomic_rename: Option<Arc<FilesystemStore>>,
) -> Result<(Cost, WriterReport)> {
    array.store_metadata()?;
    let clock = Clock::start();
    let mut builder = ArrayWriter::builder(array);
    if let Some(store) = atomic_rename {
        builder = builder.with_atomic_rename(store);
    }
    let mut writer = builder.build()?;
    for frame in frames.iter() {
        writer.append_bytes(frame)?;
    }
    let report = writer.finish()?;
    let cost = clock.stop();
    if report.raw_bytes != frames.bytes() {
        return Err(format!(
            "the writer says that {} of {} bytes were appended",
            report.raw_bytes,
            frames.bytes()
        )
        .into());
    }
    Ok((cost, report))
}

/// Checks, with zarrs alone, that the array in `store` has the frames. `shards` holds the same
/// elements.
pub fn verify<S: ReadableStorageTraits + 'static>(
    store: Arc<S>,
    frames: &Frames,
    shards: &[([u64; 2], Vec<u8>)],
) -> Result<()> {
    // No codec is registered, so this is zarrs' own.
    let array = Array::open(store, "/")?;
    if array.shape() != frames.shape() {
        return Err(format!("zarrs reads an array of {:?}", array.shape()).into());
    }
    for epoch in 0..frames.epochs() {
        for ([y, x], elements) in shards {
            let stored: ArrayBytes = array.retrieve_chunk(&[epoch, *y, *x])?;
            if *stored.into_fixed()? != **elements {
                return Err(format!("zarrs reads something else in shard {epoch}/{y}/{x}").into());
            }
        }
    }
    Ok(())
}
