//! Slabs: nothing copies their bytes on the host, nothing waits for them, and no memory that a device may read is used
//! again.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use zarrs_cuda_emulator::device::Kind;
use zarrs_cuda_nvcomp_stand_in::StandIn;

use super::compression::with;
use super::hangs::{ends, impatient};
use super::reading::{
    Boxes, Memory, assert_all_freed, copied, encoded_by_host, read_and_compare, reads_on,
};
use super::*;
use crate::contract::{DeviceArray, EncodedBytes};
use crate::cuda::driver::Fault;
use crate::cuda::driver::simulation::Inject;
use crate::cuda::read::{CudaReads, Next};
use crate::cuda::{Compressors, PinnedSlab, ReadSlabs};

const ZSTD: Stage = Stage::Zstd {
    level: 1,
    checksum: false,
};

/// The bytes of all slabs under the [`limits`]: a quarter.
const BLOCK: usize = 4 << 20;

/// More time than anything here takes.
const LONG: Duration = Duration::from_mins(2);

fn shards() -> [Shard; 3] {
    [
        Shard::new(0),
        Shard::new(1),
        Shard::new(0).compressed(1, ZSTD, 1),
    ]
}

/// Returns the engine and its reads, which copy runs of at least `least_direct` bytes from their slabs.
fn reads_with(
    simulation: &Arc<Simulation>,
    shard: &Shard,
    (limits, least_direct): (DeviceLimits, usize),
) -> (CudaEngine, CudaReads) {
    let tuning = Tuning {
        least_direct,
        ..Tuning::TINY
    };
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    let compressors = Compressors {
        decode: true,
        ..with(StandIn::Six)
    };
    let engine = CudaEngine::new(devices, limits, tuning).for_chain(&shard.chain, compressors);
    let reads = engine.clone().reads(0, &shard.grid, &shard.chain);
    (engine, reads.expect("reads"))
}

fn slabs_of(reads: &CudaReads) -> ReadSlabs {
    let slabs = reads.slabs().expect("usable");
    slabs.expect("the device gets the bytes")
}

/// Takes slabs of `len` bytes until there is no room.
fn take_all(slabs: &ReadSlabs, len: usize) -> Vec<PinnedSlab> {
    std::iter::from_fn(|| slabs.take(len)).collect()
}

/// Reads a whole shard from `memory`, and compares the elements.
fn read(simulation: &Simulation, reads: &CudaReads, shard: &Shard, memory: Memory) {
    let (encoded, boxes) = (encoded_by_host(shard), Boxes::whole(shard));
    read_and_compare(simulation, reads, (shard, &encoded), &boxes, memory).expect("reads");
}

/// Returns the bytes of the encoded subchunks of a shard that go to the device: the host keeps the checksums behind
/// elements, which it has compared.
fn to_device(shard: &Shard) -> usize {
    let encoded = encoded_by_host(shard);
    let stored = encoded.extents.iter().flatten();
    if shard.chain.is_fixed_size() {
        return stored.count() * shard.grid.subchunk_bytes();
    }
    stored.map(Range::len).sum()
}

#[test]
fn bytes_in_slabs_are_not_copied_and_others_once() {
    let cases = [
        (Memory::Slabs, 1, false),
        (Memory::Slabs, usize::MAX, true),
        (Memory::Host, 1, true),
    ];
    for shard in shards() {
        for schedule in [Schedule::Eager, Schedule::Latest] {
            for (memory, least_direct, is_copied) in cases {
                let simulation = simulation(schedule);
                let (engine, reads) = reads_with(&simulation, &shard, (limits(), least_direct));
                for _ in 0..3 {
                    read(&simulation, &reads, &shard, memory);
                }
                let counts = engine.counters().snapshot();
                assert_eq!(counts.subchunks_read_on_host, 0);
                let copied = if is_copied { 3 * to_device(&shard) } else { 0 };
                let what = format!("{memory:?}, {least_direct}");
                assert_eq!(counts.read_bytes_copied, copied as u64, "{what}");
                drop((engine, reads));
                assert_all_freed(&simulation);
            }
        }
    }
}

