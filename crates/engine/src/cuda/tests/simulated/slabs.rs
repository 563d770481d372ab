//! Slabs: nothing copies their bytes on the host, they stay within the budget, and no memory that a device may read is
//! used again.

use std::time::Duration;

use zarrs_cuda_nvcomp_stand_in::StandIn;

use super::hangs::{ends, impatient};
use super::reading::{
    Boxes, Memory, assert_all_freed, encoded_by_host, read_and_compare, reads_on,
};
use super::*;
use crate::cuda::Compressors;
use crate::cuda::driver::Fault;
use crate::cuda::driver::simulation::Inject;
use crate::cuda::read::CudaReads;
use crate::cuda::slab::PinnedSlab;

const ZSTD: Stage = Stage::Zstd {
    level: 1,
    checksum: false,
};

/// The most bytes of slabs of the [`limits`]: half of what is left beside 8 MiB.
const MOST: usize = 4 << 20;

fn shards() -> [Shard; 3] {
    [
        Shard::new(0),
        Shard::new(1),
        Shard::new(0).compressed(1, ZSTD, 1),
    ]
}

fn take(reads: &CudaReads, len: usize) -> Vec<PinnedSlab> {
    std::iter::from_fn(|| reads.slab(len)).collect()
}

#[test]
fn bytes_in_slabs_are_not_copied_and_others_once() {
    for shard in shards() {
        for schedule in [Schedule::Eager, Schedule::Latest] {
            let simulation = simulation(schedule);
            let (engine, reads) = reads_on(&simulation, StandIn::Six, &shard, true).expect("reads");
            let encoded = encoded_by_host(&shard);
            let stored = encoded.extents.iter().flatten();
            let elements = shard.grid.subchunk_bytes();
            let is_fixed_size = shard.chain.is_fixed_size();
            // The checksums behind elements stay on the host, which has compared them.
            let expected: usize = stored
                .map(|extent| {
                    if is_fixed_size {
                        elements
                    } else {
                        extent.len()
                    }
                })
                .sum();
            let boxes = Boxes::whole(&shard);
            for (memory, copied) in [(Memory::Slabs, 0), (Memory::Host, expected)] {
                let before = engine.counters().snapshot();
                for _ in 0..3 {
                    read_and_compare(&simulation, &reads, (&shard, &encoded), &boxes, memory)
                        .expect("reads");
                }
                let after = engine.counters().snapshot();
                assert_eq!(after.subchunks_read_on_host, 0);
                let counted = after.read_bytes_copied - before.read_bytes_copied;
                assert_eq!(counted, 3 * copied as u64, "{memory:?}");
            }
            drop((engine, reads));
            assert_all_freed(&simulation);
        }
    }
}

/// The host decodes, so that the device gets no encoded bytes.
#[test]
fn there_are_no_slabs_for_what_the_host_decodes() {
    let simulation = simulation(Schedule::Eager);
    let shard = Shard::new(0).compressed(0, ZSTD, 0);
    let (_, reads) = reads_on(&simulation, StandIn::Six, &shard, false).expect("reads");
    assert!(reads.slab(100).is_none());
    assert_eq!(simulation.counts().pinned_allocations, 0);
}

/// A reader and other lanes go on while all slabs are held, and everything stays within the budget.
#[test]
fn nothing_waits_for_slabs_that_are_held() {
    let simulation = simulation(Schedule::Latest);
    let shard = Shard::new(1);
    let (engine, reads) = reads_on(&simulation, StandIn::Six, &shard, true).expect("reads");
    for len in [100, 5000, 70_000, 1 << 20] {
        let held = take(&reads, len);
        let all: usize = held.iter().map(|slab| slab.as_ref().len()).sum();
        let used = engine.devices.used();
        assert!(
            all <= MOST && used.pinned > MOST / 2,
            "{all} bytes by {len}: {used}"
        );
        assert!(used.pinned <= limits().pinned_memory, "{used}");
        let encoded = encoded_by_host(&shard);
        let boxes = Boxes::whole(&shard);
        for memory in [Memory::Host, Memory::Slabs] {
            read_and_compare(&simulation, &reads, (&shard, &encoded), &boxes, memory)
                .expect("reads");
        }
        shard.round_trip(&engine).expect("no fault");
        drop(held);
    }
    // Idle slabs make room for slabs of another length, and are used again.
    let allocations = simulation.counts().pinned_allocations;
    drop(take(&reads, 1 << 20));
    assert_eq!(simulation.counts().pinned_allocations, allocations);
    drop((engine, reads));
    assert_all_freed(&simulation);
}

