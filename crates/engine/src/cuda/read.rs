//! Reads subchunks into the memory of a device.
//!
//! ```text
//! caller's threads      bytes of a file -> slab, or other memory            `ReadSlabs::take`
//!                       encoded subchunk -> frame, content or an error      `prepare`: parse, compare checksums
//! caller's thread, in a lane:
//!     for each batch of subchunks, of any shards
//!         encoded subchunks -> device                     stream `up`; from slabs, or through the ring of the lane
//!         encoded bytes -> slots                          a stream of kernels: split, decompression, checksums
//!         statuses, sizes, verdicts -> pinned             stream `down`
//!         subchunks that failed, by the host -> slots     the same streams
//!         boxes of the slots -> output                    the stream of kernels: place
//! ```
//!
//! Elements are placed only after the host has seen that they are right. Two batches are in flight: the device
//! decompresses one while the host reads the answers of the other. `batch` has the work of one batch, `collect` the
//! copies of its bytes to the device, `in_lane` the order of batches, `repair` what the host does about subchunks that
//! fail, `compare` the comparison with the host, `memory` the memory that an output owns, and `hand_over` the way to
//! memory of an application.

mod batch;
#[allow(unsafe_code)]
mod collect;
mod compare;
#[allow(unsafe_code)]
mod hand_over;
#[allow(unsafe_code)]
mod in_lane;
#[allow(unsafe_code)]
mod memory;
#[allow(unsafe_code)]
mod repair;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use super::check_progress::Work;
use super::compressed_frame_parts::{self, CompressedFrameLayout, FrameParser, ParsedFrame};
use super::eligible::check_elements;
use super::engine::CudaEngine;
use super::kernels::place::PlaceLayout;
use super::lanes::ReadSlabs;
use super::sizing::ShardKind;
use crate::contract::{
    BoxToPlace, Chain, DeviceArray, EncodedBytes, EngineError, KnownChain, ShardJob,
};
use crate::layout::{SubchunkGrid, strides_in};
use crate::subchunk::scratch::Scratch;
use crate::subchunk::stages;
pub use hand_over::HandOver;
use in_lane::{ReadOutcome, Reading};
pub use memory::DeviceBuffer;

/// The most subchunks that wait for the first frame, which says how the lane's memory is divided.
const WAITING: usize = 64;

/// Reads subchunks of one grid and chain into the memory of one device.
#[derive(Clone, Debug)]
pub struct CudaReads {
    engine: CudaEngine,
    /// The number of the device.
    device: usize,
    grid: SubchunkGrid,
    chain: KnownChain,
    /// Whether the device decompresses frames. The host decodes the subchunks otherwise, and copies the elements.
    decompresses: bool,
}

/// A subchunk whose bytes were parsed, and its boxes.
#[derive(Debug)]
pub struct SubchunkToPlace {
    /// A number by which the caller knows the subchunk.
    tag: usize,
    /// The number of the subchunk in its shard, for errors.
    number: usize,
    content: Content,
    boxes: Vec<BoxToPlace>,
}

/// The content of a subchunk, as a lane gets it.
#[derive(Debug)]
enum Content {
    /// Nothing: every element is the fill value.
    Fill,
    /// A frame, which the device decompresses.
    Frame(ParsedFrame, EncodedBytes),
    /// Encoded bytes that begin with the elements, in the order of the chain.
    Plain(EncodedBytes),
    /// The elements in the order of the chain, which the host has decoded from the encoded bytes.
    Decoded(Vec<u8>, EncodedBytes),
}

impl Content {
    /// Returns the encoded bytes; `None` for the fill value.
    fn encoded(&self) -> Option<&[u8]> {
        match self {
            Self::Fill => None,
            Self::Frame(_, bytes) | Self::Plain(bytes) | Self::Decoded(_, bytes) => {
                Some(bytes.get())
            }
        }
    }
}

/// The answer to the question for the next subchunk.
#[derive(Debug)]
pub enum Next {
    Subchunk(Box<SubchunkToPlace>),
    /// There is none yet.
    NotYet,
    /// There are no more.
    End,
}

impl CudaEngine {
    /// Prepares the engine to read subchunks of `grid` and `chain` into the memory of the device with the number
    /// `device`. The device decompresses only if the [compressors](super::Compressors) of the engine allow it.
    ///
    /// # Errors
    /// The device is not usable now, or cannot place these elements. The error has the reason.
    pub fn reads(
        mut self,
        device: usize,
        grid: &SubchunkGrid,
        chain: &KnownChain,
    ) -> Result<CudaReads, EngineError> {
        self.limits.devices = Some(vec![device]);
        self.devices.check_usable(&self.limits)?;
        check_elements(grid, chain).map_err(EngineError::Unsuitable)?;
        let decompresses = self.compressors.decode
            && !chain.is_fixed_size()
            && compressed_frame_parts::suits(chain).is_ok();
        Ok(CudaReads {
            engine: self,
            device,
            grid: grid.clone(),
            chain: chain.clone(),
            decompresses,
        })
    }
}