/// Neighbours in a slab are one copy, and only long runs are copied from there.
#[test]
fn neighbours_are_copied_together() {
    // Three subchunks of 120 bytes lie together in each group of even number, and apart in the others.
    let shard = Shard::with(0, Empty::First(0), false);
    for (least_direct, is_copied) in [(121, 1), (120, 0), (361, 2)] {
        let simulation = simulation(Schedule::Latest);
        let tuning = (limits(), least_direct);
        let (engine, reads) = reads_with(&simulation, &shard, tuning);
        read(&simulation, &reads, &shard, Memory::Slabs);
        let counts = engine.counters().snapshot();
        let copied = counts.read_bytes_copied as usize;
        // A batch ends within a run, so that some bytes of runs are left.
        let all = SUBCHUNKS * 120;
        match is_copied {
            0 => assert_eq!(copied, 0),
            1 => assert!((all / 2..all).contains(&copied), "{copied} of {all}"),
            _ => assert_eq!(copied, all),
        }
        drop((engine, reads));
        assert_all_freed(&simulation);
    }
}

/// A slab is filled again during a read, as soon as the device has read it, and not before.
#[test]
fn slabs_are_used_again_during_a_read() {
    const PAGES: usize = 16;
    let stored = |stages| Shard::with(stages, Empty::First(0), false);
    for shard in [stored(0), stored(1), stored(0).compressed(1, ZSTD, 1)] {
        for schedule in [Schedule::Eager, Schedule::Latest, Schedule::Priority(3)] {
            let simulation = simulation(schedule);
            let limits = DeviceLimits {
                pinned_memory: PAGES * 4 * 4096,
                ..limits()
            };
            let (engine, reads) = reads_with(&simulation, &shard, (limits, 1));
            let (encoded, boxes) = (encoded_by_host(&shard), Boxes::whole(&shard));
            let buffer = reads.allocate(boxes.len).expect("fits");
            let (slabs, mut taken) = (slabs_of(&reads), 0);
            let mut subchunks = boxes.of_subchunks(&shard).into_iter().enumerate();
            let mut next = |_: bool| {
                let Some((number, placed)) = subchunks.next() else {
                    return Next::End;
                };
                let extent = encoded.extents[number].clone().expect("stored");
                let bytes = &encoded.bytes[extent];
                let bytes = match slabs.take(bytes.len()) {
                    Some(mut slab) => {
                        taken += 1;
                        slab.bytes_mut().copy_from_slice(bytes);
                        EncodedBytes::new(slab)
                    }
                    None => EncodedBytes::new(bytes.to_vec()),
                };
                let subchunk = reads.prepare((number, number), bytes, placed, true);
                Next::Subchunk(Box::new(subchunk.expect("parses")))
            };
            let array = DeviceArray {
                pointer: buffer.pointer(),
                len: boxes.len,
                strides: boxes.strides[1..].to_vec(),
            };
            let (job, damaged) = (shard.job(), &mut |_, error| Err(error));
            // SAFETY: nothing else uses the buffer, in which all boxes lie.
            unsafe { reads.read(&job, &array, &mut next, damaged) }.expect("reads");
            assert!(taken > PAGES, "{taken} slabs");
            let mut found = vec![0; boxes.len];
            copied(&simulation, &buffer, &mut found, false).expect("no fault");
            assert!(found == shard.elements, "wrong elements");
            drop((slabs, buffer, engine, reads));
            assert_all_freed(&simulation);
        }
    }
}

/// Ends another thread when it is dropped, also after a panic.
struct EndsOther<'a>(&'a AtomicBool);

impl Drop for EndsOther<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Another thread writes every slab that is free, at any time. The device gets the bytes that were read.
#[test]
fn nobody_gets_a_slab_that_the_device_still_reads() {
    let simulation = simulation(Schedule::Latest);
    let shard = Shard::with(0, Empty::First(0), false);
    let limits = DeviceLimits {
        pinned_memory: 64 * 4096,
        ..limits()
    };
    let (engine, reads) = reads_with(&simulation, &shard, (limits, 1));
    let slabs = slabs_of(&reads);
    let has_read = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !has_read.load(Ordering::Relaxed) {
                for mut slab in take_all(&slabs, 1) {
                    slab.bytes_mut().fill(0xee);
                }
                std::thread::yield_now();
            }
        });
        let ends = EndsOther(&has_read);
        for _ in 0..200 {
            read(&simulation, &reads, &shard, Memory::Slabs);
        }
        drop(ends);
    });
    let copied = engine.counters().snapshot().read_bytes_copied;
    assert!(copied < 200 * to_device(&shard) as u64, "some are in slabs");
    drop((slabs, engine, reads));
    assert_all_freed(&simulation);
}

/// The host decodes, so that the device gets no encoded bytes.
#[test]
fn there_are_no_slabs_for_what_the_host_decodes() {
    let simulation = simulation(Schedule::Eager);
    let shard = Shard::new(0).compressed(0, ZSTD, 0);
    let (_, reads) = reads_on(&simulation, StandIn::Six, &shard, false).expect("reads");
    assert!(reads.slabs().expect("usable").is_none());
    assert_eq!(simulation.counts().pinned_allocations, 0);
}

