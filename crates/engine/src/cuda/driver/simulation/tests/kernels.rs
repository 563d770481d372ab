//! Kernels and libraries: what they may touch, and their arguments.

use std::ptr;

use zarrs_cuda_emulator::device::host;

use super::*;

/// Returns a library that writes `len` bytes from `offset` bytes from the first one of `span` on.
fn writes(span: DeviceSpan, offset: isize, len: usize) -> LibraryCall {
    Box::new(move |_| {
        let first = host(span.memory.0);
        // SAFETY: within the allocation or the zones around it.
        unsafe { first.offset(offset).write_bytes(7, len) };
        Ok(())
    })
}

#[test]
fn a_library_keeps_within_its_spans() {
    for schedule in [Schedule::Eager, Schedule::Latest] {
        // Each case is a write of the library in 512 bytes: its offset, its length, and the error.
        // The library may write bytes 128..256, and read bytes 256..384.
        let wrong = [
            (
                120,
                16,
                "it wrote byte 120 of device memory 0, which is in none of its spans",
            ),
            (
                250,
                10,
                "it wrote byte 256 of device memory 0, which it was to read only",
            ),
            (
                511,
                1,
                "it wrote byte 511 of device memory 0, which is in none of its spans",
            ),
            (
                512,
                1,
                "it wrote byte 512 of device memory 0, which has 512 bytes",
            ),
            (
                -1,
                1,
                "it wrote byte -1 of device memory 0, which has 512 bytes",
            ),
        ];
        for (offset, len, expected) in [(128, 128, "")].into_iter().chain(wrong) {
            let bench = Bench::new(Config {
                schedule,
                ..Config::default()
            });
            let (device, stream) = (bench.device(512), bench.stream());
            let part = |offset| Span::Device(device_span(device.memory, offset, 128));
            let accesses = [(part(128), Access::Write), (part(256), Access::Read)];
            // SAFETY: the simulation checks what it is told.
            unsafe { bench.0.fill(stream, device, 7) }.unwrap();
            let calls = || {
                // SAFETY: as above.
                unsafe {
                    bench
                        .0
                        .call(stream, "write", &accesses, writes(device, offset, len))
                }?;
                bench.0.synchronize_stream(stream, SITE)
            };
            if expected.is_empty() {
                calls().unwrap();
                continue;
            }
            // A byte that is what it was shows only where it was hidden.
            if offset == 250 {
                // SAFETY: as above.
                unsafe { bench.0.fill(stream, device, 8) }.unwrap();
            }
            let message = refused(&bench, calls(), Rule::Guard);
            assert_eq!(message, format!("library call write: {expected}"));
        }
    }
}

#[test]
fn undeclared_bytes_are_hidden_and_come_back() {
    let bench = Bench::new(Config::default());
    let (device, pinned, stream) = (bench.device(64), bench.pinned(64), bench.stream());
    // SAFETY: the simulation checks what it is told.
    unsafe { bench.0.fill(stream, device, 7) }.unwrap();
    let to = device_span(device.memory, 0, 32);
    let copy: LibraryCall = Box::new(move |_| {
        let first = host(to.memory.0);
        // SAFETY: the two halves of the allocation.
        unsafe { ptr::copy_nonoverlapping(first.add(32), first, 32) };
        Ok(())
    });
    // SAFETY: as above.
    unsafe {
        bench
            .0
            .call(stream, "copy", &[(Span::Device(to), Access::Write)], copy)
    }
    .unwrap();
    bench.download(stream, device, pinned).unwrap();
    bench.0.synchronize_stream(stream, SITE).unwrap();
    let bytes = bench.read(pinned).unwrap();
    assert_ne!(bytes[..32], [7; 32]);
    assert_eq!(bytes[32..], [7; 32]);
}

#[test]
fn a_kernel_that_breaks_a_rule_is_named() {
    for schedule in [Schedule::Eager, Schedule::Latest] {
        let bench = Bench::new(Config {
            schedule,
            ..Config::default()
        });
        let stream = bench.stream();
        let launch = || {
            let dims = Dims {
                grid: 1,
                block: 256,
            };
            let offsets = device_span(bench.device(64).memory, 0, 64);
            // One size more than there is room for.
            let args = [Arg::Null, Arg::U64(8), Arg::Span(offsets, Access::Write)];
            // SAFETY: the emulator sees what the kernel does.
            unsafe { bench.0.launch(stream, "scan_whole", dims, &args) }?;
            bench.0.synchronize_stream(stream, SITE)
        };
        let message = refused(&bench, launch(), Rule::Kernel);
        assert!(
            message.starts_with("kernel scan_whole, block 0, line "),
            "{message}"
        );
    }
}

#[test]
fn a_librarys_error_is_no_violation() {
    for schedule in [Schedule::Eager, Schedule::Latest] {
        let bench = Bench::new(Config {
            schedule,
            ..Config::default()
        });
        let stream = bench.stream();
        let error = (|| {
            let function: LibraryCall = Box::new(|_| Err("no".into()));
            // SAFETY: it does nothing.
            unsafe { bench.0.call(stream, "refuse", &[], function) }?;
            bench.0.synchronize_stream(stream, SITE)
        })();
        let error = error.unwrap_err();
        assert_eq!(error.fault, Fault::Refused);
        assert!(error.reason.ends_with("library call refuse: no"), "{error}");
        assert!(bench.0.violations().is_empty());
        bench.0.synchronize_stream(stream, SITE).unwrap();
    }
}

#[test]
fn arguments_are_checked() {
    let bench = Bench::new(Config::default());
    let (device, stream) = (bench.device(64), bench.stream());
    let part = |offset, len| Span::Device(device_span(device.memory, offset, len));
    // SAFETY: the simulation checks what it is told.
    unsafe {
        bench.0.fill(stream, device, 0).unwrap();
        bench.0.copy(stream, part(0, 32), part(32, 32)).unwrap();
        bench.0.copy(stream, part(0, 32), part(31, 32)).unwrap_err();
        bench.0.copy(stream, part(0, 32), part(32, 31)).unwrap_err();
        for (grid, block) in [(0, 32), (1 << 31, 32), (1, 0), (1, 33), (1, 2048)] {
            let dims = Dims { grid, block };
            bench.0.launch(stream, "scan_whole", dims, &[]).unwrap_err();
        }
    }
    bench.0.allocate(0).unwrap_err();
    let violations = bench.0.violations();
    assert_eq!(violations.len(), 8);
    assert!(
        violations.iter().all(|v| v.rule == Rule::Argument),
        "{violations:?}"
    );
}
