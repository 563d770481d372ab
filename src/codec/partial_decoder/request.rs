//! What part of a shard is wanted, which subchunks have it, and how each is read.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use zarrs::array::{
    ArrayBytes, ArrayBytesRaw, ArrayIndices, ArraySubset, BytesRepresentation, Indexer,
    IndexerError,
};
use zarrs_codec::{
    ArrayBytesDecodeIntoTarget, ArrayToBytesCodecTraits, CodecError, CodecOptions, CodecTraits,
    decode_into_array_bytes_target,
};
use zarrs_storage::byte_range::ByteRange;

use crate::codec::CudaShardingCodec;
use crate::codec::foreign::codec_error;
use crate::codec::shard::Shard;
use crate::codec::view::ViewOfShard;
use crate::engine::host::Window;
use crate::engine::{Decoded, EncodedSubchunk, EngineError};
use crate::layout::{Extent, Part, SubchunkGrid};
use crate::plan;

/// The elements that are wanted.
enum Selection {
    /// A box of the shard, in C order.
    Window {
        start: Vec<usize>,
        shape: Vec<usize>,
    },
    /// Single elements, in any order, by subchunk.
    Points(BTreeMap<usize, Vec<Point>>),
}

/// One wanted element.
struct Point {
    /// Its coordinates in the subchunk.
    within: Vec<u64>,
    /// Its offset in the decoded subchunk, in bytes.
    offset: usize,
    /// Its position among the wanted elements.
    position: usize,
}

/// How a touched subchunk is read.
struct Touched {
    number: usize,
    extent: Extent,
    /// Read and decode all of it, rather than leave it to the inner codecs' partial decoder.
    whole: bool,
}

/// A request for part of a shard.
pub(super) struct Request<'a> {
    codec: &'a CudaShardingCodec,
    shard: &'a Shard<'a>,
    selection: Selection,
    /// In C order.
    touched: Vec<Touched>,
    num_elements: usize,
}

/// What the inner codecs' partial decoder is asked for one subchunk.
pub(super) struct InnerReads<'a> {
    pub(super) extent: &'a Range<usize>,
    pub(super) indexer: Box<dyn Indexer>,
}

impl<'a> Request<'a> {
    /// # Errors
    /// A [`CodecError`] if `indexer` has a wrong number of dimensions, or leaves the shard.
    pub(super) fn new(
        codec: &'a CudaShardingCodec,
        shard: &'a Shard<'_>,
        indexer: &dyn Indexer,
    ) -> Result<Self, CodecError> {
        let grid = &shard.grid;
        let dimensions = grid.shard().len();
        if indexer.dimensionality() != dimensions {
            let got = indexer.dimensionality();
            return Err(IndexerError::new_incompatible_dimensionality(got, dimensions).into());
        }
        let selection = match indexer.as_array_subset() {
            Some(subset) => window(grid, &subset.start(), &subset.shape())?,
            None => points(grid, indexer)?,
        };
        let num_elements = usize::try_from(indexer.len())
            .ok()
            .filter(|n| n.checked_mul(grid.element_size()).is_some())
            .ok_or_else(|| CodecError::Other(format!("{} elements are too many", indexer.len())))?;
        Ok(Self {
            codec,
            shard,
            selection,
            touched: Vec::new(),
            num_elements,
        })
    }

    /// Find the subchunks that are touched, in the shard that has them at `extents`.
    ///
    /// # Errors
    /// A [`CodecError`] if one of them is not as long as its codecs make it.
    pub(super) fn in_shard(mut self, extents: &[Extent]) -> Result<Self, CodecError> {
        // A compressed subchunk is decoded whole anyway; a short one costs less to read whole than
        // to read in pieces.
        const SHORT: usize = 64 << 10;
        let inner_reads_parts = if let Ok(chain) = &self.shard.known {
            chain.is_fixed_size()
        } else {
            let capability = self.codec.inner_codecs.partial_decoder_capability();
            capability.partial_read && capability.partial_decode
        };
        let touch = |number: usize, covered: bool| {
            let extent = extents.get(number).cloned().flatten();
            let short = extent.as_ref().is_none_or(|extent| extent.len() <= SHORT);
            Touched {
                number,
                extent,
                whole: covered || short || !inner_reads_parts,
            }
        };
        self.touched = match &self.selection {
            Selection::Window { start, shape } => numbers_in(&self.shard.grid, start, shape)
                .into_iter()
                .map(|number| {
                    let part = Part::new(&self.shard.grid, number, start, shape);
                    touch(number, part.is_whole())
                })
                .collect(),
            Selection::Points(points) => {
                points.keys().map(|&number| touch(number, false)).collect()
            }
        };
        self.check_lengths()?;
        Ok(self)
    }

    /// A decoder of part of a subchunk does not see how long the subchunk is.
    fn check_lengths(&self) -> Result<(), CodecError> {
        let representation = self.codec.inner_codecs.encoded_representation(
            &self.codec.subchunk_shape,
            self.shard.data_type,
            self.shard.fill_value,
        )?;
        let BytesRepresentation::FixedSize(expected) = representation else {
            return Ok(());
        };
        for touched in &self.touched {
            if let Some(extent) = &touched.extent
                && extent.len() as u64 != expected
            {
                return Err(CodecError::Other(format!(
                    "subchunk {} has {} bytes in the shard index, expected {expected}; the shard may be corrupted",
                    touched.number,
                    extent.len()
                )));
            }
        }
        Ok(())
    }

