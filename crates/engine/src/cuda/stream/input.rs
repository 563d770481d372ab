//! The inputs of a stream: pinned memory that applications fill, with a copy on the device.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::from_device::read_from_device;
use super::inputs::InputMemory;
use super::padding::Padding;
use super::ranges::Ranges;
use super::reading::Reading;
use super::shared::StreamLane;
use crate::contract::EngineError;
use crate::contract::stream::{BatchInput, DeviceBytes, Reusable};
use crate::cuda::application::check_not_captured;
use crate::cuda::arena::Region;
use crate::cuda::check_progress::{Source, Work};
use crate::cuda::copiers::Copy;
use crate::cuda::driver::{Access, DeviceSpan, DriverError, Fault, PinnedSpan, Site, Span};
use crate::cuda::lane::Running;

/// The refusal of a stream that is being captured.
const CAPTURED: &str = "the stream of the data is being captured into a graph, which would take this stream's work along: append before the capture begins, or after it has ended";

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
    pinned: PinnedSpan,
    raw: Region,
    /// The ranges of the batch's bytes that the device has, and did not get from pinned memory.
    on_device: Ranges,
    /// The parts of `on_device` that pinned memory also has, for the comparison with the host's results.
    on_host: Ranges,
    /// Whether copies from the device to pinned memory may be in flight.
    is_copying: bool,
    /// The origin of the batch's bytes, and whether the encoded batch has to be compared; `None` until this is
    /// decided.
    compared: Option<(Source, bool)>,
    /// The ranges of the batch's bytes that reductions on the device read. The device has these bytes, and
    /// they do not change any more.
    read: Ranges,
    /// The reductions that read bytes of this input.
    readings: Vec<Reading>,
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
        if let Err(error) = self.finish_copies() {
            self.shared.leave_alone(error);
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
        let mut memory = shared.inputs.take()?;
        let number = memory.number;
        let mut input = Self {
            shared: shared.clone(),
            pinned: memory.pinned,
            raw: shared.sizing.raws[number],
            memory: None,
            on_device: Ranges::default(),
            on_host: Ranges::default(),
            is_copying: false,
            compared: None,
            read: Ranges::default(),
            readings: Vec::new(),
        };
        if !memory.filled {
            input.declare(input.pinned, Access::Write);
            // SAFETY: nothing else uses the region, since the input was free.
            let bytes =
                unsafe { std::slice::from_raw_parts_mut(input.address(), input.pinned.len) };
            let copiers = shared.devices.copiers_of(shared.device());
            let job = &shared.job;
            copiers.fill(bytes, &job.fill_value, job.threads);
            memory.filled = true;
        }
        input.memory = Some(memory);
        Some(input)
    }

    fn address(&self) -> *mut u8 {
        self.pinned
            .memory
            .0
            .as_ptr()
            .wrapping_add(self.pinned.offset)
    }

    /// Returns the places of the input: in pinned memory, and on the device.
    pub(super) fn places(&self) -> (PinnedSpan, Region) {
        (self.pinned, self.raw)
    }

    /// Tells the driver that the host is about to use a span. If the lane is unusable, the driver is not
    /// told, because the host may use pinned memory nevertheless.
    fn declare(&self, span: PinnedSpan, access: Access) {
        // Try a second time: the first failure may be transient.
        if let Ok((_entered, lane)) = self.shared.enter().or_else(|_| self.shared.enter())
            && let Err(error) = lane.driver.host_access(span, access)
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
            let from = self.pinned.part(part.clone());
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

    /// Forgets the reductions that read this input, and the copies to pinned memory: the answer of the batch
    /// waited for all of them, and the host for the answer.
    pub(super) fn was_read(&mut self) {
        self.readings.clear();
        self.is_copying = false;
    }

    /// Notes that the device has the bytes `bytes` of the batch. If `on_host`, pinned memory also has them.
    pub(super) fn made_on_device(&mut self, bytes: Range<usize>, on_host: bool) {
        self.on_host.remove(&bytes);
        if on_host {
            self.on_host.insert(bytes.clone());
        }
        self.on_device.insert(bytes);
    }

    /// Returns the origin of the bytes of the batch, and whether the encoded batch has to be compared with the
    /// host's. The first call decides this, for bytes from `source`.
    pub(super) fn comparison(&mut self, source: Source) -> (Source, bool) {
        let decide = || {
            let buffers = self.shared.all_buffers();
            let work = Work::Stream(source);
            (source, self.shared.checks().is_due_in(work, &buffers))
        };
        *self.compared.get_or_insert_with(decide)
    }

    /// Returns the number of the input's memory among the inputs of the stream.
    pub(super) fn number(&self) -> Option<usize> {
        self.memory.as_ref().map(|memory| memory.number)
    }

    /// Checks that no reduction reads the bytes `range`.
    pub(super) fn check_unread(&self, range: &Range<usize>) -> Result<(), EngineError> {
        if self.read.intersects(range) {
            return Err(EngineError::Internal("slices that were reduced already"));
        }
        Ok(())
    }

    /// Returns the ranges of the batch's bytes within `whole` that pinned memory does not have.
    fn only_on_device(&self, whole: &Range<usize>) -> Vec<Range<usize>> {
        let part = |range: &Range<usize>| range.start.max(whole.start)..range.end.min(whole.end);
        let there = self.on_device.iter().map(part);
        there.flat_map(|range| self.on_host.gaps(range)).collect()
    }

    /// Returns the range of all bytes of the batch.
    fn all(&self) -> Range<usize> {
        0..self.shared.job.epochs * self.shared.job.grid.epoch_bytes()
    }

    /// Returns whether the host can read all bytes of the batch only after the device has copied some of them.
    pub(super) fn lacks_bytes(&self) -> bool {
        self.is_copying || !self.only_on_device(&self.all()).is_empty()
    }

    /// Copies the bytes that only the device has to pinned memory, and waits for all copies to it.
    ///
    /// # Errors
    /// The error of the driver. Then the bytes are still only on the device.
    pub(super) fn bring_back(&mut self, lane: Running<'_>) -> Result<(), DriverError> {
        self.copy_to_host(lane, &self.all())?;
        self.on_device.clear();
        self.on_host.clear();
        Ok(())
    }

    /// Copies the bytes in `whole` that only the device has to pinned memory, and waits for all copies to it.
    /// The device still has the bytes.
    ///
    /// # Errors
    /// The error of the driver. Then the bytes are still only on the device.
    pub(super) fn copy_to_host(
        &mut self,
        lane: Running<'_>,
        whole: &Range<usize>,
    ) -> Result<(), DriverError> {
        let missing = self.only_on_device(whole);
        for range in &missing {
            let bytes = self.shared.sizing.padding.around(range);
            let from = lane.device(self.raw.part(bytes.clone()));
            let to = self.pinned.part(bytes);
            self.is_copying = true;
            lane.copy(lane.up, Span::Device(from), Span::Pinned(to))?;
            self.shared.devices.counters.add_from_device(to.len);
        }
        if self.is_copying {
            lane.synchronize_stream(lane.up, BROUGHT_BACK)?;
            self.is_copying = false;
        }
        for range in missing {
            self.on_host.insert(range);
        }
        Ok(())
    }

    /// Ensures that the host can read the bytes in `whole` from pinned memory. The device's context is current on
    /// this thread.
    pub(super) fn have_on_host(&mut self, whole: &Range<usize>) -> Result<(), DriverError> {
        if !self.is_copying && self.only_on_device(whole).is_empty() {
            return Ok(());
        }
        let shared = self.shared.clone();
        let (entered, lane) = shared.enter()?;
        let copied = self.copy_to_host(lane, whole);
        drop(entered);
        copied
    }

    /// Notes that the device did not make the bytes `bytes`.
    pub(super) fn not_made(&mut self, bytes: &Range<usize>) {
        self.on_device.remove(bytes);
        self.on_host.remove(bytes);
    }

    /// Waits until no copy from the device writes to pinned memory.
    ///
    /// # Errors
    /// It is unknown whether a copy still writes.
    fn finish_copies(&mut self) -> Result<(), DriverError> {
        if !self.is_copying {
            return Ok(());
        }
        let shared = self.shared.clone();
        let wait = || {
            let (_entered, lane) = shared.enter()?;
            let done = lane.synchronize_stream(lane.up, BROUGHT_BACK);
            shared.device().watch(done)
        };
        // Try a second time: a fault may be transient.
        wait().or_else(|_| wait())?;
        self.is_copying = false;
        Ok(())
    }

    /// Checks that the device does not write the input's pinned memory. A device that hangs, that returned
    /// wrong data, or whose lane could not be drained, may still do such work. A broken device does no work any
    /// more.
    ///
    /// # Errors
    /// The reason why the lane is lost.
    fn check_not_written(&self) -> Result<(), DriverError> {
        match self.shared.lost() {
            Some(error)
                if self.is_copying
                    && (error.fault != Fault::Sticky || self.shared.device().may_still_run()) =>
            {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Writes `bytes` to pinned memory, at the byte `at` of the batch, whose place the caller has checked.
    fn write_pinned(&self, at: usize, bytes: &[u8]) {
        let shared = &self.shared;
        let range = at..at + bytes.len();
        self.declare(
            self.pinned.part(shared.sizing.padding.around(&range)),
            Access::Write,
        );
        let to = self.address();
        let pieces = shared.sizing.padding.pieces(at, bytes.len());
        let copies: Vec<_> = pieces
            .iter()
            .map(|piece| {
                // SAFETY: the rows are in `bytes`, and their places are in the region, since the caller has
                // checked them. Only this input uses its memory.
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
    }

    /// Copies bytes of the batch from pinned memory, which has them, to `bytes`. The caller has checked their
    /// place.
    pub(super) fn read_pinned(&self, at: usize, bytes: &mut [u8]) {
        let shared = &self.shared;
        let range = at..at + bytes.len();
        let padding = &shared.sizing.padding;
        self.declare(self.pinned.part(padding.around(&range)), Access::Read);
        let from = self.address().cast_const();
        // SAFETY: the rows are in the region, since the caller has checked them. All of the region was written,
        // and only this input uses its memory.
        let copies = unsafe { unpadded(padding, from, at, bytes) };
        let copiers = shared.devices.copiers_of(shared.device());
        copiers.run(&copies, shared.job.threads);
    }

    /// Writes bytes that the device has, too, to pinned memory. No copy from the device may write there.
    pub(super) fn write_copy(&mut self, at: usize, bytes: &[u8]) {
        self.write_pinned(at, bytes);
        self.on_host.insert(at..at + bytes.len());
    }

    /// Returns the padded slices of the first `epochs` epochs. Nothing writes them during the borrow: the
    /// device writes them only in [`bring_back`](Self::bring_back).
    pub(super) fn bytes(&self, epochs: usize) -> &[u8] {
        let len = epochs
            * self.shared.job.grid.epoch_slices()
            * self.shared.sizing.padding.padded_slice();
        let span = self.pinned.part(0..len);
        self.declare(span, Access::Read);
        // SAFETY: the slices are a part of the region, all of which was written when it was first taken. Only
        // the owner of the input writes it, through `&mut self`, which `&self` excludes.
        unsafe { std::slice::from_raw_parts(self.address(), span.len) }
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
        let (from, to) = (self.pinned, lane.device(self.raw));
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
        if self.is_copying
            && self.on_host.intersects(&range)
            && let Err(error) = self.finish_copies()
            && error.fault != Fault::Sticky
        {
            return Err(error.into());
        }
        self.check_not_written()?;
        self.on_device.remove(&range);
        self.on_host.remove(&range);
        self.write_pinned(at, bytes);
        Ok(())
    }

    fn read(&mut self, at: usize, bytes: &mut [u8]) -> Result<(), EngineError> {
        self.check(at, bytes.len())?;
        let shared = self.shared.clone();
        if self.lacks_bytes() {
            let (entered, lane) = shared.enter()?;
            // The device keeps its bytes: they are the input, and what the host reads is only a copy.
            let brought = self.copy_to_host(lane, &self.all());
            let brought = shared.device().watch(brought);
            drop(entered);
            if brought.is_err() {
                shared.drain();
            }
            brought?;
        }
        self.check_not_written()?;
        self.read_pinned(at, bytes);
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
        unsafe { check_not_captured(shared.device(), bytes.stream, CAPTURED)? };
        let (_, is_due) = self.comparison(Source::Application);
        let to_host = is_due.then_some(self.pinned);
        self.is_copying |= is_due;
        let put = self.pad_on_device(lane).and_then(|()| {
            // SAFETY: this function has the same requirements, which its caller keeps.
            unsafe { read_from_device(&shared, lane, (self.raw, to_host), at, bytes) }
        });
        let put = shared.device().watch(put);
        drop(entered);
        if put.is_err() {
            // Some of the copies may be in flight.
            shared.drain();
        }
        let reusable = put?;
        self.made_on_device(range, is_due);
        Ok(Box::new(reusable))
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}
