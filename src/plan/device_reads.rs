//! Reads subchunks into the memory of a device that the user has asked for.

use std::sync::mpsc::{Receiver, TryRecvError};

use super::consent::{Refusal, Selected};
use super::{Engines, compressors, devices_text, pinned_memory};
use crate::error::Error;
use crate::options::Options;
use zarrs_cuda_engine::contract::{
    BoxToPlace, DeviceArray, EncodedBytes, EngineError, KnownChain, ShardJob,
};
use zarrs_cuda_engine::cuda::{
    CudaReads, DeviceBuffer, HandOver, Next, PinnedSlab, ReadSlabs, SubchunkToPlace, check_decoding,
};
use zarrs_cuda_engine::layout::SubchunkGrid;

/// The reason why there are no reads into the memory of a device.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadsError {
    /// No device was asked for, or another one than the caller names.
    #[error("{0}")]
    NotAsked(String),
    /// A device that was asked for cannot be used.
    #[error("{0}")]
    Unusable(Error),
    /// A device that was asked for hangs, or its context is broken.
    #[error("{0}")]
    Failed(Error),
}

/// Reads subchunks of one kind into the memory of a device.
#[derive(Debug)]
pub(crate) struct DeviceReads {
    reads: CudaReads,
    /// Whether the engines do not know the inner codecs: the caller decodes the subchunks to their elements.
    is_foreign: bool,
}

/// A subchunk that was prepared for a device.
#[derive(Debug)]
pub(crate) struct ReadySubchunk(SubchunkToPlace);

/// The page-locked memory for the encoded bytes of one read, if a device gets them.
#[derive(Debug)]
pub(crate) struct DeviceSlabs(Option<ReadSlabs>);

impl DeviceSlabs {
    /// Returns page-locked memory for `len` encoded bytes; `None` if the device does not get them, or if there is no room
    /// now. Waits for nothing: see [`ReadSlabs::take`].
    pub(crate) fn take(&self, len: usize) -> Option<DeviceSlab> {
        self.0.as_ref()?.take(len).map(DeviceSlab)
    }
}

/// Page-locked memory into which encoded bytes are read.
#[derive(Debug)]
pub(crate) struct DeviceSlab(PinnedSlab);

impl DeviceSlab {
    /// Returns the bytes to fill.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }

    /// Returns the bytes, which are not written any more.
    pub(crate) fn into_bytes(self) -> EncodedBytes {
        EncodedBytes::new(self.0)
    }
}

/// Memory of a device. It is freed some time after it is dropped, when nothing on the device can use it any more.
#[derive(Debug)]
pub(crate) struct DeviceMemory(DeviceBuffer);

impl DeviceMemory {
    /// Returns the number of the device.
    pub(crate) fn device(&self) -> usize {
        self.0.device()
    }

    /// Returns the address of the first byte.
    pub(crate) fn pointer(&self) -> u64 {
        self.0.pointer()
    }

    /// Gives the memory back: see [`DeviceBuffer::release`].
    ///
    /// # Errors
    /// The stream is being captured into a graph, or the driver refuses it.
    ///
    /// # Safety
    /// The requirements of [`DeviceBuffer::release`].
    #[allow(unsafe_code)]
    pub(crate) unsafe fn release(self, stream: u64) -> Result<(), EngineError> {
        // SAFETY: this function has the same requirements, which its caller keeps.
        unsafe { self.0.release(stream) }
    }
}

/// Returns the reason why the host decodes the frames of `chain` for the memory of a device; `None` if the device may.
fn decoded_by_host(
    options: &Options,
    grid: &SubchunkGrid,
    chain: Result<&KnownChain, &str>,
) -> Option<String> {
    let chain = match chain {
        Ok(chain) => chain,
        Err(why) => {
            return Some(format!(
                "the CUDA engine does not know the inner codecs: {why}"
            ));
        }
    };
    if chain.is_fixed_size() {
        return None;
    }
    if options.untrusted_data() {
        return Some("the options say that the data are not trusted".to_string());
    }
    if !options.device_decode() {
        return Some(
            "no device decodes frames of a compressor unless `Options::with_device_decode` says that they are trusted"
                .to_string(),
        );
    }
    check_decoding(grid, chain).err()
}

