//! Makes slices on the device from the slices of another stream, the level above.
//!
//! A level below runs copies and kernels in its own lane. They read the padded slices of the level above,
//! which have to stay unchanged until they are read: the batch above is not complete before, and the memory
//! of its input is not used again before.

use std::ops::Range;
use std::sync::Arc;

use super::input::{CudaInput, unpadded};
use super::reading::Reading;
use super::reduction::Reduction;
use super::shared::{KeptSlice, StreamLane};
use crate::contract::EngineError;
use crate::contract::stream::{BatchInput, ReducedFrom, Windows};
use crate::cuda::check_progress::{Source, Work};
use crate::cuda::driver::{Access, DeviceSpan, DriverError, Site, Span};
use crate::cuda::kernels::reduce::ReduceWindows;
use crate::cuda::kernels::spans::sub_span;
use crate::cuda::lane::Running;
use crate::memory::allocate::at_least;

/// The record of the event after which the slices of the level above are on the device.
const SOURCE: Site = Site("record: slices of the level above are on the device");
const SOURCE_WAIT: Site = Site("wait: a reduction for the slices of the level above");
/// The synchronisation after which the kept slice is in pinned memory.
const KEPT_HOST: Site = Site("synchronise: the kept slice before the host reads it");

/// Returns the input of another stream as an input of the CUDA engine. The error says that it belongs to
/// another engine.
fn cuda(input: &mut dyn BatchInput) -> Result<&mut CudaInput, EngineError> {
    (input.as_any_mut().downcast_mut()).ok_or_else(|| {
        EngineError::Unsuitable(
            "the slices of the other level are not on a CUDA device".to_string(),
        )
    })
}

/// Returns the plan by which the device reduces slices for this stream. The error says that there is none.
fn planned(shared: &StreamLane) -> Result<&Reduction, EngineError> {
    (shared.sizing.reduction.as_ref()).ok_or_else(|| {
        EngineError::Unsuitable(
            "this stream is not reduced from another one on a device".to_string(),
        )
    })
}

impl StreamLane {
    /// Ensures that `slices` of the level above are on the device, before anything that is enqueued in `lane`
    /// from now on. Returns the place of these slices.
    fn wait_for_source(
        &self,
        lane: Running<'_>,
        above: &mut CudaInput,
        slices: Range<usize>,
    ) -> Result<DeviceSpan, DriverError> {
        let shared = above.shared.clone();
        self.lent.wait_for(&shared.lent);
        let (entered, lane_above) = shared.enter()?;
        let done = above.put_on_device(lane_above, slices).and_then(|from| {
            let event = shared.take_reusable(lane_above)?;
            let ordered = (lane.driver)
                .record(event, lane_above.up, SOURCE)
                .and_then(|()| lane.driver.wait(lane.up, event, SOURCE_WAIT));
            // This lane waits for this record, even if the event is recorded again afterwards.
            shared.give_reusable(event);
            ordered.map(|()| from)
        });
        drop(entered);
        done
    }

    /// Implements [`StreamEngine::reduce`](crate::contract::stream::StreamEngine::reduce).
    pub(super) fn reduce(
        self: &Arc<Self>,
        windows: Windows<'_>,
        input: &mut dyn BatchInput,
        at: usize,
    ) -> Result<(), EngineError> {
        self.devices.check_open()?;
        let reduction = planned(self)?;
        let input = cuda(input)?;
        if !Arc::ptr_eq(&input.shared, self) {
            return Err(EngineError::Internal("an input of another stream"));
        }
        let mut kept = self.kept();
        if windows.kept && !kept.on_device {
            return Err(EngineError::Internal("no slice was kept for this window"));
        }
        let per_window = reduction.from.slices;
        let given = windows.above.as_ref().map_or(0, |(_, slices)| slices.len());
        let all = usize::from(windows.kept) + given;
        let made = all.div_ceil(per_window);
        let slice = self.job.grid.slice_bytes();
        if !at.is_multiple_of(slice) {
            return Err(EngineError::Internal("a reduction to a part of a slice"));
        }
        let range = input.check(at, made * slice)?;
        input.check_unread(&range)?;
        let mut above = match windows.above {
            Some((above, slices)) if !slices.is_empty() => {
                Some((self.source(cuda(above)?, &slices)?, slices))
            }
            _ => None,
        };
        if made == 0 {
            return Ok(());
        }
        let (_, is_due) = input.comparison(Source::Reduction);
        let (entered, lane) = self.enter()?;
        let launched = input.pad_on_device(lane).and_then(|()| {
            let from = match &mut above {
                Some((above, slices)) => Some(self.wait_for_source(lane, above, slices.clone())?),
                None => None,
            };
            self.launch(lane, reduction, from, windows.kept, input, at / slice)?;
            if let Some((above, _)) = &mut above {
                above.read_by(Reading::record(self, lane)?);
            }
            Ok(())
        });
        let done = self.device().watch(launched).map_err(EngineError::from);
        let done = done.and_then(|()| {
            input.made_on_device(range.clone(), false);
            if is_due {
                let kept = windows.kept.then_some(&mut *kept);
                self.reduce_on_host(lane, reduction, kept, above.as_mut(), input, at)?;
            }
            Ok(())
        });
        drop(entered);
        if let Err(error) = done {
            self.after_fault(above.map(|(above, _)| above));
            input.not_made(&range);
            return Err(error);
        }
        if windows.kept {
            *kept = KeptSlice::default();
        }
        Ok(())
    }

