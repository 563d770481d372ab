//! Any stream comes to what the host makes of its subchunks.

use super::*;

#[test]
fn any_stream_without_a_compressor() {
    for seed in 0..400 {
        let subject = Subject::any(seed, vec![Stage::Crc32c; seed as usize % 3]);
        let schedule = match seed % 4 {
            0 => Schedule::Eager,
            1 => Schedule::Latest,
            _ => Schedule::Priority(seed),
        };
        let simulation = simulation(schedule);
        let engine = stream_engine(&simulation, StandIn::Six, &subject);
        let done = open(&engine, &subject, false)
            .and_then(|stream| stream::encode(&subject, stream, seed));
        assert!(simulation.violations().is_empty(), "{seed}: {:#?}", simulation.violations());
        done.unwrap_or_else(|error| panic!("{seed}: {error}: {subject:?}"));
        assert_eq!(engine.counters().snapshot().lanes_alive, 0);
        drop(engine);
        assert_clean(&simulation);
    }
}

#[test]
fn any_stream_with_a_compressor() {
    let stages = compressors();
    for seed in 0..200 {
        let kind = usize::try_from(seed).expect("small");
        let mut chain = vec![Stage::Crc32c; kind % 2];
        chain.push(stages[kind % stages.len()].clone());
        chain.extend(vec![Stage::Crc32c; kind / 2 % 2]);
        let subject = Subject::any(seed, chain);
        let library = [StandIn::Six, StandIn::Failing, StandIn::Five][kind / 7 % 3];
        let simulation = simulation(Schedule::Priority(seed));
        let engine = stream_engine(&simulation, library, &subject);
        let done = open(&engine, &subject, false)
            .and_then(|stream| stream::encode(&subject, stream, seed));
        assert!(simulation.violations().is_empty(), "{seed}: {:#?}", simulation.violations());
        done.unwrap_or_else(|error| panic!("{seed}: {error}: {subject:?}"));
        drop(engine);
        assert_clean(&simulation);
    }
}
