//! What a partial write changes: the subchunks that it touches, decoded, patched, and encoded again
//! as one batch.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};
use zarrs::array::{ArrayBytes, Indexer};
use zarrs_codec::{CodecError, CodecOptions};

use super::delegated;
use super::nested;
use super::reads::{Fetched, Reads};
use crate::codec::foreign::codec_error;
use crate::codec::other;
use crate::codec::selection::Selection;
use crate::codec::sharding::Sharding;
use crate::engine::{Decoded, EncodedSubchunk, EngineError, Job};
use crate::layout::{Entries, Extent, Part, RECORD_LEN, Space, SubchunkGrid};
use crate::plan;

/// A subchunk that a write touches.
pub(super) struct Touched {
    pub(super) number: usize,
    /// Whether all of it is written, so that it need not be read.
    pub(super) whole: bool,
    /// Where it lies, unless it is empty.
    pub(super) extent: Extent,
}

/// A write to part of a shard.
pub(super) struct Update<'a> {
    pub(super) target: &'a Sharding,
    pub(super) grid: &'a SubchunkGrid,
    pub(super) selection: Selection,
    /// The elements that are written, in the order of the indexer.
    pub(super) elements: &'a ArrayBytes<'a>,
    /// In C order.
    pub(super) touched: Vec<Touched>,
}

/// The changed subchunks, encoded.
pub(super) struct Changes {
    /// Room for a record, then encoded subchunks.
    pub(super) bytes: Vec<u8>,
    /// By number: where each lies in `bytes`, unless it is empty now.
    pub(super) subchunks: Vec<(usize, Extent)>,
    /// The numbers of those of which more would be lost than what is written, if overwriting them
    /// were interrupted; by number.
    pub(super) fragile: Vec<usize>,
}

impl<'a> Update<'a> {
    /// The write of `elements` to `indexer`, into a shard with the index `entries`.
    ///
    /// # Errors
    /// A [`CodecError`] if `indexer` does not fit the shard.
    pub(super) fn new(
        target: &'a Sharding,
        entries: Option<&Entries<'_>>,
        indexer: &dyn Indexer,
        elements: &'a ArrayBytes<'a>,
    ) -> Result<Self, CodecError> {
        let grid = &target.grid;
        let selection = Selection::new(grid, indexer)?;
        let touched = selection
            .touched(grid)
            .into_iter()
            .map(|number| Touched {
                number,
                whole: match &selection {
                    Selection::Window { start, shape } => {
                        Part::new(grid, number, start, shape).is_whole()
                    }
                    Selection::Points(_) => false,
                },
                extent: entries.and_then(|entries| entries.get(number)),
            })
            .collect();
        Ok(Self {
            target,
            grid,
            selection,
            elements,
            touched,
        })
    }

    /// What must be read: the subchunks of which a part stays. And whether the metadata justify
    /// their lengths, which they cannot if the inner codecs name no bound.
    ///
    /// # Errors
    /// A [`CodecError`] if one is not as long as its codecs make it.
    pub(super) fn reads(&self) -> Result<(Reads, bool), CodecError> {
        let limit = self.target.subchunk_len()?;
        for touched in self.straddled() {
            if let Some(extent) = &touched.extent {
                limit.check(touched.number, extent.len())?;
            }
        }
        let extents = self.straddled().filter_map(|t| t.extent.as_ref());
        Ok((Reads::of(extents.cloned()), limit.is_bounded()))
    }

    /// Whether some elements of a subchunk stay as they are.
    pub(super) fn is_patched(&self, number: usize) -> bool {
        let place = self
            .touched
            .binary_search_by_key(&number, |touched| touched.number);
        place.is_ok_and(|place| !self.touched[place].whole)
    }

    fn straddled(&self) -> impl Iterator<Item = &Touched> {
        self.touched.iter().filter(|touched| !touched.whole)
    }

