//! Order: streams, events, the host, schedules.

use std::sync::Arc;

use super::*;

#[test]
fn a_missing_wait_is_named() {
    let bench = Bench::new(Config::default());
    let (a, b) = (bench.stream(), bench.stream());
    let (pinned, device) = (bench.pinned(64), bench.device(256));
    bench.write(pinned, &[1; 64]).unwrap();
    bench
        .upload(a, pinned, device_span(device.memory, 64, 64))
        .unwrap();
    // SAFETY: the simulation checks what it is told.
    let fill = |stream, offset| unsafe {
        bench
            .0
            .fill(stream, device_span(device.memory, offset, 64), 0)
    };
    fill(b, 0).unwrap();
    fill(b, 128).unwrap();
    let message = refused(&bench, fill(b, 65), Rule::Order);
    for part in [
        "fill DeviceSpan",
        "in stream 2: it writes bytes 65..129 of device memory 1",
        "a copy (operation 1 of stream 1) writes bytes 64..128 of device memory 1",
        "stream 2 has not waited for an event recorded in stream 1 after it",
    ] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn pinned_memory_is_the_hosts_only_when_it_has_waited() {
    for schedule in [Schedule::Eager, Schedule::Latest] {
        for access in [Access::Read, Access::Write, Access::Update] {
            for upload in [true, false] {
                let bench = Bench::new(Config {
                    schedule,
                    ..Config::default()
                });
                let (stream, event) = (bench.stream(), bench.0.create_event(true).unwrap());
                let (pinned, device) = (bench.pinned(64), bench.device(64));
                bench.write(pinned, &[1; 64]).unwrap();
                bench.upload(stream, pinned, device).unwrap();
                if !upload {
                    bench.0.synchronize_stream(stream, SITE).unwrap();
                    bench.download(stream, device, pinned).unwrap();
                }
                let byte = pinned_span(pinned.memory, 63, 1);
                if upload && access == Access::Read {
                    // Both read.
                    bench.0.host_access(byte, access).unwrap();
                    continue;
                }
                let message = refused(&bench, bench.0.host_access(byte, access), Rule::Order);
                assert!(
                    message.contains("the host has not synchronised with stream"),
                    "{message}"
                );
                bench.0.record(event, stream, SITE).unwrap();
                bench.0.synchronize(event, SITE).unwrap();
                bench.0.host_access(byte, access).unwrap();
            }
        }
    }
}

#[test]
fn an_event_that_has_happened_was_waited_for() {
    for schedule in schedules().take(20) {
        let bench = Bench::new(Config {
            schedule,
            ..Config::default()
        });
        let (stream, event) = (bench.stream(), bench.0.create_event(true).unwrap());
        let (pinned, device) = (bench.pinned(64), bench.device(64));
        bench.write(pinned, &[1; 64]).unwrap();
        bench.upload(stream, pinned, device).unwrap();
        bench.0.record(event, stream, SITE).unwrap();
        let mut queries = 1;
        while !bench.0.query_event(event).unwrap() {
            queries += 1;
        }
        match schedule {
            Schedule::Eager => assert_eq!(queries, 1),
            Schedule::Latest => assert_eq!(queries, 2),
            Schedule::Priority(_) => assert!(queries <= 2),
        }
        bench.write(pinned, &[2; 64]).unwrap();
        assert!(bench.0.violations().is_empty());
    }
}

#[test]
fn events_that_were_never_recorded_are_refused() {
    type Use = fn(&Simulation, StreamId, EventId) -> Result<(), DriverError>;
    let uses: [Use; 4] = [
        |driver, stream, event| driver.wait(stream, event, SITE),
        |driver, _, event| driver.synchronize(event, SITE),
        |driver, _, event| driver.query_event(event).map(drop),
        |driver, _, event| driver.elapsed(event, event).map(drop),
    ];
    for use_event in uses {
        let bench = Bench::new(Config::default());
        let (stream, event) = (bench.stream(), bench.0.create_event(true).unwrap());
        let message = refused(&bench, use_event(&bench.0, stream, event), Rule::Event);
        assert!(message.contains("was never recorded"), "{message}");
        bench.0.record(event, stream, SITE).unwrap();
        use_event(&bench.0, stream, event).unwrap();
        bench.0.destroy_event(event).unwrap();
        assert!(use_event(&bench.0, stream, event).is_err());
        let lifetime = bench.0.violations()[1].clone();
        assert_eq!(lifetime.rule, Rule::Lifetime, "{lifetime:?}");
    }
}

#[test]
fn schedules_differ() {
    let orders: BTreeSet<_> = schedules()
        .map(|schedule| {
            let bench = Bench::new(Config {
                schedule,
                ..Config::default()
            });
            let streams = [bench.stream(), bench.stream(), bench.stream()];
            let event = bench.0.create_event(true).unwrap();
            let log = Arc::new(Mutex::new(Vec::new()));
            for i in 0..4 {
                for (name, stream) in streams.iter().enumerate() {
                    let log = log.clone();
                    let function: LibraryCall = Box::new(move |_| {
                        log.lock().unwrap().push((name, i));
                        Ok(())
                    });
                    // SAFETY: it touches no memory of the device.
                    unsafe { bench.0.call(*stream, "log", &[], function) }.unwrap();
                }
                if i == 1 {
                    bench.0.record(event, streams[1], SITE).unwrap();
                    bench.0.wait(streams[0], event, SITE).unwrap();
                }
            }
            let done = log.lock().unwrap().len();
            for stream in &streams {
                bench.0.synchronize_stream(*stream, SITE).unwrap();
            }
            let log = log.lock().unwrap().clone();
            let position = |operation| log.iter().position(|o| *o == operation).unwrap();
            assert_eq!(log.len(), 12);
            for stream in 0..3 {
                assert!((1..4).all(|i| position((stream, i - 1)) < position((stream, i))));
            }
            assert!(position((1, 1)) < position((0, 2)));
            match schedule {
                Schedule::Eager => assert_eq!(done, 12),
                Schedule::Latest => {
                    assert_eq!(done, 0);
                    assert_eq!(log[..4], [(0, 0), (0, 1), (1, 0), (1, 1)]);
                    assert_eq!(log[4..8], [(0, 2), (0, 3), (1, 2), (1, 3)]);
                }
                Schedule::Priority(_) => {}
            }
            log
        })
        .collect();
    assert!(orders.len() > 100, "{}", orders.len());
}

#[test]
fn threads_share_a_device() {
    for schedule in schedules().take(20) {
        let simulation = Simulation::new(Config {
            schedule,
            ..Config::default()
        });
        let rounds = |byte: u8| {
            simulation.enter()?;
            let (stream, event) = (simulation.create_stream()?, simulation.create_event(true)?);
            let from = pinned_span(simulation.allocate_pinned(64, PinnedUse::ToDevice)?, 0, 64);
            let to = pinned_span(
                simulation.allocate_pinned(64, PinnedUse::FromDevice)?,
                0,
                64,
            );
            let device = device_span(simulation.allocate(64)?, 0, 64);
            for i in 0..20 {
                // SAFETY: nobody else uses the spans, and the event is waited for.
                unsafe {
                    simulation.host_access(from, Access::Write)?;
                    from.memory.0.write_bytes(byte + i, 64);
                    simulation.copy(stream, Span::Pinned(from), Span::Device(device))?;
                    simulation.copy(stream, Span::Device(device), Span::Pinned(to))?;
                    simulation.record(event, stream, SITE)?;
                    simulation.synchronize(event, SITE)?;
                    simulation.host_access(to, Access::Read)?;
                    let bytes = std::slice::from_raw_parts(to.memory.0.as_ptr(), 64);
                    assert_eq!(bytes, [byte + i; 64]);
                }
            }
            // SAFETY: the stream is empty.
            unsafe {
                simulation.free(device.memory)?;
                simulation.free_pinned(from.memory)?;
                simulation.free_pinned(to.memory)?;
            }
            simulation.destroy_event(event)?;
            simulation.destroy_stream(stream)?;
            simulation.leave()
        };
        thread::scope(|scope| {
            let threads = [0, 50, 100, 150].map(|byte| scope.spawn(move || rounds(byte)));
            for thread in threads {
                thread.join().unwrap().unwrap();
            }
        });
        assert!(simulation.violations().is_empty());
        assert_eq!(simulation.live(), Live::default());
    }
}

#[test]
fn the_context_is_current_per_thread() {
    let bench = Bench::new(Config::default());
    bench.0.enter().unwrap();
    bench.0.leave().unwrap();
    let device = bench.device(1);
    thread::scope(|scope| {
        scope.spawn(|| {
            bench.0.discard(Span::Device(device)).unwrap_err();
            bench.0.create_event(true).unwrap_err();
            bench.0.enter().unwrap();
            bench.0.create_event(true).unwrap();
            bench.0.leave().unwrap();
        });
    });
    bench.0.leave().unwrap();
    bench.0.free_memory().unwrap_err();
    bench.0.leave().unwrap_err();
    let violations = bench.0.violations();
    assert_eq!(violations.len(), 4);
    assert!(
        violations.iter().all(|v| v.rule == Rule::Context),
        "{violations:?}"
    );
}

#[test]
fn events_take_the_time() {
    let mut times = Vec::new();
    for schedule in schedules().take(20) {
        let bench = Bench::new(Config {
            schedule,
            ..Config::default()
        });
        let (device, stream, other) = (bench.device(2 << 20), bench.stream(), bench.stream());
        let idle = bench.stream();
        let events: Vec<_> = (0..4)
            .map(|_| bench.0.create_event(true).unwrap())
            .collect();
        let fill = |stream, offset, len| {
            // SAFETY: the simulation checks what it is told.
            unsafe {
                bench
                    .0
                    .fill(stream, device_span(device.memory, offset, len), 0)
            }
            .unwrap();
        };
        bench.0.record(events[0], stream, SITE).unwrap();
        fill(stream, 0, 1 << 10);
        bench.0.record(events[1], stream, SITE).unwrap();
        fill(stream, 0, 1 << 20);
        bench.0.record(events[2], stream, SITE).unwrap();
        bench.0.wait(other, events[2], SITE).unwrap();
        fill(other, 1 << 20, 1);
        bench.0.record(events[3], other, SITE).unwrap();
        let time = |begin: usize, end: usize| bench.0.elapsed(events[begin], events[end]);
        if schedule == Schedule::Latest {
            refused(&bench, time(0, 3), Rule::Event);
        }
        bench.0.synchronize_stream(other, SITE).unwrap();
        let time = |begin, end| time(begin, end).unwrap();
        assert!(time(0, 1) > Duration::ZERO);
        assert_eq!(time(1, 2), time(0, 1));
        assert_eq!(time(0, 3), time(0, 1) + time(1, 2) + time(2, 3));
        times.push(time(0, 3));
        // An operation that is enqueued after the host has waited happens later, in any stream.
        bench.0.record(events[0], idle, SITE).unwrap();
        bench.0.synchronize_stream(idle, SITE).unwrap();
        assert_eq!(
            bench.0.elapsed(events[3], events[0]).unwrap(),
            Duration::ZERO
        );
        assert!(bench.0.elapsed(events[1], events[0]).unwrap() >= time(1, 3));
    }
    assert!(times.iter().all(|t| *t == times[0]), "{times:?}");
}

#[test]
fn only_timed_events_tell_the_time() {
    for (begin, end) in [(true, true), (true, false), (false, true)] {
        let bench = Bench::new(Config::default());
        let stream = bench.stream();
        let events = [begin, end].map(|timed| bench.0.create_event(timed).unwrap());
        for event in events {
            bench.0.record(event, stream, SITE).unwrap();
        }
        let elapsed = bench.0.elapsed(events[0], events[1]);
        if begin && end {
            elapsed.unwrap();
        } else {
            let message = refused(&bench, elapsed, Rule::Event);
            assert!(message.contains("does not take the time"), "{message}");
        }
    }
}

#[test]
fn a_stream_takes_nothing_from_one_that_is_gone() {
    for schedule in [Schedule::Eager, Schedule::Latest] {
        let bench = Bench::new(Config {
            schedule,
            ..Config::default()
        });
        let (first, other) = (bench.stream(), bench.stream());
        let device = bench.device(64);
        // SAFETY: the simulation checks what it is told.
        let fill = |stream, offset| unsafe {
            let span = device_span(device.memory, offset, 32);
            bench.0.fill(stream, span, 1)
        };
        fill(first, 0).unwrap();
        fill(other, 0).unwrap_err();
        bench.0.destroy_stream(first).unwrap();
        fill(first, 32).unwrap_err();
        let second = bench.stream();
        fill(second, 32).unwrap();
        fill(second, 0).unwrap_err();
        let rules: Vec<_> = bench.0.violations().iter().map(|v| v.rule).collect();
        assert_eq!(rules, [Rule::Order, Rule::Lifetime, Rule::Order]);
    }
}

#[test]
fn streams_come_and_go() {
    let bench = Bench::new(Config::default());
    let device = bench.device(64);
    for _ in 0..100 {
        let (a, b) = (bench.stream(), bench.stream());
        // SAFETY: the simulation checks what it is told.
        unsafe { bench.0.fill(a, device, 1) }.unwrap();
        bench.0.synchronize_stream(a, SITE).unwrap();
        // SAFETY: as above.
        unsafe { bench.0.fill(b, device, 2) }.unwrap();
        bench.0.synchronize_stream(b, SITE).unwrap();
        bench.0.destroy_stream(a).unwrap();
        bench.0.destroy_stream(b).unwrap();
    }
    assert!(bench.0.violations().is_empty());
}

#[test]
fn no_touch_among_many_is_forgotten() {
    let bench = Bench::new(Config::default());
    let (a, b) = (bench.stream(), bench.stream());
    let device = bench.device(1024);
    // SAFETY: the simulation checks what it is told.
    let fill = |stream, i: usize| unsafe {
        bench
            .0
            .fill(stream, device_span(device.memory, 4 * i, 2), 0)
    };
    for round in 0..2 {
        for i in 0..128 {
            fill(a, i).unwrap();
        }
        for i in 128..256 {
            fill(a, i).unwrap();
            fill(b, i).unwrap_err();
        }
        for i in 0..128 {
            fill(b, i).unwrap_err();
        }
        assert_eq!(bench.0.violations().len(), 256 * (round + 1));
        bench.0.synchronize_stream(a, SITE).unwrap();
    }
}

#[test]
fn every_reader_is_waited_for() {
    let bench = Bench::new(Config::default());
    let streams = [bench.stream(), bench.stream(), bench.stream()];
    let (device, to) = (bench.device(64), bench.device(256));
    // SAFETY: the simulation checks what it is told.
    let fill = |stream| unsafe { bench.0.fill(stream, device, 0) };
    fill(streams[0]).unwrap();
    bench.0.synchronize_stream(streams[0], SITE).unwrap();
    for (i, stream) in streams.into_iter().enumerate() {
        let to = device_span(to.memory, i * 64, 64);
        // SAFETY: as above.
        unsafe { bench.0.copy(stream, Span::Device(device), Span::Device(to)) }.unwrap();
    }
    for waited in [1, 2] {
        let message = fill(streams[0]).unwrap_err().reason;
        assert!(
            message.contains(&format!("(operation 1 of stream {})", waited + 1)),
            "{message}"
        );
        let event = bench.0.create_event(true).unwrap();
        bench.0.record(event, streams[waited], SITE).unwrap();
        bench.0.wait(streams[0], event, SITE).unwrap();
    }
    fill(streams[0]).unwrap();
}
