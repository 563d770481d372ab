//! The wanted part of a shard, the subchunks that have wanted elements, and the way in which each is read.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use zarrs::array::{ArrayBytesRaw, Indexer};
use zarrs_codec::{ArrayBytesDecodeIntoTarget, CodecError, CodecOptions, CodecTraits};
use zarrs_storage::byte_range::ByteRange;

use crate::codec::view::ViewOfShard;
use crate::plan;
use crate::shard::error::codec_error;
use crate::shard::selection::{Point, Selection};
use crate::shard::sharding::Sharding;
use zarrs_cuda_engine::contract::{DecodedSubchunk, EncodedSubchunk, EngineError};
use zarrs_cuda_engine::layout::{Entries, Extent, SubchunkPart};
use zarrs_cuda_engine::memory::disjoint::Window;

/// The way in which a subchunk with wanted elements is read.
pub(in crate::codec) struct SubchunkRead {
    number: usize,
    extent: Extent,
    /// Whether the subchunk is read and decoded whole. If not, the partial decoder of the inner codecs reads
    /// it.
    whole: bool,
    /// About how many bytes it takes to read the subchunk.
    cost: usize,
}

/// The destination of the wanted elements. Many threads write it, in any order of subchunks.
pub(in crate::codec) enum PartialReadOutput<'a, 'v> {
    Window(Window<'a>),
    View(ViewOfShard<'a, 'v>),
    Points(Mutex<Vec<u8>>),
}

/// A request for part of a shard.
pub(in crate::codec) struct PartialReadRequest<'a> {
    shards: &'a Sharding,
    selection: Selection,
    /// The subchunks that have wanted elements, in C order.
    touched: Vec<SubchunkRead>,
    /// Whether the metadata bounds the lengths of the touched subchunks.
    is_bounded: bool,
    num_elements: usize,
}

/// The request to the inner codecs' partial decoder for one subchunk.
pub(in crate::codec) struct InnerReads<'a> {
    pub(super) extent: &'a Range<usize>,
    pub(super) indexer: Box<dyn Indexer>,
}

impl<'a> PartialReadRequest<'a> {
    /// Returns a request for the elements that `indexer` names. Its touched subchunks are unknown until
    /// [`in_shard`](Self::in_shard).
    ///
    /// # Errors
    /// A [`CodecError`] if `indexer` has a wrong number of dimensions, or leaves the shard.
    pub(super) fn new(shards: &'a Sharding, indexer: &dyn Indexer) -> Result<Self, CodecError> {
        let grid = &shards.grid;
        let selection = Selection::new(grid, indexer)?;
        let num_elements = usize::try_from(indexer.len())
            .ok()
            .filter(|n| n.checked_mul(grid.element_size()).is_some())
            .ok_or_else(|| CodecError::Other(format!("{} elements are too many", indexer.len())))?;
        Ok(Self {
            shards,
            selection,
            touched: Vec::new(),
            is_bounded: false,
            num_elements,
        })
    }

    /// Finds the touched subchunks, those with wanted elements, in the shard with the index `entries`.
    ///
    /// # Errors
    /// A [`CodecError`] if a touched subchunk is longer than its codecs make it; where its size is fixed, also if
    /// it is shorter.
    pub(super) fn in_shard(mut self, entries: &Entries<'_>) -> Result<Self, CodecError> {
        // A compressed subchunk is decoded whole anyway; a short one costs less to read whole than
        // to read in pieces.
        const SHORT: usize = 64 << 10;
        let inner_reads_parts = if let Ok(chain) = self.shards.known() {
            // A checksum can only be verified over all bytes that it covers, so such a subchunk is not read
            // in parts.
            chain.stages.is_empty()
        } else {
            let capability = self.shards.codec.inner_codecs.partial_decoder_capability();
            capability.partial_read && capability.partial_decode
        };
        let touch = |number: usize, wanted: usize, covered: bool| {
            let extent = entries.get(number);
            let len = extent.as_ref().map_or(0, ExactSizeIterator::len);
            let whole = covered || len <= SHORT || !inner_reads_parts;
            SubchunkRead {
                number,
                extent,
                whole,
                cost: if whole { len } else { wanted + SHORT },
            }
        };
        let grid = &self.shards.grid;
        self.touched = self
            .selection
            .touched(grid)
            .into_iter()
            .map(|number| match &self.selection {
                Selection::Window { start, shape } => {
                    let part = SubchunkPart::new(grid, number, start, shape);
                    touch(number, part.len(), part.is_whole())
                }
                Selection::Points(points) => {
                    let wanted = points.get(&number).map_or(0, Vec::len);
                    touch(number, wanted * grid.element_size(), false)
                }
            })
            .collect();
        self.is_bounded = self.check_lengths()?;
        Ok(self)
    }

