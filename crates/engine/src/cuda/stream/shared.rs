//! The state that the parts of a stream share: its lane, and its free buffers.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::inputs::{InputMemory, Inputs, LaterInputs};
use super::sizing::StreamSizing;
use crate::contract::BufferBytes;
use crate::contract::EngineError;
use crate::contract::stream::{BatchFallback, Returned, StreamJob};
use crate::cuda::application::LentMemory;
use crate::cuda::arena::Region;
use crate::cuda::device::{Device, Entered};
use crate::cuda::driver::{DriverError, EventId, Fault, PinnedMemory, PinnedSpan, Site};
use crate::cuda::enqueue::{DeviceEncoding, prepare};
use crate::cuda::lane::{Events, Lane, Running};
use crate::cuda::lanes::Devices;
use crate::cuda::result_checks::ResultChecks;
use crate::cuda::sizing::ShardKind;

/// The synchronisation after which nothing is in flight in the lane any more, after a failure.
const DRAINED: Site = Site("synchronise: a stream is empty after a batch has failed");

/// The name of the output's memory, in errors.
const OUTPUT: &str = "an encoded batch";

/// A stream's lane and buffers. Every owner of a buffer also holds an `Arc` of the `StreamLane`, so the lane
/// is freed when the last owner is dropped, on any thread.
pub(super) struct StreamLane {
    pub(super) devices: Arc<Devices>,
    pub(super) job: Arc<StreamJob>,
    pub(super) kind: Arc<ShardKind>,
    pub(super) sizing: StreamSizing,
    /// The fallback that encodes the batches on which the device has failed.
    pub(super) fallback: Option<Arc<dyn BatchFallback>>,
    lane: Lane,
    /// The memory that applications lend to the lane.
    pub(super) lent: Arc<LentMemory>,
    pinned_out: PinnedMemory,
    /// The reason, other than a broken device, why the lane is not used any more.
    lost: OnceLock<DriverError>,
    pub(super) inputs: Arc<Inputs>,
    outputs: Mutex<Outputs>,
    reusables: Mutex<Reusables>,
    /// The slice of the level above that is kept for the next window.
    kept: Mutex<KeptSlice>,
    pub(super) returned: Arc<Returned>,
    /// Whether the times of stages are measured.
    pub(super) times: bool,
    check_every: u32,
    /// The error after which the stream has stopped: the device returned wrong data.
    stopped: OnceLock<DriverError>,
}

/// The slice of the level above that is kept for the next window.
#[derive(Debug, Default)]
pub(super) struct KeptSlice {
    /// Whether the device keeps a slice.
    pub(super) on_device: bool,
    /// The same slice, without padding, from the memory of the host; `None` if the host does not need it.
    pub(super) on_host: Option<Vec<u8>>,
}

/// The memory of an output.
#[derive(Debug)]
pub(super) enum OutputMemory {
    Pinned {
        region: Region,
        /// Whether every byte of the region was written at some time.
        written: bool,
    },
    /// Pageable memory. It replaces pinned memory that a broken device may still be writing.
    Pageable(Vec<u8>),
}

/// The free outputs, and the number of all outputs.
#[derive(Debug)]
struct Outputs {
    /// They take turns, so that each is used.
    free: VecDeque<OutputMemory>,
    all: usize,
}

/// The events that no batch uses: for the level below and the level above, and of lent memory.
#[derive(Debug, Default)]
struct Reusables {
    free: Vec<EventId>,
    all: Vec<EventId>,
}

impl fmt::Debug for StreamLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("lane", &self.lane)
            .field("lost", &self.lost.get())
            .finish_non_exhaustive()
    }
}

impl Drop for StreamLane {
    fn drop(&mut self) {
        // Otherwise all memory is leaked.
        if self.device().returns_calls() {
            let later = self.inputs.end();
            self.lane.adopt(later, self.sizing.input.len);
        }
        let leaked = self.lane.give_up();
        self.devices.counters.lane_released();
        if leaked != BufferBytes::default() {
            self.devices.counters.lane_leaked();
        }
    }
}

/// The parameters of a stream without its device.
#[derive(Debug)]
pub(super) struct StreamPlan {
    pub(super) devices: Arc<Devices>,
    pub(super) job: Arc<StreamJob>,
    pub(super) kind: Arc<ShardKind>,
    pub(super) sizing: StreamSizing,
    pub(super) fallback: Option<Arc<dyn BatchFallback>>,
    pub(super) returned: Arc<Returned>,
    /// Whether the times of stages are measured.
    pub(super) times: bool,
    /// The limit of each wait of the host for the lane.
    pub(super) timeout: Duration,
    /// One batch of so many is compared with the host's after the kind has passed; 0 if nothing is checked.
    pub(super) check_every: u32,
}

