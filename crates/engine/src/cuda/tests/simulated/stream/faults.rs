//! Every fault at every operation of a stream: the host writes the right bytes, or an error
//! explains the failure, and nothing leaks.

use super::*;
use crate::cuda::driver::Fault;
use crate::cuda::driver::simulation::{Counts, Inject};

struct Case {
    subject: Subject,
    library: StandIn,
    /// Whether an application has some of the data on the device.
    on_device: bool,
}

fn cases() -> Vec<Case> {
    let shuffled = blosc(Cname::Zstd, Shuffle::Bit, 2, 32);
    let gzip = Stage::Gzip { level: 4 };
    let case = |stages, library, on_device| {
        let mut subject = padded(stages);
        // The subject takes as few operations of each kind as possible.
        subject.epochs = 4;
        subject.fill(3);
        Case {
            subject,
            library,
            on_device,
        }
    };
    vec![
        case(vec![Stage::Crc32c], StandIn::Six, false),
        case(vec![Stage::Crc32c], StandIn::Six, true),
        case(vec![shuffled], StandIn::Six, false),
        case(vec![gzip], StandIn::Failing, true),
    ]
}

/// How far an attempt came.
#[derive(Debug)]
enum Outcome {
    /// The stream could not be opened: the caller would use another engine.
    NotOpened(EngineError),
    Done(Result<(), EngineError>),
}

impl Case {
    fn run(&self, simulation: &Arc<Simulation>, falls_back: bool, tries: usize) -> Outcome {
        let engine = stream_engine(simulation, self.library, &self.subject).with_times(true);
        let stream = match open(&engine, &self.subject, falls_back) {
            Ok(stream) => stream,
            Err(error) => return Outcome::NotOpened(error),
        };
        Outcome::Done(if self.on_device {
            encode_with(simulation, &self.subject, stream, (1, tries))
        } else {
            Run::new(&self.subject, stream, 1).and_then(|mut run| {
                run.tries = tries;
                self.subject.check(&run.all(&mut stream::from_host)?);
                Ok(())
            })
        })
    }

    fn counts(&self) -> Counts {
        let simulation = simulation(Schedule::Latest);
        let done = self.run(&simulation, false, 0);
        assert!(matches!(done, Outcome::Done(Ok(()))), "{done:?}");
        assert_clean(&simulation);
        simulation.counts()
    }

    /// A stream that falls back hides a transient fault. Other streams succeed when the batch is
    /// retried.
    fn check_transient(&self, inject: Inject) {
        for falls_back in [true, false] {
            let simulation = simulation(Schedule::Latest);
            simulation.inject(inject);
            let outcome = self.run(&simulation, falls_back, 2);
            let failed = simulation.failed();
            match outcome {
                Outcome::NotOpened(EngineError::Device(_)) | Outcome::Done(Ok(())) => {}
                other => panic!("{inject:?}, {failed:?}: {other:?}"),
            }
            let violations = simulation.violations();
            assert!(
                violations.is_empty(),
                "{inject:?}, {failed:?}: {violations:#?}"
            );
            let live = simulation.live();
            // The memory that was not freed, or that the device may still use.
            let left = leaves_memory(&failed);
            // A lane that is given up without a context is leaked.
            let left = left || is_at_the_end(inject, simulation.counts()) && live.streams == 4;
            assert!(
                left || live == Live::default(),
                "{inject:?}, {failed:?}: {live:?}"
            );
            assert_eq!(live.entered, 0, "{inject:?}, {failed:?}");
        }
    }

    /// A broken device: the host continues, or without fallback there is an error.
    fn check_sticky(&self, inject: Inject) {
        for falls_back in [true, false] {
            let simulation = simulation(Schedule::Latest);
            simulation.inject(inject);
            match self.run(&simulation, falls_back, 1) {
                Outcome::Done(Ok(())) => assert!(falls_back || self.is_late(inject), "{inject:?}"),
                Outcome::NotOpened(EngineError::Device(_)) => {}
                Outcome::Done(Err(error)) => {
                    let text = error.to_string();
                    let lost = self.on_device && text.contains("They are lost");
                    assert!(!falls_back || lost, "{inject:?}: {text}");
                }
                other => panic!("{inject:?}: {other:?}"),
            }
            let violations = simulation.violations();
            assert!(violations.is_empty(), "{inject:?}: {violations:#?}");
            assert_eq!(simulation.live().entered, 0, "{inject:?}");
        }
    }