    /// Returns whether the metadata bounds the lengths of the touched subchunks. It does not if the inner
    /// codecs name no bound.
    pub(super) fn is_bounded(&self) -> bool {
        self.is_bounded
    }

    /// Checks the lengths of the touched subchunks. Stores allocate the bytes that they are asked to read,
    /// and a decoder of part of a subchunk does not see how long the subchunk is. So lengths that the
    /// metadata does not justify are refused here. Returns whether the metadata bounds the lengths.
    fn check_lengths(&self) -> Result<bool, CodecError> {
        let limit = self.shards.subchunk_len()?;
        for touched in &self.touched {
            if let Some(extent) = &touched.extent {
                limit.check(touched.number, extent.len())?;
            }
        }
        Ok(limit.is_bounded())
    }

    /// Returns the touched subchunks in groups. A group takes at most `cost` bytes to read, or has one
    /// subchunk.
    pub(super) fn groups(&self, cost: usize) -> Vec<&[SubchunkRead]> {
        let mut groups = Vec::new();
        let mut rest = self.touched.as_slice();
        while !rest.is_empty() {
            let mut sum = 0_usize;
            let fit = rest
                .iter()
                .take_while(|touched| {
                    sum = sum.saturating_add(touched.cost);
                    sum <= cost
                })
                .count();
            let (group, others) = rest.split_at(fit.max(1));
            groups.push(group);
            rest = others;
        }
        groups
    }

    /// Returns about how many bytes it takes to read all touched subchunks.
    pub(super) fn cost(&self) -> usize {
        self.touched
            .iter()
            .fold(0, |sum, touched| sum.saturating_add(touched.cost))
    }

    /// Returns the byte ranges of those subchunks of `group` that are read and decoded whole.
    pub(super) fn byte_ranges(group: &[SubchunkRead]) -> Vec<ByteRange> {
        group
            .iter()
            .filter(|touched| touched.whole)
            .filter_map(|touched| touched.extent.as_ref())
            .map(|extent| ByteRange::FromStart(extent.start as u64, Some(extent.len() as u64)))
            .collect()
    }

