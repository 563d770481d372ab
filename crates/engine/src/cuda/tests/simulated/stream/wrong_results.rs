//! Streams on devices that return wrong results and report no error.

use super::super::wrong_results::{Change, Operation, alter, lost};
use super::levels::{encode_both, odd, open_both};
use super::*;
use crate::cuda::driver::{DriverError, Fault};
use crate::cuda::tests::on_gpu::levels::{Both, Levels, Mix};

fn flip<const AT: usize>(_: &[u8], after: &mut [u8]) {
    after[AT.min(after.len() - 1)] ^= 0x10;
}

/// Changes all flags of 4 bytes from 0 to 1, or from 1 to 0.
fn turn_all(_: &[u8], after: &mut [u8]) {
    for byte in after.iter_mut().step_by(4) {
        *byte ^= 1;
    }
}

fn all(_: &[u8], after: &mut [u8]) {
    for byte in after {
        *byte ^= 0x10;
    }
}

/// Returns the error of a stream that stopped, and checks what it says.
fn stopped(what: &str, done: Result<(), EngineError>) -> String {
    match done {
        Err(EngineError::Device(error)) => {
            let text = error.to_string();
            assert_eq!(error.fault, Fault::Wrong, "{what}: {text}");
            assert!(
                text.contains("checking an encoded batch of a stream")
                    || text.contains("impossible answer"),
                "{what}: {text}"
            );
            text
        }
        other => panic!("{what}: {other:?}"),
    }
}

fn cases() -> Vec<(&'static str, Subject, Operation, Change)> {
    let zstd = Stage::Zstd {
        level: 1,
        checksum: false,
    };
    let plain = || padded(vec![Stage::Crc32c]);
    let compressed = || padded(vec![zstd.clone(), Stage::Crc32c]);
    let gzip = || padded(vec![Stage::Gzip { level: 4 }]);
    vec![
        ("upload", plain(), ("up", 0, None, 2), flip::<5>),
        ("upload, lost", compressed(), ("up", 0, None, 3), lost),
        ("scatter", plain(), ("scatter", 0, None, 1), all),
        (
            "scatter, empty or not",
            plain(),
            ("scatter", 1, None, 0),
            turn_all,
        ),
        ("compressor", gzip(), ("nvCOMP", 2, None, 0), all),
        (
            "checksums",
            compressed(),
            ("crc32c_append", 0, None, 0),
            flip::<12>,
        ),
        ("gather", plain(), ("gather", 0, None, 1), flip::<9>),
        ("offsets", plain(), ("scan", 0, None, 0), flip::<16>),
        ("offsets", compressed(), ("scan", 0, None, 0), flip::<8>),
        ("download", plain(), ("down", 0, None, 1), flip::<9>),
    ]
}

/// A stream stops, also if the host would do the work of a device that fails.
#[test]
fn a_stream_stops_after_a_wrong_result() {
    for (what, subject, operation, change) in cases() {
        for falls_back in [false, true] {
            let simulation = simulation(Schedule::Latest);
            let engine = stream_engine(&simulation, StandIn::Six, &subject);
            let stream = open(&engine, &subject, falls_back).expect("fits");
            alter(&simulation, operation, change);
            let mut run = Run::new(&subject, stream, 1).expect("one encoder");
            run.tries = 3;
            let done = run.all(&mut stream::from_host).map(|_| ());
            let text = stopped(what, done);
            assert!(text.contains("since the last comparison"), "{what}: {text}");
            if !text.contains("impossible") {
                assert!(text.contains("slices returned since"), "{what}: {text}");
            }
            let metrics = engine.counters().snapshot();
            assert_eq!(metrics.mismatches, 1, "{what}");
            assert!(metrics.fallbacks.is_empty(), "{what}");
            assert!(simulation.violations().is_empty(), "{what}");
        }
    }
}

