//! Memory: bounds, lifetimes, what was written, what is left.

use super::*;

#[test]
fn spans_are_within_their_allocations() {
    let bench = Bench::new(Config::default());
    let device = bench.device(64);
    let stream = bench.stream();
    // SAFETY: the simulation checks what it is told.
    let fill = |offset, len| unsafe {
        bench
            .0
            .fill(stream, device_span(device.memory, offset, len), 0)
    };
    for (offset, len) in [(0, 64), (63, 1), (64, 0), (0, 0)] {
        fill(offset, len).unwrap();
    }
    for (offset, len) in [(0, 65), (64, 1), (65, 0), (usize::MAX, 1), (1, usize::MAX)] {
        let before = bench.0.violations().len();
        fill(offset, len).unwrap_err();
        let violations = bench.0.violations();
        assert_eq!(violations.len(), before + 1);
        assert_eq!(violations[before].rule, Rule::Bounds);
    }
}

#[test]
fn freed_memory_is_not_used() {
    let bench = Bench::new(Config::default());
    let (device, pinned, stream) = (bench.device(64), bench.pinned(64), bench.stream());
    // SAFETY: nothing uses it; later, the simulation checks what it is told.
    unsafe {
        bench.0.free(device.memory).unwrap();
        bench.0.free_pinned(pinned.memory).unwrap();
        let message = refused(&bench, bench.0.fill(stream, device, 0), Rule::Lifetime);
        assert!(message.ends_with("device memory 0 was freed"), "{message}");
        bench.0.free(device.memory).unwrap_err();
        bench.0.free_pinned(pinned.memory).unwrap_err();
    }
    bench.0.host_access(pinned, Access::Write).unwrap_err();
    bench.0.discard(Span::Device(device)).unwrap_err();
    let violations = bench.0.violations();
    assert_eq!(violations.len(), 5);
    assert!(
        violations.iter().all(|v| v.rule == Rule::Lifetime),
        "{violations:?}"
    );
}

#[test]
fn memory_in_use_is_not_freed() {
    for schedule in [Schedule::Eager, Schedule::Latest] {
        let bench = Bench::new(Config {
            schedule,
            ..Config::default()
        });
        let (device, pinned, stream) = (bench.device(64), bench.pinned(64), bench.stream());
        bench.write(pinned, &[1; 64]).unwrap();
        bench.upload(stream, pinned, device).unwrap();
        // SAFETY: the simulation checks what it is told.
        let free = || unsafe { bench.0.free_pinned(pinned.memory) };
        let message = refused(&bench, free(), Rule::Lifetime);
        assert!(
            message.contains("freed while in use: a copy (operation 1"),
            "{message}"
        );
        bench.0.synchronize_stream(stream, SITE).unwrap();
        free().unwrap();
    }
}

#[test]
fn bytes_that_were_never_written_are_not_read() {
    for schedule in [Schedule::Eager, Schedule::Latest] {
        let bench = Bench::new(Config {
            schedule,
            ..Config::default()
        });
        let (device, pinned, stream) = (bench.device(64), bench.pinned(64), bench.stream());
        let part = device_span(device.memory, 0, 48);
        // SAFETY: the simulation checks what it is told.
        unsafe { bench.0.fill(stream, part, 0) }.unwrap();
        let message = refused(
            &bench,
            bench.download(stream, device, pinned),
            Rule::Uninitialised,
        );
        assert!(
            message.contains("of which 48..64 were never written"),
            "{message}"
        );
        let download = || bench.download(stream, part, pinned_span(pinned.memory, 16, 48));
        download().unwrap();
        bench.0.synchronize_stream(stream, SITE).unwrap();
        bench.read(pinned_span(pinned.memory, 16, 48)).unwrap();
        bench.read(pinned).unwrap_err();
        bench.0.host_access(pinned, Access::Update).unwrap_err();
        bench
            .0
            .discard(Span::Device(device_span(device.memory, 47, 1)))
            .unwrap();
        download().unwrap_err();
        let violations = bench.0.violations();
        assert_eq!(violations.len(), 4);
        assert!(
            violations.iter().all(|v| v.rule == Rule::Uninitialised),
            "{violations:?}"
        );
        assert!(
            violations[3]
                .message
                .contains("of which 47..48 were never written")
        );
    }
}

#[test]
fn what_is_discarded_is_poisoned_and_not_in_use() {
    let bench = Bench::new(Config::default());
    let (device, pinned, stream) = (bench.device(64), bench.pinned(64), bench.stream());
    bench.write(pinned, &[0; 64]).unwrap();
    bench.upload(stream, pinned, device).unwrap();
    refused(&bench, bench.0.discard(Span::Pinned(pinned)), Rule::Order);
    bench.0.synchronize_stream(stream, SITE).unwrap();
    bench.0.discard(Span::Pinned(pinned)).unwrap();
    // SAFETY: within the span, initialised by the poison, and nobody else uses it.
    let bytes = unsafe { std::slice::from_raw_parts(pinned.memory.0.as_ptr(), 64) };
    assert_ne!(bytes, [0; 64]);
}

#[test]
fn what_is_left_is_counted() {
    let bench = Bench::new(Config::default());
    let (device, pinned, stream) = (bench.device(300), bench.pinned(64), bench.stream());
    let event = bench.0.create_event(true).unwrap();
    assert_eq!(
        bench.0.live(),
        Live {
            device_allocations: 1,
            device_bytes: 512,
            pinned_allocations: 1,
            pinned_bytes: 4096,
            streams: 1,
            events: 1,
            entered: 1,
        }
    );
    // SAFETY: nothing uses it.
    unsafe {
        bench.0.free(device.memory).unwrap();
        bench.0.free_pinned(pinned.memory).unwrap();
    }
    bench.0.destroy_event(event).unwrap();
    bench.0.destroy_stream(stream).unwrap();
    bench.0.leave().unwrap();
    assert_eq!(bench.0.live(), Live::default());
    assert_eq!(bench.0.peak(Kind::Device), 512);
    assert_eq!(bench.0.peak(Kind::Pinned), 4096);
    assert!(bench.0.violations().is_empty());
}

#[test]
fn allocations_are_aligned() {
    let bench = Bench::new(Config::default());
    for len in [1, 255, 257, 5000] {
        assert_eq!(bench.device(len).memory.0 % 256, 0);
        assert_eq!(bench.pinned(len).memory.0.addr().get() % 4096, 0);
    }
}