    /// Returns the requests to the inner codecs' partial decoder for the other subchunks of `group`, which
    /// are not decoded whole.
    pub(super) fn inner_reads<'g>(
        &self,
        group: &'g [SubchunkRead],
    ) -> impl Iterator<Item = InnerReads<'g>> {
        group
            .iter()
            .filter(|touched| !touched.whole)
            .filter_map(|touched| {
                Some(InnerReads {
                    extent: touched.extent.as_ref()?,
                    indexer: self
                        .selection
                        .within(&self.shards.grid, touched.number)
                        .ok()?,
                })
            })
    }

    /// Returns an output with new memory for the wanted elements.
    pub(super) fn output(&self) -> Result<PartialReadOutput<'_, 'static>, CodecError> {
        let huge_pages = self.shards.codec.options.huge_pages();
        Ok(match &self.selection {
            Selection::Window { start, shape } => {
                let (start, shape) = (start.clone(), shape.clone());
                let order = self.shards.order();
                let window = Window::new(&self.shards.grid, &order, start, shape, huge_pages);
                PartialReadOutput::Window(window.map_err(codec_error)?)
            }
            Selection::Points(_) => {
                // The product cannot overflow: `new` checked it.
                let len = self.num_elements * self.shards.grid.element_size();
                let mut elements = Vec::new();
                elements.try_reserve_exact(len).map_err(|_| {
                    codec_error(EngineError::OutOfMemory {
                        what: "elements",
                        bytes: len,
                    })
                })?;
                elements.resize(len, 0);
                PartialReadOutput::Points(Mutex::new(elements))
            }
        })
    }

    /// Returns an output that writes the wanted elements to `target`, or `None` if the layout of `target`
    /// does not allow it.
    pub(super) fn output_into<'t>(
        &'t self,
        target: &'t ArrayBytesDecodeIntoTarget<'_>,
    ) -> Result<Option<PartialReadOutput<'t, 't>>, CodecError> {
        match (&self.selection, target) {
            (Selection::Window { start, shape }, ArrayBytesDecodeIntoTarget::Fixed(view)) => {
                let view = ViewOfShard::new(view, self.shards, start.clone(), shape.clone());
                Ok(view.map_err(codec_error)?.map(PartialReadOutput::View))
            }
            _ => Ok(None),
        }
    }

    /// Writes the wanted elements of `group` to `output`: `fetched` are the bytes for
    /// [`byte_ranges`](Self::byte_ranges), and `inner` the elements for [`inner_reads`](Self::inner_reads).
    pub(super) fn write(
        &self,
        group: &[SubchunkRead],
        fetched: &[ArrayBytesRaw<'_>],
        inner: &[ArrayBytesRaw<'_>],
        output: &PartialReadOutput<'_, '_>,
        options: &CodecOptions,
    ) -> Result<(), EngineError> {
        let mut bytes = fetched.iter();
        let mut subchunks = Vec::new();
        for touched in group.iter().filter(|touched| touched.whole) {
            let bytes = match &touched.extent {
                None => None,
                Some(_) => Some(
                    bytes
                        .next()
                        .ok_or(EngineError::Internal("a store left out a subchunk"))?
                        .as_ref(),
                ),
            };
            subchunks.push(EncodedSubchunk {
                number: touched.number,
                bytes,
            });
        }
        self.shards.with_job(options, |job| {
            let engine = plan::host_engine();
            match output {
                PartialReadOutput::Window(window) => engine.decode_some(job, &subchunks, window),
                PartialReadOutput::View(view) => engine.decode_some(job, &subchunks, view),
                PartialReadOutput::Points(wanted) => {
                    let size = job.grid.element_size();
                    engine.decode_each(job, &subchunks, &|number, decoded| {
                        self.put(wanted, number, |_, point| match decoded {
                            DecodedSubchunk::Bytes(all) => {
                                all.get(point.offset..point.offset + size)
                            }
                            DecodedSubchunk::Fill => Some(job.fill_value),
                        })
                    })
                }
            }
        })?;
        let parts = group.iter().filter(|touched| !touched.whole);
        for (touched, elements) in parts.zip(inner) {
            self.write_part(touched.number, elements, output)?;
        }
        Ok(())
    }

    /// Writes the wanted elements of subchunk `number` to `output`. `elements` has no other elements.
    fn write_part(
        &self,
        number: usize,
        elements: &[u8],
        output: &PartialReadOutput<'_, '_>,
    ) -> Result<(), EngineError> {
        match output {
            PartialReadOutput::Window(window) => window.write_part(number, elements),
            PartialReadOutput::View(view) => view.write_part(number, elements),
            PartialReadOutput::Points(wanted) => {
                let size = self.shards.grid.element_size();
                self.put(wanted, number, |i, _| {
                    elements.get(i * size..(i + 1) * size)
                })
            }
        }
    }

    /// Copies the wanted elements of subchunk `number` to their positions in `wanted`. `element` returns the
    /// bytes of the element with an index and a point.
    fn put<'e>(
        &self,
        wanted: &Mutex<Vec<u8>>,
        number: usize,
        element: impl Fn(usize, &Point) -> Option<&'e [u8]>,
    ) -> Result<(), EngineError> {
        let Selection::Points(points) = &self.selection else {
            return Err(EngineError::Internal("an output for another selection"));
        };
        let size = self.shards.grid.element_size();
        let mut wanted = wanted.lock().unwrap_or_else(PoisonError::into_inner);
        for (i, point) in points.get(&number).into_iter().flatten().enumerate() {
            let element = element(i, point)
                .filter(|element| element.len() == size)
                .ok_or(EngineError::Internal("an element is missing"))?;
            wanted[point.position * size..(point.position + 1) * size].copy_from_slice(element);
        }
        Ok(())
    }
}

impl PartialReadOutput<'_, '_> {
    /// Returns the wanted elements, or no elements if they were written to a view.
    ///
    /// # Errors
    /// An [`EngineError`] if some are missing.
    pub(super) fn finish(self) -> Result<Vec<u8>, EngineError> {
        match self {
            Self::Window(window) => window.finish(),
            Self::View(_) => Ok(Vec::new()),
            Self::Points(wanted) => Ok(wanted.into_inner().unwrap_or_else(PoisonError::into_inner)),
        }
    }
}