/// Another stream of the device was wrong. Slices that a stream has returned without a comparison may be wrong,
/// too: this stream stops. A stream whose slices were all compared goes on with the host.
#[test]
fn a_stream_stops_after_a_wrong_result_elsewhere_if_its_slices_were_not_compared() {
    let mut subject = padded(vec![Stage::Crc32c]);
    subject.epochs = 60;
    subject.fill(3);
    for is_compared in [true, false] {
        let simulation = simulation(Schedule::Eager);
        let every = if is_compared { 1 } else { u32::MAX };
        let engine = stream_engine(&simulation, StandIn::Six, &subject)
            .with_check_every(std::num::NonZeroU32::new(every).expect("positive"));
        let encoded = || engine.counters().snapshot().batches_encoded;
        let stream = open(&engine, &subject, false).expect("fits");
        stream::encode(&subject, stream, 1).expect("right, and the kind passes");
        let before = encoded();
        let kind = engine.kind(subject.job.grid.shard(), subject.chain());
        let ((), device) = engine
            .in_lane_of_device(&kind.expect("prepared"), None, |_| Ok(()))
            .expect("a lane");

        let stream = open(&engine, &subject, true).expect("fits");
        let mut run = Run::new(&subject, stream, 2).expect("one encoder");
        run.tries = 3;
        let done = run.all(&mut |input, at, bytes| {
            if encoded() == before + 5 {
                let _ = device.watch::<()>(Err(DriverError {
                    operation: "checking an encoded batch of a stream".to_string(),
                    device: Some(0),
                    fault: Fault::Wrong,
                    reason: "of another stream".to_string(),
                }));
            }
            stream::from_host(input, at, bytes)
        });
        assert_eq!(encoded(), before + 5, "and no more by the device");
        if is_compared {
            subject.check(&done.expect("by the host"));
            continue;
        }
        let error = done.expect_err("it stops").to_string();
        for part in [
            "of another stream",
            "returned since its last comparison without a difference, counted from its first: 0 to ",
            "this stream encodes nothing more",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(simulation.violations().is_empty());
    }
}

/// All batches of a stream were returned without a comparison when another stream of the device was wrong: the
/// stream does not end well.
#[test]
fn a_stream_whose_batches_were_not_compared_does_not_end_well_after_a_wrong_result_elsewhere() {
    let mut subject = padded(vec![Stage::Crc32c]);
    subject.epochs = 60;
    subject.fill(3);
    let simulation = simulation(Schedule::Eager);
    let engine = stream_engine(&simulation, StandIn::Six, &subject)
        .with_check_every(std::num::NonZeroU32::MAX);
    let stream = open(&engine, &subject, false).expect("fits");
    stream::encode(&subject, stream, 1).expect("right, and the kind passes");
    let kind = engine.kind(subject.job.grid.shard(), subject.chain());
    let ((), device) = engine
        .in_lane_of_device(&kind.expect("prepared"), None, |_| Ok(()))
        .expect("a lane");
    let stream = open(&engine, &subject, true).expect("fits");
    let mut encoder = stream.encoder().expect("one encoder");
    encoder
        .end()
        .expect("nothing is wrong, and nothing was returned");
    let mut input = stream.input(true).expect("no fault").expect("free");
    let (_, batch) = subject.batches().remove(0);
    let bytes = subject.job.epochs * subject.job.grid.epoch_bytes();
    input
        .write(0, &subject.bytes[..bytes])
        .expect("in the batch");
    encoder.submit(input, batch);
    let completed = encoder.complete().expect("a batch");
    drop(completed.expect("right"));
    encoder.end().expect("nothing is wrong");
    let _ = device.watch::<()>(Err(DriverError {
        operation: "checking an encoded batch of a stream".to_string(),
        device: Some(0),
        fault: Fault::Wrong,
        reason: "of another stream".to_string(),
    }));
    let error = encoder.end().expect_err("not compared").to_string();
    assert!(
        error.contains("this stream encodes nothing more"),
        "{error}"
    );
}

/// Without the checks, the wrong bytes of the same cases are returned.
#[test]
fn without_checks_wrong_results_are_returned() {
    for (what, subject, operation, change) in cases() {
        let simulation = simulation(Schedule::Latest);
        let engine = stream_engine(&simulation, StandIn::Six, &subject).without_checks();
        let stream = open(&engine, &subject, true).expect("fits");
        alter(&simulation, operation, change);
        let run = Run::new(&subject, stream, 1).expect("one encoder");
        let done = run.all(&mut stream::from_host);
        let Ok(encoded) = done else { continue };
        let right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            subject.check(&encoded);
        }));
        assert!(right.is_err(), "{what} is a wrong result");
    }
}

/// Bytes of an application go wrong on their way into the stream. The padding, too.
#[test]
fn bytes_of_an_application_are_compared_with_their_copy_in_pinned_memory() {
    let cases: [(&str, Operation, Change); 3] = [
        ("copy within the device", ("within", 0, None, 3), flip::<0>),
        ("copy within the device, lost", ("within", 0, None, 4), lost),
        ("padding", ("up", 0, None, 1), flip::<{ usize::MAX }>),
    ];
    for (what, operation, change) in cases {
        let mut found = 0;
        for seed in 0..6 {
            let subject = padded(vec![Stage::Crc32c]);
            let simulation = simulation(Schedule::Latest);
            let engine = stream_engine(&simulation, StandIn::Six, &subject);
            let stream = open(&engine, &subject, true).expect("fits");
            alter(&simulation, operation, change);
            let done = encode_with(&simulation, &subject, stream, (seed, 0));
            let metrics = engine.counters().snapshot();
            if metrics.mismatches > 0 {
                stopped(what, done);
                found += 1;
            } else if let Err(error) = done {
                panic!("{what}: {error}");
            }
            assert!(simulation.violations().is_empty(), "{what}");
        }
        assert!(found > 0, "{what}");
    }
}

