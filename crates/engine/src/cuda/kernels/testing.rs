//! Runs kernels on byte vectors, with any driver.

use crate::cuda::driver::{
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

/// Launches whose memory no machine has: one block of them, with the memory that it uses.
pub(crate) mod far {
    use std::collections::BTreeMap;

    use zarrs_cuda_emulator::{Access, Argument, Buffer, Options, launch};

    use crate::cuda::driver::simulation;

    /// Where kernels find what they copy, where to, and two tables.
    pub(crate) const SHARDS: u64 = 1 << 56;
    pub(crate) const SLOTS: u64 = 1 << 60;
    pub(crate) const OFFSETS: u64 = 1 << 40;
    pub(crate) const SIZES: u64 = 1 << 44;

    /// Blocks of a launch.
    pub(crate) const GRID: u32 = (1 << 31) - 1;

    /// Bytes of memory, by their addresses.
    #[derive(Default)]
    pub(crate) struct FarMemory {
        read: BTreeMap<u64, Vec<u8>>,
        /// The memory that the kernel writes, and the contents that it should have afterwards.
        written: BTreeMap<u64, (Vec<u8>, Vec<u8>)>,
    }

    impl FarMemory {
        /// The kernel copies `len` bytes. It may read the aligned granules of 16 bytes around them.
        pub(crate) fn copied(&mut self, from: u64, to: u64, len: u64) {
            if len == 0 {
                return;
            }
            let byte = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
            let expected = (from..from + len).map(byte).collect();
            let first = from / 16 * 16;
            let last = (from + len).next_multiple_of(16);
            self.read.insert(first, (first..last).map(byte).collect());
            let before = self.written.range_mut(..=to).next_back();
            match before {
                Some((first, (bytes, all))) if first + bytes.len() as u64 == to => {
                    bytes.resize(bytes.len() + len as usize, 0xcc);
                    all.extend::<Vec<u8>>(expected);
                }
                _ => {
                    let bytes = vec![0xcc; len as usize];
                    self.written.insert(to, (bytes, expected));
                }
            }
        }

        pub(crate) fn numbers(&mut self, at: u64, numbers: impl Iterator<Item = u64>) {
            self.read
                .insert(at, numbers.flat_map(u64::to_ne_bytes).collect());
        }

        pub(crate) fn words(&mut self, at: u64, words: impl Iterator<Item = u32>) {
            self.read
                .insert(at, words.flat_map(u32::to_ne_bytes).collect());
        }

        /// Runs one block of `kernel`, and checks what it wrote.
        pub(crate) fn check(mut self, kernel: &str, block: u32, arguments: &[u64]) {
            let kernel = simulation::kernel(kernel).expect("a kernel");
            let buffer = |address: &u64, bytes: &mut Vec<u8>, access| Buffer {
                address: *address,
                len: bytes.len(),
                host: bytes.as_mut_ptr(),
                access,
            };
            let read = self.read.iter_mut();
            let read = read.map(|(address, bytes)| buffer(address, bytes, Access::Read));
            let written = self.written.iter_mut();
            let written =
                written.map(|(address, (bytes, _))| buffer(address, bytes, Access::Write));
            let buffers: Vec<Buffer> = read.chain(written).collect();
            let arguments: Vec<_> = arguments.iter().map(|n| n.to_ne_bytes()).collect();
            let arguments: Vec<_> = arguments.iter().map(|bytes| Argument(bytes)).collect();
            let options = Options {
                checks: true,
                blocks: Some(block..block + 1),
                ..Options::default()
            };
            // SAFETY: the buffers live, and nobody else uses them.
            unsafe {
                launch(
                    kernel,
                    GRID,
                    kernel.threads(),
                    &arguments,
                    &buffers,
                    options,
                )
            }
            .expect("runs");
            for (address, (bytes, expected)) in &self.written {
                assert!(bytes == expected, "wrong bytes from {address:#x} on");
            }
        }
    }
}
