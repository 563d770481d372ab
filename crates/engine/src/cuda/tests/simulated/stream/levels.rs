//! Streams that are reduced from others on the device.

use std::collections::BTreeSet;

use zarrs_cuda_testing::effort;

use super::counts::{names, steps, traced};
use super::faults::{is_at_the_end, leaves_memory};
use super::sites::sites_of;
use super::*;
use crate::contract::stream::Windows;
use crate::cuda::driver::simulation::{Counts, Inject};
use crate::cuda::driver::{Fault, Site};
use crate::cuda::tests::on_gpu::levels::{Both, Levels, Mix};
use crate::reduce::{Elements, Reduction};

/// Opens both levels on one device. The level below has the same compressor.
pub(super) fn open_both(
    simulation: &Arc<Simulation>,
    levels: &Levels,
    streams: usize,
    falls_back: bool,
) -> Result<(CudaEngine, [Arc<dyn StreamEngine>; 2]), EngineError> {
    let engine = stream_engine(simulation, StandIn::Six, &levels.above);
    open_both_on(with_streams(engine, streams), levels, falls_back)
}

/// Opens streams for both levels on `engine`.
pub(super) fn open_both_on(
    engine: CudaEngine,
    levels: &Levels,
    falls_back: bool,
) -> Result<(CudaEngine, [Arc<dyn StreamEngine>; 2]), EngineError> {
    let above = open(&engine, &levels.above, falls_back)?;
    let below = open(&engine, &levels.below, falls_back)?;
    Ok((engine, [above, below]))
}

/// Encodes both levels, partly from an application's memory on the device.
pub(super) fn encode_both(
    simulation: &Arc<Simulation>,
    levels: &Levels,
    streams: [Arc<dyn StreamEngine>; 2],
    (seed, mix, tries): (u64, Mix, usize),
) -> Result<(usize, bool), EngineError> {
    let both = Both::new(levels, streams, (seed, mix, tries))?;
    let driver = simulation.clone() as Arc<dyn Driver>;
    let Ok(mut application) = Application::new(driver, true, levels.above.bytes.len(), seed) else {
        return both.all(&mut stream::from_host);
    };
    let done = both.all(&mut |input, at, bytes| application.write(input, at, bytes));
    let ended = application.end();
    let done = done?;
    ended.map(|()| done).or(Ok(done))
}

#[test]
fn any_levels_are_those_of_the_host() {
    let (mut on_device, mut kept) = (0, 0);
    for seed in effort::seeds(200) {
        let levels = Levels::any(seed, vec![Stage::Crc32c; seed as usize % 2]);
        let simulation = Arc::new(Simulation::new(Config {
            schedule: schedule_of(seed),
            ..Config::default()
        }));
        let streams = 1 + seed as usize / 2 % 3;
        let (engine, both) = open_both(&simulation, &levels, streams, false).expect("fits");
        assert!(both[1].can_reduce_from(&*both[0]));
        assert!(!both[0].can_reduce_from(&*both[1]));
        let mix = [Mix::DeviceAlone, Mix::Both][seed as usize % 2];
        let done = if seed.is_multiple_of(3) {
            encode_both(&simulation, &levels, both, (seed, mix, 0))
        } else {
            Both::new(&levels, both, (seed, mix, 0))
                .and_then(|both| both.all(&mut stream::from_host))
        };
        let violations = simulation.violations();
        assert!(violations.is_empty(), "{seed}: {violations:#?}");
        let (windows, has_kept) = done.unwrap_or_else(|error| panic!("{seed}: {error}"));
        assert!(windows > 0 || mix == Mix::Both, "{seed}");
        on_device += windows;
        kept += usize::from(has_kept);
        let metrics = engine.counters().snapshot();
        assert!(metrics.fallbacks.is_empty(), "{seed}");
        drop(engine);
        assert_clean(&simulation);
    }
    println!("{on_device} windows on the device, {kept} streams that kept a slice");
    assert!(on_device > 400 && kept > 20);
}