/// The host reads slices of an application before their batch is encoded, as for a level below that the host
/// reduces. The device encodes its own copy of the slices, and this copy is compared.
#[test]
fn bytes_that_the_host_has_read_are_encoded_from_the_device() {
    let mut found = 0;
    for seed in 0..6 {
        let subject = padded(vec![Stage::Crc32c]);
        let simulation = simulation(Schedule::Latest);
        let engine = stream_engine(&simulation, StandIn::Six, &subject);
        let stream = open(&engine, &subject, true).expect("fits");
        alter(&simulation, ("within", 0, None, 3), flip::<0>);
        let driver = simulation.clone() as Arc<dyn Driver>;
        let application = Application::new(driver, true, subject.bytes.len(), seed);
        let mut application = application.expect("a device");
        let run = Run::new(&subject, stream, seed).expect("one encoder");
        let done = run.all(&mut |input, at, bytes| {
            application.write(input, at, bytes)?;
            input.read(at, &mut vec![0; bytes.len()])
        });
        let _ = application.end();
        if engine.counters().snapshot().mismatches > 0 {
            stopped("a copy within the device", done.map(|_| ()));
            found += 1;
        } else {
            subject.check(&done.expect("right"));
        }
        assert!(simulation.violations().is_empty());
    }
    assert!(found > 0);
}

/// Checks that a wrong result of the device in `levels` is found.
fn check_levels(what: &str, levels: &Levels, operation: Operation, change: Change) {
    let simulation = simulation(Schedule::Latest);
    let (engine, both) = open_both(&simulation, levels, 1, true).expect("fits");
    alter(&simulation, operation, change);
    let done = Both::new(levels, both, (1, Mix::DeviceAlone, 0))
        .and_then(|both| both.all(&mut stream::from_host));
    stopped(what, done.map(|_| ()));
    assert_eq!(engine.counters().snapshot().mismatches, 1, "{what}");
    assert!(simulation.violations().is_empty(), "{what}");
}

#[test]
fn reductions_are_compared_with_those_of_the_host() {
    let levels = odd(6);
    check_levels("reduction", &levels, ("reduce", 0, None, 0), flip::<0>);
    check_levels("reduction, lost", &levels, ("reduce", 0, None, 1), lost);
    check_levels("kept slice", &levels, ("within", 0, None, 0), flip::<0>);
}

/// A lower level has fewer batches, and is compared for longer than the level above. The slices above, which only
/// the device has, are then brought to the host for it.
#[test]
fn a_lower_level_is_compared_after_the_level_above_has_passed() {
    let levels = odd(8);
    let never = std::num::NonZeroU32::MAX;
    let run = |wrong: bool| {
        let simulation = simulation(Schedule::Latest);
        let engine = stream_engine(&simulation, StandIn::Six, &levels.above);
        let engine = engine.with_check_every(never);
        let checked = || engine.counters().snapshot().batches_checked;
        // The level above passes, with slices of the host and of an application.
        let mut above = levels.above.clone();
        above.epochs = 60;
        above.fill(3);
        for seed in 0..20 {
            let before = checked();
            let stream = open(&engine, &above, false).expect("fits");
            encode_with(&simulation, &above, stream, (seed, 0)).expect("right");
            if checked() == before {
                break;
            }
            assert!(seed < 19, "it passes");
        }
        let before = engine.counters().snapshot();
        let both = [&levels.above, &levels.below].map(|level| open(&engine, level, false));
        let both = both.map(|stream| stream.expect("fits"));
        if wrong {
            alter(&simulation, ("reduce", 0, None, 1), flip::<0>);
        }
        let done = encode_both(&simulation, &levels, both, (4, Mix::DeviceAlone, 0));
        assert!(simulation.violations().is_empty());
        let after = engine.counters().snapshot();
        (done, after.batches_checked - before.batches_checked)
    };
    let (done, checked) = run(false);
    done.expect("right");
    assert_eq!(
        checked as usize,
        levels.below.batches().len(),
        "the level below"
    );
    let (done, _) = run(true);
    stopped("a reduction", done.map(|_| ()));
}

/// Every buffer of a stream is used in turn, so a kind passes.
#[test]
fn a_stream_passes_after_enough_batches() {
    let mut subject = padded(vec![Stage::Crc32c]);
    subject.epochs = 60;
    subject.fill(3);
    let simulation = simulation(Schedule::Eager);
    let engine = stream_engine(&simulation, StandIn::Six, &subject);
    let stream = open(&engine, &subject, false).expect("fits");
    stream::encode(&subject, stream, 1).expect("right");
    let metrics = engine.counters().snapshot();
    let (compared, all) = (metrics.batches_checked, metrics.batches_encoded);
    assert!(
        (6..=12).contains(&compared) && all == 30,
        "{compared} of {all}"
    );
    // The kind has passed: another stream of it is compared now and then.
    let stream = open(&engine, &subject, false).expect("fits");
    stream::encode(&subject, stream, 2).expect("right");
    let later = engine.counters().snapshot().batches_checked - compared;
    assert!(later <= 1, "{later}");
    // Bytes from elsewhere are other work.
    let stream = open(&engine, &subject, false).expect("fits");
    encode_with(&simulation, &subject, stream, (3, 0)).expect("right");
    let others = engine.counters().snapshot().batches_checked - compared - later;
    assert!(others >= 6, "{others}");
    drop(engine);
    assert_clean(&simulation);
}
