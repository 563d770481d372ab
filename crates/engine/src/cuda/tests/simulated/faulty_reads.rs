//! A fault at any operation of a read: an error, after which the device works or is not used again, and no leak.

use std::time::{Duration, Instant};

use zarrs_cuda_nvcomp_stand_in::StandIn;

use super::handing_over::{Application, hand_over};
use super::reading::{Boxes, encoded_by_host, read_to, reads_on};
use super::*;
use crate::contract::EncodedShard;
use crate::cuda::driver::Fault;
use crate::cuda::driver::simulation::Inject;
use crate::cuda::read::CudaReads;

/// Reads a shard into memory of ours, and three times into that of an application.
fn read(
    reads: &CudaReads,
    (shard, encoded): (&Shard, &EncodedShard),
    application: &Application<'_>,
) -> Result<(), EngineError> {
    let boxes = Boxes::whole(shard);
    let buffer = reads.allocate(boxes.len)?;
    read_to(reads, shard, encoded, &boxes, &buffer)?;
    hand_over(reads, (shard, encoded), &boxes, application, 3)?;
    // A thread frees the memory. It should not be at work when the context breaks.
    drop(buffer);
    Ok(())
}

/// Returns whether the release of something was refused.
fn is_release_refused(simulation: &Simulation) -> bool {
    let verbs = ["free", "destroy", "synchronise"];
    let failed = simulation.failed();
    failed
        .iter()
        .any(|text| verbs.iter().any(|verb| text.starts_with(verb)))
}

/// Waits until no thread frees memory, or nothing is left. A device that is not usable keeps its memory.
fn settle(simulation: &Simulation, is_usable: bool) {
    let begin = Instant::now();
    // Memory that could not be released stays.
    let most = if is_release_refused(simulation) {
        Duration::from_millis(200)
    } else {
        Duration::from_secs(20)
    };
    let is_settled = || {
        let live = simulation.live();
        live == Live::default() || !is_usable && live.entered == 0
    };
    while begin.elapsed() < most && !is_settled() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Checks a fault at an operation, and what it leaves. Returns false if a read has fewer operations.
fn check(shard: &Shard, encoded: &EncodedShard, after: usize, fault: fn(usize) -> Inject) -> bool {
    let simulation = simulation(Schedule::Latest);
    let (engine, reads) = reads_on(&simulation, StandIn::Six, shard, true).expect("reads");
    let application = Application::new(&simulation, shard.grid.shard_bytes()).expect("fits");
    let inject = fault(simulation.counts().operations + after);
    simulation.inject(inject);
    let result = read(&reads, (shard, encoded), &application);
    let reached = !simulation.failed().is_empty() || result.is_err();
    if !reached {
        // The fault is still to come, in operations of the test.
        return false;
    }
    let what = format!("{inject:?}: {:?}", simulation.failed());
    if let Err(error) = &result {
        assert!(matches!(error, EngineError::Device(_)), "{what}: {error}");
    }
    let is_usable = matches!(inject, Inject::Failed { .. });
    if is_usable {
        // The application's memory is written by a later read, whatever became of this one.
        read(&reads, (shard, encoded), &application)
            .unwrap_or_else(|error| panic!("{what}, afterwards: {error}"));
        let found = application.end().expect("no fault");
        assert!(found == shard.elements, "{what}: wrong elements");
    } else if result.is_err() {
        let again = read(&reads, (shard, encoded), &application).expect_err("is not used again");
        assert!(matches!(again, EngineError::Device(_)), "{what}: {again}");
    }
    engine.devices.release_idle();
    drop((engine, reads));
    settle(&simulation, is_usable);
    let violations = simulation.violations();
    assert!(violations.is_empty(), "{what}: {violations:#?}");
    let live = simulation.live();
    assert_eq!(live.entered, 0, "{what}");
    if is_usable {
        // Memory whose release was refused is lost, or memory that a stream may still use.
        let is_clean = live == Live::default();
        assert!(
            is_clean || is_release_refused(&simulation),
            "{what}: {live:?}"
        );
    }
    true
}

#[test]
fn a_fault_at_any_operation_of_a_read() {
    let zstd = Stage::Zstd {
        level: 1,
        checksum: false,
    };
    let faults: [fn(usize) -> Inject; 4] = [
        |operation| Inject::Failed {
            operation,
            fault: Fault::Refused,
        },
        |operation| Inject::Failed {
            operation,
            fault: Fault::OutOfMemory,
        },
        |operation| Inject::Sticky { operation },
        |operation| Inject::Lost { operation },
    ];
    for shard in [Shard::new(1), Shard::new(0).compressed(0, zstd, 0)] {
        let encoded = encoded_by_host(&shard);
        for (number, fault) in faults.into_iter().enumerate() {
            let mut reached = 0;
            for operation in (number..).step_by(if number == 0 { 2 } else { 7 }) {
                if !check(&shard, &encoded, operation, fault) {
                    break;
                }
                reached += 1;
            }
            assert!(reached > 20, "{reached} faults");
        }
    }
}