/// Readers and other lanes go on while all slabs are held, under a budget that one lane takes up.
#[test]
fn nothing_waits_for_slabs_that_are_held() {
    let simulation = simulation(Schedule::Latest);
    let shard = Shard::new(1);
    let (mut engine, reads) = reads_with(&simulation, &shard, (limits(), 1));
    let lane = engine
        .memory_estimate(&shard.grid, &shard.chain)
        .expect("fits");
    engine.limits.pinned_memory = lane.pinned;
    let slabs = slabs_of(&reads);
    for len in [100, 5000, 70_000, BLOCK] {
        let held = take_all(&slabs, len);
        assert_eq!(held.len(), BLOCK / len.next_multiple_of(4096));
        assert!(slabs.take(1).is_none() || len == 70_000);
        for memory in [Memory::Host, Memory::Slabs] {
            read(&simulation, &reads, &shard, memory);
        }
        let encoder = engine.clone();
        ends("an encoder", move || Shard::new(1).round_trip(&encoder)).expect("no fault");
        drop(held);
    }
    assert_eq!(engine.counters().snapshot().lane_waits, 0);
    drop((slabs, engine, reads));
    assert_all_freed(&simulation);
}

#[test]
fn an_allocation_that_fails_is_not_tried_again_at_once() {
    let shard = Shard::new(1);
    let faults: [fn(usize) -> Inject; 3] = [
        |_| Inject::OutOfMemoryOf {
            kind: Kind::Pinned,
            allocation: 0,
        },
        |operation| Inject::Failed {
            operation,
            fault: Fault::Refused,
        },
        |_| Inject::NotEntered {
            enter: 0,
            fault: Fault::Refused,
        },
    ];
    for fault in faults {
        let simulation = simulation(Schedule::Latest);
        let (engine, reads) = reads_with(&simulation, &shard, (limits(), 1));
        simulation.inject(fault(simulation.counts().operations));
        let slabs = slabs_of(&reads);
        assert!(slabs.take(1).is_none());
        let counts = simulation.counts();
        assert!(slabs_of(&reads).take(1).is_none());
        assert_eq!(simulation.counts(), counts);
        read(&simulation, &reads, &shard, Memory::Slabs);
        let copied = engine.counters().snapshot().read_bytes_copied;
        assert_eq!(copied, to_device(&shard) as u64);
        drop((slabs, engine, reads));
        assert_all_freed(&simulation);
    }
}

/// While one thread is in the driver, the others read without slabs.
#[test]
fn nobody_waits_for_the_allocation() {
    let simulation = simulation(Schedule::Latest);
    let shard = Shard::new(1);
    let (engine, reads) = reads_with(&simulation, &shard, (limits(), 1));
    let (tell_begun, begun) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    simulation.on_allocate(move |kind| {
        // Only the first allocation waits.
        if kind == Kind::Pinned && tell_begun.send(()).is_ok() {
            let _ = may_go_on.lock().unwrap().recv();
        }
    });
    let first = reads.clone();
    let first = std::thread::spawn(move || {
        let slabs = slabs_of(&first);
        slabs.take(1).map(|slab| slab.as_ref().len())
    });
    begun.recv().expect("it is allocated");
    let second = reads.clone();
    ends("a second read", move || {
        let slabs = slabs_of(&second);
        assert!(slabs.take(1).is_none());
    });
    drop(go_on);
    assert_eq!(first.join().expect("no panic"), Some(1));
    assert!(slabs_of(&reads).take(BLOCK).is_some());
    drop((begun, engine, reads));
    assert_all_freed(&simulation);
}

#[test]
fn idle_slabs_are_freed() {
    for idle in [None, Some(Duration::from_millis(30))] {
        let simulation = simulation(Schedule::Latest);
        let shard = Shard::new(1);
        let limits = DeviceLimits { idle, ..limits() };
        let (engine, reads) = reads_with(&simulation, &shard, (limits, 1));
        let (slabs, other) = (slabs_of(&reads), slabs_of(&reads));
        let slab = slabs.take(100).expect("fits");
        drop(other);
        engine.devices.release_idle();
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(simulation.live().pinned_allocations, 1, "a read uses it");
        drop((slab, slabs));
        if idle.is_none() {
            assert_eq!(simulation.live().pinned_allocations, 1);
            engine.devices.release_idle();
        }
        while simulation.live().pinned_allocations > 0 {
            std::thread::yield_now();
        }
        // The next read allocates again.
        assert!(slabs_of(&reads).take(BLOCK).is_some());
        drop((engine, reads));
        assert_all_freed(&simulation);
    }
}

