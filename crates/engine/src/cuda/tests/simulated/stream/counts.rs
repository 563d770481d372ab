//! Tests that count exactly what streams ask of the driver.

use serde_json::Value;

use super::*;
use crate::contract::stream::DeviceBytes;
use crate::cuda::driver::{Access, DeviceSpan, PinnedSpan, PinnedUse, Site, Span};
use crate::cuda::tests::on_gpu::stream::Axis;

const MADE: Site = Site("application: its frame is on the device");

pub(super) fn traced() -> Arc<Simulation> {
    Arc::new(Simulation::new(Config {
        trace: true,
        ..Config::default()
    }))
}

/// Returns the steps that are enqueued, or waited for, while `work` runs.
pub(super) fn steps<T>(simulation: &Simulation, work: impl FnOnce() -> T) -> (T, Vec<Value>) {
    let before = simulation.trace().lines().count();
    let result = work();
    let trace = simulation.trace();
    let steps = trace.lines().skip(before);
    let steps = steps.map(|line| serde_json::from_str(line).expect("a step"));
    (result, steps.collect())
}

pub(super) fn names(steps: &[Value]) -> Vec<&str> {
    let names = steps.iter().map(|step| step["operation"].as_str());
    names.map(|name| name.expect("a name")).collect()
}

/// Appends frames that are on the device, each with its first bytes and its last. Returns the names
/// of the steps for the first frame, and for each later one, which are the same. If `compared`, the
/// results of the device will be compared with the host's.
fn frames(axes: &[Axis], element: usize, compared: bool) -> [Vec<String>; 2] {
    let chain = KnownChain {
        order: (0..=axes.len()).collect(),
        swap: 1,
        stages: vec![],
    };
    let axes = [&[(0, 4, 1)], axes].concat();
    let subject = Subject::new(&axes, element, chain, (1, 1));
    let frame = subject.job.grid.slice_bytes();
    let simulation = traced();
    let engine = stream_engine(&simulation, StandIn::Six, &subject);
    let engine = if compared {
        engine
    } else {
        engine.without_checks()
    };
    let stream = open(&engine, &subject, false).expect("fits");
    let mut input = stream.input(true).expect("no fault").expect("not in use");

    let driver: &dyn Driver = &*simulation;
    driver.enter().expect("a device");
    let application = driver.create_stream().expect("a stream");
    let memory = driver.allocate(3 + frame).expect("memory");
    let staging = (driver.allocate_pinned(frame, PinnedUse::ToDevice)).expect("memory");
    let staging = PinnedSpan {
        memory: staging,
        offset: 0,
        len: frame,
    };
    let span = DeviceSpan {
        memory,
        offset: 3,
        len: frame,
    };
    let mut of_frames: Vec<Vec<String>> = Vec::new();
    for bytes in subject.bytes.chunks_exact(frame) {
        driver.host_access(staging, Access::Write).expect("free");
        // SAFETY: the staging memory is as long as a frame, and nothing reads it now.
        unsafe {
            let to = staging.memory.0.as_ptr();
            to.copy_from_nonoverlapping(bytes.as_ptr(), frame);
            driver
                .copy(application, Span::Pinned(staging), Span::Device(span))
                .expect("copied");
        }
        let given = DeviceBytes {
            device: 0,
            pointer: memory.0 + 3,
            len: frame,
            stream: application.0,
        };
        let at = of_frames.len() * frame;
        // SAFETY: the frame stays until it was copied, for which the next lines wait.
        let (reusable, of_frame) = steps(&simulation, || unsafe {
            input.write_from_device(at, &given).expect("on this device")
        });
        reusable.wait().expect("no fault");
        driver.synchronize_stream(application, MADE).expect("made");
        // All bytes of the frame are copied once, and no others.
        let copies = of_frame.iter().filter(|step| step["direction"] == "within");
        let bytes: u64 = copies
            .map(|copy| copy["bytes"].as_u64().expect("bytes"))
            .sum();
        assert_eq!(bytes, frame as u64);
        of_frames.push(names(&of_frame).into_iter().map(String::from).collect());
    }
    let mut back = vec![0; subject.bytes.len()];
    input.read(0, &mut back).expect("no fault");
    assert!(back == subject.bytes, "other bytes: {axes:?}");
    // SAFETY: nothing uses the memory.
    unsafe {
        driver.free(memory).expect("freed");
        driver.free_pinned(staging.memory).expect("freed");
    }
    driver.destroy_stream(application).expect("empty");
    driver.leave().expect("a device");
    drop((input, stream, engine));
    assert_clean(&simulation);

    let [first, second, rest @ ..] = &of_frames[..] else {
        panic!("four frames: {of_frames:?}");
    };
    assert!(rest.iter().all(|frame| frame == second));
    [first.clone(), second.clone()]
}

