//! An application that has its data on the device.

use std::sync::Arc;

use super::stream::Numbers;
use crate::engine::EngineError;
use crate::engine::cuda::driver::{
    Access, DeviceMemory, DeviceSpan, Driver, DriverError, EventId, Fault, PinnedMemory,
    PinnedSpan, PinnedUse, Site, Span, StreamId,
};
use crate::engine::stream::{DeviceBytes, Input, Reusable};

/// How the names of its own waits begin.
pub(in crate::engine::cuda) const OWN: &str = "application";
const STREAM: Site = Site("application: its stream is empty");
const READ: Site = Site("application: its bytes were read");

/// Where its bytes begin: not where its memory does.
const OFFSET: usize = 24;

/// It makes them in one buffer, again and again.
#[derive(Debug)]
pub(in crate::engine::cuda) struct Application {
    driver: Arc<dyn Driver>,
    /// Whether numbers of streams and events are the handles of an application: in the simulation.
    simulated: bool,
    stream: StreamId,
    staging: PinnedMemory,
    memory: DeviceMemory,
    len: usize,
    numbers: Numbers,
    reusable: Option<Box<dyn Reusable>>,
    /// How often the engine took bytes from the device.
    pub(in crate::engine::cuda) taken: usize,
}

/// What passes does not stop an application.
fn again<T>(work: impl Fn() -> Result<T, DriverError>) -> Result<T, DriverError> {
    work().or_else(|error| match error.fault {
        Fault::Sticky => Err(error),
        _ => work(),
    })
}

impl Application {
    pub(in crate::engine::cuda) fn new(
        driver: Arc<dyn Driver>,
        simulated: bool,
        len: usize,
        seed: u64,
    ) -> Result<Self, DriverError> {
        let len = len + 64;
        again(|| driver.enter())?;
        let made = || {
            Ok((
                again(|| driver.create_stream())?,
                again(|| driver.allocate_pinned(len, PinnedUse::ToDevice))?,
                again(|| driver.allocate(len))?,
            ))
        };
        let made = made();
        driver.leave()?;
        let (stream, staging, memory) = made?;
        Ok(Self {
            driver,
            simulated,
            stream,
            staging,
            memory,
            len,
            numbers: Numbers::new(seed),
            reusable: None,
            taken: 0,
        })
    }

    /// Put bytes into an input: some from the host, some from the device. What a device does not
    /// take, the host has.
    pub(in crate::engine::cuda) fn write(
        &mut self,
        input: &mut dyn Input,
        at: usize,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        if self.numbers.below(3) > 0 && self.make(bytes).is_ok() {
            let from = DeviceBytes {
                device: self.driver.device().ordinal,
                pointer: self.memory.0 + OFFSET as u64,
                len: bytes.len(),
                stream: if self.simulated { self.stream.0 } else { 0 },
            };
            // SAFETY: the bytes are there until they were taken: `make` waits for that.
            if let Ok(reusable) = unsafe { input.write_from_device(at, &from) } {
                self.reusable = Some(reusable);
                self.taken += 1;
                return Ok(());
            }
        }
        input.write(at, bytes)
    }

    /// Let the buffer hold `bytes`, once it can be written.
    fn make(&mut self, bytes: &[u8]) -> Result<(), EngineError> {
        let driver = self.driver.clone();
        again(|| driver.enter())?;
        let made = self.make_entered(bytes);
        driver.leave()?;
        made
    }

    fn make_entered(&mut self, bytes: &[u8]) -> Result<(), EngineError> {
        let driver = &self.driver;
        if let Some(reusable) = &self.reusable {
            match self.numbers.below(3) {
                0 if self.simulated => {
                    let event = EventId(reusable.event());
                    again(|| driver.wait(self.stream, event, READ))?;
                }
                1 => while !reusable.query().or_else(|_| reusable.query())? {},
                _ => reusable.wait().or_else(|_| reusable.wait())?,
            }
        }
        self.reusable = None;
        again(|| driver.synchronize_stream(self.stream, STREAM))?;
        let (offset, len) = (OFFSET, bytes.len());
        let staging = PinnedSpan {
            memory: self.staging,
            offset: 0,
            len,
        };
        driver.host_access(staging, Access::Write)?;
        assert!(offset + len <= self.len);
        // SAFETY: the staging memory is as long, and nothing reads it any more.
        unsafe {
            let to = self.staging.0.as_ptr();
            to.copy_from_nonoverlapping(bytes.as_ptr(), len);
        }
        let to = DeviceSpan {
            memory: self.memory,
            offset,
            len,
        };
        // SAFETY: both are the application's, and live.
        again(|| unsafe { driver.copy(self.stream, Span::Pinned(staging), Span::Device(to)) })?;
        if !self.simulated {
            // The default stream does not wait for this one.
            again(|| driver.synchronize_stream(self.stream, STREAM))?;
        }
        Ok(())
    }

    /// Give everything back. Where the device is broken, nothing can be.
    pub(in crate::engine::cuda) fn end(mut self) -> Result<(), EngineError> {
        if let Some(reusable) = self.reusable.take() {
            reusable.wait().or_else(|_| reusable.wait())?;
        }
        let driver = &self.driver;
        again(|| driver.enter())?;
        let freed = || {
            again(|| driver.synchronize_stream(self.stream, STREAM))?;
            again(|| driver.destroy_stream(self.stream))?;
            // SAFETY: nothing uses them: the bytes were taken, and the stream is empty.
            unsafe {
                again(|| driver.free_pinned(self.staging))?;
                again(|| driver.free(self.memory))
            }
        };
        let freed = freed();
        driver.leave()?;
        Ok(freed?)
    }
}
