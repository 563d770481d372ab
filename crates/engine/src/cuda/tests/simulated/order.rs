//! Tests of the order of operations, by the traces of shards and streams. The traces have the
//! operations of all streams, and the host's blocking waits.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;
use zarrs_cuda_nvcomp_stand_in::StandIn;

use super::compression::with;
use super::*;
use crate::cuda::tests::on_gpu::stream;
use crate::cuda::tests::on_gpu::stream::{Subject, returned};

/// The waits between the first copy to the device and the last one back: for a place in either ring,
/// and for the offsets of a batch.
const WAITS_OF_A_SHARD: [&str; 3] = [
    "synchronise: pinned memory before it is written again",
    "synchronise: bytes from the device before they are read",
    "synchronise: the offsets of a batch before they are read",
];
/// The same for a stream: for the offsets of a batch, and for its bytes.
const WAITS_OF_A_STREAM: [&str; 2] = [
    "synchronise: the offsets of a stream's batch",
    "synchronise: a batch of a stream before it is read",
];

fn traced(schedule: Schedule) -> Arc<Simulation> {
    Arc::new(Simulation::new(Config {
        schedule,
        trace: true,
        ..Config::default()
    }))
}

/// An operation of a batch: of its kernels behind the scatter, or a copy of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A copy of a slab to the device, and how many slabs of the batch were copied before.
    Upload(usize),
    Compute,
    Other,
}

#[derive(Debug)]
struct Operation {
    what: What,
    batch: usize,
    /// The numbers of the operations that have to happen before.
    after: BTreeSet<usize>,
}

/// Returns the operations of a trace, and the sites at which the host has blocked from the first
/// copy to the device to the last one back. What the host only asked for has not made it wait, and
/// is left out.
///
/// Operations of a batch are enqueued before the next batch's, and end with the kernel `gather`.
fn operations(simulation: &Simulation) -> (Vec<Operation>, BTreeSet<String>) {
    let steps: Vec<Value> = simulation
        .trace()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let is_copy = |step: &Value, direction: &str| step["direction"] == direction;
    // The first copy is the fill value.
    let first = steps.iter().position(|step| is_copy(step, "up")).unwrap();
    let last = steps.iter().rposition(|step| is_copy(step, "down"));
    let mut operations: Vec<Operation> = Vec::new();
    let mut streams: HashMap<u64, BTreeSet<usize>> = HashMap::new();
    let mut events: HashMap<u64, BTreeSet<usize>> = HashMap::new();
    let (mut host, mut sites) = (BTreeSet::new(), BTreeSet::new());
    let (mut batch, mut uploads) = (0, 0);
    for (number, step) in steps.iter().enumerate() {
        let id = |member: &str| step[member].as_u64().unwrap();
        let what = match step["operation"].as_str().unwrap() {
            "record" => {
                let before = streams.get(&id("stream")).cloned().unwrap_or_default();
                events.insert(id("event"), before);
                continue;
            }
            "wait" => {
                let before = events[&id("event")].clone();
                streams.entry(id("stream")).or_default().extend(before);
                continue;
            }
            "synchronize" => {
                if step["asked"] != true {
                    host.extend(&events[&id("event")]);
                    if first < number && last.is_some_and(|last| number < last) {
                        sites.insert(step["site"].as_str().unwrap().to_string());
                    }
                }
                continue;
            }
            "synchronize_stream" => {
                let before = streams.get(&id("stream")).cloned().unwrap_or_default();
                host.extend(before);
                continue;
            }
            "copy" if is_copy(step, "up") && number > first => {
                uploads += 1;
                What::Upload(uploads - 1)
            }
            "kernel" if step["name"].as_str().unwrap().starts_with("scatter") => What::Other,
            "kernel" | "library" => What::Compute,
            "copy" | "fill" => What::Other,
            other => panic!("{other}"),
        };
        let before = streams.entry(id("stream")).or_default();
        before.extend(&host);
        let after = before.clone();
        before.insert(operations.len());
        operations.push(Operation { what, batch, after });
        if step["name"] == "gather" {
            (batch, uploads) = (batch + 1, 0);
        }
    }
    (operations, sites)
}

