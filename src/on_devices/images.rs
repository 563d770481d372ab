//! Images whose levels are made on a simulated device, against an oracle that reduces whole arrays.

use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use zarrs::storage::store::MemoryStore;
use zarrs_cuda_testing::effort;
use zarrs_cuda_testing::stores::faulty::{Fault as StoreFault, Faulty};

use super::*;
use crate::options::Backend;
use crate::plan::{EngineRule, Engines};
use crate::pyramid::tests::{Image, images, on, small};
use crate::writer::{DeviceSlice, MultiscaleWriter, WriterError};
use zarrs_cuda_engine::cuda::driver::Fault;
use zarrs_cuda_engine::fakes::simulation::Inject;

/// The image, written on a simulated device where it can.
fn on_device(image: Image, simulation: &Arc<Simulation>) -> (Image, Arc<Devices>) {
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    let engines = Engines::of_devices(devices.clone(), EngineRule::ALL, Tuning::TINY);
    (on(image, engines, Backend::Auto), devices)
}

fn has_reduced(simulation: &Simulation) -> bool {
    let sites = simulation.sites();
    sites.iter().any(|site| site.0.contains("reduc"))
}

#[test]
fn all_levels_are_what_an_oracle_makes_of_the_whole_array() {
    let config = effort::config(60);
    let reduced = AtomicUsize::new(0);
    proptest!(config, |(image in images(), seed in 0_u64..3)| {
        let simulation = simulation(schedule_of(seed));
        let (image, devices) = on_device(image, &simulation);
        let store = Arc::new(MemoryStore::new());
        image.write(&store);
        image.check(&store);
        reduced.fetch_add(usize::from(has_reduced(&simulation)), Ordering::Relaxed);
        drop((image, devices));
        assert_clean(&simulation);
    });
    assert!(
        reduced.into_inner() > 8,
        "few levels were made on the device"
    );
}

/// Any number of bytes, from the host and from an application's memory on the device.
#[cfg(feature = "dlpack")]
#[test]
fn slices_that_are_on_the_device() {
    use zarrs_cuda_engine::fakes::Application;
    use zarrs_cuda_engine::fakes::Numbers;
    use zarrs_cuda_testing::tensors::{DataTypeCode, DeviceType, Tensor};

    for seed in effort::seeds(24) {
        let simulation = simulation(schedule_of(seed));
        let (image, devices) = on_device(small(), &simulation);
        let driver = simulation.clone() as Arc<dyn Driver>;
        let mut application =
            Application::new(driver, true, image.elements.len(), seed).expect("a device");
        let mut numbers = Numbers::new(seed);
        let store = Arc::new(MemoryStore::new());
        let mut writer = image.builder(&store).build().expect("a device");
        let mut rest = &image.elements[..];
        while !rest.is_empty() {
            let len = 1 + numbers.below(3 * image.slice());
            let (now, behind) = rest.split_at(len.min(rest.len()));
            let slice = application.slice(now).expect("no fault");
            let slice = DeviceSlice {
                device: slice.device,
                pointer: slice.pointer,
                len: slice.len,
                stream: slice.stream,
            };
            match numbers.below(3) {
                0 => writer.append_bytes(now).expect("no fault"),
                1 => {
                    // SAFETY: the slice stays until the event has happened.
                    let event = unsafe { writer.append_device(&slice) }.expect("no fault");
                    event.wait().expect("no fault");
                }
                _ => {
                    let shape = vec![i64::try_from(now.len()).expect("small")];
                    let tensor = Tensor {
                        shape,
                        strides: None,
                        data_type: (DataTypeCode::UInt, 8, 1),
                        device: (DeviceType::Cuda, 0),
                        address: usize::try_from(slice.pointer).expect("small"),
                        byte_offset: 0,
                    };
                    // SAFETY: as above.
                    let appended = unsafe { writer.append_dlpack(&tensor.view(), slice.stream) };
                    appended.expect("no fault");
                }
            }
            rest = behind;
        }
        writer.finish().expect("no fault");
        image.check(&store);
        assert!(has_reduced(&simulation), "seed {seed}");
        application.end().expect("no fault");
        drop((writer, image, devices));
        assert_clean(&simulation);
    }
}

