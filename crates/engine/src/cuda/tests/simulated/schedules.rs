//! In every order in which a device may run its work, the shard is the same. Every wait, record and
//! synchronisation of the engine is needed.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use zarrs_cuda_nvcomp_stand_in::StandIn;

use super::compression::{blosc, compressors, engine_with};
use zarrs_cuda_testing::effort;

use super::*;
use crate::contract::{Cname, Shuffle};
use crate::cuda::driver::Site;

/// Runs the engine on `simulation`, with `streams` streams of kernels. Returns the first failure of
/// any kind.
fn run(simulation: &Arc<Simulation>, shard: &Shard, streams: usize) -> Result<(), String> {
    run_with(simulation, shard, StandIn::Six, streams)
}

/// Runs the engine like [`run`], with a compressor library. Times are taken.
fn run_with(
    simulation: &Arc<Simulation>,
    shard: &Shard,
    library: StandIn,
    streams: usize,
) -> Result<(), String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let engine = engine_with(simulation, library, &shard.chain).with_times(true);
        let engine = with_streams(engine, streams);
        let done = shard.run(&engine);
        drop(engine);
        done
    }));
    if let Some(violation) = simulation.violations().first() {
        return Err(violation.message.clone());
    }
    match outcome {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the shard is wrong".to_string()),
    }
}

/// Injects a fault in the middle of a shard, so that a lane is given up while its streams are full.
fn run_into_fault(
    simulation: &Arc<Simulation>,
    shard: &Shard,
    streams: usize,
) -> Result<(), String> {
    use crate::cuda::driver::simulation::Inject;
    simulation.inject(Inject::Refused { launch: 12 });
    let engine = with_streams(engine_with(simulation, StandIn::Six, &shard.chain), streams);
    let refused = shard.run(&engine);
    drop(engine);
    if let Some(violation) = simulation.violations().first() {
        return Err(violation.message.clone());
    }
    match refused {
        Err(EngineError::Device(_)) => Ok(()),
        other => Err(format!("{other:?}, where a launch was refused")),
    }
}

fn with_removed(schedule: Schedule, removed: Option<Site>) -> Arc<Simulation> {
    Arc::new(Simulation::new(Config {
        schedule,
        removed,
        ..Config::default()
    }))
}

#[test]
fn every_schedule_gives_the_shard_of_the_host() {
    let check = |schedule, kind| {
        let simulation = simulation(schedule);
        run(&simulation, &Shard::of_kind(kind), 1 + kind / 2 % 3)
            .unwrap_or_else(|what| panic!("{schedule:?}, a shard of kind {kind}: {what}"));
        assert_clean(&simulation);
    };
    for schedule in [Schedule::Eager, Schedule::Latest] {
        for kind in 0..3 * 7 * 5 {
            check(schedule, kind);
        }
    }
    for seed in effort::seeds(400) {
        check(Schedule::Priority(seed), seed as usize);
    }
}

#[test]
fn every_schedule_compresses_the_shard() {
    let stages = compressors();
    for seed in effort::seeds(100) {
        let kind = usize::try_from(seed).expect("small");
        let stage = stages[kind % stages.len()].clone();
        let shard = Shard::of_kind(kind).compressed(kind / 2 % 2, stage.clone(), kind % 3);
        let library = [StandIn::Six, StandIn::Failing, StandIn::Five][kind / 7 % 3];
        // Each schedule runs with all kinds of shards.
        let schedule = match seed / 40 % 10 {
            0 => Schedule::Eager,
            1 => Schedule::Latest,
            _ => Schedule::Priority(seed),
        };
        let simulation = simulation(schedule);
        run_with(&simulation, &shard, library, 1 + kind % 3)
            .unwrap_or_else(|what| panic!("{schedule:?}, {stage}, {library:?}: {what}"));
        assert_clean(&simulation);
    }
}

/// The tests themselves are tested: each removed operation fails the first run. Shards with a
/// compressor detect their removed operations without help from the others, and so do lanes with
/// several streams of kernels.
#[test]
fn without_any_one_wait_record_or_synchronisation_the_first_run_fails() {
    for streams in [1, 3] {
        without_any_one_the_first_run_fails(streams);
    }
}

fn without_any_one_the_first_run_fails(streams: usize) {
    let stage = blosc(Cname::Zstd, Shuffle::Byte, 2, 32);
    let compressed = |empty| Shard::with(0, empty, false).compressed(1, stage.clone(), 1);
    let subjects = [
        vec![Shard::new(1)],
        // Some batches of the second shard have nothing to copy back.
        vec![
            compressed(Empty::EachThird),
            compressed(Empty::Within(12, SUBCHUNKS)),
        ],
    ];
    let with_all = |shards: &Vec<Shard>, removed| {
        let mut sites = BTreeSet::new();
        for shard in shards {
            let simulation = with_removed(Schedule::Latest, removed);
            run(&simulation, shard, streams)?;
            run_into_fault(&with_removed(Schedule::Latest, removed), shard, streams)?;
            sites.extend(simulation.sites());
        }
        Ok(sites)
    };
    let [plain, compressed] = subjects.each_ref().map(|shards| {
        let sites: Result<_, String> = with_all(shards, None);
        sites.expect("the engine as it is")
    });
    assert!(plain.len() >= 16, "{plain:?}");
    assert!(compressed.len() >= 12, "{compressed:?}");
    // A compressor's work is in one stream, so it needs no synchronisation of its own.
    assert!(compressed.is_subset(&plain), "{compressed:?}");
    for (shards, sites) in std::iter::zip(&subjects, [plain, compressed]) {
        for site in sites {
            let chain = &shards[0].chain.stages;
            match with_all(shards, Some(site)) {
                Ok(_) => panic!(
                    "{chain:?}, {streams}: the engine does not need \"{}\"",
                    site.0
                ),
                Err(what) => println!("{chain:?} without \"{}\": {what}", site.0),
            }
        }
    }
}
