//! Faults, injected and not.

use super::*;

#[test]
fn memory_runs_out() {
    let bench = Bench::new(Config {
        memory: 1024,
        pinned: 4096,
        ..Config::default()
    });
    let out =
        |result: Result<(), DriverError>| assert_eq!(result.unwrap_err().fault, Fault::OutOfMemory);
    let device = bench.device(257);
    assert_eq!(bench.0.free_memory().unwrap(), 512);
    out(bench.0.allocate(513).map(drop));
    out(bench.0.allocate(usize::MAX).map(drop));
    bench.device(512);
    out(bench.0.allocate(1).map(drop));
    // SAFETY: nothing uses it.
    unsafe { bench.0.free(device.memory) }.unwrap();
    bench.device(512);
    bench.0.set_memory(512);
    assert_eq!(bench.0.free_memory().unwrap(), 0);
    bench.pinned(4096);
    out(bench.0.allocate_pinned(1, PinnedUse::ToDevice).map(drop));
    assert!(bench.0.violations().is_empty());
}

#[test]
fn an_injected_allocation_fails_once() {
    let device = Kind::Device;
    let kinds = [Kind::Pinned, Kind::Device, Kind::Pinned, Kind::Device];
    let of = |kind, allocation| Inject::OutOfMemoryOf { kind, allocation };
    for (fault, failing) in [
        (Inject::OutOfMemory { allocation: 0 }, 0),
        (Inject::OutOfMemory { allocation: 3 }, 3),
        (of(device, 1), 3),
        (of(Kind::Pinned, 1), 2),
    ] {
        let bench = Bench::new(Config {
            faults: vec![fault],
            ..Config::default()
        });
        for (i, kind) in kinds.into_iter().enumerate() {
            let result = match kind {
                Kind::Device => bench.0.allocate(1).map(drop),
                Kind::Pinned => bench.0.allocate_pinned(1, PinnedUse::ToDevice).map(drop),
            };
            assert_eq!(
                result.err().map(|e| e.fault),
                (i == failing).then_some(Fault::OutOfMemory)
            );
        }
        assert!(bench.0.violations().is_empty());
    }
}

#[test]
fn an_injected_launch_is_refused_once() {
    let bench = Bench::new(Config::default());
    let stream = bench.stream();
    let call = || {
        // SAFETY: it does nothing.
        unsafe { bench.0.call(stream, "nothing", &[], Box::new(|_| Ok(()))) }
    };
    call().unwrap();
    let launch = bench.0.counts().launches;
    bench.0.inject(Inject::Refused { launch });
    assert_eq!(call().unwrap_err().fault, Fault::Refused);
    call().unwrap();
    assert!(bench.0.violations().is_empty());
}

#[test]
fn any_operation_fails_once_and_does_nothing() {
    let operations = ring(Config::default()).0.0.counts().operations;
    for operation in 0..operations {
        for fault in [Fault::Refused, Fault::OutOfMemory] {
            let (bench, result) = ring(Config {
                faults: vec![Inject::Failed { operation, fault }],
                ..Config::default()
            });
            assert_eq!(result.unwrap_err().fault, fault);
            assert_eq!(bench.0.counts().operations, operation + 1);
            assert_eq!(bench.0.failed().len(), 1);
            assert!(bench.0.violations().is_empty());
            bench.0.create_event(true).unwrap();
        }
    }
}

#[test]
fn an_injected_enter_fails_once() {
    let simulation = Simulation::eager();
    simulation.inject(Inject::NotEntered {
        enter: 1,
        fault: Fault::OutOfMemory,
    });
    simulation.enter().unwrap();
    assert_eq!(simulation.enter().unwrap_err().fault, Fault::OutOfMemory);
    simulation.enter().unwrap();
    assert_eq!(
        (simulation.live().entered, simulation.counts().enters),
        (2, 3)
    );
    assert_eq!(simulation.failed(), ["enter the context"]);
    assert!(simulation.violations().is_empty());
}

#[test]
fn nothing_works_after_a_sticky_fault() {
    let operations = ring(Config::default()).0.0.counts().operations;
    assert!(operations > 20);
    for operation in 0..operations {
        for fault in [Inject::Sticky { operation }, Inject::Lost { operation }] {
            let (bench, result) = ring(Config {
                faults: vec![fault],
                ..Config::default()
            });
            assert_eq!(result.unwrap_err().fault, Fault::Sticky);
            assert_eq!(bench.0.counts().operations, operation + 1);
            assert!(bench.0.violations().is_empty());
            for result in [
                bench.0.create_event(true).map(drop),
                bench.0.free_memory().map(drop),
                bench.0.enter(),
            ] {
                assert_eq!(result.unwrap_err().fault, Fault::Sticky);
            }
            assert!(bench.0.violations().is_empty());
            let freed = bench.0.destroy_event(EventId(1));
            assert_eq!(freed.unwrap_err().fault, Fault::Sticky);
            assert_eq!(only_violation(&bench.0).rule, Rule::Context);
            bench.0.leave().unwrap();
        }
    }
    assert!(
        ring(Config {
            faults: vec![Inject::Lost {
                operation: operations
            }],
            ..Config::default()
        })
        .1
        .is_ok()
    );
}
