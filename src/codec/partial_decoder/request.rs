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
use crate::store::parts::{PartToRead, PartsToRead, RangeCost};
use zarrs_cuda_engine::contract::{DecodedSubchunk, EncodedSubchunk, EngineError};
use zarrs_cuda_engine::layout::{ByteRows, Entries};
use zarrs_cuda_engine::memory::allocate;
use zarrs_cuda_engine::memory::disjoint::Window;

/// The way in which a subchunk with wanted elements is read.
pub(in crate::codec) struct SubchunkRead {
    number: usize,
    read: Read,
    /// About how many bytes it takes to read the subchunk.
    cost: usize,
}

enum Read {
    /// The subchunk is empty.
    Nothing,
    /// The store reads the subchunk, or rows of it that need no decoding.
    Part(PartToRead),
    /// The partial decoder of the inner codecs reads from the bytes at this range.
    Inner(Range<usize>),
}

impl SubchunkRead {
    fn part(&self) -> Option<&PartToRead> {
        match &self.read {
            Read::Part(part) => Some(part),
            _ => None,
        }
    }

    /// Returns the range of the subchunk in the shard; `None` if the subchunk is empty.
    fn extent(&self) -> Option<&Range<usize>> {
        match &self.read {
            Read::Nothing => None,
            Read::Part(part) => Some(part.extent()),
            Read::Inner(extent) => Some(extent),
        }
    }

    /// Returns whether the subchunk is decoded whole.
    fn is_whole(&self) -> bool {
        match &self.read {
            Read::Nothing => true,
            Read::Part(part) => part.rows().is_none(),
            Read::Inner(_) => false,
        }
    }
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

/// The number of bytes that can be read and decoded while zarrs makes the partial decoder of a subchunk.
const INNER: usize = 64 << 10;

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

    /// Finds the touched subchunks, those with wanted elements, in the shard with the index `entries`. The store
    /// reads ranges at `cost`.
    ///
    /// # Errors
    /// A [`CodecError`] if a touched subchunk is longer than its codecs make it; where its size is fixed, also if
    /// it is shorter.
    pub(super) fn in_shard(
        mut self,
        entries: &Entries<'_>,
        cost: RangeCost,
    ) -> Result<Self, CodecError> {
        let (shards, grid) = (self.shards, &self.shards.grid);
        let is_in_c_order = shards.order().is_sorted();
        let is_plain = shards.is_plain() && is_in_c_order;
        let inner_reads_parts = if let Ok(chain) = shards.known() {
            // A checksum can only be verified over all bytes that it covers, so such a subchunk is not read
            // in parts.
            chain.stages.is_empty()
        } else {
            let capability = shards.codec.inner_codecs.partial_decoder_capability();
            capability.partial_read && capability.partial_decode
        };
        let range = usize::try_from(cost.0).unwrap_or(usize::MAX);
        let read_of = |number: usize| {
            let Some(extent) = entries.get(number) else {
                return (Read::Nothing, 0);
            };
            let len = extent.len();
            let wanted = || self.selection.rows(grid, number);
            if is_plain && len == grid.subchunk_bytes() {
                let part = PartToRead::cheapest(extent, wanted(), cost);
                let ranges = part.rows().map_or(1, |rows| rows.iter().len());
                let cost = part.len().saturating_add(range.saturating_mul(ranges));
                return (Read::Part(part), cost);
            }
            if inner_reads_parts && len > INNER {
                let bytes = len_of(&wanted()).saturating_add(INNER);
                if bytes < len {
                    return (Read::Inner(extent), bytes);
                }
            }
            (Read::Part(PartToRead::whole(extent)), len)
        };
        let numbers = self.selection.touched(grid);
        self.touched = numbers
            .into_iter()
            .map(|number| {
                let (read, cost) = read_of(number);
                SubchunkRead { number, read, cost }
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
            if let Some(extent) = touched.extent() {
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

    /// Returns the ranges of those subchunks of `group` that the inner codecs do not read.
    pub(super) fn extents(group: &[SubchunkRead]) -> Vec<ByteRange> {
        let parts = group.iter().filter_map(SubchunkRead::part);
        parts
            .map(|part| {
                let extent = part.extent();
                ByteRange::FromStart(extent.start as u64, Some(extent.len() as u64))
            })
            .collect()
    }

    /// Returns the bytes to read of those subchunks of `group` that the inner codecs do not read.
    pub(super) fn parts(group: &[SubchunkRead], cost: RangeCost) -> PartsToRead {
        PartsToRead::new(group.iter().filter_map(SubchunkRead::part), cost)
    }

    /// Returns the requests to the inner codecs' partial decoder for the other subchunks of `group`.
    pub(super) fn inner_reads<'g>(
        &self,
        group: &'g [SubchunkRead],
    ) -> impl Iterator<Item = InnerReads<'g>> {
        group.iter().filter_map(|touched| {
            let Read::Inner(extent) = &touched.read else {
                return None;
            };
            Some(InnerReads {
                extent,
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

    /// Writes the wanted elements of `group` to `output`: `fetched` are the bytes for [`parts`](Self::parts), and
    /// `inner` the elements for [`inner_reads`](Self::inner_reads).
    pub(super) fn write(
        &self,
        group: &[SubchunkRead],
        (parts, fetched): (&PartsToRead, &[ArrayBytesRaw<'_>]),
        inner: &[ArrayBytesRaw<'_>],
        output: &PartialReadOutput<'_, '_>,
        options: &CodecOptions,
    ) -> Result<(), EngineError> {
        let bytes_of = |range: Range<u64>| {
            let bytes = parts.bytes_of(fetched, &range);
            bytes.ok_or(EngineError::Internal("a store returned other bytes"))
        };
        let mut subchunks = Vec::new();
        for touched in group.iter().filter(|touched| touched.is_whole()) {
            let extent = touched.extent();
            let bytes = extent.map(|extent| bytes_of(extent.start as u64..extent.end as u64));
            subchunks.push(EncodedSubchunk {
                number: touched.number,
                bytes: bytes.transpose()?,
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
        let mut elements = Vec::new();
        for touched in group {
            let Some(part) = touched.part().filter(|part| part.rows().is_some()) else {
                continue;
            };
            let start = part.extent().start as u64;
            let wanted = self.selection.rows(&self.shards.grid, touched.number);
            let elements = allocate::at_least(&mut elements, len_of(&wanted))?;
            let mut rest = &mut *elements;
            for rows in &wanted {
                for row in rows.iter() {
                    let row = start + row.start as u64..start + row.end as u64;
                    let row = bytes_of(row)?;
                    let (place, others) = rest
                        .split_at_mut_checked(row.len())
                        .ok_or(EngineError::Internal("rows of a subchunk are too long"))?;
                    place.copy_from_slice(row);
                    rest = others;
                }
            }
            self.write_part(touched.number, elements, output)?;
        }
        let is_inner = |touched: &&SubchunkRead| matches!(touched.read, Read::Inner(_));
        for (touched, elements) in group.iter().filter(is_inner).zip(inner) {
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

/// Returns the number of bytes of all rows.
fn len_of(rows: &[ByteRows]) -> usize {
    let lens = rows.iter().map(|rows| rows.row_len() * rows.count());
    lens.fold(0, usize::saturating_add)
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