impl CudaReads {
    /// Returns the number of the device.
    pub fn device(&self) -> usize {
        self.device
    }

    /// Returns whether the device decompresses frames.
    pub fn decompresses(&self) -> bool {
        self.decompresses
    }

    /// Begins a read, and returns the page-locked memory into which the caller reads encoded bytes; `None` if the host
    /// decodes them. The caller holds no lane, and keeps no thread waiting: the driver may block.
    ///
    /// # Errors
    /// The device is not usable.
    pub fn slabs(&self) -> Result<Option<ReadSlabs>, EngineError> {
        if !self.decompresses && !self.chain.is_fixed_size() {
            return Ok(None);
        }
        let (devices, limits) = (&self.engine.devices, &self.engine.limits);
        Ok(devices.slabs_of_read(self.device, limits)?)
    }

    /// Counts encoded bytes that the caller has copied on their way to the device.
    pub fn copied_by_caller(&self, bytes: usize) {
        self.engine.devices.counters.copied_for_read(bytes);
    }

    /// Returns a subchunk whose elements are the fill value.
    pub fn fill(tag: usize, boxes: Vec<BoxToPlace>) -> SubchunkToPlace {
        SubchunkToPlace {
            tag,
            number: 0,
            content: Content::Fill,
            boxes,
        }
    }

    /// Prepares a subchunk: parses its frame, compares the checksums behind the frame, and decodes the subchunk here
    /// if the device cannot. Any number of threads may call this at once.
    ///
    /// # Errors
    /// The error of the host about the encoded bytes; [`EngineError::OutOfMemory`].
    pub fn prepare(
        &self,
        (tag, number): (usize, usize),
        bytes: EncodedBytes,
        boxes: Vec<BoxToPlace>,
        validate_checksums: bool,
    ) -> Result<SubchunkToPlace, EngineError> {
        let content = self.content(number, bytes, validate_checksums)?;
        Ok(SubchunkToPlace {
            tag,
            number,
            content,
            boxes,
        })
    }

    fn content(
        &self,
        number: usize,
        bytes: EncodedBytes,
        validate: bool,
    ) -> Result<Content, EngineError> {
        if self.chain.is_fixed_size() {
            let expected = self.grid.subchunk_bytes();
            stages::decode_fixed_size(&self.chain, number, bytes.get(), expected, validate)?;
            return Ok(Content::Plain(bytes));
        }
        if self.decompresses {
            let parser = FrameParser::new(&self.grid, &self.chain, validate);
            if let Ok(frame) = parser.and_then(|parser| parser.parse(number, bytes.get())) {
                return Ok(Content::Frame(frame, bytes));
            }
            // The host has the last word on the data.
        }
        let decoded = self.decode(number, bytes.get(), validate)?;
        Ok(Content::Decoded(decoded, bytes))
    }

    /// Counts a subchunk that the caller has decoded.
    pub fn decoded_by_caller(&self) {
        self.engine.devices.counters.read_on_host();
    }

    /// Decodes a subchunk on this thread. Returns its elements in the order of the chain.
    fn decode(
        &self,
        number: usize,
        encoded: &[u8],
        validate: bool,
    ) -> Result<Vec<u8>, EngineError> {
        let bytes = self.grid.subchunk_bytes();
        let mut stored = Vec::new();
        let what = "a decoded subchunk";
        stored
            .try_reserve_exact(bytes)
            .map_err(|_| EngineError::OutOfMemory { what, bytes })?;
        stored.resize(bytes, 0);
        let mut scratch = Scratch::take();
        let buffers = &mut *scratch;
        let (stages, contexts) = (&mut buffers.stages, &mut buffers.contexts);
        stages::decode(
            &self.chain,
            number,
            encoded,
            &mut stored,
            validate,
            stages,
            contexts,
        )?;
        self.engine.devices.counters.read_on_host();
        Ok(stored)
    }