/// A frame takes four operations, however many rows it has: the application's record, the wait for
/// it, the copy, and the record for which the application waits. (Outside of the trace, the driver
/// is entered and left, and asked whether the application's stream is captured.)
#[test]
fn a_frame_on_the_device_takes_four_operations() {
    let whole = ["record", "wait", "copy", "record"];
    let padded = ["record", "wait", "copy_rows", "record"];
    let cases: [(&[Axis], usize, [&str; 4]); 8] = [
        // Without padding.
        (&[(64, 8, 2), (72, 8, 3)], 2, whole),
        (&[(5, 1, 1)], 1, whole),
        // One row.
        (&[(13, 4, 2)], 2, whole),
        // Small versions of 2304 x 2300 elements, and of 2300 x 2304.
        (&[(144, 8, 2), (143, 8, 3)], 2, padded),
        (&[(143, 8, 3), (144, 8, 2)], 2, whole),
        (&[(143, 8, 3), (143, 8, 2)], 2, padded),
        // Volumes.
        (&[(5, 2, 1), (10, 4, 2), (13, 4, 1)], 3, padded),
        (&[(5, 2, 1), (7, 4, 2), (16, 4, 1)], 8, padded),
    ];
    for (axes, element, expected) in cases {
        let [first, other] = frames(axes, element, false);
        assert_eq!(other, expected, "{axes:?}");
        // For a comparison, the host gets the frame, too, before the application may write it again.
        let [_, to_host] = frames(axes, element, true);
        let copy = expected[2];
        assert_eq!(
            to_host,
            ["record", "wait", copy, copy, "record"],
            "{axes:?}"
        );
        // The fill value is on the device before the first frame.
        let padding = if first.len() > 4 {
            vec!["copy", "synchronize_stream"]
        } else {
            vec![]
        };
        assert_eq!(first, [&padding[..], &expected].concat(), "{axes:?}");
    }
    // Three dimensions and a loop: a copy for each of three steps.
    let [_, other] = frames(&[(3, 2, 1), (5, 2, 1), (6, 4, 2), (13, 4, 1)], 1, false);
    assert_eq!(other[..2], padded[..2]);
    assert_eq!(other[2..5], ["copy_rows"; 3]);
    assert_eq!(other[5..], ["record"]);
}

/// Returns one batch of `parts` × `parts` shards of one subchunk of 24 bytes. Returns how many
/// copies went to the host, and how many operations there were in all.
fn one_batch(parts: u64, small_part: usize) -> (usize, usize) {
    let chain = KnownChain {
        order: vec![0, 1, 2],
        swap: 1,
        stages: vec![Stage::Crc32c],
    };
    let axis = (parts * 2, 2, 1);
    let mut subject = Subject::new(&[(0, 1, 1), axis, axis], 5, chain, (1, 1));
    // No subchunk is empty.
    subject.fill(1);
    let simulation = traced();
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    let tuning = Tuning {
        slab: 1 << 20,
        small_part,
        ..Tuning::TINY
    };
    let engine = CudaEngine::new(devices, stream_limits(), tuning)
        .for_chain(subject.chain(), with(StandIn::Six));
    let stream = open(&engine, &subject, false).expect("fits");
    let before = simulation.counts().operations;
    let (encoded, steps) = steps(&simulation, || stream::encode(&subject, stream, 0));
    encoded.expect("no fault");
    let operations = simulation.counts().operations - before;
    drop(engine);
    assert_clean(&simulation);
    let down = steps.iter().filter(|step| step["direction"] == "down");
    (down.count(), operations)
}

/// The offsets come back, and then all parts by one copy. A copy for each part would be as many
/// calls more.
#[test]
fn many_small_parts_come_back_together() {
    for parts in [1, 8, 32] {
        let all = usize::try_from(parts * parts).expect("small");
        let (apart, operations_apart) = one_batch(parts, 23);
        let (together, operations) = one_batch(parts, 24);
        println!(
            "{all} parts: {operations_apart} calls of the driver apart, {operations} together"
        );
        assert_eq!((apart, together), (1 + all, 2));
        assert_eq!(operations_apart - operations, all - 1);
    }
}

/// The host reads no write-combined memory, whatever happens to a stream, because a stream has
/// none.
#[test]
fn no_memory_of_a_stream_is_write_combined() {
    use crate::cuda::driver::simulation::Inject;

    // A lane of shards has some, so this test can fail.
    let simulation_of_shards = simulation(Schedule::Eager);
    let engine = engine_on(&simulation_of_shards);
    Shard::new(1).round_trip(&engine).expect("no fault");
    assert!(simulation_of_shards.for_uploads() > 0);
    drop(engine);

    // Ordinarily; with a batch that fails; with a device that is lost.
    let faults: [fn(usize) -> Option<Inject>; 3] = [
        |_| None,
        |_| Some(Inject::Refused { launch: 2 }),
        |operations| {
            Some(Inject::Lost {
                operation: operations + 30,
            })
        },
    ];
    for fault in faults {
        for on_device in [false, true] {
            let simulation = simulation(Schedule::Latest);
            let subject = padded(vec![Stage::Crc32c]);
            let engine = stream_engine(&simulation, StandIn::Six, &subject);
            let stream = open(&engine, &subject, true).expect("fits");
            assert_eq!(simulation.for_uploads(), 0);
            if let Some(fault) = fault(simulation.counts().operations) {
                simulation.inject(fault);
            }
            let encoded = if on_device {
                encode_with(&simulation, &subject, stream, (1, 0))
            } else {
                stream::encode(&subject, stream, 1)
            };
            match encoded {
                Ok(()) => {}
                // The error names bytes that only the device had.
                Err(error) => assert!(on_device && error.to_string().contains("They are lost")),
            }
            assert_eq!(simulation.uploads_read(), 0);
            let violations = simulation.violations();
            assert!(violations.is_empty(), "{violations:#?}");
        }
    }
}
