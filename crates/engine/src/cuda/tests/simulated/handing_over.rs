//! Elements for memory of an application, and memory that an application gives back.

use std::collections::BTreeSet;

use zarrs_cuda_nvcomp_stand_in::StandIn;

use super::reading::{Boxes, Dice, assert_all_freed, encoded_by_host, read_to, reads_on};
use super::stream::sites::sites_of;
use super::*;
use crate::contract::{DeviceArray, EncodedShard};
use crate::cuda::driver::simulation::Kind;
use crate::cuda::driver::{
    Access, DeviceMemory, DeviceSpan, PinnedMemory, PinnedSpan, PinnedUse, Site, Span, StreamId,
};
use crate::cuda::read::CudaReads;
use crate::layout::strides;

/// Names of waits of these tests begin so.
const DONE: Site = Site("application: its stream is through");

/// An application with a stream, and memory that its stream fills, copies to the host, and frees at last.
pub(super) struct Application<'a> {
    driver: &'a Simulation,
    stream: StreamId,
    memory: DeviceMemory,
    pinned: PinnedMemory,
    len: usize,
}

impl<'a> Application<'a> {
    pub(super) fn new(driver: &'a Simulation, len: usize) -> Result<Self, EngineError> {
        driver.enter()?;
        let this = Self {
            driver,
            stream: driver.create_stream()?,
            memory: driver.allocate(len)?,
            pinned: driver.allocate_pinned(len, PinnedUse::FromDevice)?,
            len,
        };
        // SAFETY: the memory lives until the stream was synchronised.
        unsafe { driver.fill(this.stream, this.span(), 0xcc)? };
        driver.leave()?;
        Ok(this)
    }

    fn span(&self) -> DeviceSpan {
        DeviceSpan {
            memory: self.memory,
            offset: 0,
            len: self.len,
        }
    }

    /// Enqueues a copy of other memory to the application's.
    fn take(&self, from: u64) -> Result<(), EngineError> {
        self.driver.enter()?;
        let from = self.driver.adopt(from, self.len)?;
        // SAFETY: the owner of the memory gives it back behind this copy.
        unsafe {
            let to = Span::Device(self.span());
            self.driver.copy(self.stream, Span::Device(from), to)?;
        }
        self.driver.leave()?;
        Ok(())
    }

    /// Returns the bytes of the memory when the stream is through, and frees everything.
    pub(super) fn end(self) -> Result<Vec<u8>, EngineError> {
        let Self {
            driver,
            stream,
            memory,
            pinned,
            len,
        } = self;
        let mut bytes = vec![0; len];
        let to = PinnedSpan {
            memory: pinned,
            offset: 0,
            len,
        };
        driver.enter()?;
        // SAFETY: the memory lives until the stream was synchronised, and nothing else uses it.
        unsafe {
            driver.copy(stream, Span::Device(self.span()), Span::Pinned(to))?;
            driver.synchronize_stream(stream, DONE)?;
            driver.host_access(to, Access::Read)?;
            let from = pinned.0.as_ptr();
            bytes.as_mut_ptr().copy_from_nonoverlapping(from, len);
            driver.free_pinned(pinned)?;
            driver.free(memory)?;
        }
        driver.destroy_stream(stream)?;
        driver.leave()?;
        Ok(bytes)
    }
}

/// Hands boxes over to the memory of `application`, by `rounds` buffers of ours. The boxes are the same each time.
pub(super) fn hand_over(
    reads: &CudaReads,
    (shard, encoded): (&Shard, &EncodedShard),
    boxes: &Boxes,
    application: &Application<'_>,
    rounds: usize,
) -> Result<(), EngineError> {
    let mut dense = vec![boxes.starts.len()];
    dense.extend(&boxes.shape);
    let ours = Boxes {
        shape: boxes.shape.clone(),
        starts: boxes.starts.clone(),
        strides: strides(&dense, shard.grid.element_size()),
        len: dense.iter().product::<usize>() * shard.grid.element_size(),
    };
    let places = (0..boxes.starts.len()).map(|number| DeviceArray {
        pointer: application.memory.0 + (number * boxes.strides[0]) as u64,
        len: boxes.len - number * boxes.strides[0],
        strides: boxes.strides[1..].to_vec(),
    });
    let places: Vec<DeviceArray> = places.collect();
    reads.check_memory(application.memory.0, boxes.len)?;
    let stream = application.stream.0;
    // SAFETY: the stream lives, and orders the use of the application's memory.
    let mut way = unsafe { reads.hand_over([stream], 2 * ours.len)? };
    for _ in 0..rounds {
        let buffer = way.buffer(ours.len)?;
        read_to(reads, shard, encoded, &ours, &buffer)?;
        let copies = places.iter().enumerate().map(|(number, place)| {
            let from = number * ours.strides[0];
            (from, &*ours.shape, &ours.strides[1..], place)
        });
        // SAFETY: the boxes lie in their places, which live until the stream was synchronised.
        unsafe { way.copy(stream, buffer, copies)? };
    }
    Ok(())
}