    /// Implements [`StreamEngine::keep`](crate::contract::stream::StreamEngine::keep).
    pub(super) fn keep(
        self: &Arc<Self>,
        above: &mut dyn BatchInput,
        slice: usize,
    ) -> Result<(), EngineError> {
        self.devices.check_open()?;
        let reduction = planned(self)?;
        let Some((region, _)) = reduction.kept else {
            return Err(EngineError::Internal("windows of one slice keep none"));
        };
        let slices = slice..slice + 1;
        let above = self.source(cuda(above)?, &slices)?;
        let mut kept = self.kept();
        if kept.on_device {
            return Err(EngineError::Internal("a slice is kept already"));
        }
        let is_due = self.checks().are_all_due(Work::Stream(Source::Reduction));
        let range = {
            let len = reduction.from.above.slice_bytes();
            slice * len..(slice + 1) * len
        };
        let (entered, lane) = self.enter()?;
        let done = self.wait_for_source(lane, above, slices).and_then(|from| {
            lane.copy(
                lane.up,
                Span::Device(from),
                Span::Device(lane.device(region)),
            )?;
            above.read_by(Reading::record(self, lane)?);
            if is_due {
                above.have_on_host(&range)?;
            }
            Ok(())
        });
        let done = self.device().watch(done).map_err(EngineError::from);
        drop(entered);
        let on_host = done.and_then(|()| {
            if !is_due {
                return Ok(None);
            }
            let mut bytes = Vec::new();
            above.read_pinned(range.start, at_least(&mut bytes, range.len())?);
            Ok(Some(bytes))
        });
        match on_host {
            Ok(on_host) => {
                let on_device = true;
                *kept = KeptSlice { on_device, on_host };
                Ok(())
            }
            Err(error) => {
                self.after_fault(Some(above));
                Err(error)
            }
        }
    }

    /// Implements [`StreamEngine::take_kept`](crate::contract::stream::StreamEngine::take_kept).
    pub(super) fn take_kept(&self, bytes: &mut [u8]) -> Result<(), EngineError> {
        let reduction = planned(self)?;
        let mut kept = self.kept();
        if !kept.on_device {
            return Err(EngineError::Internal("no slice is kept"));
        }
        if bytes.len() != reduction.from.above.slice_bytes() {
            return Err(EngineError::Internal("a kept slice of another size"));
        }
        let (entered, lane) = self.enter()?;
        let copied = self.device().watch(self.read_kept(lane, reduction, bytes));
        drop(entered);
        if copied.is_err() {
            self.drain();
        }
        copied?;
        *kept = KeptSlice::default();
        Ok(())
    }

    /// Copies the slice that the device keeps to `bytes`, without padding, and waits for it.
    fn read_kept(
        &self,
        lane: Running<'_>,
        reduction: &Reduction,
        bytes: &mut [u8],
    ) -> Result<(), DriverError> {
        let Some((region, pinned)) = reduction.kept else {
            return Ok(());
        };
        let (from, to) = (lane.device(region), lane.pinned_out(pinned));
        lane.copy(lane.up, Span::Device(from), Span::Pinned(to))?;
        lane.synchronize_stream(lane.up, KEPT_HOST)?;
        lane.driver.host_access(to, Access::Read)?;
        self.devices.counters.add_from_device(to.len);
        let copiers = self.devices.copiers_of(self.device());
        let from = self.output(pinned).cast_const();
        // SAFETY: the slice is in pinned memory, where nothing writes it now.
        let copies = unsafe { unpadded(&reduction.above, from, 0, bytes) };
        copiers.run(&copies, self.job.threads);
        Ok(())
    }