    /// Touched subchunks that exist and are decoded whole.
    fn whole(&self) -> impl Iterator<Item = &Range<usize>> {
        self.touched
            .iter()
            .filter(|touched| touched.whole)
            .filter_map(|touched| touched.extent.as_ref())
    }

    /// Encoded subchunks longer than this are not to be expected.
    pub(super) fn long(&self) -> usize {
        self.shard
            .grid
            .subchunk_bytes()
            .saturating_mul(2)
            .saturating_add(super::LONG)
    }

    /// All touched subchunks that exist.
    pub(super) fn extents_to_check(&self) -> Vec<Extent> {
        self.touched
            .iter()
            .map(|touched| touched.extent.clone())
            .collect()
    }

    /// The bytes of the subchunks that are decoded whole.
    pub(super) fn byte_ranges(&self) -> Vec<ByteRange> {
        self.whole()
            .map(|extent| ByteRange::FromStart(extent.start as u64, Some(extent.len() as u64)))
            .collect()
    }

    /// What is asked of the inner codecs for the other subchunks.
    pub(super) fn inner_reads(&self) -> impl Iterator<Item = InnerReads<'_>> {
        self.touched
            .iter()
            .filter(|touched| !touched.whole)
            .filter_map(|touched| {
                Some(InnerReads {
                    extent: touched.extent.as_ref()?,
                    indexer: self.inner_indexer(touched.number)?,
                })
            })
    }

    fn inner_indexer(&self, number: usize) -> Option<Box<dyn Indexer>> {
        match &self.selection {
            Selection::Window { start, shape } => {
                let part = Part::new(&self.shard.grid, number, start, shape);
                let to_u64 = |v: &[usize]| v.iter().map(|&n| n as u64).collect::<Vec<_>>();
                ArraySubset::new_with_start_shape(
                    to_u64(part.start_in_subchunk()),
                    to_u64(part.shape()),
                )
                .ok()
                .map(|subset| Box::new(subset) as Box<dyn Indexer>)
            }
            Selection::Points(points) => {
                let within: Vec<ArrayIndices> = points
                    .get(&number)?
                    .iter()
                    .map(|point| point.within.clone())
                    .collect();
                Some(Box::new(within))
            }
        }
    }

    /// The subchunks that are decoded whole, with their bytes.
    fn subchunks<'b>(&self, fetched: &'b [ArrayBytesRaw<'_>]) -> Vec<EncodedSubchunk<'b>> {
        let mut fetched = fetched.iter();
        self.touched
            .iter()
            .filter(|touched| touched.whole)
            .map(|touched| EncodedSubchunk {
                number: touched.number,
                bytes: touched
                    .extent
                    .as_ref()
                    .and_then(|_| fetched.next())
                    .map(AsRef::as_ref),
            })
            .collect()
    }

    /// The subchunks that are not decoded whole, with what was read of them.
    fn parts<'b>(&self, inner: &'b [ArrayBytesRaw<'_>]) -> impl Iterator<Item = (usize, &'b [u8])> {
        self.touched
            .iter()
            .filter(|touched| !touched.whole)
            .map(|touched| touched.number)
            .zip(inner.iter().map(AsRef::as_ref))
    }

    /// The wanted elements: `fetched` are the bytes for [`byte_ranges`](Self::byte_ranges), and
    /// `inner` the elements for [`inner_reads`](Self::inner_reads).
    ///
    /// # Errors
    /// An [`EngineError`] if a subchunk cannot be decoded.
    pub(super) fn decode(
        &self,
        fetched: &[ArrayBytesRaw<'_>],
        inner: &[ArrayBytesRaw<'_>],
        options: &CodecOptions,
    ) -> Result<Vec<u8>, EngineError> {
        let subchunks = self.subchunks(fetched);
        match &self.selection {
            Selection::Window { start, shape } => self.shard.with_job(options, |job| {
                let (start, shape) = (start.clone(), shape.clone());
                let window = Window::new(job.grid, start, shape, job.huge_pages)?;
                plan::host_engine().decode_each(job, &subchunks, &|_, subchunk, decoded| {
                    match decoded {
                        Decoded::Bytes(elements) => window.write(subchunk.number, elements),
                        Decoded::Fill => window.fill(subchunk.number, job.fill_value),
                    }
                })?;
                for (number, elements) in self.parts(inner) {
                    window.write_part(number, elements)?;
                }
                window.finish()
            }),
            Selection::Points(points) => {
                let size = self.shard.grid.element_size();
                let output = Mutex::new(vec![0; self.num_elements * size]);
                let points_of = |number| points.get(&number).into_iter().flatten();
                let put = |output: &mut Vec<u8>, position: usize, element: Option<&[u8]>| {
                    let element = element.filter(|element| element.len() == size);
                    let element = element.ok_or(EngineError::Internal("an element is missing"))?;
                    output[position * size..(position + 1) * size].copy_from_slice(element);
                    Ok(())
                };
                self.shard.with_job(options, |job| {
                    plan::host_engine().decode_each(job, &subchunks, &|_, subchunk, decoded| {
                        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
                        for point in points_of(subchunk.number) {
                            let element = match decoded {
                                Decoded::Bytes(bytes) => {
                                    bytes.get(point.offset..point.offset + size)
                                }
                                Decoded::Fill => Some(job.fill_value),
                            };
                            put(&mut output, point.position, element)?;
                        }
                        Ok(())
                    })
                })?;
                let mut output = output.into_inner().unwrap_or_else(PoisonError::into_inner);
                for (number, elements) in self.parts(inner) {
                    let mut elements = elements.chunks(size);
                    for point in points_of(number) {
                        put(&mut output, point.position, elements.next())?;
                    }
                }
                Ok(output)
            }
        }
    }

    /// As [`decode`](Self::decode), into `target`.
    ///
    /// # Errors
    /// A [`CodecError`] if a subchunk cannot be decoded, or the target is not for such elements.
    pub(super) fn decode_into(
        &self,
        fetched: &[ArrayBytesRaw<'_>],
        inner: &[ArrayBytesRaw<'_>],
        target: ArrayBytesDecodeIntoTarget<'_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        if let Selection::Window { start, shape } = &self.selection
            && let ArrayBytesDecodeIntoTarget::Fixed(view) = &target
            && let Some(output) =
                ViewOfShard::new(view, &self.shard.grid, start.clone(), shape.clone())
        {
            let subchunks = self.subchunks(fetched);
            return self
                .shard
                .with_job(options, |job| {
                    plan::host_engine().decode_each(job, &subchunks, &|_, subchunk, decoded| {
                        output.write(subchunk.number, &decoded, job.fill_value)
                    })?;
                    self.parts(inner)
                        .try_for_each(|(number, elements)| output.write_part(number, elements))
                })
                .map_err(codec_error);
        }
        let decoded = self.decode(fetched, inner, options).map_err(codec_error)?;
        decode_into_array_bytes_target(&ArrayBytes::from(decoded), target)
    }
}

/// A box of the shard.
fn window(grid: &SubchunkGrid, start: &[u64], shape: &[u64]) -> Result<Selection, CodecError> {
    let mut window = (Vec::new(), Vec::new());
    for ((&start, &extent), &shard) in start.iter().zip(shape).zip(grid.shard()) {
        let end = start.checked_add(extent).filter(|&end| end <= shard as u64);
        if end.is_none() && !shape.contains(&0) {
            return Err(out_of_bounds(grid, &[start.saturating_add(extent)]));
        }
        // Both are at most the shard's extent, or nothing is wanted at all.
        window
            .0
            .push(usize::try_from(start).unwrap_or(0).min(shard));
        window.1.push(usize::try_from(extent).unwrap_or(0));
    }
    Ok(Selection::Window {
        start: window.0,
        shape: window.1,
    })
}

/// Single elements, by subchunk.
fn points(grid: &SubchunkGrid, indexer: &dyn Indexer) -> Result<Selection, CodecError> {
    let mut points: BTreeMap<usize, Vec<Point>> = BTreeMap::new();
    for (position, indices) in indexer.iter_indices().enumerate() {
        let inside = indices.len() == grid.shard().len()
            && std::iter::zip(&indices, grid.shard()).all(|(&i, &extent)| i < extent as u64);
        if !inside {
            return Err(out_of_bounds(grid, &indices));
        }
        let mut within = Vec::with_capacity(indices.len());
        let mut coordinates = Vec::with_capacity(indices.len());
        let mut element = 0;
        for (&index, &extent) in indices.iter().zip(grid.subchunk()) {
            // Fits: it is less than the shard's extent.
            let index = usize::try_from(index).unwrap_or(0);
            coordinates.push(index / extent);
            within.push((index % extent) as u64);
            element = element * extent + index % extent;
        }
        points
            .entry(grid.number(coordinates))
            .or_default()
            .push(Point {
                within,
                offset: element * grid.element_size(),
                position,
            });
    }
    Ok(Selection::Points(points))
}

fn out_of_bounds(grid: &SubchunkGrid, indices: &[u64]) -> CodecError {
    let shape = grid.shard().iter().map(|&d| d as u64).collect();
    IndexerError::new_oob(indices.to_vec(), shape).into()
}

/// The numbers of the subchunks that a window meets, in C order.
fn numbers_in(grid: &SubchunkGrid, start: &[usize], shape: &[usize]) -> Vec<usize> {
    if shape.contains(&0) {
        return Vec::new();
    }
    let mut numbers = vec![0];
    for (((start, extent), subchunk), count) in start
        .iter()
        .zip(shape)
        .zip(grid.subchunk())
        .zip(grid.counts())
    {
        let met = start / subchunk..=(start + extent - 1) / subchunk;
        numbers = numbers
            .iter()
            .flat_map(|number| {
                met.clone()
                    .map(move |coordinate| number * count + coordinate)
            })
            .collect();
    }
    numbers
}
