//! The simulation has teeth, and bites nobody who keeps the rules.

use std::ptr;

use super::*;

const SITE: Site = Site("test");

fn device_span(memory: DeviceMemory, offset: usize, len: usize) -> DeviceSpan {
    DeviceSpan {
        memory,
        offset,
        len,
    }
}

fn pinned_span(memory: PinnedMemory, offset: usize, len: usize) -> PinnedSpan {
    PinnedSpan {
        memory,
        offset,
        len,
    }
}

/// A simulation with the context current, and shorter names.
struct Bench(Simulation);

impl Bench {
    fn new(config: Config) -> Self {
        let simulation = Simulation::new(config);
        simulation.enter().unwrap();
        Self(simulation)
    }

    fn device(&self, len: usize) -> DeviceSpan {
        device_span(self.0.allocate(len).unwrap(), 0, len)
    }

    fn pinned(&self, len: usize) -> PinnedSpan {
        let memory = self.0.allocate_pinned(len, PinnedUse::FromDevice).unwrap();
        pinned_span(memory, 0, len)
    }

    fn stream(&self) -> StreamId {
        self.0.create_stream().unwrap()
    }

    fn upload(
        &self,
        stream: StreamId,
        from: PinnedSpan,
        to: DeviceSpan,
    ) -> Result<(), DriverError> {
        // SAFETY: the simulation checks what it is told.
        unsafe { self.0.copy(stream, Span::Pinned(from), Span::Device(to)) }
    }

    fn download(
        &self,
        stream: StreamId,
        from: DeviceSpan,
        to: PinnedSpan,
    ) -> Result<(), DriverError> {
        // SAFETY: as above.
        unsafe { self.0.copy(stream, Span::Device(from), Span::Pinned(to)) }
    }

    /// Write a pinned span.
    fn write(&self, span: PinnedSpan, bytes: &[u8]) -> Result<(), DriverError> {
        assert_eq!(bytes.len(), span.len);
        self.0.host_access(span, Access::Write)?;
        // SAFETY: within the span, and nobody else uses it now.
        unsafe {
            let to = span.memory.0.as_ptr().add(span.offset);
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, span.len);
        }
        Ok(())
    }

    /// Read a pinned span.
    fn read(&self, span: PinnedSpan) -> Result<Vec<u8>, DriverError> {
        self.0.host_access(span, Access::Read)?;
        let mut bytes = vec![0; span.len];
        // SAFETY: as above.
        unsafe {
            let from = span.memory.0.as_ptr().add(span.offset);
            ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), span.len);
        }
        Ok(bytes)
    }
}

#[test]
fn bytes_go_there_and_back() {
    let bench = Bench::new(Config::default());
    let (pinned, device, stream) = (bench.pinned(100), bench.device(100), bench.stream());
    let bytes: Vec<u8> = (0..100).collect();
    bench.write(pinned, &bytes).unwrap();
    bench.upload(stream, pinned, device).unwrap();
    let back = bench.pinned(100);
    bench.download(stream, device, back).unwrap();
    bench.0.synchronize_stream(stream, SITE).unwrap();
    assert_eq!(bench.read(back).unwrap(), bytes);
    assert!(bench.0.violations().is_empty());
}

#[test]
fn kernels_run() {
    let bench = Bench::new(Config::default());
    let (pinned, device, stream) = (bench.pinned(1024), bench.device(2048), bench.stream());
    bench
        .write(pinned, &1_u32.to_le_bytes().repeat(256))
        .unwrap();
    let input = device_span(device.memory, 1024, 1024);
    let output = device_span(device.memory, 0, 1024);
    bench.upload(stream, pinned, input).unwrap();
    let args = [
        Arg::Span(input, Access::Read),
        Arg::Span(output, Access::Write),
    ];
    let dims = Dims {
        grid: 1,
        block: 256,
    };
    // SAFETY: what the kernel takes.
    unsafe { bench.0.launch(stream, "test_scan", dims, &args) }.unwrap();
    bench.download(stream, output, pinned).unwrap();
    bench.0.synchronize_stream(stream, SITE).unwrap();
    let sums: Vec<u8> = (1..=256_u32).flatten_le();
    assert_eq!(bench.read(pinned).unwrap(), sums);
    assert!(bench.0.violations().is_empty());
}

trait FlattenLe {
    fn flatten_le(self) -> Vec<u8>;
}

impl<I: Iterator<Item = u32>> FlattenLe for I {
    fn flatten_le(self) -> Vec<u8> {
        self.flat_map(u32::to_le_bytes).collect()
    }
}