impl Engines {
    /// Returns the devices that the user has asked for.
    ///
    /// # Errors
    /// The user has asked for none, or a setting cannot be understood.
    fn asked(&self, options: &Options) -> Result<Selected, ReadsError> {
        let consent = self.consent(options);
        consent.devices.clone().map_err(|refusal| match refusal {
            Refusal::Host(reason) => ReadsError::NotAsked(reason),
            Refusal::Wrong(reason) => ReadsError::Unusable(Error::BackendUnavailable {
                backend: consent.backend,
                reason,
            }),
        })
    }

    /// Returns the reads of subchunks of `grid` into the memory of the CUDA device `device`; without a number, of the
    /// first device that the user has asked for.
    ///
    /// # Errors
    /// The user has asked for no device or not for this one, or it cannot be used.
    pub(crate) fn choose_reads(
        &self,
        options: &Options,
        device: Option<usize>,
        (grid, chain): (&SubchunkGrid, Result<&KnownChain, &str>),
    ) -> Result<DeviceReads, ReadsError> {
        let selected = self.asked(options)?;
        let backend = self.consent(options).backend;
        let unusable = |reason| ReadsError::Unusable(Error::BackendUnavailable { backend, reason });
        let is_foreign = chain.is_err();
        let on_device = decoded_by_host(options, grid, chain).is_none();
        let elements = KnownChain {
            order: (0..grid.subchunk().len()).collect(),
            swap: 1,
            stages: Vec::new(),
        };
        let chain = chain.unwrap_or(&elements);
        let mut engine = self.cuda(options, &selected).map_err(unusable)?;
        if let (Some(device), Some(asked)) = (device, &engine.limits.devices)
            && !asked.contains(&device)
        {
            return Err(ReadsError::NotAsked(format!(
                "CUDA device {device} is not among the devices that were asked for, {asked:?}"
            )));
        }
        engine.limits.pinned_memory = pinned_memory(options, &engine, grid, chain);
        let first = || {
            let numbers = engine.numbers()?;
            numbers
                .first()
                .copied()
                .ok_or_else(|| "no device is usable".to_string())
        };
        let device = match device {
            Some(device) => device,
            None => first().map_err(unusable)?,
        };
        let mut compressors = compressors(options);
        compressors.decode = on_device;
        let devices = engine.devices.clone();
        let engine = engine.for_chain(chain, compressors);
        let reads = engine.reads(device, grid, chain).map_err(|error| {
            let reason = error.to_string();
            if devices.has_failed(device) {
                return ReadsError::Failed(Error::BackendUnavailable { backend, reason });
            }
            unusable(reason)
        });
        Ok(DeviceReads {
            reads: reads?,
            is_foreign,
        })
    }

    /// Describes how subchunks are read into the memory of a device, for people; `None` if the user has asked for no
    /// device. Creates no context.
    pub(crate) fn explain_reads(
        &self,
        options: &Options,
        grid: &SubchunkGrid,
        chain: Result<&KnownChain, &str>,
    ) -> Option<String> {
        let selected = self.asked(options).ok()?;
        let engine = self.cuda(options, &selected);
        let decoder = decoded_by_host(options, grid, chain).or_else(|| {
            // Without nvCOMP, the host decodes.
            let compressors = compressors(options);
            let engine = engine
                .as_ref()
                .ok()?
                .clone()
                .for_chain(chain.ok()?, compressors);
            engine.check_without_context(chain.ok()?).err()
        });
        let devices = engine.and_then(|engine| Ok(devices_text(&engine.numbers()?, &selected)));
        let is_fixed_size = chain.is_ok_and(KnownChain::is_fixed_size);
        Some(match (devices, decoder) {
            (Err(why), _) => format!("nothing is read into the memory of a device: {why}"),
            (Ok(devices), None) if is_fixed_size => {
                format!("reads into the memory of {devices} copy the stored bytes there")
            }
            (Ok(devices), None) => {
                format!("reads into the memory of {devices} decompress the stored bytes there")
            }
            (Ok(devices), Some(why)) => format!(
                "reads into the memory of {devices} are decoded by the host, and copied: {why}"
            ),
        })
    }
}

