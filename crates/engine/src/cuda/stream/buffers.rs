//! Inputs and outputs of a stream: pinned memory that applications fill, and that stores read.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::from_device::read_from_device;
use super::padding::Padding;
use super::ranges::Ranges;
use super::reading::Reading;
use super::shared::{InputMemory, OutputMemory, StreamLane};
use crate::contract::EngineError;
use crate::contract::stream::{BatchInput, BatchOutput, DeviceBytes, Reusable};
use crate::cuda::arena::Region;
use crate::cuda::copiers::Copy;
use crate::cuda::driver::{Access, DeviceSpan, DriverError, Site, Span};
use crate::cuda::lane::Running;

/// The synchronisation after which the fill value is on the device, and pinned memory can be written again.
const PADDED: Site = Site("synchronise: an input is on the device before it is written again");
/// The synchronisation after which the bytes that only the device had are in pinned memory.
const BROUGHT_BACK: Site = Site("synchronise: bytes of an input before the host encodes them");

/// The slices of a batch. They are in pinned memory, or on the device if an application handed them over
/// there.
pub(super) struct CudaInput {
    pub(super) shared: Arc<StreamLane>,
    /// The memory of this input; `None` after the drop has returned it to the stream.
    memory: Option<InputMemory>,
    region: Region,
    raw: Region,
    /// The ranges of the batch's bytes that only the device has.
    on_device: Ranges,
    /// The ranges of the batch's bytes that reductions on the device read. The device has these bytes, and
    /// they do not change any more.
    read: Ranges,
    /// The reductions that read bytes of this input.
    readings: Vec<Reading>,
    /// Whether the device was told to write the input's pinned memory, and the host has not waited for it.
    being_written: bool,
}

impl fmt::Debug for CudaInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaInput")
            .field("memory", &self.memory)
            .field("on_device", &self.on_device)
            .finish_non_exhaustive()
    }
}

impl Drop for CudaInput {
    fn drop(&mut self) {
        for reading in self.readings.drain(..) {
            if let Err(error) = reading.finish() {
                self.shared.leave_alone(error);
            }
        }
        // Memory that the device may still write is never used again.
        if let Some(memory) = self.memory.take()
            && self.check_not_written().is_ok()
        {
            self.shared.give_input(memory);
        }
    }
}

/// Returns copies to `bytes` of slices without their padding. The padded slices are at `from`. The copies
/// begin with the byte `at`, counted without padding.
///
/// # Safety
/// For as long as the copies are used, the slices can be read, and nothing writes them.
pub(super) unsafe fn unpadded<'c>(
    padding: &Padding,
    from: *const u8,
    at: usize,
    bytes: &'c mut [u8],
) -> Vec<Copy<'c>> {
    let to = bytes.as_mut_ptr();
    let pieces = padding.pieces(at, bytes.len());
    let copies = pieces.iter().map(|piece| {
        // SAFETY: this function has the same requirements, which its caller keeps. The places of the rows in `bytes` are those of the pieces.
        unsafe {
            Copy::strided(
                (from.add(piece.to), &piece.to_strides),
                (to.add(piece.from), &piece.from_strides),
                &piece.shape,
                1,
            )
        }
    });
    copies.collect()
}

impl CudaInput {
    /// Takes a free input of the stream; `None` if none is free.
    pub(super) fn take(shared: &Arc<StreamLane>) -> Option<Self> {
        let mut memory = shared.take_input()?;
        let number = memory.number;
        let mut input = Self {
            shared: shared.clone(),
            region: shared.sizing.inputs[number],
            raw: shared.sizing.raws[number],
            memory: None,
            on_device: Ranges::default(),
            read: Ranges::default(),
            readings: Vec::new(),
            being_written: false,
        };
        if !memory.filled {
            input.declare(input.region, Access::Write);
            // SAFETY: nothing else uses the region, since the input was free.
            let bytes =
                unsafe { std::slice::from_raw_parts_mut(input.address(), input.region.len) };
            let copiers = shared.devices.copiers_of(shared.device());
            let job = &shared.job;
            copiers.fill(bytes, &job.fill_value, job.threads);
            memory.filled = true;
        }
        input.memory = Some(memory);
        Some(input)
    }

    fn address(&self) -> *mut u8 {
        self.shared.input(self.region)
    }

    /// Returns the regions of the input in the memory of the lane: in pinned memory, and on the device.
    pub(super) fn regions(&self) -> (Region, Region) {
        (self.region, self.raw)
    }