impl StreamLane {
    /// Returns the checks of the stream's results.
    pub(super) fn checks(&self) -> ResultChecks<'_> {
        ResultChecks {
            device: self.device(),
            counters: &self.devices.counters,
            kind: &self.kind,
            fill_value: &self.job.fill_value,
            store_empty: self.job.store_empty,
            pads: self.sizing.padding.exists(),
            reducer: self.job.reduced_from.as_ref().map(|from| &from.reducer),
            every: self.check_every,
        }
    }

    /// Stops the stream if `error` says that the device returned wrong data: the device goes into quarantine,
    /// and every later batch fails with the same error. The lane was drained before.
    pub(super) fn stop_if_wrong(&self, error: &EngineError) {
        if let EngineError::Device(error) = error
            && error.fault == Fault::Wrong
        {
            self.stop(error.clone());
            let _ = self.device().watch::<()>(Err(error.clone()));
        }
    }

    /// Stops the stream: every later batch fails with `error`.
    pub(super) fn stop(&self, mut error: DriverError) {
        error.reason += "; this stream encodes nothing more";
        let _ = self.stopped.set(error);
    }

    /// Returns the error after which the stream has stopped; `None` if it has not.
    pub(super) fn stopped(&self) -> Option<&DriverError> {
        self.stopped.get()
    }

    /// Allocates the lane of a stream on `device`.
    ///
    /// The device's errors, and [`EngineError::Unsuitable`] if the compressor requires more memory than was
    /// planned.
    pub(super) fn open(device: &Arc<Device>, plan: &StreamPlan) -> Result<Arc<Self>, EngineError> {
        let entered = device.enter()?;
        (plan.kind.check(&plan.sizing.lane, device.info().ordinal))
            .map_err(EngineError::Unsuitable)?;
        let counters = &plan.devices.counters;
        let capacity = plan.sizing.lane.capacity;
        let lane = Lane::new(device, capacity, plan.timeout).map_err(|(error, leaked)| {
            if leaked != BufferBytes::default() {
                counters.lane_leaked();
            }
            error
        })?;
        counters.lane_created();
        let shared = Self::with_lane(lane, plan)?;
        let (sizing, job) = (&shared.sizing.lane, &shared.job);
        let subchunk = job.grid.shard().subchunk_bytes();
        let started = shared.lane.start();
        device.watch(started.and_then(|lane| prepare(lane, sizing, subchunk, &job.fill_value)))?;
        drop(entered);
        shared.inputs.allocate(LaterInputs {
            devices: shared.devices.clone(),
            device: device.clone(),
            returned: shared.returned.clone(),
            count: shared.sizing.raws.len().saturating_sub(1),
            len: shared.sizing.input.len,
        });
        Ok(Arc::new(shared))
    }

    fn with_lane(mut lane: Lane, plan: &StreamPlan) -> Result<Self, DriverError> {
        let lent = LentMemory::new();
        lane.set_lent(lent.clone());
        let sizing = plan.sizing.clone();
        let [pinned_in, pinned_out] = lane.pinned()?;
        let first = PinnedSpan {
            memory: pinned_in,
            offset: sizing.input.offset,
            len: sizing.input.len,
        };
        let outputs = sizing.outputs.iter().map(|region| OutputMemory::Pinned {
            region: *region,
            written: false,
        });
        Ok(Self {
            devices: plan.devices.clone(),
            job: plan.job.clone(),
            kind: plan.kind.clone(),
            fallback: plan.fallback.clone(),
            returned: plan.returned.clone(),
            times: plan.times,
            check_every: plan.check_every,
            stopped: OnceLock::new(),
            lane,
            lent,
            pinned_out,
            lost: OnceLock::new(),
            inputs: Inputs::new(first),
            outputs: Mutex::new(Outputs {
                all: outputs.len(),
                free: outputs.collect(),
            }),
            reusables: Mutex::default(),
            kept: Mutex::default(),
            sizing,
        })
    }

    /// Returns how the stream's subchunks are encoded.
    pub(super) fn encoding(&self) -> DeviceEncoding<'_> {
        DeviceEncoding {
            kind: &self.kind,
            fill_value: &self.job.fill_value,
            store_empty: self.job.store_empty,
        }
    }

    /// Returns the number of the lane in this process.
    pub(super) fn lane_number(&self) -> Result<u64, DriverError> {
        Ok(self.lane.running()?.number)
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        self.lane.device()
    }

    /// Returns the reason why the lane cannot be used any more; `None` if it can be used.
    pub(super) fn lost(&self) -> Option<DriverError> {
        if let Some(error) = self.lost.get() {
            return Some(error.clone());
        }
        let device = self.device();
        device.unusable().map(|reason| DriverError {
            operation: "encoding a stream".to_string(),
            device: Some(device.info().ordinal),
            fault: Fault::Sticky,
            reason: if device.may_still_run() {
                reason + &self.lent.describe(None)
            } else {
                reason
            },
        })
    }

    /// Makes the device's context current on this thread, and returns the lane for use until the guard is
    /// dropped.
    ///
    /// # Errors
    /// The lane cannot be used now, or cannot be used any more.
    pub(super) fn enter(&self) -> Result<(Entered<'_>, Running<'_>), DriverError> {
        if let Some(error) = self.lost() {
            return Err(error);
        }
        self.enter_lost()
    }

    /// Does what [`enter`](Self::enter) does, also after the lane is [lost](Self::lost).
    ///
    /// # Errors
    /// The device cannot be used.
    pub(super) fn enter_lost(&self) -> Result<(Entered<'_>, Running<'_>), DriverError> {
        let entered = self.device().enter()?;
        Ok((entered, self.lane.running()?))
    }

    /// Blocks until nothing is in flight in the lane. If the wait fails, the lane is not used any more: the
    /// device may use its memory for ever.
    pub(super) fn drain(&self) {
        // Try a second time, since a transient fault may have hit this call, too.
        let Err(error) = self.try_drain().or_else(|_| self.try_drain()) else {
            return;
        };
        if error.fault != Fault::Sticky {
            self.lose(error);
        }
    }

    /// Records that the lane is lost: nothing is enqueued in it any more.
    fn lose(&self, error: DriverError) {
        tracing::warn!(%error, "the lane of a stream is lost");
        let _ = self.lost.set(error);
    }

    /// Gives the lane up and never frees it, because another lane may use its memory for ever.
    pub(super) fn leave_alone(self: &Arc<Self>, error: DriverError) {
        if error.fault != Fault::Sticky {
            self.lose(error);
            // One leaked reference is enough, and more of them do no harm.
            std::mem::forget(self.clone());
        }
    }

    /// Returns whether a slice of the level above is kept. The value does not change while the guard is held.
    pub(super) fn kept(&self) -> MutexGuard<'_, KeptSlice> {
        lock(&self.kept)
    }

    fn try_drain(&self) -> Result<(), DriverError> {
        let (_entered, lane) = self.enter()?;
        for stream in [lane.up, lane.down, lane.answers]
            .iter()
            .chain(lane.kernel_streams)
        {
            let drained = lane.synchronize_stream(*stream, DRAINED);
            self.device().watch(drained)?;
        }
        self.lent.drained();
        Ok(())
    }

    /// Returns the events of the lane that batches use.
    pub(super) fn events(&self) -> Events {
        let reusables = lock(&self.reusables);
        let running = self.lane.running();
        let mut events = running.map_or_else(|_| Events::default(), |lane| lane.events());
        events.retain(|event| !reusables.all.contains(&event));
        events
    }

    /// Takes an event for which another level waits.
    pub(super) fn take_reusable(&self, lane: Running<'_>) -> Result<EventId, DriverError> {
        let mut reusables = lock(&self.reusables);
        if let Some(event) = reusables.free.pop() {
            return Ok(event);
        }
        let event = lane.new_event(false)?;
        reusables.all.push(event);
        Ok(event)
    }

    /// Takes an event of lent memory: it says when an application has made the bytes, or when they were read.
    pub(super) fn take_lent(&self, lane: Running<'_>) -> Result<EventId, DriverError> {
        if let Some(event) = self.lent.free_event() {
            return Ok(event);
        }
        let event = lane.new_event(false)?;
        lock(&self.reusables).all.push(event);
        Ok(event)
    }

    pub(super) fn give_reusable(&self, event: EventId) {
        lock(&self.reusables).free.push(event);
    }

    /// Returns the address of an output's pinned memory.
    pub(super) fn output(&self, region: Region) -> *mut u8 {
        self.pinned_out.0.as_ptr().wrapping_add(region.offset)
    }

    pub(super) fn give_input(&self, memory: InputMemory) {
        self.inputs.give(memory);
        self.returned.came_back();
    }

    /// Returns whether [`take_output`](Self::take_output) returns at once.
    pub(super) fn has_output(&self) -> bool {
        let outputs = lock(&self.outputs);
        !outputs.free.is_empty() || outputs.all == 0
    }

    /// Takes memory for an encoded batch. Blocks until an output is free.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] if no output will ever be free, and [`EngineError::Unsuitable`] if the
    /// lane was given up.
    pub(super) fn take_output(&self) -> Result<OutputMemory, EngineError> {
        loop {
            let seen = self.returned.count();
            let mut outputs = lock(&self.outputs);
            if let Some(memory) = outputs.free.pop_front() {
                return Ok(memory);
            }
            if outputs.all == 0 {
                let bytes = self.sizing.outputs[0].len;
                return Err(EngineError::OutOfMemory {
                    what: OUTPUT,
                    bytes,
                });
            }
            drop(outputs);
            self.returned.check()?;
            self.returned.wait(seen);
        }
    }

    pub(super) fn give_output(&self, memory: OutputMemory) {
        lock(&self.outputs).free.push_back(memory);
        self.returned.came_back();
    }

    /// Returns pageable memory in place of pinned memory that a device may still write. The pinned memory is
    /// never used again.
    pub(super) fn replace_output(&self, memory: OutputMemory) -> Result<OutputMemory, EngineError> {
        let OutputMemory::Pinned { region, .. } = memory else {
            return Ok(memory);
        };
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(region.len).is_err() {
            lock(&self.outputs).all -= 1;
            self.returned.came_back();
            return Err(EngineError::OutOfMemory {
                what: OUTPUT,
                bytes: region.len,
            });
        }
        bytes.resize(region.len, 0);
        Ok(OutputMemory::Pageable(bytes))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
