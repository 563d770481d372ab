//! A device that hangs: the host waits for a limited time, and the device is not used again. The waits of
//! streams are in `stream/hangs.rs`.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::stream::hangs::{SCENARIOS as STREAMS, Scenario};
use super::*;
use crate::cuda::driver::{Fault, Site};
use crate::fakes::{Application, OWN};

/// The limit of each wait in these tests.
pub(super) const TIMEOUT: Duration = Duration::from_millis(20);

/// Returns limits with a short time for waits.
pub(super) fn impatient(limits: DeviceLimits) -> DeviceLimits {
    DeviceLimits {
        timeout: TIMEOUT,
        ..limits
    }
}

fn engine(simulation: &Arc<Simulation>) -> CudaEngine {
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    CudaEngine::new(devices, impatient(limits()), Tuning::TINY)
}

/// Encodes and decodes a shard, and frees the lane.
fn shard(simulation: &Arc<Simulation>, falls_back: bool) -> Result<(), EngineError> {
    let engine = engine(simulation);
    if falls_back {
        Shard::new(1).round_trip(&WithFallback::new(engine))
    } else {
        Shard::new(1).round_trip(&engine)
    }
}

/// The name of a scenario without a lane.
const DOWNLOAD: &str = "a download";

/// Copies an application's bytes to the host.
fn download(simulation: &Arc<Simulation>, _: bool) -> Result<(), EngineError> {
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    let driver = simulation.clone() as Arc<dyn Driver>;
    let mut application = Application::new(driver, true, 100, 1)?;
    let from = application.slice(&[1; 100])?;
    let download = devices.download(0, TIMEOUT)?;
    #[allow(unsafe_code)]
    // SAFETY: the application keeps the bytes.
    let read = unsafe { download.read(&from, |error| error, |_| Ok(())) };
    drop(download);
    if read.is_ok() && !simulation.hangs() {
        application.end()?;
    }
    read
}

/// Reads a shard into memory of the device, which is dropped.
fn read(simulation: &Arc<Simulation>, _: bool) -> Result<(), EngineError> {
    super::reading::whole_shard(engine(simulation))
}

/// Reads a shard into memory of an application.
fn hand_over(simulation: &Arc<Simulation>, _: bool) -> Result<(), EngineError> {
    super::handing_over::with_an_application(simulation, engine(simulation))
}

/// Everything that waits for a device.
fn scenarios() -> Vec<(&'static str, Scenario)> {
    let mut all: Vec<(&'static str, Scenario)> = vec![
        ("a shard", shard),
        ("a read", read),
        ("a read for an application", hand_over),
        (DOWNLOAD, download),
    ];
    all.extend(STREAMS);
    all
}

fn device(hangs_at: Option<Site>) -> Arc<Simulation> {
    Arc::new(Simulation::new(Config {
        schedule: Schedule::Latest,
        hangs_at,
        ..Config::default()
    }))
}

/// Runs `work` on a thread of its own. Panics if `work` does not end.
pub(in crate::cuda::tests) fn ends<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (sender, receiver) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        let _ = sender.send(work());
    });
    match receiver.recv_timeout(Duration::from_mins(2)) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what}: the host waits for ever"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            worker
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            unreachable!("the thread ended without a result")
        }
    }
}

/// Runs a scenario on a device that hangs at `site`.
fn check(name: &str, scenario: Scenario, site: Site, falls_back: bool) {
    let what = format!("{name}, \"{}\", {falls_back}", site.0);
    let simulation = device(Some(site));
    let on_thread = simulation.clone();
    let done = ends(&what, move || scenario(&on_thread, falls_back));
    assert!(simulation.hangs(), "{what}: the host did not wait there");
    match done {
        // The memory was given up at the end, or the host did the work.
        Ok(()) => {}
        Err(EngineError::Device(error)) => {
            let text = error.to_string();
            let named = text.contains("did not get there within 20ms");
            let passed_on = text.contains("They are lost") || error.fault != Fault::Refused;
            assert!(named && passed_on, "{what}: {text}");
            assert!(
                !falls_back || name != "a shard",
                "{what}: the host does shards, and not: {text}"
            );
        }
        Err(error) => panic!("{what}: {error}"),
    }
    let violations = simulation.violations();
    assert!(violations.is_empty(), "{what}: {violations:#?}");
    let live = simulation.live();
    // The lane is leaked, and everything in it.
    assert!(live.device_allocations >= 1, "{what}: {live:?}");
    assert!(
        live.pinned_allocations >= 2 && live.streams >= if name == DOWNLOAD { 2 } else { 4 },
        "{what}: {live:?}"
    );
    assert_eq!(live.entered, 0, "{what}");
}

/// Every wait of the engine has a limit, and a scenario in which the device hangs there.
#[test]
fn no_wait_outlasts_its_limit() {
    let mut cases = Vec::new();
    let mut sites = BTreeSet::new();
    for (name, scenario) in scenarios() {
        let simulation = device(None);
        scenario(&simulation, true).unwrap_or_else(|error| panic!("{name}: {error}"));
        let waits = simulation.waits();
        let own = waits.into_iter().filter(|site| !site.0.starts_with(OWN));
        for site in own {
            sites.insert(site.0.to_string());
            cases.push((name, scenario, site));
        }
    }
    assert_eq!(sites, sites_of_the_source());
    // Most of the time is spent asleep.
    std::thread::scope(|scope| {
        for (name, scenario, site) in cases {
            for falls_back in [true, false] {
                scope.spawn(move || check(name, scenario, site, falls_back));
            }
        }
    });
}