    /// Tells the driver that the host is about to use a region. If the lane is unusable, the driver is not
    /// told, because the host may use pinned memory nevertheless.
    fn declare(&self, region: Region, access: Access) {
        // Try a second time: the first failure may be transient.
        if let Ok((_entered, lane)) = self.shared.enter().or_else(|_| self.shared.enter())
            && let Err(error) = lane.driver.host_access(lane.pinned_in(region), access)
        {
            tracing::debug!(%error, "an input");
        }
    }

    /// Returns the ranges of the padded bytes, in the first `epochs` epochs, that have to be copied from the
    /// host.
    pub(super) fn host_ranges(&self, epochs: usize) -> Vec<Range<usize>> {
        let (grid, padding) = (&self.shared.job.grid, &self.shared.sizing.padding);
        if self.on_device.is_empty() && self.read.is_empty() {
            return vec![0..epochs * grid.epoch_slices() * padding.padded_slice()];
        }
        let gaps = self.not_there(0..epochs * grid.epoch_bytes());
        gaps.iter().map(|gap| padding.around(gap)).collect()
    }

    /// Returns the ranges of the batch's bytes within `whole` that the device does not have.
    fn not_there(&self, whole: Range<usize>) -> Vec<Range<usize>> {
        let mut there = self.on_device.clone();
        for range in self.read.iter() {
            there.insert(range.clone());
        }
        there.gaps(whole)
    }

    /// Ensures that the device has `slices` of the batch when everything in the stream `up` is complete.
    /// These slices do not change any more. Returns the slices' place on the device, with their padding.
    pub(super) fn put_on_device(
        &mut self,
        lane: Running<'_>,
        slices: Range<usize>,
    ) -> Result<DeviceSpan, DriverError> {
        self.pad_on_device(lane)?;
        let slice = self.shared.job.grid.slice_bytes();
        let bytes = slices.start * slice..slices.end * slice;
        let padding = &self.shared.sizing.padding;
        for gap in self.not_there(bytes.clone()) {
            let part = padding.around(&gap);
            let from = lane.pinned_in(self.region.part(part.clone()));
            let to = lane.device(self.raw.part(part));
            lane.copy(lane.up, Span::Pinned(from), Span::Device(to))?;
            self.shared.devices.counters.add_to_device(from.len);
        }
        let padded = padding.padded_slice();
        let region = (self.raw).part(slices.start * padded..slices.end * padded);
        self.read.insert(bytes);
        Ok(lane.device(region))
    }

    /// Keeps the memory of this input as it is until `reading` has read it.
    pub(super) fn read_by(&mut self, reading: Reading) {
        self.readings.push(reading);
    }

    /// Returns the reductions that read this input.
    pub(super) fn readings(&self) -> &[Reading] {
        &self.readings
    }

    /// Forgets the reductions that read this input: the answer of the batch waited for all of them, and the
    /// host for the answer.
    pub(super) fn was_read(&mut self) {
        self.readings.clear();
    }

    /// Notes that only the device has the bytes `bytes` of the batch.
    pub(super) fn made_on_device(&mut self, bytes: Range<usize>) {
        self.on_device.insert(bytes);
    }

    /// Checks that no reduction reads the bytes `range`.
    pub(super) fn check_unread(&self, range: &Range<usize>) -> Result<(), EngineError> {
        let read = |other: &Range<usize>| other.start < range.end && range.start < other.end;
        if self.read.iter().any(read) {
            return Err(EngineError::Internal("slices that were reduced already"));
        }
        Ok(())
    }

    /// Returns whether the device has bytes of the batch that the host does not have.
    pub(super) fn is_partly_on_device(&self) -> bool {
        !self.on_device.is_empty()
    }

    /// Copies the bytes that only the device has to pinned memory.
    ///
    /// # Errors
    /// The error of the driver. Then the bytes are still only on the device.
    pub(super) fn bring_back(&mut self, lane: Running<'_>) -> Result<(), DriverError> {
        if self.on_device.is_empty() {
            return Ok(());
        }
        self.being_written = true;
        for range in self.on_device.iter() {
            let bytes = self.shared.sizing.padding.around(range);
            let from = lane.device(self.raw.part(bytes.clone()));
            let to = lane.pinned_in(self.region.part(bytes));
            lane.copy(lane.up, Span::Device(from), Span::Pinned(to))?;
            self.shared.devices.counters.add_from_device(to.len);
        }
        lane.synchronize_stream(lane.up, BROUGHT_BACK)?;
        self.being_written = false;
        self.on_device.clear();
        Ok(())
    }