    /// Returns whether the fault comes after the stream is complete.
    fn is_late(&self, inject: Inject) -> bool {
        let (Inject::Sticky { operation } | Inject::Lost { operation }) = inject else {
            return false;
        };
        operation + 40 > self.counts().operations
    }
}

/// Returns whether one of the failed operations would have given memory back, or let it be given
/// back.
pub(super) fn leaves_memory(failed: &[String]) -> bool {
    let starts = ["synchronise with stream", "free", "destroy"];
    let leaves = |operation: &String| starts.iter().any(|start| operation.starts_with(start));
    failed.iter().any(leaves)
}

/// Returns whether the fault comes when the context is only entered to free resources.
pub(super) fn is_at_the_end(inject: Inject, counts: Counts) -> bool {
    matches!(inject, Inject::NotEntered { enter, .. } if enter + 4 >= counts.enters)
}

#[test]
fn a_refusal_of_any_operation() {
    for case in cases() {
        let operations = case.counts().operations;
        assert!(operations > 100);
        for operation in 0..operations {
            case.check_transient(Inject::Failed {
                operation,
                fault: Fault::Refused,
            });
        }
    }
}

#[test]
fn no_memory_no_context_and_no_launch() {
    for case in cases() {
        let counts = case.counts();
        for allocation in 0..counts.device_allocations + counts.pinned_allocations {
            case.check_transient(Inject::OutOfMemory { allocation });
        }
        for launch in 0..counts.launches {
            case.check_transient(Inject::Refused { launch });
        }
        for enter in 0..counts.enters {
            for fault in [Fault::OutOfMemory, Fault::Refused] {
                case.check_transient(Inject::NotEntered { enter, fault });
            }
        }
    }
}

#[test]
fn a_broken_context_or_a_lost_device_at_any_operation() {
    for case in cases() {
        for operation in 0..case.counts().operations {
            case.check_sticky(Inject::Sticky { operation });
            if operation % 3 == 0 {
                case.check_sticky(Inject::Lost { operation });
            }
        }
    }
}

/// The device does not confirm that it is done with a failed batch. The lane is then never used
/// again, and the host continues.
#[test]
fn a_lane_that_cannot_be_drained_is_lost() {
    let case = &cases()[0];
    let refused = Inject::Refused { launch: 3 };
    let operations = case.counts().operations;
    let mut lost = 0;
    for operation in 0..operations {
        let simulation = simulation(Schedule::Latest);
        simulation.inject(refused);
        for operation in [operation, operation + 1] {
            simulation.inject(Inject::Failed {
                operation,
                fault: Fault::Refused,
            });
        }
        let outcome = case.run(&simulation, true, 0);
        match outcome {
            Outcome::NotOpened(_) | Outcome::Done(Ok(())) => {}
            Outcome::Done(Err(error)) => panic!("{operation}: {error}"),
        }
        let violations = simulation.violations();
        assert!(violations.is_empty(), "{operation}: {violations:#?}");
        let drain = |what: &&String| what.contains("after a batch has failed");
        if simulation.failed().iter().filter(drain).count() == 2 {
            lost += 1;
            assert_clean(&simulation);
        }
    }
    assert!(lost >= 1, "{lost}");
}

/// The host encodes everything after a fault, and counters record that.
#[test]
fn what_falls_back_is_counted() {
    let subject = padded(vec![Stage::Crc32c]);
    let simulation = simulation(Schedule::Eager);
    let engine = stream_engine(&simulation, StandIn::Six, &subject);
    let stream = open(&engine, &subject, true).expect("fits");
    let operation = simulation.counts().operations + 10;
    simulation.inject(Inject::Sticky { operation });
    stream::encode(&subject, stream, 0).expect("the host has it");
    let metrics = engine.counters().snapshot();
    let batches = subject.batches().len() as u64;
    assert_eq!(metrics.fallbacks.values().sum::<u64>(), batches);
    assert_eq!((metrics.batches_encoded, metrics.lanes_leaked), (0, 1));
    assert!(simulation.violations().is_empty());
}
