//! Memory, streams and a clock on a device, freed together.

use std::cell::RefCell;

use super::failure::{Result, require};
use zarrs_cuda_engine::cuda::driver::{
    Access, DeviceMemory, DeviceSpan, Driver, DriverError, EventId, PinnedMemory, PinnedSpan,
    PinnedUse, Site, Span, StreamId,
};

const BEGIN: Site = Site("record: what is measured begins");
const BEGIN_WAIT: Site = Site("wait: the other stream begins as well");
const END: Site = Site("record: what is measured ends");
const END_HOST: Site = Site("synchronise: what is measured has ended");
const MOVED: Site = Site("synchronise: bytes that are not measured were moved");
const GIVE_BACK: Site = Site("give a workbench back: its streams are empty");

/// Memory, streams and a clock on a device that this thread has entered.
pub(crate) struct Workbench<'d> {
    pub(crate) driver: &'d dyn Driver,
    memory: RefCell<Vec<DeviceMemory>>,
    pinned: RefCell<Vec<PinnedMemory>>,
    streams: Vec<StreamId>,
    events: Vec<EventId>,
    staging: Vec<PinnedSpan>,
}

impl<'d> Workbench<'d> {
    /// A workbench that moves `staging` bytes at once in copies that are not timed.
    pub(crate) fn new(driver: &'d dyn Driver, staging: usize) -> Result<Self> {
        driver.enter()?;
        let mut this = Self {
            driver,
            memory: RefCell::default(),
            pinned: RefCell::default(),
            streams: Vec::new(),
            events: Vec::new(),
            staging: Vec::new(),
        };
        for _ in 0..2 {
            this.streams.push(driver.create_stream()?);
        }
        for _ in 0..3 {
            this.events.push(driver.create_event(true)?);
        }
        for kind in [PinnedUse::ToDevice, PinnedUse::FromDevice] {
            let span = this.pinned(staging, kind)?;
            this.staging.push(span);
        }
        Ok(this)
    }

    /// Allocates device memory, which is freed with the workbench.
    pub(crate) fn device(&self, len: usize) -> Result<DeviceSpan> {
        let memory = self.driver.allocate(len)?;
        self.memory.borrow_mut().push(memory);
        Ok(DeviceSpan {
            memory,
            offset: 0,
            len,
        })
    }

    /// Allocates pinned memory, which is freed with the workbench.
    pub(crate) fn pinned(&self, len: usize, kind: PinnedUse) -> Result<PinnedSpan> {
        let memory = self.driver.allocate_pinned(len, kind)?;
        self.pinned.borrow_mut().push(memory);
        Ok(PinnedSpan {
            memory,
            offset: 0,
            len,
        })
    }

    /// Returns the address of pinned memory of this workbench, for the host to write.
    pub(crate) fn write(&self, span: PinnedSpan) -> Result<*mut u8> {
        self.driver.host_access(span, Access::Write)?;
        // SAFETY: the span lies within its allocation, which belongs to the workbench.
        Ok(unsafe { span.memory.0.as_ptr().add(span.offset) })
    }

    /// Returns bytes of pinned memory of this workbench. Nothing writes them while they are
    /// borrowed.
    pub(crate) fn read(&self, span: PinnedSpan) -> Result<&[u8]> {
        self.driver.host_access(span, Access::Read)?;
        // SAFETY: the span lies within its allocation. It was written by `fill_pinned` or by a copy
        // that has completed.
        Ok(
            unsafe {
                std::slice::from_raw_parts(span.memory.0.as_ptr().add(span.offset), span.len)
            },
        )
    }

    /// Fills pinned memory with repetitions of `bytes`.
    pub(crate) fn fill_pinned(&self, span: PinnedSpan, bytes: &[u8]) -> Result<()> {
        let to = self.write(span)?;
        let mut at = 0;
        while at < span.len && !bytes.is_empty() {
            let len = bytes.len().min(span.len - at);
            // SAFETY: the range lies within the span, which the host may write now.
            unsafe { to.add(at).copy_from_nonoverlapping(bytes.as_ptr(), len) };
            at += len;
        }
        Ok(())
    }

    /// Times the work that `enqueue` adds to the given stream, in seconds on the device.
    pub(crate) fn time(
        &self,
        enqueue: impl FnOnce(StreamId) -> std::result::Result<(), DriverError>,
    ) -> Result<f64> {
        let (stream, begin, end) = (self.streams[0], self.events[0], self.events[1]);
        self.driver.record(begin, stream, BEGIN)?;
        enqueue(stream)?;
        self.driver.record(end, stream, END)?;
        self.driver.synchronize(end, END_HOST)?;
        Ok(self.driver.elapsed(begin, end)?.as_secs_f64())
    }