/// If memory cannot be freed, nobody allocates more.
#[test]
fn slabs_that_cannot_be_freed_are_lost() {
    let simulation = simulation(Schedule::Latest);
    let shard = Shard::new(1);
    let (engine, reads) = reads_with(&simulation, &shard, (limits(), 1));
    drop(slabs_of(&reads));
    simulation.inject(Inject::Failed {
        operation: simulation.counts().operations,
        fault: Fault::Refused,
    });
    engine.devices.release_idle();
    let counts = simulation.counts();
    assert!(slabs_of(&reads).take(1).is_none());
    assert_eq!(simulation.counts(), counts);
    read(&simulation, &reads, &shard, Memory::Slabs);
}

/// The device may read the slabs of a lane that hangs for ever. The read ends, and calls the driver no more.
#[test]
fn slabs_of_a_device_that_hangs_stay_as_they_are() {
    let simulation = simulation(Schedule::Latest);
    let shard = Shard::new(1);
    let (engine, reads) = reads_with(&simulation, &shard, (impatient(limits()), 1));
    let (encoded, boxes) = (encoded_by_host(&shard), Boxes::whole(&shard));
    let buffer = reads.allocate(boxes.len).expect("fits");
    let slabs = slabs_of(&reads);
    let held = slabs.take(100).expect("fits");
    simulation.hang();
    let of = (&shard, &encoded);
    let read = super::reading::read_from(&reads, of, &boxes, &buffer, Memory::Slabs);
    let text = read.expect_err("hangs").to_string();
    assert!(text.contains("with_device_timeout"), "{text}");
    assert!(slabs.take(100).is_none());
    assert!(reads.slabs().is_err());
    let counts = simulation.counts();
    drop((held, slabs));
    engine.devices.release_idle();
    let devices = engine.devices.clone();
    drop((engine, reads, buffer));
    ends("the end", move || devices.shut_down(LONG));
    assert_eq!(simulation.counts(), counts, "nothing was called");
    assert!(simulation.live().pinned_allocations > 0);
    assert!(simulation.violations().is_empty());
}

/// After a fault, a lane is drained before its slabs are used for other bytes.
#[test]
fn slabs_of_a_lane_that_fails_are_used_again() {
    let shard = Shard::new(1);
    for launch in 0..4 {
        let simulation = simulation(Schedule::Latest);
        let (engine, reads) = reads_with(&simulation, &shard, (limits(), 1));
        let (encoded, boxes) = (encoded_by_host(&shard), Boxes::whole(&shard));
        simulation.inject(Inject::Refused { launch });
        let of = (&shard, &encoded);
        let failed = read_and_compare(&simulation, &reads, of, &boxes, Memory::Slabs);
        failed.expect_err("a launch is refused");
        let slabs = slabs_of(&reads);
        assert!(slabs.take(BLOCK).is_some(), "all slabs were given back");
        drop(slabs);
        read(&simulation, &reads, &shard, Memory::Slabs);
        drop((engine, reads));
        assert_all_freed(&simulation);
    }
}

/// The end of the process waits for slabs in use, because the driver takes their memory away.
#[test]
fn the_end_waits_for_slabs() {
    let simulation = simulation(Schedule::Latest);
    let shard = Shard::new(1);
    let (engine, reads) = reads_with(&simulation, &shard, (limits(), 1));
    let slabs = slabs_of(&reads);
    let held = slabs.take(100).expect("fits");
    let devices = engine.devices.clone();
    let shut_down = std::thread::spawn(move || devices.shut_down(LONG));
    while engine.devices.check_usable(&engine.limits).is_ok() {
        std::thread::yield_now();
    }
    assert!(slabs.take(100).is_none());
    std::thread::sleep(Duration::from_millis(50));
    assert!(!shut_down.is_finished(), "a slab is in use");
    drop(held);
    ends("the end", move || shut_down.join().expect("no panic"));
    let counts = simulation.counts();
    drop((slabs, engine, reads));
    assert_eq!(simulation.counts(), counts, "nothing was called");
    assert!(simulation.violations().is_empty());
}

#[test]
fn slabs_are_freed_at_the_end() {
    let simulation = simulation(Schedule::Latest);
    let shard = Shard::new(1);
    let (engine, reads) = reads_with(&simulation, &shard, (limits(), 1));
    drop(slabs_of(&reads).take(100).expect("fits"));
    engine.devices.shut_down(LONG);
    assert_clean(&simulation);
}
