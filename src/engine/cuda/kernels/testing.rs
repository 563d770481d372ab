//! Runs kernels on byte vectors, with any driver.

use crate::engine::cuda::driver::{
    Access, DeviceSpan, Driver, DriverError, PinnedSpan, PinnedUse, Site, Span, StreamId,
};

const SITE: Site = Site("kernel test");

/// Copies each of `buffers` to device memory of its own, calls `launch`, and copies them back.
pub(crate) fn run(
    driver: &dyn Driver,
    buffers: &mut [&mut Vec<u8>],
    launch: impl FnOnce(StreamId, &[DeviceSpan]) -> Result<(), DriverError>,
) -> Result<(), DriverError> {
    driver.enter()?;
    let stream = driver.create_stream()?;
    let mut device = Vec::new();
    let mut pinned = Vec::new();
    for buffer in buffers.iter() {
        let len = buffer.len();
        let memory = driver.allocate(len.max(1))?;
        device.push(DeviceSpan {
            memory,
            offset: 0,
            len,
        });
        let memory = driver.allocate_pinned(len.max(1), PinnedUse::FromDevice)?;
        let span = PinnedSpan {
            memory,
            offset: 0,
            len,
        };
        pinned.push(span);
        driver.host_access(span, Access::Write)?;
        // SAFETY: `len` bytes were allocated just now, and nothing is in flight.
        unsafe { std::ptr::copy_nonoverlapping(buffer.as_ptr(), memory.0.as_ptr(), len) };
    }
    for (pinned, device) in pinned.iter().zip(&device) {
        // SAFETY: both spans live until the stream is synchronised below.
        unsafe { driver.copy(stream, Span::Pinned(*pinned), Span::Device(*device))? };
    }
    launch(stream, &device)?;
    for (pinned, device) in pinned.iter().zip(&device) {
        // SAFETY: as above.
        unsafe { driver.copy(stream, Span::Device(*device), Span::Pinned(*pinned))? };
    }
    driver.synchronize_stream(stream, SITE)?;
    for (buffer, (pinned, device)) in buffers.iter_mut().zip(pinned.iter().zip(&device)) {
        driver.host_access(*pinned, Access::Read)?;
        // SAFETY: the stream was synchronised: the copy is complete, and nothing uses the memory
        // afterwards.
        unsafe {
            let from = pinned.memory.0.as_ptr();
            std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), buffer.len());
            driver.free_pinned(pinned.memory)?;
            driver.free(device.memory)?;
        }
    }
    driver.destroy_stream(stream)?;
    driver.leave()
}
