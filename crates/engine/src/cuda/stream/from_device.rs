//! Copies bytes that an application has on the device into a batch.

use std::sync::Arc;

use super::shared::StreamLane;
use crate::contract::EngineError;
use crate::contract::stream::{DeviceBytes, Reusable};
use crate::cuda::arena::Region;
use crate::cuda::driver::{DriverError, EventId, PinnedSpan, Site, Span};
use crate::cuda::kernels::spans::sub_span;
use crate::cuda::lane::Running;
use crate::cuda::rows_box::RowsCopy;

/// The record of the event after which everything that the application has enqueued in its stream so far is
/// complete.
const MADE: Site = Site("record: the application has made its bytes");
const MADE_WAIT: Site = Site("wait: copy of an application's bytes for these");
/// The record of the event after which the application's bytes were read.
const TAKEN: Site = Site("record: an application's bytes were copied");
const TAKEN_HOST: Site = Site("synchronise: an application's bytes before it writes them");

/// Enqueues copies of an application's bytes to the offset `at` of the batch whose padded slices are in
/// `raw`, on the device, and perhaps also in `pinned` memory.
///
/// # Safety
/// The requirements of [`DeviceBytes`].
///
/// # Errors
/// The error of the driver. Then some of the copies may be in flight.
pub(super) unsafe fn read_from_device(
    shared: &Arc<StreamLane>,
    lane: Running<'_>,
    (raw, pinned): (Region, Option<PinnedSpan>),
    at: usize,
    bytes: &DeviceBytes,
) -> Result<CudaReusable, DriverError> {
    let given = lane.driver.adopt(bytes.pointer, bytes.len)?;
    let mut reusable = CudaReusable {
        event: shared.take_lent(lane)?,
        shared: shared.clone(),
        handle: 0,
    };
    let event = reusable.event;
    reusable.handle = lane.driver.event_handle(event)?;
    let made = shared.take_lent(lane)?;
    // SAFETY: this function has the same requirements, which its caller keeps.
    if let Err(error) = unsafe { lane.driver.record_in(made, bytes.stream, MADE) } {
        shared.lent.let_go(made);
        return Err(error);
    }
    let lent = bytes.pointer..bytes.pointer.saturating_add(bytes.len as u64);
    shared.lent.lend(lent.clone(), made);
    lane.driver.wait(lane.up, made, MADE_WAIT)?;
    let largest = lane.driver.device().largest_pitch;
    let pieces = shared.sizing.padding.pieces(at, bytes.len);
    for copy in pieces.iter().flat_map(|piece| piece.copies(largest)) {
        let RowsCopy { shape, from, to } = copy;
        let on_device = Span::Device(lane.device(raw.part(to.bytes(shape))));
        let in_pinned = pinned.map(|pinned| Span::Pinned(pinned.part(to.bytes(shape))));
        let from = from.in_span(Span::Device(sub_span(given, from.bytes(shape))));
        for target in std::iter::chain([on_device], in_pinned) {
            let to = to.in_span(target);
            // SAFETY: the copies write the lane's regions, and read bytes of the application, which does not
            // write these bytes until the event below has happened.
            unsafe {
                if (shape.planes, shape.rows) == (1, 1) {
                    lane.driver.copy(lane.up, from.span, to.span)?;
                } else {
                    lane.driver.copy_rows(lane.up, shape, from, to)?;
                }
            }
        }
    }
    lane.driver.record(event, lane.up, TAKEN)?;
    shared.lent.read_at(&lent, event, lane.driver);
    Ok(reusable)
}

/// An event for which an application waits before it writes its bytes again.
#[derive(Debug)]
pub(super) struct CudaReusable {
    shared: Arc<StreamLane>,
    event: EventId,
    /// The CUDA driver's handle of the event.
    handle: u64,
}

impl Drop for CudaReusable {
    fn drop(&mut self) {
        self.shared.lent.let_go(self.event);
    }
}

impl Reusable for CudaReusable {
    fn wait(&self) -> Result<(), EngineError> {
        let (_entered, lane) = self.shared.enter()?;
        let waited = lane.synchronize(self.event, TAKEN_HOST);
        self.shared.device().watch(waited)?;
        self.shared.lent.was_read(self.event);
        Ok(())
    }

    fn query(&self) -> Result<bool, EngineError> {
        let (_entered, lane) = self.shared.enter()?;
        let happened = lane.driver.query_event(self.event);
        let happened = self.shared.device().watch(happened)?;
        if happened {
            self.shared.lent.was_read(self.event);
        }
        Ok(happened)
    }

    fn event(&self) -> u64 {
        self.handle
    }
}