    /// Checks that the device does not write the input's pinned memory. Only a lane that is lost may still
    /// have such work in flight.
    ///
    /// # Errors
    /// The reason why the lane is lost.
    fn check_not_written(&self) -> Result<(), DriverError> {
        match self.shared.lost() {
            Some(error) if self.being_written => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns the padded slices of the first `epochs` epochs. Nothing writes them during the borrow: the
    /// device writes them only in [`bring_back`](Self::bring_back).
    pub(super) fn bytes(&self, epochs: usize) -> &[u8] {
        let len = epochs
            * self.shared.job.grid.epoch_slices()
            * self.shared.sizing.padding.padded_slice();
        let region = self.region.part(0..len);
        self.declare(region, Access::Read);
        // SAFETY: the slices are a part of the region, all of which was written when it was first taken. Only
        // the owner of the input writes it, through `&mut self`, which `&self` excludes.
        unsafe { std::slice::from_raw_parts(self.address(), region.len) }
    }

    /// Checks that `len` bytes at `at` are in the batch, and returns their range.
    pub(super) fn check(&self, at: usize, len: usize) -> Result<Range<usize>, EngineError> {
        let job = &self.shared.job;
        match at.checked_add(len) {
            Some(end) if end <= job.epochs * job.grid.epoch_bytes() => Ok(at..end),
            _ => Err(EngineError::Internal("bytes that leave their batch")),
        }
    }

    /// Ensures that the padding of the slices on the device holds the fill value.
    pub(super) fn pad_on_device(&mut self, lane: Running<'_>) -> Result<(), DriverError> {
        let padded = self.memory.as_ref().is_none_or(|m| m.padded_on_device);
        if padded || !self.shared.sizing.padding.exists() {
            return Ok(());
        }
        let (from, to) = (lane.pinned_in(self.region), lane.device(self.raw));
        lane.copy(lane.up, Span::Pinned(from), Span::Device(to))?;
        self.shared.devices.counters.add_to_device(from.len);
        lane.synchronize_stream(lane.up, PADDED)?;
        if let Some(memory) = &mut self.memory {
            memory.padded_on_device = true;
        }
        Ok(())
    }
}

impl BatchInput for CudaInput {
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), EngineError> {
        let range = self.check(at, bytes.len())?;
        self.check_unread(&range)?;
        self.check_not_written()?;
        self.on_device.remove(&range);
        let shared = &self.shared;
        self.declare(
            self.region.part(shared.sizing.padding.around(&range)),
            Access::Write,
        );
        let to = self.address();
        let pieces = shared.sizing.padding.pieces(at, bytes.len());
        let copies: Vec<_> = pieces
            .iter()
            .map(|piece| {
                // SAFETY: the rows are in `bytes`, and their places are in the region, by the check above.
                // Only this input uses its memory.
                unsafe {
                    Copy::strided(
                        (bytes.as_ptr().add(piece.from), &piece.from_strides),
                        (to.add(piece.to), &piece.to_strides),
                        &piece.shape,
                        1,
                    )
                }
            })
            .collect();
        let copiers = shared.devices.copiers_of(shared.device());
        copiers.run(&copies, shared.job.threads);
        Ok(())
    }

    fn read(&mut self, at: usize, bytes: &mut [u8]) -> Result<(), EngineError> {
        let range = self.check(at, bytes.len())?;
        let shared = self.shared.clone();
        if self.is_partly_on_device() {
            let (entered, lane) = shared.enter()?;
            let brought = shared.device().watch(self.bring_back(lane));
            drop(entered);
            if brought.is_err() {
                shared.drain();
            }
            brought?;
        }
        self.check_not_written()?;
        let padding = &shared.sizing.padding;
        self.declare(self.region.part(padding.around(&range)), Access::Read);
        let from = self.address().cast_const();
        // SAFETY: the rows are in the region, by the check above. All of the region was written, and only
        // this input uses its memory.
        let copies = unsafe { unpadded(padding, from, at, bytes) };
        shared
            .devices
            .copiers_of(shared.device())
            .run(&copies, shared.job.threads);
        Ok(())
    }

    unsafe fn write_from_device(
        &mut self,
        at: usize,
        bytes: &DeviceBytes,
    ) -> Result<Box<dyn Reusable>, EngineError> {
        let range = self.check(at, bytes.len)?;
        self.check_unread(&range)?;
        let device = self.shared.device().info().ordinal;
        if bytes.device != device {
            return Err(EngineError::Unsuitable(format!(
                "the data are on CUDA device {0}, and this writer encodes on device {device}: build the writer with `.with_device({0})`, which is `device={0}` in Python",
                bytes.device
            )));
        }
        let shared = self.shared.clone();
        shared.devices.check_open()?;
        let (entered, lane) = shared.enter()?;
        // SAFETY: this function has the same requirements, which its caller keeps.
        let captured = unsafe { lane.driver.is_captured(bytes.stream) };
        if shared.device().watch(captured)? {
            return Err(EngineError::Unsuitable(
                "the stream of the data is being captured into a graph, which would take this stream's work along: append before the capture begins, or after it has ended".to_string(),
            ));
        }
        let put = self.pad_on_device(lane).and_then(|()| {
            // SAFETY: this function has the same requirements, which its caller keeps.
            unsafe { read_from_device(&shared, lane, self.raw, at, bytes) }
        });
        let put = shared.device().watch(put);
        drop(entered);
        if put.is_err() {
            // Some of the copies may be in flight.
            shared.drain();
        }
        let reusable = put?;
        self.on_device.insert(range);
        Ok(Box::new(reusable))
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// The output of a stream: an encoded batch, in memory of the stream.
pub(super) struct CudaOutput {
    shared: Arc<StreamLane>,
    /// The memory of this output; `None` after the drop has returned it to the stream.
    memory: Option<OutputMemory>,
    len: usize,
}

impl fmt::Debug for CudaOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaOutput")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl CudaOutput {
    /// Takes memory for an encoded batch. Blocks until an output is free. All of the memory is initialised.
    ///
    /// # Errors
    /// No output will ever be free, or the lane of the stream is not used any more.
    pub(super) fn take(shared: &Arc<StreamLane>) -> Result<Self, EngineError> {
        let mut memory = shared.take_output()?;
        if let OutputMemory::Pinned { region, written } = &mut memory
            && !std::mem::replace(written, true)
        {
            let to = shared.output(*region);
            // SAFETY: nothing else uses the region, and no device was told to write it.
            unsafe { to.write_bytes(0, region.len) };
        }
        Ok(Self {
            shared: shared.clone(),
            len: shared.sizing.outputs[0].len,
            memory: Some(memory),
        })
    }

    /// Returns the region of the output in the lane; `None` if the output is pageable memory.
    pub(super) fn region(&self) -> Option<Region> {
        match self.memory {
            Some(OutputMemory::Pinned { region, .. }) => Some(region),
            _ => None,
        }
    }

    /// Limits the output to its first `len` bytes, which are the batch.
    pub(super) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Returns the number of bytes of the output: all bytes of its memory, until the output is
    /// [truncated](Self::truncate).
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Replaces pinned memory that a broken device may still be writing by pageable memory.
    pub(super) fn replace(&mut self) -> Result<(), EngineError> {
        if let Some(memory) = self.memory.take() {
            self.memory = Some(self.shared.replace_output(memory)?);
        }
        Ok(())
    }

    fn address(&self) -> *mut u8 {
        match &self.memory {
            Some(OutputMemory::Pinned { region, .. }) => self.shared.output(*region),
            _ => std::ptr::dangling_mut(),
        }
    }
}

impl AsRef<[u8]> for CudaOutput {
    fn as_ref(&self) -> &[u8] {
        match &self.memory {
            None => &[],
            Some(OutputMemory::Pageable(bytes)) => &bytes[..self.len],
            // SAFETY: the bytes are the first of the region, all of which was written at some time. Nothing
            // else uses it. The host has synchronised with all writes of the device before the batch was
            // given to the application.
            Some(OutputMemory::Pinned { .. }) => unsafe {
                std::slice::from_raw_parts(self.address(), self.len)
            },
        }
    }
}

impl AsMut<[u8]> for CudaOutput {
    fn as_mut(&mut self) -> &mut [u8] {
        let (address, len) = (self.address(), self.len);
        match &mut self.memory {
            None => &mut [],
            Some(OutputMemory::Pageable(bytes)) => &mut bytes[..len],
            // SAFETY: as for the shared slice. `&mut self` excludes other uses.
            Some(OutputMemory::Pinned { .. }) => unsafe {
                std::slice::from_raw_parts_mut(address, len)
            },
        }
    }
}

impl Drop for CudaOutput {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.shared.give_output(memory);
        }
    }
}

impl BatchOutput for CudaOutput {
    /// All outputs are scarce. Pageable memory that replaces pinned memory after a device was lost counts as
    /// scarce, too.
    fn is_scarce(&self) -> bool {
        true
    }
}
