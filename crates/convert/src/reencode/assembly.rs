//! A shard of the output that is put together from parts, so that it is never in memory as a whole.
//!
//! Each part is encoded like a shard. Its subchunks are appended to those of earlier parts, and the index of
//! the shard comes last. If parts are runs of subchunks in C order, the shard has the same bytes as one that
//! is encoded as a whole.

use std::io::{self, Write};
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;

use zarrs::array::codec::ShardingIndexLocation;
use zarrs::array::{ArrayBytes, ArraySubset};
use zarrs::storage::StoreKey;
use zarrs_codec::{ArrayToBytesCodecTraits, CodecOptions, update_array_bytes};
use zarrs_cuda::maintenance::ShardFormat;

use super::arrays::OutputArray;
use crate::failure::Failure;
use crate::open::Place;
use crate::shapes::{edges, volume};
use crate::shard_file::{ShardFile, first_byte};
use crate::shared_run::PlanWatch;

/// A shard to which encoded parts are appended.
pub(super) struct Assembly<'a> {
    output: &'a OutputArray,
    place: &'a Place,
    key: StoreKey,
    /// The elements of the shard, up to the end of the array.
    region: ArraySubset,
    format: ShardFormat,
    subchunk: Vec<u64>,
    /// The number of subchunks in a shard along each axis.
    counts: Vec<u64>,
    /// The extents of the subchunks in C order; `None` for empty ones.
    extents: Vec<Option<Range<u64>>>,
    /// The position behind the last subchunk, at which the next one will lie.
    end: u64,
    options: CodecOptions,
    sink: Option<Sink>,
    /// The watch of the plan of a run in parts, in which a shard that is there stays.
    watch: Option<Arc<PlanWatch>>,
}

/// The destination of the shard's bytes. It is made when there are bytes.
enum Sink {
    File(ShardFile),
    Memory(Vec<u8>),
}

impl<'a> Assembly<'a> {
    pub(super) fn new(
        output: &'a OutputArray,
        place: &'a Place,
        subchunk: &[NonZeroU64],
        indices: &[u64],
        region: ArraySubset,
        options: CodecOptions,
    ) -> Result<Self, Failure> {
        let key = output.chunk_key(indices);
        let doing = writing(&key, place);
        let format = ShardFormat::of(output, indices).map_err(Failure::to(&doing))?;
        let subchunk = edges(subchunk);
        let axes = format.shape().iter().zip(&subchunk);
        let counts: Vec<_> = axes
            .map(|(shard, subchunk)| shard.get() / subchunk)
            .collect();
        let subchunks = counts.iter().try_fold(1_usize, |product, count| {
            product.checked_mul(usize::try_from(*count).ok()?)
        });
        let mut extents = Vec::new();
        subchunks
            .and_then(|subchunks| {
                extents
                    .try_reserve_exact(subchunks)
                    .ok()
                    .map(|()| subchunks)
            })
            .map(|subchunks| extents.resize(subchunks, None))
            .ok_or_else(|| Failure::to(&doing)("there is no memory for its index"))?;
        let end = first_byte(&format);
        Ok(Self {
            output,
            place,
            key,
            region,
            format,
            subchunk,
            counts,
            extents,
            end,
            options,
            sink: None,
            watch: None,
        })
    }

    /// Lets a shard that is there stay, in a run in parts, whose plan has this `watch`.
    pub(super) fn that_creates(mut self, watch: Option<Arc<PlanWatch>>) -> Self {
        self.watch = watch;
        self
    }

    /// Encodes and adds `part`, a box of the array that consists of subchunks of this shard. `bytes` are its
    /// elements.
    pub(super) fn add(&mut self, part: &ArraySubset, bytes: ArrayBytes<'_>) -> Result<(), Failure> {
        let doing = writing(&self.key, self.place);
        let (data_type, fill_value) = (self.output.data_type(), self.output.fill_value());
        let within = part.relative_to(self.region.start());
        let within = within.map_err(Failure::to(&doing))?;
        let padded = within.shape().iter().zip(&self.subchunk);
        let padded: Vec<_> = padded
            .map(|(extent, subchunk)| extent.div_ceil(*subchunk).saturating_mul(*subchunk))
            .collect();
        let bytes = filled_up(bytes, within.shape(), &padded, self.output);
        let bytes = bytes.map_err(Failure::to(&doing))?;
        let shape: Vec<_> = padded.iter().filter_map(|e| NonZeroU64::new(*e)).collect();
        let codec = self.format.codec().clone();
        let small = ShardFormat::new(codec, shape, data_type.clone(), fill_value.clone());
        let small = small.map_err(Failure::to(&doing))?;
        let encoded = small
            .codec()
            .encode(bytes, small.shape(), data_type, fill_value, &self.options)
            .map_err(Failure::to(&doing))?;
        let size = encoded.len() as u64;
        let index = small.index_range(size);
        let index = index.and_then(|range| slice(&encoded, &range));
        let index = index.ok_or_else(|| Failure::to(&doing)("a part has no index"))?;
        let extents = small.decode_index(index, size);
        let extents = extents.map_err(Failure::to(&doing))?;

        let first = within.start().iter().zip(&self.subchunk);
        let first: Vec<_> = first.map(|(start, subchunk)| start / subchunk).collect();
        let counts = padded.iter().zip(&self.subchunk);
        let counts = ArraySubset::new_with_shape(counts.map(|(p, s)| p / s).collect());
        // Write subchunks that follow one another in one call.
        let mut run = 0..0;
        for (indices, extent) in counts.indices().into_iter().zip(extents) {
            let Some(extent) = extent else {
                continue;
            };
            let len = extent.end - extent.start;
            let number = indices.iter().zip(&first).zip(&self.counts);
            let number = number.fold(0, |number: u64, ((index, first), count)| {
                number.saturating_mul(*count).saturating_add(index + first)
            });
            let number = usize::try_from(number).unwrap_or(usize::MAX);
            let slot = self.extents.get_mut(number);
            let slot = slot.ok_or_else(|| Failure::to(&doing)("a part is outside of it"))?;
            *slot = Some(self.end..self.end + len);
            self.end += len;
            if run.end == extent.start {
                run.end = extent.end;
            } else {
                self.append(&encoded, &run)?;
                run = extent;
            }
        }
        self.append(&encoded, &run)
    }

