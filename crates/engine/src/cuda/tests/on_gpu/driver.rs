//! The driver does what its trait says, rejects invalid calls, and can be shared.

use crate::cuda::driver::cuda::{CudaDriver, gpu_or_skip};
use crate::cuda::driver::{
    Access, Arg, DeviceSpan, Dims, Driver, DriverError, Fault, PinnedSpan, PinnedUse, Rows,
    RowsShape, Site, Span,
};
use std::{
    env, slice,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{bodies, engine::subjects};
use crate::cuda;

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
fn rows_are_copied_and_gaps_are_left_alone() {
    if let Some(driver) = gpu_or_skip("rows_are_copied_and_gaps_are_left_alone") {
        copy_rows(&*driver).unwrap();
    }
}

/// Copies rows from the host to the device, within it, and back, each time with other gaps. The
/// lengths and places are no round numbers.
fn copy_rows(driver: &dyn Driver) -> Result<(), DriverError> {
    let shape = RowsShape {
        planes: 3,
        rows: 50,
        row: 1021,
    };
    /// Bytes between two rows, and rows between two planes: on the host, on the device, there
    /// again, and on the host.
    const GAPS: [(usize, usize); 4] = [(0, 0), (3, 2), (1, 0), (8, 5)];
    /// Each copy begins there.
    const OFFSET: usize = 7;
    let place = |number: usize, [plane, row]: [usize; 2]| {
        let (gap, more) = GAPS[number];
        OFFSET + (plane * (shape.rows + more) + row) * (shape.row + gap)
    };
    let lens = [0, 1, 2, 3].map(|number| place(number, [2, 49]) + shape.row);
    driver.enter()?;
    let stream = driver.create_stream()?;
    let pinned = |len, kind| -> Result<PinnedSpan, DriverError> {
        Ok(PinnedSpan {
            memory: driver.allocate_pinned(len, kind)?,
            offset: 0,
            len,
        })
    };
    let device = |len| -> Result<DeviceSpan, DriverError> {
        Ok(DeviceSpan {
            memory: driver.allocate(len)?,
            offset: 0,
            len,
        })
    };
    let to_device = pinned(lens[0], PinnedUse::ToDevice)?;
    let (first, second) = (device(lens[1])?, device(lens[2])?);
    let from_device = pinned(lens[3], PinnedUse::FromDevice)?;
    let rows = |number: usize, span: Span| {
        let (gap, more) = GAPS[number];
        let (offset, len) = (OFFSET, lens[number] - OFFSET);
        Rows {
            span: match span {
                Span::Device(span) => Span::Device(DeviceSpan {
                    offset,
                    len,
                    ..span
                }),
                Span::Pinned(span) => Span::Pinned(PinnedSpan {
                    offset,
                    len,
                    ..span
                }),
            },
            pitch: shape.row + gap,
            height: shape.rows + more,
        }
    };
    let bytes: Vec<u8> = (0..lens[0]).map(|i| (i % 251) as u8).collect();
    driver.host_access(to_device, Access::Write)?;
    driver.host_access(from_device, Access::Write)?;
    // SAFETY: the memory is as long, and nothing else uses it at this time.
    unsafe {
        let to = to_device.memory.0.as_ptr();
        to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        from_device.memory.0.as_ptr().write_bytes(0xee, lens[3]);
    }
    // SAFETY: all spans live until the stream is synchronised below.
    unsafe {
        driver.fill(stream, first, 0x11)?;
        driver.fill(stream, second, 0x22)?;
        let [a, b, c, d] = [
            rows(0, Span::Pinned(to_device)),
            rows(1, Span::Device(first)),
            rows(2, Span::Device(second)),
            rows(3, Span::Pinned(from_device)),
        ];
        driver.copy_rows(stream, shape, a, b)?;
        driver.copy_rows(stream, shape, b, c)?;
        driver.copy_rows(stream, shape, c, d)?;
    }
    driver.synchronize_stream(stream, SITE)?;
    let mut expected = vec![0xee; lens[3]];
    for plane in 0..shape.planes {
        for row in 0..shape.rows {
            let (from, to) = (place(0, [plane, row]), place(3, [plane, row]));
            expected[to..to + shape.row].copy_from_slice(&bytes[from..from + shape.row]);
        }
    }
    driver.host_access(from_device, Access::Read)?;
    // SAFETY: all of it was written, and the copies have completed.
    let result = unsafe { slice::from_raw_parts(from_device.memory.0.as_ptr(), lens[3]) };
    assert!(result == expected, "the bytes differ");

    // A pitch that no device takes.
    let far = Rows {
        pitch: driver.device().largest_pitch + 1,
        ..rows(1, Span::Device(first))
    };
    // SAFETY: nothing is copied.
    let error = unsafe { driver.copy_rows(stream, shape, far, far) }.unwrap_err();
    assert_eq!(error.fault, Fault::Refused, "{error}");

    // SAFETY: everything has completed.
    unsafe {
        driver.free(first.memory)?;
        driver.free(second.memory)?;
        driver.free_pinned(to_device.memory)?;
        driver.free_pinned(from_device.memory)?;
    }
    driver.destroy_stream(stream)?;
    driver.leave()
}

#[test]
fn what_is_refused_is_named_and_breaks_nothing() {
    let Some(driver) = gpu_or_skip("what_is_refused_is_named_and_breaks_nothing") else {
        return;
    };
    let driver: &dyn Driver = &*driver;
    driver.enter().unwrap();
    // Printed only: drivers differ in the code for a length that no device has.
    match driver.allocate(1 << 50) {
        Ok(memory) => {
            println!("a PiB of device memory was allocated");
            // SAFETY: nothing uses the memory.
            unsafe { driver.free(memory) }.unwrap();
        }
        Err(error) => {
            println!("{:?}: {error}", error.fault);
            let text = error.to_string();
            assert!(
                text.starts_with("allocate 1125899906842624 bytes of device memory"),
                "{text}"
            );
        }
    }

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