/// Windows of two slices, where batches above have three: every second one keeps its last slice. Both
/// levels are padded.
pub(super) fn odd(epochs: usize) -> Levels {
    let chain = KnownChain {
        order: vec![0, 1, 2],
        swap: 2,
        stages: vec![Stage::Crc32c],
    };
    let axes = [
        (0, [3, 2], [1, 2], 2),
        (9, [4, 2], [2, 2], 2),
        (7, [4, 3], [1, 1], 2),
    ];
    let mut levels = Levels::new(
        (Reduction::Mean, Elements::UInt16),
        &axes,
        &chain,
        (epochs, [1, 1]),
    );
    for subject in [&mut levels.above, &mut levels.below] {
        subject.job.inputs = 2;
    }
    levels
}

/// The memory of a kept slice is part of the estimate, and nothing else is.
#[test]
fn levels_take_what_was_estimated() {
    let levels = odd(4);
    let simulation = simulation(Schedule::Eager);
    let engine = stream_engine(&simulation, StandIn::Six, &levels.above);
    let with = engine.stream_estimate(&levels.below.job).expect("fits");
    let mut job = levels.below.job.clone();
    job.reduced_from = None;
    let without = engine.stream_estimate(&job).expect("fits");
    // Padded to 12 x 8 elements.
    assert_eq!(
        with.device,
        without.device + (12_usize * 8 * 2).next_multiple_of(256)
    );
    assert_eq!(with.pinned, without.pinned + 256);
    let stream = open(&engine, &levels.below, false).expect("fits");
    assert_eq!(
        simulation.live().device_bytes,
        with.device.next_multiple_of(256)
    );
    drop((stream, engine));
    // Windows of one slice keep none.
    let engine = stream_engine(&simulation, StandIn::Six, &levels.above);
    if let Some(from) = &mut job.reduced_from {
        from.slices = 1;
    }
    let estimate = engine.stream_estimate(&job).expect("fits");
    assert_eq!(estimate, without);
    drop(engine);
    assert_clean(&simulation);
}

/// A reduction of slices from the host: their copy, an edge, the kernel, and an edge back.
#[test]
fn a_reduction_takes_five_operations() {
    let levels = odd(4);
    let simulation = traced();
    let (engine, [above, below]) = open_both(&simulation, &levels, 1, false).expect("fits");
    let mut input = above.input(true).expect("no fault").expect("free");
    let mut made = below.input(true).expect("no fault").expect("free");
    let slice = levels.above.job.grid.slice_bytes();
    input
        .write(0, &levels.above.bytes[..3 * slice])
        .expect("fits");
    let (reduced, first) = steps(&simulation, || {
        let windows = Windows {
            kept: false,
            above: Some((&mut *input, 0..2)),
        };
        below.reduce(windows, &mut *made, 0)
    });
    reduced.expect("no fault");
    let edge = ["copy", "record", "wait"];
    // The fill values of both paddings, once.
    let padding = ["copy", "synchronize_stream"];
    let expected = [&padding[..], &padding, &edge, &["kernel", "record"]].concat();
    assert_eq!(names(&first), expected);
    let (kept, keeping) = steps(&simulation, || below.keep(&mut *input, 2));
    kept.expect("no fault");
    assert_eq!(names(&keeping), [&edge[..], &["copy", "record"]].concat());
    // The kept slice is a window of its own, and nothing above is waited for.
    let (reduced, last) = steps(&simulation, || {
        let windows = Windows {
            kept: true,
            above: None,
        };
        below.reduce(windows, &mut *made, levels.below.job.grid.slice_bytes())
    });
    reduced.expect("no fault");
    assert_eq!(names(&last), ["kernel"]);
    let mut back = vec![0; 2 * levels.below.job.grid.slice_bytes()];
    made.read(0, &mut back).expect("no fault");
    // The second window of the stream has another slice in the expected level.
    let half = back.len() / 2;
    assert_eq!(back[..half], levels.below.bytes[..half]);
    drop((input, made, above, below, engine));
    assert_clean(&simulation);
}

