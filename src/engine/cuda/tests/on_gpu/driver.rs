//! The driver does what its trait says, rejects invalid calls, and can be shared.

use crate::engine::cuda::driver::{
    Access, Arg, DeviceSpan, Dims, Driver, DriverError, Fault, PinnedSpan, PinnedUse, Site, Span,
    cuda::{CudaDriver, gpu_or_skip},
};
use std::{
    env, slice,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{bodies, engine::subjects};
use crate::engine::cuda;

const SITE: Site = Site("GPU test");

/// The length of the round trip, in bytes: no round number.
const LEN: usize = (3 << 20) + 13;

#[test]
fn what_is_copied_and_filled_comes_back() {
    if let Some(driver) = gpu_or_skip("what_is_copied_and_filled_comes_back") {
        round_trip(&*driver, 1).unwrap();
    }
}

/// Copies from the host to the device in one stream. Copies within the device and back in another
/// stream that waits for the first.
fn round_trip(driver: &dyn Driver, seed: u8) -> Result<(), DriverError> {
    driver.enter()?;
    let streams = [driver.create_stream()?, driver.create_stream()?];
    let events = [driver.create_event(true)?, driver.create_event(true)?];
    let to_device = PinnedSpan {
        memory: driver.allocate_pinned(LEN, PinnedUse::ToDevice)?,
        offset: 0,
        len: LEN,
    };
    let from_device = PinnedSpan {
        memory: driver.allocate_pinned(LEN, PinnedUse::FromDevice)?,
        ..to_device
    };
    let device = DeviceSpan {
        memory: driver.allocate(LEN)?,
        offset: 0,
        len: LEN,
    };
    let other = DeviceSpan {
        memory: driver.allocate(LEN + 7)?,
        offset: 7,
        len: LEN,
    };
    let filled = DeviceSpan {
        offset: other.offset + 100,
        len: 1001,
        ..other
    };

    let mut expected: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8 ^ seed).collect();
    driver.host_access(to_device, Access::Write)?;
    // SAFETY: `LEN` bytes that nothing else uses at this time.
    unsafe { slice::from_raw_parts_mut(to_device.memory.0.as_ptr(), LEN) }
        .copy_from_slice(&expected);
    expected[100..1101].fill(seed);

    driver.record(events[0], streams[0], SITE)?;
    // SAFETY: all spans live until the streams are synchronised below.
    unsafe { driver.copy(streams[0], Span::Pinned(to_device), Span::Device(device))? };
    driver.record(events[1], streams[0], SITE)?;
    driver.wait(streams[1], events[1], SITE)?;
    // SAFETY: as above.
    unsafe {
        driver.copy(streams[1], Span::Device(device), Span::Device(other))?;
        driver.fill(streams[1], filled, seed)?;
        driver.copy(streams[1], Span::Device(other), Span::Pinned(from_device))?;
    }
    driver.synchronize_stream(streams[1], SITE)?;
    driver.synchronize(events[1], SITE)?;
    assert!(driver.query_event(events[1])?);
    // A lower bound: copying 3 MiB takes this long at terabytes per second.
    let time = driver.elapsed(events[0], events[1])?;
    assert!(
        time > Duration::from_micros(1) && time < Duration::from_secs(1),
        "{time:?}"
    );

    driver.host_access(from_device, Access::Read)?;
    // SAFETY: `LEN` bytes, written by the copy that has completed.
    let result = unsafe { slice::from_raw_parts(from_device.memory.0.as_ptr(), LEN) };
    assert!(result == expected, "the bytes differ");

    // SAFETY: everything has completed.
    unsafe {
        driver.free(device.memory)?;
        driver.free(other.memory)?;
        driver.free_pinned(to_device.memory)?;
        driver.free_pinned(from_device.memory)?;
    }
    for stream in streams {
        driver.destroy_stream(stream)?;
    }
    for event in events {
        driver.destroy_event(event)?;
    }
    driver.leave()
}

#[test]
fn what_is_refused_is_named_and_breaks_nothing() {
    let Some(driver) = gpu_or_skip("what_is_refused_is_named_and_breaks_nothing") else {
        return;
    };
    let driver: &dyn Driver = &*driver;
    driver.enter().unwrap();
    let error = driver.allocate(1 << 50).unwrap_err();
    assert_eq!(error.fault, Fault::OutOfMemory, "{error}");
    let text = error.to_string();
    assert!(
        text.starts_with("allocate 1125899906842624 bytes of device memory"),
        "{text}"
    );
    assert!(
        text.contains("device 0: CUDA_ERROR_OUT_OF_MEMORY (2)"),
        "{text}"
    );

    let stream = driver.create_stream().unwrap();
    let dims = Dims { grid: 1, block: 32 };
    // SAFETY: there is no such kernel.
    let error = unsafe { driver.launch(stream, "no_such_kernel", dims, &[Arg::U32(0)]) };
    assert_eq!(error.unwrap_err().fault, Fault::Refused);
    let event = driver.create_event(true).unwrap();
    driver.destroy_event(event).unwrap();
    let error = driver.record(event, stream, SITE).unwrap_err();
    assert_eq!(error.fault, Fault::Refused, "{error}");
    driver.destroy_stream(stream).unwrap();
    driver.leave().unwrap();

    round_trip(driver, 2).unwrap();
}

/// The environment variable that tells a child when to stop, in milliseconds since 1970.
const UNTIL: &str = "ZARRS_CUDA_TEST_UNTIL";

/// How long the children share the device. Starting them takes some of this time.
const SHARED: Duration = Duration::from_secs(15);

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

#[test]
fn four_processes_share_a_device() {
    if gpu_or_skip("four_processes_share_a_device").is_none() {
        return;
    }
    let until = (now() + SHARED).as_millis().to_string();
    let mut children: Vec<_> = (0..4)
        .map(|_| {
            zarrs_cuda_testing::processes::again(module_path!(), "one_process_of_four", true)
                .env(UNTIL, &until)
                .spawn()
                .unwrap()
        })
        .collect();
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
}

#[test]
#[ignore = "four_processes_share_a_device runs it"]
fn one_process_of_four() {
    let until = Duration::from_millis(env::var(UNTIL).unwrap().parse().unwrap());
    let (subjects, tunings) = subjects();
    // The devices of the process with their own budget, as an application uses them.
    let devices = cuda::devices().unwrap();
    let left = until.saturating_sub(now());
    assert!(!left.is_zero(), "it came too late to share the device");
    bodies::under_load(&devices, &subjects, &tunings, 2, left);
}

#[test]
#[cfg(target_os = "linux")]
fn a_forked_child_uses_the_host() {
    if let Some(driver) = gpu_or_skip("a_forked_child_uses_the_host") {
        let (subjects, [tuning, _]) = subjects();
        bodies::forked_child(driver, &subjects[0], tuning);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_forked_child_is_told_that_it_cannot_use_the_device() {
    let Some(driver) = gpu_or_skip("a_forked_child_is_told_that_it_cannot_use_the_device") else {
        return;
    };
    // SAFETY: the only lock of another thread that the child may take is the allocator's, which
    // glibc keeps usable across `fork`. The child exits without the parent's exit handlers.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let entered = driver.enter().map_err(|error| error.fault);
            let opened = CudaDriver::open(0).map(drop).map_err(|error| error.fault);
            let told = entered == Err(Fault::Sticky) && opened == Err(Fault::Unavailable);
            libc::_exit(i32::from(!told));
        }
        assert!(child > 0);
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!(status, 0);
    }
    round_trip(&*driver, 3).unwrap();
}