    /// Encode what changes. What was read and is written as it was is left out.
    ///
    /// # Errors
    /// A [`CodecError`] if a subchunk cannot be decoded or encoded.
    pub(super) fn encode(
        &self,
        fetched: &Fetched<'_>,
        options: &CodecOptions,
    ) -> Result<Changes, CodecError> {
        let mut changes = if let ArrayBytes::Fixed(elements) = self.elements
            && self.target.delegated().is_none()
        {
            if let Some(inner) = self.target.nested()? {
                nested::encode(self, &inner, elements, fetched, options)?
            } else {
                self.encode_fixed(elements, fetched, options)?
            }
        } else {
            delegated::encode(self, fetched, options)?
        };
        if self.target.has_closed_shards() {
            let straddled = self.straddled().map(|touched| touched.number);
            changes.fragile = straddled.collect();
        }
        let bytes = &changes.bytes;
        let mut touched = self.touched.iter();
        changes.subchunks.retain(|(_, new)| {
            let Some(touched) = touched.next() else {
                return true;
            };
            match (&touched.extent, new) {
                (None, None) => false,
                (Some(old), Some(new)) if !touched.whole => {
                    fetched.get(old) != bytes.get(new.clone())
                }
                _ => true,
            }
        });
        Ok(changes)
    }

    /// Elements of one size, whose subchunks the engines encode.
    fn encode_fixed(
        &self,
        elements: &[u8],
        fetched: &Fetched<'_>,
        options: &CodecOptions,
    ) -> Result<Changes, CodecError> {
        if let Selection::Window { shape, .. } = &self.selection
            && self.touched.iter().all(|touched| touched.whole)
        {
            // The elements are a smaller shard already.
            let to_u64 = |shape: &[usize]| shape.iter().map(|&n| n as u64).collect::<Vec<_>>();
            let (window, subchunk) = (to_u64(shape), to_u64(self.grid.subchunk()));
            let batch = SubchunkGrid::new(&window, &subchunk, self.grid.element_size());
            return self.encode_batch(&batch.map_err(too_large)?, elements, options);
        }
        let batch = self.grid.stacked(self.touched.len()).map_err(too_large)?;
        let mut decoded = Vec::new();
        let len = batch.shard_bytes();
        decoded.try_reserve_exact(len).map_err(|_| {
            CodecError::Other(format!(
                "out of memory: {len} bytes for the {} subchunks that a partial write touches",
                self.touched.len()
            ))
        })?;
        decoded.resize(len, 0);
        self.decode_and_patch(&mut decoded, elements, fetched, options)?;
        self.encode_batch(&batch, &decoded, options)
    }

    /// The touched subchunks as they will be, one after the other.
    fn decode_and_patch(
        &self,
        decoded: &mut [u8],
        elements: &[u8],
        fetched: &Fetched<'_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        let subchunks: Vec<Mutex<&mut [u8]>> = decoded
            .chunks_exact_mut(self.grid.subchunk_bytes())
            .map(Mutex::new)
            .collect();
        // By position in the list of what is decoded.
        let mut straddled = Vec::new();
        let mut encoded = Vec::new();
        for (subchunk, touched) in subchunks.iter().zip(&self.touched) {
            if touched.whole {
                continue;
            }
            let bytes = match &touched.extent {
                None => None,
                Some(extent) => Some(fetched.get(extent).ok_or_else(not_read)?),
            };
            straddled.push(subchunk);
            encoded.push(EncodedSubchunk {
                number: touched.number,
                bytes,
            });
        }
        self.target
            .with_job(options, |job| {
                plan::host_engine().decode_each(job, &encoded, &|position, _, decoded| {
                    let mut subchunk = lock(straddled[position]);
                    match decoded {
                        Decoded::Bytes(bytes) => subchunk.copy_from_slice(bytes),
                        Decoded::Fill => fill(&mut subchunk, job.fill_value),
                    }
                    Ok(())
                })
            })
            .map_err(codec_error)?;
        let patch = |(subchunk, touched): (&Mutex<&mut [u8]>, &Touched)| {
            self.patch(touched.number, &mut lock(subchunk), elements);
        };
        // Copying little is done before another thread has begun.
        const WORTH_A_THREAD: usize = 1 << 20;
        if options.concurrent_target() == 1 || elements.len() < WORTH_A_THREAD {
            subchunks.iter().zip(&self.touched).for_each(patch);
        } else {
            subchunks.par_iter().zip(&self.touched).for_each(patch);
        }
        Ok(())
    }