/// A lane that does not read waits until slabs are given back. Meanwhile, nobody gets a slab.
#[test]
fn another_lane_waits_for_slabs() {
    let simulation = simulation(Schedule::Latest);
    let shard = Shard::new(1);
    let (mut engine, _) = reads_on(&simulation, StandIn::Six, &shard, true).expect("reads");
    let lane = engine
        .memory_estimate(&shard.grid, &shard.chain)
        .expect("fits");
    let reads = engine.clone().reads(0, &shard.grid, &shard.chain);
    let reads = reads.expect("reads");
    let held = take(&reads, 1 << 20);
    assert!(!held.is_empty());
    let of_slabs = engine.devices.used().pinned;
    engine.limits.pinned_memory = of_slabs + lane.pinned - 1;
    let waiting = engine.clone();
    let encoder = std::thread::spawn(move || Shard::new(1).round_trip(&waiting));
    while engine.counters().snapshot().lanes_waiting == 0 {
        std::thread::yield_now();
    }
    assert!(reads.slab(100).is_none(), "a lane is waited for");
    // A lane that reads does not wait. When it is idle, the encoder may take it.
    let encoded = encoded_by_host(&shard);
    let boxes = Boxes::whole(&shard);
    let of = (&shard, &encoded);
    read_and_compare(&simulation, &reads, of, &boxes, Memory::Host).expect("reads");
    drop(held);
    ends("an encoder", move || encoder.join().expect("no panic")).expect("no fault");
    drop((engine, reads));
    assert_all_freed(&simulation);
}

#[test]
fn without_memory_there_is_no_slab() {
    for fault in [Fault::OutOfMemory, Fault::Refused] {
        let simulation = simulation(Schedule::Latest);
        let shard = Shard::new(1);
        let (engine, reads) = reads_on(&simulation, StandIn::Six, &shard, true).expect("reads");
        let operation = simulation.counts().operations;
        simulation.inject(Inject::Failed { operation, fault });
        assert!(reads.slab(100).is_none());
        // For a while, the driver is not asked again.
        let counts = simulation.counts();
        assert!(reads.slab(100).is_none());
        assert_eq!(simulation.counts(), counts);
        assert_eq!(engine.devices.used().pinned, 0);
        let (of, boxes) = (encoded_by_host(&shard), Boxes::whole(&shard));
        read_and_compare(&simulation, &reads, (&shard, &of), &boxes, Memory::Slabs).expect("reads");
        drop((engine, reads));
        assert_all_freed(&simulation);
    }
}

#[test]
fn idle_slabs_are_freed() {
    for idle in [None, Some(Duration::from_millis(30))] {
        let simulation = simulation(Schedule::Latest);
        let shard = Shard::new(1);
        let (mut engine, _) = reads_on(&simulation, StandIn::Six, &shard, true).expect("reads");
        engine.limits.idle = idle;
        let reads = engine.clone().reads(0, &shard.grid, &shard.chain);
        let reads = reads.expect("reads");
        let slabs: Vec<_> = (0..3).map(|_| reads.slab(100).expect("fits")).collect();
        drop(slabs);
        if idle.is_none() {
            assert_eq!(simulation.live().pinned_allocations, 3);
            engine.devices.release_idle();
        }
        while engine.devices.used().pinned > 0 {
            std::thread::yield_now();
        }
        assert_eq!(simulation.live().pinned_allocations, 0);
        // The budget has room again.
        assert!(reads.slab(MOST / 2).is_some());
        drop((engine, reads));
        assert_all_freed(&simulation);
    }
}

/// A device that hangs may read its slabs for ever: they are neither freed nor used again, and count against the budget.
#[test]
fn slabs_of_a_device_that_hangs_are_lost() {
    let simulation = simulation(Schedule::Latest);
    let shard = Shard::new(1);
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    let engine = CudaEngine::new(devices, impatient(limits()), Tuning::TINY);
    let engine = engine.for_chain(&shard.chain, Compressors::default());
    let reads = engine.clone().reads(0, &shard.grid, &shard.chain);
    let reads = reads.expect("reads");
    let (encoded, boxes) = (encoded_by_host(&shard), Boxes::whole(&shard));
    let buffer = reads.allocate(boxes.len).expect("fits");
    let held = reads.slab(100).expect("fits");
    simulation.hang();
    let of = (&shard, &encoded);
    let read = super::reading::read_from(&reads, of, &boxes, &buffer, Memory::Slabs);
    let text = read.expect_err("hangs").to_string();
    assert!(text.contains("with_device_timeout"), "{text}");
    assert!(reads.slab(100).is_none());
    let (counts, used) = (simulation.counts(), engine.devices.used());
    drop(held);
    engine.devices.release_idle();
    assert_eq!(engine.devices.used(), used, "lost memory counts");
    assert!(used.pinned > 0);
    drop((engine, reads, buffer));
    assert_eq!(simulation.counts(), counts, "nothing was called");
    assert!(simulation.violations().is_empty());
}

/// Slabs that are given back after the devices were shut down stay as they are.
#[test]
fn slabs_after_the_end() {
    let simulation = simulation(Schedule::Latest);
    let shard = Shard::new(1);
    let (engine, reads) = reads_on(&simulation, StandIn::Six, &shard, true).expect("reads");
    let held = reads.slab(100).expect("fits");
    drop(reads.slab(1000).expect("fits"));
    engine.devices.shut_down(Duration::from_millis(200));
    assert_eq!(
        simulation.live().pinned_allocations,
        1,
        "the idle one is freed"
    );
    let counts = simulation.counts();
    assert!(reads.slab(100).is_none());
    drop((held, engine, reads));
    assert_eq!(simulation.counts(), counts, "nothing was called");
}