    /// Times two pieces of work, each in its own stream, from the start of both to the end of both,
    /// in seconds.
    pub(crate) fn time_both(
        &self,
        enqueue: [&dyn Fn(StreamId) -> std::result::Result<(), DriverError>; 2],
    ) -> Result<f64> {
        let begin = self.events[0];
        self.driver.record(begin, self.streams[0], BEGIN)?;
        self.driver.wait(self.streams[1], begin, BEGIN_WAIT)?;
        for (enqueue, &stream) in enqueue.iter().zip(&self.streams) {
            enqueue(stream)?;
        }
        for (&end, &stream) in self.events[1..].iter().zip(&self.streams) {
            self.driver.record(end, stream, END)?;
        }
        let mut longest = 0.0_f64;
        for &end in &self.events[1..] {
            self.driver.synchronize(end, END_HOST)?;
            longest = longest.max(self.driver.elapsed(begin, end)?.as_secs_f64());
        }
        Ok(longest)
    }

    /// Runs the work that `enqueue` adds to the given stream, without timing it.
    pub(crate) fn run(
        &self,
        enqueue: impl FnOnce(StreamId) -> std::result::Result<(), DriverError>,
    ) -> Result<()> {
        enqueue(self.streams[0])?;
        self.driver.synchronize_stream(self.streams[0], MOVED)?;
        Ok(())
    }

    /// Sets every byte of `span` to `byte`.
    pub(crate) fn fill(&self, span: DeviceSpan, byte: u8) -> Result<()> {
        // SAFETY: the memory belongs to the workbench, and the stream is synchronised.
        self.run(|stream| unsafe { self.driver.fill(stream, span, byte) })
    }

    /// Copies `bytes` to the start of `to`.
    pub(crate) fn upload(&self, to: DeviceSpan, bytes: &[u8]) -> Result<()> {
        require(bytes.len() <= to.len, || {
            format!("{} bytes have no room in {}", bytes.len(), to.len)
        })?;
        let staging = self.staging[0];
        for (i, bytes) in bytes.chunks(staging.len).enumerate() {
            let from = PinnedSpan {
                len: bytes.len(),
                ..staging
            };
            self.fill_pinned(from, bytes)?;
            let to = DeviceSpan {
                offset: to.offset + i * staging.len,
                len: bytes.len(),
                ..to
            };
            // SAFETY: the memory belongs to the workbench, and the stream is synchronised.
            self.run(|stream| unsafe {
                self.driver
                    .copy(stream, Span::Pinned(from), Span::Device(to))
            })?;
        }
        Ok(())
    }

    /// Returns an error unless `span` holds each of `pieces` at its offset. The pieces are in
    /// order.
    pub(crate) fn check<'a>(
        &self,
        what: &str,
        span: DeviceSpan,
        pieces: impl IntoIterator<Item = (usize, &'a [u8])>,
    ) -> Result<()> {
        let staging = self.staging[1];
        let mut pieces = pieces.into_iter().peekable();
        let mut compared = 0;
        for at in (0..span.len).step_by(staging.len) {
            let to = PinnedSpan {
                len: staging.len.min(span.len - at),
                ..staging
            };
            let from = DeviceSpan {
                offset: span.offset + at,
                len: to.len,
                ..span
            };
            // SAFETY: the memory belongs to the workbench, and the stream is synchronised.
            self.run(|stream| unsafe {
                self.driver
                    .copy(stream, Span::Device(from), Span::Pinned(to))
            })?;
            let (got, end) = (self.read(to)?, at + to.len);
            while let Some(&(start, piece)) = pieces.peek()
                && start < end
            {
                let (first, last) = (start.max(at), (start + piece.len()).min(end));
                let (got, expected) = (
                    &got[first - at..last - at],
                    &piece[first - start..][..last - first],
                );
                if got != expected {
                    let wrong = got.iter().zip(expected).position(|(a, b)| a != b);
                    let wrong = first + wrong.unwrap_or(0);
                    return require(false, || format!("{what}: byte {wrong} is wrong"));
                }
                compared += last - first;
                if start + piece.len() > end {
                    break;
                }
                pieces.next();
            }
        }
        require(pieces.next().is_none() && compared > 0, || {
            format!("{what}: there is less than there should be")
        })
    }

    fn give_back(&self) -> std::result::Result<(), DriverError> {
        let driver = self.driver;
        for &stream in &self.streams {
            driver.synchronize_stream(stream, GIVE_BACK)?;
            driver.destroy_stream(stream)?;
        }
        for &event in &self.events {
            driver.destroy_event(event)?;
        }
        for memory in self.memory.take() {
            // SAFETY: the streams were synchronised.
            unsafe { driver.free(memory)? };
        }
        for pinned in self.pinned.take() {
            // SAFETY: as above.
            unsafe { driver.free_pinned(pinned)? };
        }
        driver.leave()
    }
}

impl Drop for Workbench<'_> {
    fn drop(&mut self) {
        // A broken device rejects all calls: the remaining resources are leaked.
        if let Err(error) = self.give_back() {
            tracing::warn!(%error, "giving a workbench back");
        }
    }
}
