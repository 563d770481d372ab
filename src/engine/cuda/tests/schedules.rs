//! In whatever order a device runs what it is given, the shard is the same; and there is no wait,
//! record or synchronisation that the engine could do without.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::engine::cuda::driver::Site;

/// Everything that can go wrong when the engine runs on `simulation`.
fn run(simulation: &Arc<Simulation>, shard: &Shard) -> Result<(), String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let engine = engine_on(simulation);
        let done = shard.round_trip(&engine);
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

/// A fault in the middle of a shard, so that a lane is given up with its streams full.
fn run_into_fault(simulation: &Arc<Simulation>) -> Result<(), String> {
    use crate::engine::cuda::driver::simulation::Inject;
    simulation.inject(Inject::Refused { launch: 12 });
    let engine = engine_on(simulation);
    let shard = Shard::new(1);
    let refused = shard.round_trip(&engine);
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
        run(&simulation, &Shard::of_kind(kind))
            .unwrap_or_else(|what| panic!("{schedule:?}, a shard of kind {kind}: {what}"));
        assert_clean(&simulation);
    };
    for schedule in [Schedule::Eager, Schedule::Latest] {
        for kind in 0..3 * 7 * 5 {
            check(schedule, kind);
        }
    }
    for seed in 0..2000 {
        check(Schedule::Priority(seed), seed as usize);
    }
}

/// The suite has teeth: without any one of them it fails, on its first run.
#[test]
fn without_any_one_wait_record_or_synchronisation_the_first_run_fails() {
    let all = {
        let simulation = simulation(Schedule::Latest);
        run(&simulation, &Shard::new(1)).expect("the engine as it is");
        run_into_fault(&simulation_of_faults()).expect("the engine as it is, with a fault");
        simulation.sites()
    };
    assert!(all.len() >= 16, "{all:?}");
    for site in all {
        let failed = run(&with_removed(Schedule::Latest, Some(site)), &Shard::new(1))
            .and_then(|()| run_into_fault(&with_removed(Schedule::Latest, Some(site))));
        match failed {
            Ok(()) => panic!("the engine does not need \"{}\"", site.0),
            Err(what) => println!("without \"{}\": {what}", site.0),
        }
    }
}

fn simulation_of_faults() -> Arc<Simulation> {
    simulation(Schedule::Latest)
}