#[test]
fn what_the_caller_must_not_do_is_an_error() {
    let levels = odd(4);
    let simulation = simulation(Schedule::Latest);
    let (engine, [above, below]) = open_both(&simulation, &levels, 1, false).expect("fits");
    let mut input = above.input(true).expect("no fault").expect("free");
    let mut made = below.input(true).expect("no fault").expect("free");
    let slice = levels.above.job.grid.slice_bytes();
    input
        .write(0, &levels.above.bytes[..3 * slice])
        .expect("fits");
    let mut reduce = |kept, slices: Option<std::ops::Range<usize>>, at| {
        let windows = Windows {
            kept,
            above: slices.map(|slices| (&mut *input, slices)),
        };
        below.reduce(windows, &mut *made, at)
    };
    assert!(reduce(false, Some(0..2), 1).is_err(), "a part of a slice");
    assert!(reduce(false, Some(2..4), 0).is_err(), "beyond the batch");
    assert!(reduce(true, Some(0..1), 0).is_err(), "nothing is kept");
    let far = levels.below.job.epochs * levels.below.job.grid.epoch_bytes();
    assert!(
        reduce(false, Some(0..2), far).is_err(),
        "beyond the batch below"
    );
    reduce(false, Some(0..2), 0).expect("no fault");
    reduce(false, Some(0..0), 0).expect("nothing to do");
    below.keep(&mut *input, 2).expect("no fault");
    assert!(below.keep(&mut *input, 2).is_err(), "one is kept");
    assert!(below.keep(&mut *made, 0).is_err(), "of the level itself");
    assert!(
        above.keep(&mut *input, 0).is_err(),
        "the level above has none"
    );
    // Slices that were reduced do not change.
    let error = input.write(slice, &[0; 2]).expect_err("was reduced");
    assert!(error.to_string().contains("reduced already"), "{error}");
    let mut kept = vec![0; slice];
    assert!(below.take_kept(&mut kept[1..]).is_err(), "another size");
    below.take_kept(&mut kept).expect("no fault");
    assert!(kept == levels.above.bytes[2 * slice..3 * slice]);
    assert!(below.take_kept(&mut kept).is_err(), "nothing is kept");
    drop((input, made, above, below, engine));
    assert_clean(&simulation);
}

/// Abandons an input whose slices are being reduced, and uses its memory again.
pub(super) fn abandon(
    levels: &Levels,
    [above, below]: &[Arc<dyn StreamEngine>; 2],
) -> Result<(), EngineError> {
    let slice = levels.above.job.grid.slice_bytes();
    let mut made = below.input(true)?.expect("free");
    let mut inputs = Vec::new();
    while let Some(input) = above.input(true)? {
        inputs.push(input);
    }
    inputs.truncate(1);
    for at in [0, levels.below.job.grid.slice_bytes()] {
        let mut input = match inputs.pop() {
            Some(input) => input,
            None => above.input(true)?.expect("free"),
        };
        input.write(0, &levels.above.bytes[..2 * slice])?;
        let windows = Windows {
            kept: false,
            above: Some((&mut *input, 0..2)),
        };
        below.reduce(windows, &mut *made, at)?;
    }
    Ok(())
}

/// Runs some seeds without a site. Returns the first failure of any kind.
fn run(removed: Option<Site>) -> Result<BTreeSet<Site>, String> {
    let levels = odd(6);
    let mut sites = BTreeSet::new();
    for seed in 0..4 {
        let simulation = Arc::new(Simulation::new(Config {
            schedule: Schedule::Latest,
            removed,
            ..Config::default()
        }));
        sites.extend(sites_of(&simulation, || {
            let (_engine, both) = open_both(&simulation, &levels, 1, false)?;
            encode_both(&simulation, &levels, both, (seed, Mix::Both, 0))?;
            let (_engine, both) = open_both(&simulation, &levels, 1, false)?;
            abandon(&levels, &both)
        })?);
    }
    Ok(sites)
}

#[test]
fn without_any_one_edge_between_levels_a_stream_fails() {
    let mut sites = run(None).expect("the engine as it is");
    let between = ["level above", "reduction", "kept slice"];
    sites.retain(|site| between.iter().any(|name| site.0.contains(name)));
    assert_eq!(sites.len(), 6, "{sites:#?}");
    for site in sites {
        match run(Some(site)) {
            Err(what) => println!("without \"{}\": {what}", site.0),
            Ok(_) => panic!("levels do not need \"{}\"", site.0),
        }
    }
}