/// Hands boxes over, and gives back a tensor that an application still copies.
fn some(
    simulation: &Arc<Simulation>,
    (engine, reads): (CudaEngine, CudaReads),
    shard: &Shard,
    seeds: u64,
) -> Result<(), EngineError> {
    let encoded = encoded_by_host(shard);
    for seed in 0..seeds {
        let boxes = Boxes::any(shard, &mut Dice(seed));
        let application = Application::new(simulation, boxes.len)?;
        hand_over(&reads, (shard, &encoded), &boxes, &application, 5)?;
        let mut expected = vec![0xcc; boxes.len];
        boxes.copy(shard, &mut expected);
        assert!(
            application.end()? == expected,
            "wrong elements of {boxes:?}"
        );

        let boxes = Boxes::whole(shard);
        let mut taken = Vec::new();
        for _ in 0..3 {
            let application = Application::new(simulation, boxes.len)?;
            let buffer = reads.allocate(boxes.len)?;
            read_to(&reads, shard, &encoded, &boxes, &buffer)?;
            application.take(buffer.pointer())?;
            if taken.len() == 1 {
                // The copy is still queued. Another thread drops the buffer.
                std::thread::scope(|scope| drop(scope.spawn(move || drop(buffer))));
            } else {
                // SAFETY: the only use of the buffer is in the stream.
                unsafe { buffer.release(application.stream.0)? };
            }
            taken.push(application);
        }
        for application in taken {
            assert!(
                application.end()? == shard.elements,
                "wrong elements of a tensor"
            );
        }
    }
    engine.devices.release_idle();
    drop((engine, reads));
    Ok(())
}

/// Reads that are handed over, and tensors that are given back, on `engine`.
pub(super) fn with_an_application(
    simulation: &Arc<Simulation>,
    engine: CudaEngine,
) -> Result<(), EngineError> {
    let shard = Shard::new(0);
    let reads = engine.clone().reads(0, &shard.grid, &shard.chain)?;
    some(simulation, (engine, reads), &shard, 1)
}

fn shards() -> [(Shard, StandIn); 2] {
    let zstd = crate::contract::Stage::Zstd {
        level: 1,
        checksum: false,
    };
    [
        (Shard::of_kind(1), StandIn::Six),
        (Shard::new(0).compressed(0, zstd, 0), StandIn::Failing),
    ]
}

const SCHEDULES: [Schedule; 3] = [Schedule::Latest, Schedule::Eager, Schedule::Priority(5)];

#[test]
fn elements_reach_the_memory_of_an_application() {
    for schedule in SCHEDULES {
        for (shard, library) in shards() {
            let simulation = simulation(schedule);
            let reads = reads_on(&simulation, library, &shard, true).expect("reads");
            some(&simulation, reads, &shard, 6).expect("hands over");
            assert_all_freed(&simulation);
        }
    }
}

/// Runs everything without one record or wait. Returns the names of all.
fn without(removed: Option<Site>, schedule: Schedule) -> Result<BTreeSet<Site>, String> {
    let mut sites = BTreeSet::new();
    for (shard, library) in shards() {
        let simulation = Arc::new(Simulation::new(Config {
            schedule,
            removed,
            ..Config::default()
        }));
        sites.extend(sites_of(&simulation, || {
            let reads = reads_on(&simulation, library, &shard, true)?;
            some(&simulation, reads, &shard, 3)
        })?);
    }
    Ok(sites)
}

/// The wait for the oldest buffer bounds the memory, and no more: see the next test.
#[test]
fn without_a_record_memory_is_used_too_early() {
    let mut sites = BTreeSet::new();
    for schedule in SCHEDULES {
        sites.extend(without(None, schedule).expect("the engine as it is"));
    }
    let records = ["an application", "the application"];
    sites.retain(|site| {
        site.0.starts_with("record") && records.iter().any(|name| site.0.contains(name))
    });
    assert_eq!(sites.len(), 2, "{sites:?}");
    for site in sites {
        let mut failed = SCHEDULES.iter();
        let failed = failed.find_map(|schedule| without(Some(site), *schedule).err());
        assert!(failed.is_some(), "nothing needs \"{}\"", site.0);
    }
}