/// Returns the uploads that have to wait for the kernels of a batch that is fewer than `apart`
/// batches before, behind the scatter.
fn waiting(operations: &[Operation], apart: usize) -> Vec<&Operation> {
    let waits = |upload: &&Operation| {
        upload.after.iter().any(|&number| {
            let before = &operations[number];
            before.what == What::Compute && before.batch + apart > upload.batch
        })
    };
    let is_upload = |operation: &&Operation| matches!(operation.what, What::Upload(_));
    operations.iter().filter(is_upload).filter(waits).collect()
}

fn shards() -> [Shard; 2] {
    let zstd = Stage::Zstd {
        level: 1,
        checksum: false,
    };
    [Shard::new(1), Shard::new(0).compressed(1, zstd, 1)]
}

fn encode(schedule: Schedule, shard: &Shard, streams: usize) -> Arc<Simulation> {
    let simulation = traced(schedule);
    let engine = super::compression::engine_with(&simulation, StandIn::Six, &shard.chain);
    let engine = with_streams(engine, streams);
    engine.encode(&shard.job(), &shard.elements, 0, 0).unwrap();
    simulation
}

/// With three streams of kernels, a slab goes up whatever the kernels of the last two batches do:
/// only the batch whose buffers it uses again has to be complete.
#[test]
fn uploads_of_a_batch_do_not_wait_for_the_kernels_of_the_last_ones() {
    let mut reusing = 0;
    for (schedule, shard) in [Schedule::Eager, Schedule::Latest]
        .iter()
        .flat_map(|schedule| shards().map(|shard| (*schedule, shard)))
    {
        let (operations, _) = operations(&encode(schedule, &shard, 3));
        let batches = operations.last().unwrap().batch;
        assert!(batches > 5, "{batches}");
        let waiting_for = |apart| waiting(&operations, apart);
        assert!(waiting_for(3).is_empty(), "{:#?}", waiting_for(3));
        reusing += waiting_for(4).len();
    }
    // The test sees uploads that wait: buffers are used again.
    assert!(reusing > 0);
}

/// With one stream of kernels, the slabs behind the first ones of a batch wait for memory on the
/// device: a scatter has to read it, and comes behind the kernels of the batch before.
#[test]
fn with_one_stream_the_first_uploads_of_a_batch_do_not_wait() {
    for shard in shards() {
        let (operations, _) = operations(&encode(Schedule::Latest, &shard, 1));
        let waiting = waiting(&operations, 2);
        let is_first = |upload: &&&Operation| match upload.what {
            What::Upload(number) => number < Tuning::TINY.ring,
            _ => false,
        };
        assert_eq!(waiting.iter().filter(is_first).count(), 0, "{waiting:#?}");
    }
}

#[test]
fn the_host_waits_in_listed_places_alone() {
    for schedule in [Schedule::Eager, Schedule::Latest] {
        for (shard, streams) in shards()
            .iter()
            .flat_map(|shard| [1, 3].map(|streams| (shard, streams)))
        {
            let (_, sites) = operations(&encode(schedule, shard, streams));
            let listed = WAITS_OF_A_SHARD.map(str::to_string).into();
            assert!(sites.is_subset(&listed), "{schedule:?}: {sites:#?}");
            if schedule == Schedule::Latest {
                assert!(sites.len() >= 2, "{sites:#?}");
            }
        }
    }
}

#[test]
fn streams_wait_for_as_little() {
    for (seed, streams) in [(3, 1), (3, 3), (8, 1), (8, 3)] {
        let mut subject = Subject::any(seed, vec![Stage::Crc32c]);
        subject.epochs = 6 * subject.job.epochs;
        subject.fill(3);
        let simulation = traced(Schedule::Latest);
        let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
        let engine = CudaEngine::new(devices, limits(), Tuning::TINY);
        let engine = engine.for_chain(subject.chain(), with(StandIn::Six));
        let engine = with_streams(engine, streams);
        let job = Arc::new(subject.job.clone());
        stream::encode(
            &subject,
            engine.stream(job, returned(), None).unwrap(),
            seed,
        )
        .unwrap();
        let (operations, sites) = operations(&simulation);
        let waiting = waiting(&operations, subject.job.inputs.clamp(1, 3));
        assert!(waiting.is_empty(), "{seed}, {streams}: {waiting:#?}");
        let listed: BTreeSet<String> = WAITS_OF_A_STREAM.map(str::to_string).into();
        assert_eq!(sites, listed, "{seed}, {streams}");
    }
}
