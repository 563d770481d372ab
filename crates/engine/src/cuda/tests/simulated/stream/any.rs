//! The encoding of any stream equals the host's, in every order in which a device may run its work.

use zarrs_cuda_testing::effort;

use super::*;

fn check(seed: u64, subject: &Subject, library: StandIn, falls_back: bool) {
    // Some devices do not copy rows that are far from each other.
    let simulation = Arc::new(Simulation::new(Config {
        schedule: schedule_of(seed),
        largest_pitch: [i32::MAX as usize, 24][seed as usize / 3 % 2],
        ..Config::default()
    }));
    let engine = stream_engine(&simulation, library, subject).with_times(seed.is_multiple_of(5));
    let engine = with_streams(engine, 1 + seed as usize / 2 % 3);
    let done = open(&engine, subject, falls_back).and_then(|stream| {
        if seed.is_multiple_of(3) {
            encode_with(&simulation, subject, stream, (seed, 0))
        } else {
            stream::encode(subject, stream, seed)
        }
    });
    let violations = simulation.violations();
    assert!(violations.is_empty(), "{seed}: {violations:#?}");
    done.unwrap_or_else(|error| panic!("{seed}: {error}: {subject:?}"));
    let metrics = engine.counters().snapshot();
    assert!(metrics.fallbacks.is_empty(), "{seed}");
    assert_eq!(metrics.batches_encoded as usize, subject.batches().len());
    assert_eq!((metrics.lanes_created, metrics.lanes_alive), (1, 0));
    drop(engine);
    assert_clean(&simulation);
}

#[test]
fn any_stream_without_a_compressor() {
    for seed in effort::seeds(400) {
        let subject = Subject::any(seed, vec![Stage::Crc32c; seed as usize % 3]);
        check(seed, &subject, StandIn::Six, seed % 2 == 0);
    }
}

#[test]
fn any_stream_with_a_compressor() {
    let stages = compressors();
    for seed in effort::seeds(80) {
        let kind = usize::try_from(seed).expect("small");
        let mut chain = vec![Stage::Crc32c; kind % 2];
        chain.push(stages[kind % stages.len()].clone());
        chain.extend(vec![Stage::Crc32c; kind / 2 % 2]);
        let subject = Subject::any(seed, chain);
        let library = [StandIn::Six, StandIn::Failing, StandIn::Five][kind / 7 % 3];
        check(seed, &subject, library, seed % 2 == 0);
    }
}

/// Checks that the random streams cover all kinds.
#[test]
fn any_stream_is_all_kinds_of_streams() {
    let subjects: Vec<Subject> = effort::seeds(1000)
        .map(|seed| Subject::any(seed, vec![]))
        .collect();
    let some = |what: &str, is: &dyn Fn(&Subject) -> bool| {
        let count = subjects.iter().filter(|subject| is(subject)).count();
        assert!(20 * count > subjects.len(), "{what}: {count}");
    };
    let edge = |subject: &Subject| {
        let grid = &subject.job.grid;
        let extents = std::iter::zip(grid.inner(), &grid.shard().subchunk()[1..]);
        extents.clone().any(|(extent, sub)| extent % sub != 0)
    };
    some("padding", &edge);
    some("no padding", &|subject| !edge(subject));
    some("a short last batch", &|subject| {
        subject.epochs % subject.job.epochs != 0
    });
    some("several shard epochs in a batch", &|subject| {
        subject.job.epochs > subject.job.grid.epochs_per_shard()
    });
    some("several batches in a shard epoch", &|subject| {
        subject.job.epochs < subject.job.grid.epochs_per_shard()
            && subject.epochs > subject.job.epochs
    });
    some("shards without all of their subchunks", &|subject| {
        let grid = &subject.job.grid;
        let counts = std::iter::zip(grid.subchunks(), &grid.shard().counts()[1..]);
        counts.clone().any(|(all, per)| all % per != 0)
    });
}