/// The store refuses a request, and `append`, `flush` or `finish` is called again.
#[test]
fn what_a_store_refuses_is_tried_again() {
    let (mut number, mut requests) = (0, 1);
    while number < requests {
        let simulation = simulation(schedule_of(number as u64));
        let (image, devices) = on_device(small(), &simulation);
        let store = Arc::new(Faulty::new(Arc::new(MemoryStore::new())));
        let mut writer = image.builder(&store).build().expect("a device");
        // From here on, so that no request is refused twice.
        store.fail_at(number, StoreFault::Refused);
        for slice in image.elements.chunks(image.slice()) {
            let before = writer.progress()[0].appended_bytes;
            if let Err(error) = writer.append_bytes(slice) {
                assert!(error.to_string().contains("store"), "{error}");
                writer.flush().expect("one fault");
                if writer.progress()[0].appended_bytes == before {
                    writer.append_bytes(slice).expect("one fault");
                }
            }
        }
        if let Err(error) = writer.finish() {
            assert!(error.to_string().contains("store"), "{error}");
            if number % 2 == 0 {
                writer.flush().expect("one fault");
            }
            writer.finish().expect("one fault");
        }
        requests = store.requests().len();
        store.work();
        image.check(&store);
        drop((writer, image, devices));
        assert_clean(&simulation);
        number += 1;
    }
    assert!(requests > 20, "{requests}");
}

/// Writes an image with a fault. After an error, a writer on the host goes on.
fn written_with(inject: Option<Inject>) -> (Arc<Simulation>, Result<(), WriterError>) {
    let simulation = simulation(Schedule::Latest);
    if let Some(inject) = inject {
        simulation.inject(inject);
    }
    let (image, devices) = on_device(small(), &simulation);
    let store = Arc::new(MemoryStore::new());
    let builder = image.builder(&store);
    let all_from_its_start = |mut writer: MultiscaleWriter| {
        let start = usize::try_from(writer.start()).expect("small");
        for slice in image.elements.chunks(image.slice()).skip(start) {
            writer.append_bytes(slice)?;
        }
        writer.finish().map(|_| ())
    };
    let written = builder.build().and_then(all_from_its_start);
    if written.is_err() {
        let builder = small().builder(&store);
        let built = match builder.build() {
            Err(WriterError::Start { before, .. }) => builder.with_start(before).build(),
            built => built,
        };
        built.and_then(all_from_its_start).expect("no device");
    }
    image.check(&store);
    drop((builder, image, devices));
    (simulation, written)
}

/// A fault that passes costs nothing: the host makes the batch, or the slices. A device that is gone takes
/// with it the slices of lower levels that only it has. They are made again of the level above.
#[test]
fn a_fault_of_any_operation_of_an_image() {
    let (simulation, written) = written_with(None);
    written.expect("no fault");
    assert!(has_reduced(&simulation));
    assert_clean(&simulation);
    let counts = simulation.counts();
    let failed = (0..counts.operations).map(|operation| Inject::Failed {
        operation,
        fault: Fault::Refused,
    });
    let launches = (0..counts.launches).map(|launch| Inject::Refused { launch });
    let broken = (0..counts.operations).step_by(7);
    let broken =
        broken.flat_map(|operation| [Inject::Sticky { operation }, Inject::Lost { operation }]);
    let mut stopped = 0;
    for inject in failed.chain(launches).chain(broken) {
        let (simulation, written) = written_with(Some(inject));
        let breaks = matches!(inject, Inject::Sticky { .. } | Inject::Lost { .. });
        match written {
            Ok(()) => {}
            Err(_) if breaks => stopped += 1,
            Err(error) => panic!("{inject:?}, {:?}: {error}", simulation.failed()),
        }
        let violations = simulation.violations();
        assert!(violations.is_empty(), "{inject:?}: {violations:#?}");
    }
    println!("{counts:?}, {stopped} writers stopped");
}