    /// Reads the subchunks that `next` returns, until it returns [`Next::End`], and places their boxes in `output`. No
    /// two boxes overlap. When this function returns, all elements are in their places. `next` is told whether to wait
    /// for a subchunk. No lane is held while it waits, because the threads that prepare subchunks may need one.
    ///
    /// `damaged` is told of a subchunk, by its tag, that neither the device nor the host can decode. If it returns
    /// `Ok`, the subchunk's elements become the fill value.
    ///
    /// # Errors
    /// The first error of `damaged`, and errors of the device. Some boxes may have been placed.
    ///
    /// # Safety
    /// The memory of `output` belongs to the device, and nothing else uses it during the call. The boxes of all
    /// subchunks lie within the memory.
    pub unsafe fn read(
        &self,
        job: &ShardJob<'_>,
        output: &DeviceArray,
        next: &mut dyn FnMut(bool) -> Next,
        damaged: &mut dyn FnMut(usize, EngineError) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let job = &ShardJob {
            grid: &self.grid,
            chain: Chain::Known(&self.chain),
            ..*job
        };
        let (mut waiting, mut refused) = (VecDeque::new(), Vec::new());
        loop {
            // A lane is for frames of one layout.
            let layout = self.next_layout(next, &mut waiting);
            if waiting.is_empty() {
                return Ok(());
            }
            if layout.is_some_and(|layout| refused.contains(&layout)) {
                waiting = self.by_host(waiting, &refused, job, damaged)?;
                continue;
            }
            let kind = match self.kind(layout) {
                Ok(kind) => kind,
                // There is no nvCOMP, or it does not take such frames.
                Err(EngineError::Unsuitable(reason)) if layout.is_some() => {
                    self.engine.devices.counters.fell_back(&reason);
                    refused.extend(layout);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let source = RefCell::new((&mut waiting, &mut *next, &mut *damaged));
            let shard = Some((Work::Read, job));
            let (outcome, _) = self.engine.in_lane_of_device(&kind, shard, |session| {
                let (waiting, next, damaged) = &mut *source.borrow_mut();
                let mut next = || match waiting.pop_front() {
                    Some(subchunk) => Next::Subchunk(Box::new(subchunk)),
                    None => next(false),
                };
                // SAFETY: the caller of this function keeps the requirements.
                let reading = unsafe { Reading::new(self, session, (job, &kind), output)? };
                reading.run(&mut next, *damaged)
            })?;
            match outcome {
                ReadOutcome::End => return Ok(()),
                ReadOutcome::NotYet => {}
                ReadOutcome::OtherLayout(subchunk) => waiting.push_front(*subchunk),
            }
        }
    }

    /// Returns the kind of lanes that decompress frames of the layout `layout`, or nothing.
    fn kind(&self, layout: Option<CompressedFrameLayout>) -> Result<Arc<ShardKind>, EngineError> {
        let chain = KnownChain {
            stages: layout.map_or(Vec::new(), |_| self.chain.stages.clone()),
            ..self.chain.clone()
        };
        self.engine.reading_kind(&self.grid, &chain, layout)
    }

    /// Returns the subchunks `waiting`. The host decodes those whose frames have a layout of `refused`.
    fn by_host(
        &self,
        waiting: VecDeque<SubchunkToPlace>,
        refused: &[CompressedFrameLayout],
        job: &ShardJob<'_>,
        damaged: &mut dyn FnMut(usize, EngineError) -> Result<(), EngineError>,
    ) -> Result<VecDeque<SubchunkToPlace>, EngineError> {
        let decode = |mut subchunk: SubchunkToPlace| {
            subchunk.content = match subchunk.content {
                Content::Frame(frame, bytes) if refused.contains(&frame.layout) => {
                    let validate = job.validate_checksums;
                    match self.decode(subchunk.number, bytes.get(), validate) {
                        Ok(elements) => Content::Decoded(elements, bytes),
                        Err(error @ EngineError::OutOfMemory { .. }) => return Err(error),
                        Err(error) => {
                            damaged(subchunk.tag, error)?;
                            Content::Fill
                        }
                    }
                }
                content => content,
            };
            Ok(subchunk)
        };
        waiting.into_iter().map(decode).collect()
    }

    /// Returns the layout of the next frames; `None` if a lane decompresses nothing for the next subchunks. Waits for a
    /// subchunk, and moves the next ones to `waiting`, which stays empty if there is none left.
    fn next_layout(
        &self,
        next: &mut dyn FnMut(bool) -> Next,
        waiting: &mut VecDeque<SubchunkToPlace>,
    ) -> Option<CompressedFrameLayout> {
        let layout_of = |subchunk: &SubchunkToPlace| match &subchunk.content {
            Content::Frame(frame, _) => Some(frame.layout),
            _ => None,
        };
        let mut found = waiting.iter().find_map(layout_of);
        let most = if self.decompresses { WAITING } else { 1 };
        while found.is_none() && waiting.len() < most {
            match next(waiting.is_empty()) {
                Next::Subchunk(subchunk) => {
                    found = layout_of(&subchunk);
                    waiting.push_back(*subchunk);
                }
                Next::NotYet | Next::End => break,
            }
        }
        found
    }

    /// Returns how elements lie in slots `slot_stride` bytes apart, and in an array with the strides `array`.
    fn layout(&self, slot_stride: usize, array: &[usize]) -> PlaceLayout {
        let element_size = self.grid.element_size();
        let slot_strides = strides_in(&self.chain.order, self.grid.subchunk(), element_size);
        PlaceLayout {
            element_size,
            swap: self.chain.swap,
            slot_stride,
            slot_strides,
            array_strides: array.to_vec(),
        }
    }
}