    /// Write the share of subchunk `number` of `elements` to its decoded bytes.
    pub(super) fn patch(&self, number: usize, subchunk: &mut [u8], elements: &[u8]) {
        match &self.selection {
            Selection::Window { start, shape } => {
                let part = Part::new(&self.grid, number, start, shape);
                let len = part.row_len();
                for (to, from) in part.rows(shape) {
                    subchunk[to..to + len].copy_from_slice(&elements[from..from + len]);
                }
            }
            Selection::Points(points) => {
                let size = self.grid.element_size();
                // In the order of the indexer: of those that name one element, the last one counts.
                for point in points.get(&number).into_iter().flatten() {
                    let from = point.position * size;
                    subchunk[point.offset..point.offset + size]
                        .copy_from_slice(&elements[from..from + size]);
                }
            }
        }
    }

    /// Encode the shard `decoded` of `grid`, whose subchunks are those that are touched.
    fn encode_batch(
        &self,
        grid: &SubchunkGrid,
        decoded: &[u8],
        options: &CodecOptions,
    ) -> Result<Changes, CodecError> {
        let engine = self.target.choose_engine_for(grid).map_err(other)?.engine;
        let encoded = self
            .target
            .with_job(options, |job| {
                let job = Job { grid, ..*job };
                engine.encode(&job, decoded, RECORD_LEN, 0)
            })
            .map_err(codec_error)?;
        if encoded.extents.len() != self.touched.len() {
            return Err(codec_error(EngineError::Internal(
                "a batch of other subchunks",
            )));
        }
        let numbers = self.touched.iter().map(|touched| touched.number);
        Ok(Changes {
            subchunks: numbers.zip(encoded.extents).collect(),
            bytes: encoded.bytes,
            fragile: Vec::new(),
        })
    }
}

impl Changes {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; RECORD_LEN],
            subchunks: Vec::new(),
            fragile: Vec::new(),
        }
    }

    /// Add subchunk `number`, with its encoded bytes unless it is empty.
    pub(super) fn push(&mut self, number: usize, encoded: Option<&[u8]>) {
        let extent: Extent = encoded.map(|encoded| {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(encoded);
            start..self.bytes.len()
        });
        self.subchunks.push((number, extent));
    }

    /// All subchunks of a shard with these changes, encoded: the others are as `old` has them, by
    /// number.
    ///
    /// # Errors
    /// Whatever `old` returns.
    pub(super) fn over<'c>(
        &'c self,
        num_subchunks: usize,
        old: impl Fn(usize) -> Result<Option<&'c [u8]>, CodecError>,
    ) -> Result<Vec<Option<&'c [u8]>>, CodecError> {
        let mut changed = self.subchunks.iter().peekable();
        (0..num_subchunks)
            .map(
                |number| match changed.next_if(|(changed, _)| *changed == number) {
                    Some((_, new)) => Ok(new.as_ref().map(|new| self.encoded(new))),
                    None => old(number),
                },
            )
            .collect()
    }

    /// How many bytes the subchunks of a shard use after these changes, if they use `used` before.
    /// `old` is where each lies then.
    pub(super) fn used_after(&self, used: usize, old: impl Fn(usize) -> Extent) -> usize {
        let len = |extent: &Extent| extent.as_ref().map_or(0, ExactSizeIterator::len);
        let added: usize = self.subchunks.iter().map(|(_, new)| len(new)).sum();
        let removed = self.subchunks.iter().map(|(number, _)| len(&old(*number)));
        (used + added).saturating_sub(removed.sum())
    }

    /// Whether every subchunk of a shard is empty after these changes. `space` is of the shard before
    /// them, and `old` is where each subchunk lies then.
    pub(super) fn erase(&self, space: &Space, old: impl Fn(usize) -> Extent) -> bool {
        let erased = self
            .subchunks
            .iter()
            .filter(|(number, _)| old(*number).is_some());
        self.subchunks.iter().all(|(_, new)| new.is_none()) && erased.count() == space.num_stored()
    }

    /// The encoded bytes at `range`.
    pub(super) fn encoded(&self, range: &Range<usize>) -> &[u8] {
        &self.bytes[range.clone()]
    }
}

fn lock<'m, 's>(subchunk: &'m Mutex<&'s mut [u8]>) -> std::sync::MutexGuard<'m, &'s mut [u8]> {
    subchunk.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fill(bytes: &mut [u8], value: &[u8]) {
    for element in bytes.chunks_exact_mut(value.len()) {
        element.copy_from_slice(value);
    }
}

pub(super) fn not_read() -> CodecError {
    codec_error(EngineError::Internal("a subchunk that was not read"))
}

fn too_large(error: impl std::fmt::Display) -> CodecError {
    CodecError::Other(format!("the subchunks of a partial write: {error}"))
}