/// Encodes both levels with a fault. `None`: they could not be opened.
fn run_with(
    levels: &Levels,
    faults: &[Inject],
    falls_back: bool,
    on_device: bool,
) -> (Arc<Simulation>, Option<Result<(), EngineError>>) {
    let simulation = simulation(Schedule::Latest);
    for fault in faults {
        simulation.inject(*fault);
    }
    let done = match open_both(&simulation, levels, 1, falls_back) {
        Err(_) => None,
        Ok((engine, both)) => {
            let dice = (1, Mix::Both, 2);
            let done = if on_device {
                encode_both(&simulation, levels, both, dice)
            } else {
                Both::new(levels, both, dice).and_then(|both| both.all(&mut stream::from_host))
            };
            drop(engine);
            Some(done.map(|_| ()))
        }
    };
    (simulation, done)
}

fn counts(levels: &Levels, on_device: bool) -> Counts {
    let (simulation, done) = run_with(levels, &[], false, on_device);
    done.expect("opened").expect("no fault");
    assert_clean(&simulation);
    simulation.counts()
}

#[test]
fn a_transient_fault_of_any_operation_of_two_levels() {
    let levels = odd(4);
    for on_device in [false, true] {
        let counts = counts(&levels, on_device);
        let failed = (0..counts.operations).map(|operation| Inject::Failed {
            operation,
            fault: Fault::Refused,
        });
        let launches = (0..counts.launches).map(|launch| Inject::Refused { launch });
        let entered = (0..counts.enters).map(|enter| Inject::NotEntered {
            enter,
            fault: Fault::Refused,
        });
        for (number, inject) in failed.chain(launches).chain(entered).enumerate() {
            let falls_back = number % 2 == 0;
            let (simulation, done) = run_with(&levels, &[inject], falls_back, on_device);
            let failed = simulation.failed();
            if let Some(Err(error)) = done {
                panic!("{inject:?}, {failed:?}: {error}");
            }
            let violations = simulation.violations();
            assert!(
                violations.is_empty(),
                "{inject:?}, {failed:?}: {violations:#?}"
            );
            let live = simulation.live();
            let left = leaves_memory(&failed);
            let left = left || is_at_the_end(inject, simulation.counts());
            assert!(
                left || live == Live::default(),
                "{inject:?}, {failed:?}: {live:?}"
            );
            assert_eq!(live.entered, 0, "{inject:?}, {failed:?}");
        }
    }
}

/// The device does not confirm that a reduction is done with the slices above. Then their memory is
/// never used again, and not freed.
#[test]
fn memory_that_a_reduction_may_read_is_left_alone() {
    let levels = odd(2);
    let counts = counts(&levels, false);
    let (mut given_up, mut lost) = (0, 0);
    for launch in 0..4 {
        for operation in 0..counts.operations {
            let fails = |operation| Inject::Failed {
                operation,
                fault: Fault::Refused,
            };
            let faults = [
                Inject::Refused { launch },
                fails(operation),
                fails(operation + 1),
            ];
            let (simulation, done) = run_with(&levels, &faults, true, false);
            match done {
                None | Some(Ok(()) | Err(EngineError::Device(_))) => {}
                Some(Err(error)) => panic!("{faults:?}: {error}"),
            }
            let violations = simulation.violations();
            assert!(violations.is_empty(), "{faults:?}: {violations:#?}");
            let failed = simulation.failed();
            let both = |name: &str| failed.iter().filter(|what| what.contains(name)).count() == 2;
            given_up += usize::from(both("a reduction before its slices are given back"));
            lost += usize::from(both("after a batch has failed"));
        }
    }
    assert!(given_up > 0 && lost > 0, "{given_up}, {lost}");
}

/// Slices that only the device had are lost with it, with an error. Nothing is wrong.
#[test]
fn a_broken_device_at_any_operation_of_two_levels() {
    let levels = odd(4);
    let mut survived = 0;
    for on_device in [false, true] {
        for operation in 0..counts(&levels, on_device).operations {
            let inject = Inject::Sticky { operation };
            let (simulation, done) = run_with(&levels, &[inject], true, on_device);
            match done {
                None | Some(Err(EngineError::Device(_))) => {}
                Some(Ok(())) => survived += 1,
                Some(Err(error)) => panic!("{inject:?}: {error}"),
            }
            let violations = simulation.violations();
            assert!(violations.is_empty(), "{inject:?}: {violations:#?}");
            assert_eq!(simulation.live().entered, 0, "{inject:?}");
        }
    }
    assert!(survived > 10, "{survived}");
}
