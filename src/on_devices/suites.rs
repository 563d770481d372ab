//! Bodies of tests that run at full size on a GPU, and small on the simulation.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use zarrs_cuda_engine::contract::{EngineError, Stage};
use zarrs_cuda_engine::cuda::driver::Driver;
use zarrs_cuda_engine::cuda::{Devices, Tuning};
use zarrs_cuda_engine::fallback::reason;
use zarrs_cuda_testing::effort;

use super::Shard;
use crate::conformance::{check, check_compressed};
use crate::options::{Backend, Options};
use crate::plan::{EngineRule, Engines};

/// Runs the conformance suite with budgets and a compressor library from `options`.
pub(super) fn conformance(options: &Options, driver: Arc<dyn Driver>, tuning: Tuning, cases: u32) {
    let devices = Devices::new(vec![driver]);
    let options = options.clone().with_backend(Backend::Auto);
    let engines = Engines::of_devices(devices.clone(), EngineRule::ALL, tuning);
    let fallbacks = || devices.counters.snapshot().fallbacks;
    let done = || {
        let metrics = devices.counters.snapshot();
        (metrics.shards_encoded, metrics.shards_decoded)
    };
    // The random cases might all be shards that the host takes, or that store nothing.
    let subject = Shard::new(vec![Stage::Crc32c]);
    let choice = engines.choose(&options, &subject.grid, Ok(&subject.chain));
    subject.round_trip(&*choice.unwrap().engine).unwrap();
    assert_eq!(done(), (1, 1));
    let on_device = check(&options, &engines, cases, &|| fallbacks().values().sum());
    // Each case is encoded six times, by the engine and through the codec.
    assert!(done().0 > 6 * on_device);
    // Corrupted shards fall back to the host, whose result counts. No other shard falls back.
    let corrupted = [
        EngineError::Checksum { subchunk: 0 },
        EngineError::Extent {
            subchunk: 0,
            end: 1,
            shard: 0,
        },
        EngineError::DecodedLength {
            subchunk: 0,
            stage: "crc32c",
            got: 0,
            expected: 1,
        },
    ];
    let corrupted = corrupted.each_ref().map(reason);
    let fallbacks = fallbacks();
    let others: Vec<_> = fallbacks
        .keys()
        .filter(|reason| !corrupted.iter().any(|known| known == reason.as_str()))
        .collect();
    assert!(others.is_empty(), "{others:?}");
}

/// Runs the conformance suite on shards that a device compresses, with the backend of `options`.
/// Returns how many of their subchunks the host had to compress.
pub(super) fn compressed_conformance(
    options: &Options,
    driver: Arc<dyn Driver>,
    tuning: Tuning,
    cases: u32,
) -> u64 {
    let devices = Devices::new(vec![driver]);
    let engines = Engines::of_devices(devices.clone(), EngineRule::ALL, tuning);
    let fallbacks = || devices.counters.snapshot().fallbacks.values().sum();
    let on_device = check_compressed(options, &engines, cases, &fallbacks);
    assert_eq!(on_device, u64::from(effort::times(cases)));
    let metrics = devices.counters.snapshot();
    assert!(metrics.shards_encoded >= 6 * on_device);
    metrics.subchunks_on_host
}

/// A forked child encodes and decodes on the host, or gets an error that it cannot use the parent's
/// device. The parent's device keeps working.
#[cfg(target_os = "linux")]
pub(super) fn forked_child(driver: Arc<dyn Driver>, tuning: Tuning) {
    let subject = Shard::new(vec![Stage::Crc32c]);
    let devices = Devices::new(vec![driver]);
    let engines = Engines::of_devices(devices.clone(), EngineRule::ALL, tuning);
    let choose = |backend| {
        let options = Options::default().with_backend(backend);
        engines.choose(&options, &subject.grid, Ok(&subject.chain))
    };
    let encoded = || devices.counters.encoded();
    let before = choose(Backend::Auto).unwrap().engine;
    let on_device = choose(Backend::Cuda).unwrap().engine;
    subject.round_trip(&*before).unwrap();
    assert_eq!((before.name(), encoded()), ("cuda", 1));

    let is_told = |error: &dyn std::fmt::Display| error.to_string().contains("forked");
    in_child(&[
        ("a device is chosen", &|| {
            choose(Backend::Auto).is_ok_and(|choice| choice.engine.name() == "host")
        }),
        ("the host does not do it", &|| {
            let choice = choose(Backend::Auto);
            choice.is_ok_and(|choice| subject.round_trip(&*choice.engine).is_ok())
        }),
        ("what was chosen before the fork does not do it", &|| {
            subject.round_trip(&*before).is_ok()
        }),
        ("CUDA can be chosen", &|| {
            choose(Backend::Cuda).is_err_and(|error| is_told(&error))
        }),
        ("CUDA that was chosen is no error", &|| {
            let result = subject.round_trip(&*on_device);
            result.is_err_and(|error| is_told(&error))
        }),
        ("the device was used", &|| encoded() == 1),
    ]);
    subject.round_trip(&*before).unwrap();
    assert_eq!(encoded(), 2);
}

/// Runs `checks` in a forked child. Each has a message for its failure.
#[cfg(target_os = "linux")]
pub(super) fn in_child(checks: &[(&str, &dyn Fn() -> bool)]) {
    // SAFETY: the only lock of another thread that the child may take is the allocator's, which
    // glibc keeps usable across `fork`. The child does not unwind, and exits without the parent's
    // exit handlers.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            let holds = |check: &dyn Fn() -> bool| {
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).unwrap_or(false)
            };
            let failed = checks.iter().position(|(_, check)| !holds(check));
            let failed = failed.map_or(0, |number| number + 1);
            libc::_exit(i32::try_from(failed).unwrap_or(-1));
        }
        child
    };
    assert!(child > 0, "no child");
    let (begin, mut status) = (Instant::now(), 0);
    // SAFETY: the child belongs to this thread, and is waited for once.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if begin.elapsed() > Duration::from_mins(1) {
            // SAFETY: as above; it has not been waited for.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, &raw mut status, 0);
            }
            panic!("the child hangs");
        }
        thread::sleep(Duration::from_millis(5));
    }
    assert!(libc::WIFEXITED(status), "the child ended with {status:#x}");
    let failed = libc::WEXITSTATUS(status) as usize;
    let what = failed.checked_sub(1).map(|number| checks[number].0);
    assert_eq!(what, None, "in the child");
}
