//! Streams need every wait, record and synchronisation.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::cuda::driver::Site;
use crate::cuda::driver::simulation::Inject;
use crate::fakes::OWN;

/// A subject, its compressor library, and a fault to fall back from.
struct Case {
    subject: Subject,
    library: StandIn,
    fault: Option<Inject>,
}

fn cases() -> Vec<Case> {
    let zstd = Stage::Zstd {
        level: 3,
        checksum: false,
    };
    let plain = |fault| Case {
        subject: padded(vec![Stage::Crc32c]),
        library: StandIn::Six,
        fault,
    };
    vec![
        plain(None),
        // The fault is in the kernels of the first batch, whose input is reused.
        plain(Some(Inject::Refused { launch: 2 })),
        Case {
            subject: padded(vec![zstd]),
            library: StandIn::Failing,
            fault: None,
        },
    ]
}

/// Abandons a stream with a batch under way: the lane is given up while its streams are full.
pub(super) fn abandon(subject: &Subject, stream: &dyn StreamEngine) -> Result<(), EngineError> {
    let mut encoder = stream.encoder()?;
    let mut input = stream.input(true)?.expect("none is in use");
    let bytes = subject.job.epochs * subject.job.grid.epoch_bytes();
    input.write(0, &subject.bytes[..bytes])?;
    let (_, batch) = subject.batches().swap_remove(0);
    encoder.submit(input, batch);
    Ok(())
}

/// The sites of `work`, or its first failure of any kind.
pub(in crate::cuda::tests::simulated) fn sites_of(
    simulation: &Simulation,
    work: impl FnOnce() -> Result<(), EngineError>,
) -> Result<BTreeSet<Site>, String> {
    let outcome = catch_unwind(AssertUnwindSafe(work));
    if let Some(violation) = simulation.violations().first() {
        return Err(violation.message.clone());
    }
    match outcome {
        Ok(Ok(())) => Ok(simulation.sites()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the bytes are wrong".to_string()),
    }
}

/// Runs a case with some seeds, each with other data, and with `streams` streams of kernels. Returns
/// the first failure of any kind.
fn run(case: &Case, removed: Option<Site>, streams: usize) -> Result<BTreeSet<Site>, String> {
    let mut sites = BTreeSet::new();
    for seed in 0..4 {
        let simulation = Arc::new(Simulation::new(Config {
            schedule: Schedule::Latest,
            removed,
            ..Config::default()
        }));
        if let Some(fault) = case.fault {
            simulation.inject(fault);
        }
        sites.extend(sites_of(&simulation, || {
            let engine = stream_engine(&simulation, case.library, &case.subject).with_times(true);
            let engine = with_streams(engine, streams);
            let stream = open(&engine, &case.subject, true)?;
            encode_with(&simulation, &case.subject, stream, (seed, 0))?;
            abandon(&case.subject, &*open(&engine, &case.subject, true)?)?;
            drop(engine);
            Ok(())
        })?);
    }
    Ok(sites)
}

#[test]
fn without_any_one_wait_record_or_synchronisation_a_stream_fails() {
    for streams in [1, 3] {
        without_any_one_a_stream_fails(streams);
    }
}

fn without_any_one_a_stream_fails(streams: usize) {
    let cases = cases();
    let mut sites = BTreeSet::new();
    for case in &cases {
        sites.extend(run(case, None, streams).expect("the engine as it is"));
    }
    sites.retain(|site| !site.0.starts_with(OWN));
    assert!(sites.len() >= 18, "{sites:#?}");
    for site in sites {
        let failed = cases
            .iter()
            .find_map(|case| run(case, Some(site), streams).err());
        match failed {
            Some(what) => println!("without \"{}\": {what}", site.0),
            None => panic!("streams do not need \"{}\"", site.0),
        }
    }
}
