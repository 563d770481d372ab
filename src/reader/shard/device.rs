//! Subchunks that are given to a device.

use super::errors::{damage, failed};
use super::windows::WantedSubchunk;
use super::{Attempt, lock};
use crate::plan::{DeviceReads, ReadySubchunk, host_engine};
use crate::reader::ReaderError;
use crate::reader::device::DeviceSink;
use crate::reader::error::Damage;
use crate::reader::source::{ShardSource, SubchunkBytes};
use crate::reader::threads::decoding;
use crate::shard::error::engine_is_about_stored_bytes;
use zarrs_cuda_engine::contract::{
    BoxToPlace, DecodedSubchunk, EncodedBytes, EncodedSubchunk, EngineError,
};

impl<S: ShardSource> Attempt<'_, S> {
    fn boxes(&self, sink: &DeviceSink<'_>, touched: WantedSubchunk<'_>) -> Vec<BoxToPlace> {
        let parts = &self.shard.wanted.parts;
        let parts = touched.windows().filter_map(|window| parts.get(window));
        sink.boxes(&self.shard.sharding, touched.number(), parts)
    }

    /// Holds subchunks, each with the number of its wanted elements, until the attempt has succeeded. They stay together,
    /// so that bytes which lie together are copied together.
    fn hold(&self, subchunks: impl IntoIterator<Item = (ReadySubchunk, usize)>) {
        lock(&self.held).extend(subchunks);
    }

    /// Lets the device write the fill value to all wanted elements of `touched`.
    pub(super) fn fill_on_device(&self, sink: &DeviceSink<'_>, touched: WantedSubchunk<'_>) {
        let tag = sink.tag(&self.shard.key, touched.number());
        let boxes = self.boxes(sink, touched);
        let elements = count(&boxes);
        self.hold([(DeviceReads::fill(tag, boxes), elements)]);
    }

    /// Gives the subchunks that were held to the device. The attempt has succeeded.
    ///
    /// # Errors
    /// The device has failed, or some wanted elements are missing.
    pub(super) fn send_held(&self, sink: &DeviceSink<'_>) -> Result<(), ReaderError> {
        let held = std::mem::take(&mut *lock(&self.held));
        let wanted = self.shard.wanted.elements();
        if held.iter().map(|(_, elements)| elements).sum::<usize>() != wanted {
            let missing = EngineError::Internal("a subchunk was not prepared for a device");
            return Err(damage(self.shard, None, missing));
        }
        sink.send(held.into_iter().map(|(subchunk, _)| subchunk))
    }

    /// Prepares the encoded `subchunks` for the device, or their elements if the host decodes them.
    pub(super) fn prepare<'p>(
        &self,
        sink: &DeviceSink<'_>,
        subchunks: impl IntoIterator<Item = (WantedSubchunk<'p>, SubchunkBytes<'p>)>,
    ) -> Result<(), ReaderError> {
        let validate = self.call.settings.codec_options.validate_checksums();
        let mut all = Vec::new();
        for (touched, bytes) in subchunks {
            let number = touched.number();
            let tag = sink.tag(&self.shard.key, number);
            let boxes = self.boxes(sink, touched);
            let wanted = count(&boxes);
            let ready = decoding(|| {
                let bytes = match bytes {
                    bytes if sink.reads().is_foreign() => {
                        EncodedBytes::new(self.elements(number, bytes.get())?)
                    }
                    SubchunkBytes::Kept(bytes) => bytes,
                    SubchunkBytes::Borrowed(bytes) => {
                        sink.reads().copied_by_caller(bytes.len());
                        EncodedBytes::new(copied(bytes)?)
                    }
                };
                let tag = (tag, number);
                sink.reads().prepare(tag, bytes, boxes, validate)
            });
            match ready {
                Ok(ready) => all.push((ready, wanted)),
                Err(error)
                    if self.call.settings.fill_damaged && engine_is_about_stored_bytes(&error) =>
                {
                    let damage = Damage::new(self.shard.key.clone(), Some(number), error);
                    lock(&self.damaged).push(damage);
                    self.fill_on_device(sink, touched);
                }
                Err(error) => return Err(failed(self.shard, Some(number), error)),
            }
        }
        self.hold(all);
        Ok(())
    }

    /// Decodes a subchunk by zarrs' codecs. Returns its elements in C order.
    fn elements(&self, number: usize, bytes: &[u8]) -> Result<Vec<u8>, EngineError> {
        let options = self.call.settings.codec_options.with_concurrent_target(1);
        let sharding = &self.shard.sharding;
        let elements = std::sync::Mutex::new(Vec::new());
        sharding.with_job(&options, |job| {
            let subchunk = EncodedSubchunk {
                number,
                bytes: Some(bytes),
            };
            host_engine().decode_each(job, &[subchunk], &|_, decoded| {
                let mut elements = lock(&elements);
                match decoded {
                    DecodedSubchunk::Bytes(bytes) => *elements = copied(bytes)?,
                    DecodedSubchunk::Fill => {
                        let count = sharding.grid.subchunk_bytes() / job.fill_value.len().max(1);
                        *elements = job.fill_value.repeat(count);
                    }
                }
                Ok(())
            })
        })?;
        Ok(std::mem::take(&mut *lock(&elements)))
    }
}

/// Returns the number of elements of `boxes`.
fn count(boxes: &[BoxToPlace]) -> usize {
    let of_each = boxes.iter();
    of_each
        .map(|placed| placed.shape.iter().product::<usize>())
        .sum()
}

/// Returns a copy of `bytes`, which are in a buffer that is used again, or among others.
fn copied(bytes: &[u8]) -> Result<Vec<u8>, EngineError> {
    let mut copy = Vec::new();
    let reserved = copy.try_reserve_exact(bytes.len());
    let what = "a subchunk for a device";
    let bytes_wanted = bytes.len();
    reserved.map_err(|_| EngineError::OutOfMemory {
        what,
        bytes: bytes_wanted,
    })?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}
