//! The bodies of the GPU tests, small, on simulated devices.

use std::time::Duration;

use super::*;
use crate::cuda::Compressors;
use crate::cuda::tests::on_gpu::bodies;
use crate::cuda::tests::on_gpu::compressed;
use crate::cuda::tests::on_gpu::compressed::{Scale, Setup};
use zarrs::array::{Array, ArrayBytes};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda_nvcomp_stand_in::StandIn;

/// Returns a device with as many multiprocessors as a large one: there several warps share the
/// checksum of a long subchunk.
fn large_device(schedule: Schedule) -> Arc<Simulation> {
    Arc::new(Simulation::new(Config {
        schedule,
        multiprocessors: 132,
        ..Config::default()
    }))
}

/// Checks the subjects of GPU tests as far as possible without a GPU.
#[test]
fn large_shards_are_what_they_should_be() {
    let subjects = bodies::large();
    let sizes = || subjects.iter().map(bodies::Subject::bytes);
    assert_eq!(sizes().min(), Some(4 << 20));
    assert_eq!(sizes().max(), Some(64 << 20));
    for batch in [1 << 20, Tuning::DEFAULT.batch] {
        let partly_empty = subjects.iter().filter(|subject| {
            let (empty, all) = subject.empty_batches(batch);
            0 < empty && empty < all
        });
        // Empty batches at the start, in the middle and at the end.
        assert!(partly_empty.count() >= 3, "batches of {batch} bytes");
    }
    for subject in &subjects {
        subject.round_trip(&HostEngine, 2).expect("as before");
    }
}

/// Lanes with one stream of kernels, and with three.
fn tunings() -> [Tuning; 2] {
    [1, 3].map(|streams| Tuning {
        streams,
        ..Tuning::TINY
    })
}

#[test]
fn many_threads_with_mixed_shards() {
    for schedule in [Schedule::Eager, Schedule::Latest] {
        let simulation = large_device(schedule);
        let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
        let three = Tuning {
            streams: 3,
            ..Tuning::TINY
        };
        let tunings = [Tuning::TINY, Tuning::DEFAULT, three];
        let subjects = bodies::small();
        let trips = bodies::under_load(&devices, &subjects, &tunings, 4, Duration::ZERO);
        assert!(trips >= subjects.len());
        drop(devices);
        assert_clean(&simulation);
    }
}

#[test]
fn one_lane_and_nested_rayon() {
    let simulation = large_device(Schedule::Eager);
    let (subject, patience) = (bodies::small().swap_remove(3), Duration::from_mins(2));
    bodies::one_lane_and_nested_rayon(simulation.clone(), subject, Tuning::TINY, patience);
    assert_clean(&simulation);
}

#[test]
fn idle_lanes_are_given_up_in_time() {
    for tuning in tunings() {
        let simulation = large_device(Schedule::Eager);
        bodies::idle_lanes(simulation.clone(), &bodies::small()[0], tuning);
        assert_clean(&simulation);
    }
}

#[test]
fn less_and_less_memory() {
    for tuning in tunings() {
        let simulation = large_device(Schedule::Eager);
        bodies::budgets(simulation.clone(), &bodies::small()[1], tuning);
        assert_clean(&simulation);
    }
}

/// Runs `body` on a device with the stand-in library, and checks that nothing is left.
fn compressed_small(schedule: Schedule, body: impl FnOnce(&Setup)) {
    let simulation = large_device(schedule);
    let compressors = Compressors {
        nvcomp: Some(StandIn::Six.path()),
        ..Compressors::default()
    };
    let setup = Setup::new(simulation.clone(), compressors, Tuning::TINY, Scale::Small);
    body(&setup);
    drop(setup);
    assert_clean(&simulation);
}

#[test]
fn every_chain_with_a_compressor() {
    compressed_small(Schedule::Latest, compressed::every_chain);
}

#[test]
fn every_chain_comes_back() {
    compressed_small(Schedule::Latest, |setup| {
        // The test has 65 subjects. Some of the stand-in's frames are not for a device, and C-Blosc
        // does not compress subchunks as short as these.
        let ([ours, of_host], others) = compressed::decompressed(setup);
        assert!(ours > 40 && of_host > 0, "{ours}, {of_host}: {others:?}");
    });
}

#[test]
#[should_panic(expected = "nvCOMP failed on subchunks")]
fn chunks_that_fail_are_seen() {
    let compressors = Compressors {
        nvcomp: Some(StandIn::Failing.path()),
        ..Compressors::default()
    };
    let device = large_device(Schedule::Eager);
    compressed::every_chain(&Setup::new(device, compressors, Tuning::TINY, Scale::Small));
}

#[test]
fn large_compressed_shards_are_what_they_should_be() {
    compressed::check_large_on_the_host();
}

#[test]
fn subchunks_of_a_few_bytes() {
    compressed_small(Schedule::Latest, compressed::short_subchunks);
}

#[test]
fn the_longest_chunks() {
    compressed_small(Schedule::Eager, compressed::longest_chunks);
}

#[test]
fn compressed_shards_in_several_lanes() {
    compressed_small(Schedule::Latest, |setup| {
        compressed::several_lanes(setup, 3, 1);
    });
}

#[test]
fn compressed_shards_are_the_same_bytes_every_time() {
    compressed_small(Schedule::Eager, |setup| {
        let differ = compressed::that_differ(setup, 3);
        assert!(differ.is_empty(), "{differ:?}");
    });
}

/// The stand-in's frames depend only on their chunks.
#[test]
fn the_size_of_batches_does_not_show() {
    compressed_small(Schedule::Eager, |setup| {
        let differ = compressed::that_depend_on_batches(setup, 300);
        assert!(differ.is_empty(), "{differ:?}");
    });
}

/// The environment variable that names a folder where the arrays stay, for other implementations to
/// read: see `ZARRS_CUDA_INTEROP_ARRAYS` of the interoperability tests.
const SIMULATED_ARRAYS: &str = "ZARRS_CUDA_SIMULATED_ARRAYS";

/// zarrs' own codec reads the arrays that are exported for other implementations.
#[test]
fn arrays_for_other_implementations() {
    let temporary = tempfile::tempdir().expect("a folder");
    let named = std::env::var_os(SIMULATED_ARRAYS).map(std::path::PathBuf::from);
    let folder = named.as_deref().unwrap_or(temporary.path());
    compressed_small(Schedule::Eager, |setup| {
        let names = compressed::export(setup, folder);
        assert!(names.len() > 50, "{}", names.len());
        for name in names {
            let store = FilesystemStore::new(folder.join(&name)).expect("a folder");
            let array = Array::open(Arc::new(store), "/").expect("an array");
            let read: ArrayBytes = array
                .retrieve_array_subset(&array.subset_all())
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            let read = read.into_fixed().expect("numbers");
            let raw = std::fs::read(folder.join(format!("{name}.raw"))).expect("a file");
            assert!(*read == raw, "{name}: other values");
        }
    });
}
