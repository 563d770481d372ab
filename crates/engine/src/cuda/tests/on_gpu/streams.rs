//! Streams on the device: the streams that the simulation passes, and large ones.

use std::sync::Arc;

use super::engine::tuned;
use super::levels::{Both, Levels, Mix};
use super::nvcomp::library;
use super::stream::{Run, Subject, encode, returned};
use super::{cases, is_watched};
use crate::contract::{BloscStage, Cname, KnownChain, Shuffle, Stage};
use crate::cuda::HighestLevels;
use crate::cuda::driver::Driver;
use crate::cuda::driver::cuda::gpu_or_skip;
use crate::cuda::{Compressors, CudaEngine, DeviceLimits, Devices, Tuning};
use crate::fakes::Application;

fn device(test: &str) -> Option<Arc<dyn Driver>> {
    gpu_or_skip(test).map(|driver| driver as Arc<dyn Driver>)
}

fn engine(driver: &Arc<dyn Driver>, subject: &Subject, tuning: Tuning) -> CudaEngine {
    let limits = DeviceLimits {
        devices: None,
        device_memory: None,
        pinned_memory: 1 << 30,
        idle: None,
        ..DeviceLimits::default()
    };
    let compressors = Compressors {
        levels: HighestLevels::default(),
        nvcomp: None,
        decode: false,
    };
    CudaEngine::new(Devices::new(vec![driver.clone()]), limits, tuned(tuning))
        .for_chain(subject.chain(), compressors)
}

fn run(driver: &Arc<dyn Driver>, subject: &Subject, tuning: Tuning, seed: u64) {
    let engine = engine(driver, subject, tuning);
    let job = Arc::new(subject.job.clone());
    let stream = engine.stream(job, returned(), None).unwrap();
    encode(subject, stream, seed).unwrap();
    assert!(engine.counters().snapshot().batches_encoded > 0);
}

/// Subjects of 8 to 32 MiB, with edges and without.
fn large(stages: &[Stage]) -> Vec<Subject> {
    let chain = |order: &[usize], swap| KnownChain {
        order: order.to_vec(),
        swap,
        stages: stages.to_vec(),
    };
    let mut subjects = vec![
        Subject::new(
            &[(0, 32, 2), (256, 32, 4), (256, 32, 4)],
            2,
            chain(&[0, 1, 2], 1),
            (4, 2),
        ),
        Subject::new(
            &[(0, 16, 4), (250, 32, 3), (301, 64, 2)],
            2,
            chain(&[2, 0, 1], 2),
            (9, 4),
        ),
        Subject::new(
            &[(0, 1, 8), (500, 100, 5), (333, 50, 3)],
            4,
            chain(&[0, 2, 1], 4),
            (16, 16),
        ),
    ];
    if is_watched() {
        subjects = vec![Subject::any(3, stages.to_vec())];
    }
    subjects
}

#[test]
fn any_stream() {
    if let Some(driver) = device("any_stream") {
        for seed in 0..u64::from(cases()) {
            let subject = Subject::any(seed, vec![Stage::Crc32c; seed as usize % 3]);
            run(
                &driver,
                &subject,
                [Tuning::TINY, Tuning::DEFAULT][seed as usize % 2],
                seed,
            );
        }
    }
}

#[test]
fn large_streams() {
    if let Some(driver) = device("large_streams") {
        for subject in large(&[]).iter().chain(&large(&[Stage::Crc32c])) {
            run(&driver, subject, Tuning::DEFAULT, 1);
        }
    }
}

#[test]
fn compressed_streams() {
    let name = "compressed_streams";
    if let Some(driver) = device(name)
        && library(name).is_some()
    {
        let blosc = Stage::Blosc(BloscStage {
            cname: Cname::Lz4,
            level: 5,
            shuffle: Shuffle::Byte,
            typesize: 2,
            blocksize: 0,
        });
        let zstd = Stage::Zstd {
            level: 1,
            checksum: false,
        };
        for stage in [zstd, Stage::Gzip { level: 1 }, blosc] {
            for subject in large(std::slice::from_ref(&stage)) {
                run(&driver, &subject, Tuning::DEFAULT, 2);
            }
            for seed in 0..u64::from(cases() / 8) {
                let subject = Subject::any(seed, vec![stage.clone(), Stage::Crc32c]);
                run(&driver, &subject, Tuning::TINY, seed);
            }
        }
    }
}

#[test]
fn streams_of_what_is_on_the_device() {
    if let Some(driver) = device("streams_of_what_is_on_the_device") {
        let any = (0..u64::from(cases() / 4)).map(|seed| Subject::any(seed, vec![]));
        for (seed, subject) in any.chain(large(&[Stage::Crc32c])).enumerate() {
            let engine = engine(&driver, &subject, Tuning::DEFAULT);
            let job = Arc::new(subject.job.clone());
            let stream = engine.stream(job, returned(), None).unwrap();
            let seed = seed as u64;
            let mut application =
                Application::new(driver.clone(), false, subject.bytes.len(), seed).unwrap();
            let encoded = Run::new(&subject, stream, seed)
                .unwrap()
                .all(&mut |input, at, bytes| application.write(input, at, bytes))
                .unwrap();
            subject.check(&encoded);
            application.end().unwrap();
        }
    }
}

/// Levels that are reduced on the device, from the host and from the device.
#[test]
fn streams_that_are_reduced_from_others() {
    let name = "streams_that_are_reduced_from_others";
    if let Some(driver) = device(name) {
        for seed in 0..u64::from(cases()) {
            let levels = Levels::any(seed, vec![Stage::Crc32c; seed as usize % 2]);
            let tuning = [Tuning::TINY, Tuning::DEFAULT][seed as usize % 2];
            let engine = engine(&driver, &levels.above, tuning);
            let open = |subject: &Subject| {
                let job = Arc::new(subject.job.clone());
                engine.stream(job, returned(), None).unwrap()
            };
            let streams = [open(&levels.above), open(&levels.below)];
            assert!(streams[1].can_reduce_from(&*streams[0]));
            let both = Both::new(&levels, streams, (seed, Mix::DeviceAlone, 0)).unwrap();
            let len = levels.above.bytes.len();
            let mut application = Application::new(driver.clone(), false, len, seed).unwrap();
            both.all(&mut |input, at, bytes| application.write(input, at, bytes))
                .unwrap();
            application.end().unwrap();
        }
    }
}
