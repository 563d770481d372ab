//! Copies of an application's bytes to the host.

use super::*;
use crate::contract::stream::DeviceBytes;
use crate::cuda::driver::simulation::Inject;
use crate::cuda::driver::{Fault, Site};
use crate::fakes::Application;

/// More bytes than two pieces have.
const LEN: usize = (9 << 20) + 5;

fn bytes() -> Vec<u8> {
    (0..LEN).map(|i| (i ^ (i >> 9)) as u8).collect()
}

/// Reads the bytes that `from` describes. Fails with "enough" before more than `most` bytes are taken.
fn read(devices: &Devices, from: &DeviceBytes, most: usize) -> Result<Vec<u8>, String> {
    let download = devices
        .download(from.device, DeviceLimits::TIMEOUT)
        .map_err(|e| e.to_string())?;
    let mut taken = Vec::new();
    let failed = |error: EngineError| error.to_string();
    #[allow(unsafe_code)]
    // SAFETY: the application keeps the bytes until it is asked to make others.
    unsafe {
        download.read(from, failed, |piece| {
            if taken.len() + piece.len() > most {
                return Err("enough".to_string());
            }
            taken.extend_from_slice(piece);
            Ok(())
        })?;
    }
    Ok(taken)
}

/// Runs `work` with a device that has the bytes.
fn with_bytes(config: Config, work: impl Fn(&Devices, &DeviceBytes)) -> Arc<Simulation> {
    let simulation = Arc::new(Simulation::new(config));
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    let driver = simulation.clone() as Arc<dyn Driver>;
    let mut application = Application::new(driver, true, LEN, 1).expect("memory");
    let from = application.slice(&bytes()).expect("made");
    work(&devices, &from);
    let _ = application.end();
    drop(devices);
    simulation
}

#[test]
fn all_bytes_come_in_order() {
    for seed in 0..4 {
        let config = Config {
            schedule: schedule_of(seed),
            ..Config::default()
        };
        let simulation = with_bytes(config, |devices, from| {
            assert!(read(devices, from, LEN) == Ok(bytes()));
            for len in [0, 1, 4 << 20, (4 << 20) + 1] {
                let from = DeviceBytes { len, ..*from };
                assert!(read(devices, &from, LEN).as_deref() == Ok(&bytes()[..len]));
            }
            // A caller that takes no more gets its own error, and the device reads no more.
            assert_eq!(read(devices, from, 5 << 20), Err("enough".to_string()));
        });
        assert_clean(&simulation);
    }
}

/// Each order between the application, the device and the host is needed.
#[test]
fn without_any_order_bytes_are_wrong() {
    let sites = [
        "record: the application has made the bytes of a download",
        "wait: a download for the application's bytes",
        "record: a piece of a download was copied",
        "synchronise: a piece of a download before it is read",
    ];
    for site in sites {
        let found = [Schedule::Eager, Schedule::Latest]
            .into_iter()
            .any(|schedule| {
                let config = Config {
                    schedule,
                    removed: Some(Site(site)),
                    ..Config::default()
                };
                let simulation = with_bytes(config, |devices, from| drop(read(devices, from, LEN)));
                !simulation.violations().is_empty()
            });
        assert!(found, "{site}");
    }
}

/// A failure anywhere is an error, or the bytes are right.
#[test]
fn failures_are_errors() {
    let operations = |inject: Option<Inject>| {
        let config = Config {
            schedule: Schedule::Latest,
            faults: inject.into_iter().collect(),
            ..Config::default()
        };
        with_bytes(config, |devices, from| {
            let (Ok(read) | Err(read)) = read(devices, from, LEN)
                .map(|b| b == bytes())
                .map_err(|_| true);
            assert!(read);
        })
    };
    let count = operations(None).counts().operations;
    assert!(count > 20, "{count}");
    for operation in 0..count {
        let fault = Fault::Refused;
        let simulation = operations(Some(Inject::Failed { operation, fault }));
        let violations = simulation.violations();
        assert!(violations.is_empty(), "{operation}: {violations:#?}");
    }
    for allocation in 0..4 {
        operations(Some(Inject::OutOfMemory { allocation }));
    }
}

#[test]
fn a_device_that_cannot_be_used_is_named() {
    let config = Config::default();
    let simulation = with_bytes(config, |devices, from| {
        let elsewhere = DeviceBytes { device: 3, ..*from };
        let error = read(devices, &elsewhere, LEN).expect_err("no device");
        assert!(error.contains("there is no CUDA device 3"), "{error}");
    });
    assert_clean(&simulation);
}
