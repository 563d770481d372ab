//! A test application whose data lie on the device.

use std::sync::Arc;

use super::Numbers;
use crate::contract::EngineError;
use crate::contract::stream::{BatchInput, DeviceBytes, Reusable};
use crate::cuda::driver::{
    Access, DeviceMemory, DeviceSpan, Driver, DriverError, EventId, Fault, PinnedMemory,
    PinnedSpan, PinnedUse, Site, Span, StreamId,
};

/// The prefix of the names of sites at which the application itself calls the driver.
pub const OWN: &str = "application";
const STREAM: Site = Site("application: its stream is empty");
const READ: Site = Site("application: its bytes were read");

/// The offset of the data in the application's buffer. It is not 0, so that the two addresses differ.
const OFFSET: usize = 24;

/// An application that writes each of its slices to the same device buffer.
#[derive(Debug)]
pub struct Application {
    driver: Arc<dyn Driver>,
    /// Whether the numbers of streams and events are valid handles, which only the simulated driver has.
    simulated: bool,
    stream: StreamId,
    staging: PinnedMemory,
    memory: DeviceMemory,
    len: usize,
    numbers: Numbers,
    reusable: Option<Box<dyn Reusable>>,
    /// The number of times that the engine copied bytes from the device.
    pub taken: usize,
}

/// Runs `work`, and once more if a fault may have passed.
fn again<T>(work: impl Fn() -> Result<T, DriverError>) -> Result<T, DriverError> {
    work().or_else(|error| match error.fault {
        Fault::Sticky => Err(error),
        _ => work(),
    })
}

impl Application {
    pub fn new(
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

    /// Writes `bytes` to an input, from the host or from the device by chance. Falls back to the
    /// host if the write from the device fails.
    pub fn write(
        &mut self,
        input: &mut dyn BatchInput,
        at: usize,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        if self.numbers.below(3) > 0 && self.make(bytes).is_ok() {
            let from = self.made(bytes.len());
            // SAFETY: the bytes stay until they are copied: `make` waits for that.
            if let Ok(reusable) = unsafe { input.write_from_device(at, &from) } {
                self.reusable = Some(reusable);
                self.taken += 1;
                return Ok(());
            }
        }
        input.write(at, bytes)
    }

    /// Puts `bytes` on the device, for a writer. They stay there until the next call, which waits until the
    /// writer has read them.
    ///
    /// # Errors
    /// The errors of the device.
    pub fn slice(&mut self, bytes: &[u8]) -> Result<DeviceBytes, EngineError> {
        self.make(bytes)?;
        Ok(self.made(bytes.len()))
    }

    /// Describes the first `len` bytes of the buffer.
    fn made(&self, len: usize) -> DeviceBytes {
        DeviceBytes {
            device: self.driver.device().ordinal,
            pointer: self.memory.0 + OFFSET as u64,
            len,
            stream: if self.simulated { self.stream.0 } else { 0 },
        }
    }

    /// Waits until the engine no longer reads the old contents of the buffer, and fills it with `bytes`.
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
        // SAFETY: the staging memory is at least as long, and nothing reads it any more.
        unsafe {
            let to = self.staging.0.as_ptr();
            to.copy_from_nonoverlapping(bytes.as_ptr(), len);
        }
        let to = DeviceSpan {
            memory: self.memory,
            offset,
            len,
        };
        // SAFETY: the application owns both memories, and has not freed them.
        again(|| unsafe { driver.copy(self.stream, Span::Pinned(staging), Span::Device(to)) })?;
        if !self.simulated {
            // The default stream does not wait for this one.
            again(|| driver.synchronize_stream(self.stream, STREAM))?;
        }
        Ok(())
    }

    /// Frees all memory, streams and events. This fails on a broken device.
    pub fn end(mut self) -> Result<(), EngineError> {
        if let Some(reusable) = self.reusable.take() {
            reusable.wait().or_else(|_| reusable.wait())?;
        }
        let driver = &self.driver;
        again(|| driver.enter())?;
        let freed = || {
            again(|| driver.synchronize_stream(self.stream, STREAM))?;
            again(|| driver.destroy_stream(self.stream))?;
            // SAFETY: nothing uses the memory, because the bytes were copied and the stream is empty.
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