    /// Makes the slices that the device makes from the byte `at` of `input` on, too, in pinned memory: of the kept
    /// slice, if there is one, and of slices of the level above. The encoded batch is compared with them.
    fn reduce_on_host(
        &self,
        lane: Running<'_>,
        reduction: &Reduction,
        kept: Option<&mut KeptSlice>,
        above: Option<&mut (&mut CudaInput, Range<usize>)>,
        input: &mut CudaInput,
        at: usize,
    ) -> Result<(), EngineError> {
        let ReducedFrom {
            reducer,
            slices: per_window,
            above: grid,
        } = &reduction.from;
        let slice = grid.slice_bytes();
        let (mut first, mut second, mut made) = (Vec::new(), Vec::new(), Vec::new());
        let mut kept_slice = match kept {
            Some(kept) => {
                let mut bytes = kept.on_host.take().unwrap_or_default();
                if bytes.is_empty() {
                    self.read_kept(lane, reduction, at_least(&mut bytes, slice)?)?;
                }
                Some(bytes)
            }
            None => None,
        };
        let given = match &above {
            Some((_, slices)) => slices.clone(),
            None => 0..0,
        };
        let mut above = above.map(|(above, _)| above);
        if let Some(above) = &mut above {
            above.have_on_host(&(given.start * slice..given.end * slice))?;
        }
        let mut next = given.start;
        let mut take = |buffer: &mut Vec<u8>| -> Result<bool, EngineError> {
            if let Some(kept) = kept_slice.take() {
                *buffer = kept;
                return Ok(true);
            }
            let Some(above) = above.as_ref().filter(|_| next < given.end) else {
                return Ok(false);
            };
            above.read_pinned(next * slice, at_least(buffer, slice)?);
            next += 1;
            Ok(true)
        };
        let mut at = at;
        while take(&mut first)? {
            let is_pair = *per_window == 2 && take(&mut second)?;
            let window = [
                &first[..slice],
                if is_pair { &second[..slice] } else { &[] },
            ];
            let made = at_least(&mut made, reducer.reduced_bytes())?;
            reducer.reduce(&window[..=usize::from(is_pair)], made, self.job.threads)?;
            input.write_copy(at, made);
            at += made.len();
        }
        Ok(())
    }

    /// Checks that `above` is an input of the level above, on this device, and contains `slices`.
    fn source<'i>(
        &self,
        above: &'i mut CudaInput,
        slices: &Range<usize>,
    ) -> Result<&'i mut CudaInput, EngineError> {
        let grid = &above.shared.job.grid;
        if !planned(self)?.is_from(grid) || !Arc::ptr_eq(above.shared.device(), self.device()) {
            return Err(EngineError::Unsuitable(
                "the level above is another one, or on another device".to_string(),
            ));
        }
        let slice = grid.slice_bytes();
        above.check(slices.start * slice, slices.len() * slice)?;
        Ok(above)
    }

    /// Enqueues the kernels: for the window with the kept slice, for whole windows, and for a last window
    /// with one slice.
    fn launch(
        &self,
        lane: Running<'_>,
        reduction: &Reduction,
        from: Option<DeviceSpan>,
        kept: bool,
        input: &CudaInput,
        first: usize,
    ) -> Result<(), DriverError> {
        let (above, below) = (
            reduction.above.padded_slice(),
            self.sizing.padding.padded_slice(),
        );
        let (_, raw) = input.places();
        let to = lane.device(raw);
        let given = from.map_or(0, |from| from.len / above);
        let rest = |slices: usize| from.map(|from| sub_span(from, slices * above..from.len));
        let (mut used, mut made) = (0, first);
        let mut run = |windows: ReduceWindows| {
            let count = windows.count;
            let reduced = sub_span(to, made * below..(made + count) * below);
            made += count;
            // SAFETY: the spans belong to this lane, and to the lane above, whose memory is kept until the
            // event that is recorded behind this has happened.
            unsafe { (reduction.plan).enqueue(lane.driver, lane.up, windows, reduced) }
        };
        if kept && let Some((region, _)) = reduction.kept {
            run(ReduceWindows {
                first: lane.device(region),
                second: rest(0).filter(|_| given > 0),
                slices: 1,
                count: 1,
            })?;
            used = given.min(1);
        }
        let per_window = reduction.from.slices;
        let count = (given - used) / per_window;
        if count > 0
            && let Some(first) = rest(used)
        {
            run(ReduceWindows {
                first,
                second: rest(used + 1).filter(|_| per_window == 2),
                slices: per_window,
                count,
            })?;
            used += count * per_window;
        }
        if used < given
            && let Some(first) = rest(used)
        {
            run(ReduceWindows {
                first,
                second: None,
                slices: 1,
                count: 1,
            })?;
        }
        Ok(())
    }

    /// Drains the lanes of both levels after a failure, so that nothing is in flight in them.
    fn after_fault(&self, above: Option<&mut CudaInput>) {
        self.drain();
        if let Some(above) = above {
            above.shared.drain();
            if let Some(error) = self.lost() {
                above.shared.leave_alone(error);
            }
        }
    }
}