/// While the application's stream stands still, two buffers wait for it, and the call waits with the third. The time
/// has no limit.
#[test]
fn an_application_that_takes_its_time() {
    let shard = Shard::new(0);
    let simulation = simulation(Schedule::Latest);
    let mut engine = engine_on(&simulation);
    engine.limits.timeout = std::time::Duration::from_millis(20);
    let reads = engine
        .clone()
        .reads(0, &shard.grid, &shard.chain)
        .expect("reads");
    let encoded = encoded_by_host(&shard);
    let boxes = Boxes::whole(&shard);
    // The lanes are there, and no memory is freed while the stream stands still.
    let first = reads.allocate(boxes.len).expect("fits");
    read_to(&reads, &shard, &encoded, &boxes, &first).expect("reads");
    let application = Application::new(&simulation, boxes.len).expect("fits");
    simulation.stall(application.stream, true);
    let before = simulation.live().device_bytes;
    hand_over(&reads, (&shard, &encoded), &boxes, &application, 2).expect("does not wait");
    std::thread::scope(|scope| {
        let third = scope.spawn(|| hand_over(&reads, (&shard, &encoded), &boxes, &application, 6));
        std::thread::sleep(std::time::Duration::from_millis(1500));
        assert!(!third.is_finished(), "the third buffer waits");
        simulation.stall(application.stream, false);
        third.join().expect("no panic").expect("hands over");
    });
    // Two calls have two buffers each.
    let most = before + 4 * boxes.len.next_multiple_of(256);
    let peak = simulation.peak(Kind::Device);
    assert!(
        peak <= most,
        "{peak} bytes of the device, and {most} are enough"
    );
    assert!(application.end().expect("ends") == shard.elements);
    drop(first);
    engine.devices.release_idle();
    drop((engine, reads));
    assert_all_freed(&simulation);
}

/// Addresses that are no memory of the device, and streams that are captured, are refused before anything is read.
#[test]
fn wrong_addresses_and_captured_streams_are_refused() {
    let (one, other) = (simulation(Schedule::Latest), simulation(Schedule::Latest));
    let shard = Shard::new(0);
    let (engine, reads) = reads_on(&one, StandIn::Six, &shard, true).expect("reads");
    let application = Application::new(&one, 1000).expect("fits");
    let foreign = Application::new(&other, 1000).expect("fits");
    let at = application.memory.0;
    reads.check_memory(at, 1000).expect("is memory");
    reads.check_memory(at + 999, 1).expect("is memory");
    for (pointer, len, why) in [
        (at, 1 << 20, "bytes left"),
        (at + 999, 1 << 12, "bytes left"),
        (foreign.memory.0, 1, "no device memory"),
        (0, 1, "no device memory"),
        (std::ptr::from_ref(&shard) as u64, 1, "no device memory"),
    ] {
        let refused = reads.check_memory(pointer, len).expect_err("no memory");
        assert!(refused.to_string().contains(why), "{refused}");
    }
    one.capture(application.stream, true);
    // SAFETY: the stream lives.
    let refused = unsafe { reads.hand_over([application.stream.0], 0) }.expect_err("captured");
    assert!(refused.to_string().contains("captured"), "{refused}");
    let buffer = reads.allocate(100).expect("fits");
    // SAFETY: nothing uses the buffer.
    let refused = unsafe { buffer.release(application.stream.0) }.expect_err("captured");
    assert!(refused.to_string().contains("captured"), "{refused}");
    one.capture(application.stream, false);
    application.end().expect("ends");
    foreign.end().expect("ends");
    drop((engine, reads));
    assert_all_freed(&one);
    assert_all_freed(&other);
}

/// Spare memory is used again, and freed by the janitor, by a call, and for those who need memory.
#[test]
fn spare_memory_is_used_again_and_freed() {
    let simulation = simulation(Schedule::Latest);
    let shard = Shard::new(0);
    let mut engine = engine_on(&simulation);
    engine.limits.idle = Some(std::time::Duration::from_millis(30));
    let reads = engine
        .clone()
        .reads(0, &shard.grid, &shard.chain)
        .expect("reads");
    let application = Application::new(&simulation, 8).expect("fits");
    let give = |len: usize| {
        let buffer = reads.allocate(len).expect("fits");
        let pointer = buffer.pointer();
        // SAFETY: nothing uses the buffer.
        unsafe { buffer.release(application.stream.0) }.expect("no fault");
        simulation.enter().expect("no fault");
        let through = simulation.synchronize_stream(application.stream, DONE);
        through.expect("no fault");
        simulation.leave().expect("no fault");
        pointer
    };
    let first = give(1 << 21);
    assert_eq!(give(1 << 21), first, "used again");
    assert_ne!(give(1 << 24), first, "too small");
    assert_ne!(give(1000), first, "much too large");
    let own = simulation.live();
    let begin = std::time::Instant::now();
    while simulation.live().device_allocations > 1 && begin.elapsed().as_secs() < 20 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(own.device_allocations > 1);
    assert_eq!(simulation.live().device_allocations, 1, "the janitor's");
    application.end().expect("ends");
    drop((engine, reads));
    assert_all_freed(&simulation);
}