/// Returns the names of the sites at which the source of the engine waits for a device.
fn sites_of_the_source() -> BTreeSet<String> {
    let mut sites = BTreeSet::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda");
    for file in sources(&root) {
        let text = std::fs::read_to_string(&file).expect("a file of the source");
        let calls = [
            "lane.synchronize(",
            "lane.synchronize_stream(",
            "device.wait(",
            "device.wait_unless(",
        ];
        for rest in calls.iter().flat_map(|call| text.split(call).skip(1)) {
            let arguments = rest
                .split([';', '{', '}'])
                .next()
                .expect("the call's arguments");
            let mut words = arguments.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            if words.clone().any(|word| word == "site") {
                // A function passes on the site that its caller names.
                continue;
            }
            let is_constant = |word: &&str| word.len() > 1 && !word.contains(char::is_lowercase);
            let constant = words.find(is_constant).expect("a site");
            let definition = format!("const {constant}: Site = Site(");
            let (_, name) = text.split_once(&definition).unwrap_or_else(|| {
                panic!(
                    "{}: the site {constant} is not defined there",
                    file.display()
                )
            });
            let name = name.split('"').nth(1).expect("a name in quotation marks");
            sites.insert(name.to_string());
        }
    }
    sites
}

/// Returns the source files below `folder`, without tests and drivers.
fn sources(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder of the source") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            if name != "tests" && name != "driver" {
                files.extend(sources(&path));
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// After one missed limit, nothing is called on the device, whoever asks.
#[test]
fn a_device_that_hangs_is_not_called_again() {
    let simulation = device(None);
    let engine = engine(&simulation);
    let host = WithFallback::new(engine.clone());
    let shard = Shard::new(1);
    shard.round_trip(&host).expect("no fault");
    simulation.hang();
    let begin = Instant::now();
    let error = match shard.round_trip(&engine) {
        Err(EngineError::Device(error)) => error,
        other => panic!("{other:?}"),
    };
    let took = begin.elapsed();
    assert!(took >= Duration::from_secs(1), "{took:?}: no second look");
    assert_eq!(error.fault, Fault::Sticky);
    assert!(error.reason.contains("with_device_timeout"), "{error}");
    let (counts, live) = (simulation.counts(), simulation.live());
    let again = shard.round_trip(&engine).expect_err("in quarantine");
    let text = again.to_string();
    assert!(text.contains("since it did not finish in time"), "{text}");
    shard.round_trip(&host).expect("the host has it");
    engine.devices.release_idle();
    assert_eq!(engine.counters().snapshot().lanes_leaked, 1);
    drop((host, engine));
    assert_eq!((simulation.counts(), simulation.live()), (counts, live));
    assert!(simulation.violations().is_empty());
}

/// Idle lanes are freed by the janitor, by a request for a lane, and by `release_idle`. All wait.
#[test]
fn idle_lanes_of_a_device_that_hangs_are_left_alone() {
    for idle in [None, Some(Duration::ZERO)] {
        let simulation = device(None);
        let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
        let limits = DeviceLimits {
            idle,
            ..impatient(limits())
        };
        let engine = CudaEngine::new(devices, limits, Tuning::TINY);
        let shard = Shard::new(1);
        let job = shard.job();
        // Something is in flight in each stream of an idle lane, as far as the driver says.
        let lane = engine.in_lane(&shard.kind(), |session| {
            session.lane.zero(
                session.lane.up,
                crate::cuda::arena::Region { offset: 0, len: 1 },
            )?;
            simulation.hang();
            Ok(())
        });
        lane.expect("nothing is waited for");
        let released = engine.clone();
        ends("release_idle", move || released.devices.release_idle());
        if idle.is_some() {
            while engine.devices.check_usable(&engine.limits).is_ok() {
                std::thread::yield_now();
            }
        }
        let counts = simulation.counts();
        let encoded = engine.encode(&job, &shard.elements, 0, 0);
        let text = encoded.expect_err("in quarantine").to_string();
        assert!(text.contains("it did not finish in time"), "{text}");
        drop(engine);
        assert_eq!(simulation.counts(), counts);
        assert_eq!(simulation.live().device_allocations, 1);
        assert!(simulation.violations().is_empty());
    }
}

/// A thread that waits for a lane in use is told when the device hangs.
#[test]
fn a_request_for_a_lane_ends_when_the_device_hangs() {
    let simulation = device(None);
    let shard = Shard::new(1);
    let one = engine(&simulation)
        .memory_estimate(&shard.grid, &shard.chain)
        .expect("fits");
    let limits = DeviceLimits {
        device_memory: Some(one.device),
        pinned_memory: one.pinned,
        ..impatient(limits())
    };
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    let engine = CudaEngine::new(devices, limits, Tuning::TINY);
    simulation.hang();
    let errors: Vec<String> = (0..3)
        .map(|_| {
            let engine = engine.clone();
            std::thread::spawn(move || Shard::new(1).round_trip(&engine))
        })
        .collect::<Vec<_>>()
        .into_iter()
        .map(|thread| {
            let done = ends("a shard", move || thread.join().expect("no panic"));
            done.expect_err("the device hangs").to_string()
        })
        .collect();
    let first = errors
        .iter()
        .filter(|text| text.starts_with("wait for a device"));
    assert_eq!(first.count(), 1, "{errors:#?}");
    assert!(simulation.violations().is_empty());
}