    /// Appends the bytes `run` of the encoded part `encoded` to the shard.
    fn append(&mut self, encoded: &[u8], run: &Range<u64>) -> Result<(), Failure> {
        if run.is_empty() {
            return Ok(());
        }
        let doing = writing(&self.key, self.place);
        let bytes = slice(encoded, run);
        let bytes =
            bytes.ok_or_else(|| Failure::to(&doing)("a subchunk is outside of its part"))?;
        let sink = match self.sink.take() {
            Some(sink) => sink,
            None => Sink::new(self.place, &self.key, &self.format).map_err(Failure::to(&doing))?,
        };
        let sink = self.sink.insert(sink);
        sink.append(bytes).map_err(Failure::to(&doing))
    }

    /// Stores the shard, unless all of its subchunks are empty.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        let doing = writing(&self.key, self.place);
        let Some(sink) = self.sink.take() else {
            // An earlier run may have stored this shard, from chunks that the input had then.
            let erased = self.output.storage().erase(&self.key);
            return erased.map_err(Failure::to(&doing));
        };
        let index = self.format.encode_index(&self.extents);
        let index = index.map_err(Failure::to(&doing))?;
        let is_first = self.format.index_location() == ShardingIndexLocation::Start;
        match (sink, self.watch.take()) {
            (Sink::File(shard), Some(watch)) => watch
                .create_shard(shard, &index)
                .map_err(Failure::to(&doing)),
            (Sink::File(shard), None) => shard.finish(&index, true).map_err(Failure::to(&doing)),
            (Sink::Memory(mut bytes), _) => {
                match bytes.get_mut(..index.len()) {
                    Some(room) if is_first => room.copy_from_slice(&index),
                    _ => bytes.extend_from_slice(&index),
                }
                let stored = self.output.storage().set(&self.key, bytes.into());
                stored.map_err(Failure::to(&doing))
            }
        }
    }
}

impl Sink {
    fn new(place: &Place, key: &StoreKey, format: &ShardFormat) -> io::Result<Self> {
        Ok(match place {
            Place::Directory(root) => {
                Self::File(ShardFile::create(root.join(key.as_str()), format)?)
            }
            Place::Url(_) => {
                let room = usize::try_from(first_byte(format)).map_err(io::Error::other)?;
                Self::Memory(vec![0; room])
            }
        })
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::File(shard) => shard.file().write_all(bytes),
            Self::Memory(all) => {
                all.try_reserve(bytes.len()).map_err(io::Error::other)?;
                all.extend_from_slice(bytes);
                Ok(())
            }
        }
    }
}

/// Returns the elements of a box of the shape `shape` within a box of the shape `padded`, whose other elements are the
/// fill value of `output`.
pub(super) fn filled_up<'a>(
    bytes: ArrayBytes<'a>,
    shape: &[u64],
    padded: &[u64],
    output: &OutputArray,
) -> Result<ArrayBytes<'a>, String> {
    if padded == shape {
        return Ok(bytes);
    }
    let (data_type, fill_value) = (output.data_type(), output.fill_value());
    let elements = volume(padded);
    let filled = ArrayBytes::new_fill_value(data_type, elements, fill_value);
    let filled = filled.map_err(|error| error.to_string())?;
    let region = ArraySubset::new_with_shape(shape.to_vec());
    let filled = update_array_bytes(filled, padded, &region, &bytes, data_type.size());
    filled.map_err(|error| error.to_string())
}

fn slice<'a>(bytes: &'a [u8], range: &Range<u64>) -> Option<&'a [u8]> {
    let [start, end] = [range.start, range.end].map(usize::try_from);
    bytes.get(start.ok()?..end.ok()?)
}

/// Returns the words for writing a shard, for an error.
fn writing(key: &StoreKey, place: &Place) -> String {
    format!("write the shard {key} of {place}")
}