impl DeviceReads {
    /// Returns whether the caller decodes the subchunks, and [`prepare`](Self::prepare) takes their elements in C order.
    pub(crate) fn is_foreign(&self) -> bool {
        self.is_foreign
    }

    /// Begins a read, and returns the page-locked memory for its encoded bytes: see [`CudaReads::slabs`].
    ///
    /// # Errors
    /// The device is not usable.
    pub(crate) fn slabs(&self) -> Result<DeviceSlabs, EngineError> {
        // The elements that the caller decodes are in other memory.
        if self.is_foreign {
            return Ok(DeviceSlabs(None));
        }
        self.reads.slabs().map(DeviceSlabs)
    }

    /// Counts encoded bytes that the caller has copied on their way to the device.
    pub(crate) fn copied_by_caller(&self, bytes: usize) {
        self.reads.copied_by_caller(bytes);
    }

    /// Allocates `len` bytes of the device's memory.
    ///
    /// # Errors
    /// The device is not usable, or has too little memory.
    pub(crate) fn allocate(&self, len: usize) -> Result<DeviceMemory, EngineError> {
        self.reads.allocate(len).map(DeviceMemory)
    }

    /// Checks that `len` bytes from the address `pointer` on are memory of the device.
    ///
    /// # Errors
    /// The reason why they are not.
    pub(crate) fn check_memory(&self, pointer: u64, len: usize) -> Result<(), EngineError> {
        self.reads.check_memory(pointer, len)
    }

    /// Begins to hand elements over in the application's `streams`: see [`CudaReads::hand_over`].
    ///
    /// # Errors
    /// A stream is being captured into a graph, or the device is not usable.
    ///
    /// # Safety
    /// The requirements of [`CudaReads::hand_over`].
    #[allow(unsafe_code)]
    pub(crate) unsafe fn hand_over(
        &self,
        streams: impl IntoIterator<Item = u64>,
        most: usize,
    ) -> Result<HandOver<'_>, EngineError> {
        // SAFETY: this function has the same requirements, which its caller keeps.
        unsafe { self.reads.hand_over(streams, most) }
    }

    /// Returns a subchunk whose elements are the fill value.
    pub(crate) fn fill(tag: usize, boxes: Vec<BoxToPlace>) -> ReadySubchunk {
        ReadySubchunk(CudaReads::fill(tag, boxes))
    }

    /// Prepares the subchunk `number` for the device, on any thread. `tag` is a number by which the caller knows it.
    ///
    /// # Errors
    /// The error of the host about the encoded bytes; [`EngineError::OutOfMemory`].
    pub(crate) fn prepare(
        &self,
        (tag, number): (usize, usize),
        bytes: EncodedBytes,
        boxes: Vec<BoxToPlace>,
        validate_checksums: bool,
    ) -> Result<ReadySubchunk, EngineError> {
        let ready = self
            .reads
            .prepare((tag, number), bytes, boxes, validate_checksums)?;
        if self.is_foreign {
            self.reads.decoded_by_caller();
        }
        Ok(ReadySubchunk(ready))
    }

    /// Reads the subchunks that come from `receiver` to `output`, until all of its senders are gone: see
    /// [`CudaReads::read`].
    ///
    /// # Errors
    /// The first error of `damaged`, and errors of the device.
    ///
    /// # Safety
    /// The requirements of [`CudaReads::read`].
    #[allow(unsafe_code)]
    pub(crate) unsafe fn read(
        &self,
        job: &ShardJob<'_>,
        output: &DeviceArray,
        receiver: &Receiver<ReadySubchunk>,
        damaged: &mut dyn FnMut(usize, EngineError) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let mut next = |wait: bool| {
            let next = if wait {
                receiver.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                receiver.try_recv()
            };
            match next {
                Ok(ready) => Next::Subchunk(Box::new(ready.0)),
                Err(TryRecvError::Empty) => Next::NotYet,
                Err(TryRecvError::Disconnected) => Next::End,
            }
        };
        // SAFETY: this function has the same requirements, which its caller keeps.
        unsafe { self.reads.read(job, output, &mut next, damaged) }
    }
}
