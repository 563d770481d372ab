//! All measurements on a simulated device, which has no meaningful clock. Each runs, compares its
//! result with the expected one, and breaks no rule.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use zarrs_cuda_engine::cuda::driver::Driver;
use zarrs_cuda_engine::cuda::{CudaEngine, DeviceLimits, Devices, Tuning};
use zarrs_cuda_engine::fakes::simulation::{
    Config, Inject, Kind as Memory, Live, Schedule, Simulation,
};
use zarrs_cuda_nvcomp_stand_in::StandIn;

use super::bus::Bus;
use super::failure::Result;
use super::report::Report;
use super::workbench::Workbench;
use super::{ELEMENT, FILL_VALUE, Run, Sizes, compressed, made_up, measure_more};

fn tiny() -> Sizes {
    Sizes {
        edge: 16,
        subchunk: 4,
        runs: vec![1024, 256],
        shortest_run: 1024,
        copy: 3000,
        staging: 1000,
        shards: vec![8, 16],
        calls: vec![1, 2],
        distinct: 10_000,
        warm_up: Duration::ZERO,
        rounds: 2,
        tuning: Tuning {
            slab: 384,
            long_slab: 384,
            ring: 2,
            batch: 1200,
            compressed_batch: 2000,
            per_multiprocessor: 0,
            batches: 2,
            streams: 1,
            small_part: 40,
            least_direct: 100,
        },
        limits: DeviceLimits {
            devices: None,
            device_memory: Some(1 << 24),
            pinned_memory: 1 << 24,
            idle: None,
            ..DeviceLimits::default()
        },
        slabs: vec![256, 512],
        rings: vec![2],
        batches: vec![512, 1024],
        in_flight: vec![1, 2],
        threads: vec![1],
        sweep_rounds: 1,
        sweep_time: Duration::from_mins(10),
        nvcomp: Some(StandIn::Six.path()),
        compressed_calls: vec![1, 2],
        compressed_rounds: 2,
        compressed_memory: Some(1 << 24),
        compressed_batches: vec![600, 2000],
        streams: vec![1, 3],
        chunk_counts: vec![2, 5],
        chunk_bytes: vec![256, 1024],
        chunk_memory: 2500,
        chunk_time: Duration::from_mins(10),
        host_threads: vec![1, 2],
        volume: 8,
        volume_calls: vec![1, 2],
        stream: super::stream::Lengths {
            frame: 16,
            shard: 8,
            epochs: 2,
            subchunks: vec![4, 8],
            rounds: 1,
            time: Duration::from_mins(10),
        },
        reads: super::reads::Shapes {
            edge: 16,
            shard: 8,
            crop: 5,
            crops: 3,
            subchunks: vec![4],
            rounds: 1,
            time: Duration::from_mins(10),
        },
    }
}

fn measure(driver: &Arc<dyn Driver>, sizes: &Sizes, run: &Run<'_>) -> Value {
    let mut report = Report::new(driver.device(), sizes, run.say);
    measure_more(driver, sizes, run, &mut report);
    report.finish()
}

fn measured(config: Config) -> (Arc<Simulation>, Value, String) {
    let simulation = Arc::new(Simulation::new(config));
    let (document, lines) = measured_on(&(simulation.clone() as Arc<dyn Driver>));
    (simulation, document, lines)
}

fn measured_on(driver: &Arc<dyn Driver>) -> (Value, String) {
    let lines = RefCell::new(String::new());
    let saved = RefCell::new(Value::Null);
    let run = Run {
        wants: &|_| true,
        say: &|line| {
            *lines.borrow_mut() += line;
            *lines.borrow_mut() += "\n";
        },
        save: &|document| *saved.borrow_mut() = document.clone(),
    };
    let document = measure(driver, &tiny(), &run);
    assert_eq!(saved.borrow()["goals"], document["goals"]);
    (document, lines.into_inner())
}

#[test]
fn everything_is_measured_and_compared() {
    for schedule in [Schedule::Eager, Schedule::Latest] {
        let (simulation, document, lines) = measured(Config {
            schedule,
            ..Config::default()
        });
        check(&document, &lines);
        let violations = simulation.violations();
        assert!(violations.is_empty(), "{violations:#?}");
        assert_eq!(simulation.live(), Live::default());
    }
}

/// The same through the functions of a CUDA driver, in a process that has one.
#[test]
#[cfg(target_os = "linux")]
fn everything_is_measured_through_a_driver() {
    use zarrs_cuda_testing::processes::{again, assert_passed};
    let folder = tempfile::tempdir().unwrap();
    zarrs_cuda_emulator::driver::library(folder.path()).unwrap();
    let output = again(module_path!(), "measures_through_a_driver", true)
        .env("LD_LIBRARY_PATH", folder.path())
        .env("ZARRS_CUDA_EMULATED", "schedule=latest")
        .env("ZARRS_CUDA_NVCOMP", StandIn::Six.path())
        .env("ZARRS_CUDA_REQUIRE_NVCOMP", "1")
        .output();
    assert_passed(&output.unwrap());
}

#[test]
#[ignore = "everything_is_measured_through_a_driver runs it"]
fn measures_through_a_driver() {
    use zarrs_cuda_engine::cuda::driver::cuda::CudaDriver;
    let (document, lines) = measured_on(&(CudaDriver::open(0).unwrap() as Arc<dyn Driver>));
    check(&document, &lines);
}

/// Checks that everything was measured, and compared with the expected bytes.
fn check(document: &Value, lines: &str) {
    assert_eq!(document["errors"], json!([]), "{lines}");
    for (section, count, verified) in [
        // A copy; two scatters and an unscatter, in two orders; CRC32C; gather; split.
        ("on_device", 1 + 6 + 1 + 4 + 2, true),
        ("bus", 3, true),
        ("pinned_to_pinned", 4, false),
        ("staging", 4, true),
        // Five sizes of elements, zero and not; with padding and without.
        ("inputs", 10 + 2, true),
        ("encode", 8, true),
        ("decode", 8, true),
        // Two sizes of shards, four compressors, one call and two calls.
        ("compressed", 16, true),
        ("compressed_sweep", 8, true),
        ("sweep", 6, true),
        // Two compressors: with 256 bytes two numbers of chunks and of threads, with 1024 only one number of
        // chunks has room.
        ("chunks", 2 * (4 + 3), false),
        // Three kinds of data, three compressors, encode and decode, one call and two.
        ("shards", 36, true),
    ] {
        let rows = document[section]["rows"].as_array().unwrap();
        assert_eq!(rows.len(), count, "{section}\n{lines}");
        for row in rows {
            assert_eq!(row["verified"], verified, "{row}");
            assert!(row["seconds"]["median"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row["gb_per_s"]["median"].as_f64().unwrap() > 0.0, "{row}");
            for ratio in row["ratios"].as_object().unwrap().values() {
                assert!(ratio["value"].as_f64().unwrap() > 0.0, "{row}");
                assert!(ratio["best"].as_f64().unwrap() > 0.0, "{row}");
            }
        }
    }
    // Two scatters, two runs that are long enough; four with the engine alone; all of the inputs;
    // eight encodes; all compressors but gzip, and two of them against zarrs.
    let goals = 4 + 4 + 12 + 8 + 12 + 8;
    assert_eq!(document["goals"].as_array().unwrap().len(), goals);
    assert_eq!(document["sweep"]["left_out_for_time"], 0);
    let left_out = json!([["zstd-1", 1024, 5, "memory"], ["lz4", 1024, 5, "memory"]]);
    assert_eq!(document["chunks"]["left_out"], left_out);
    for row in document["shards"]["rows"].as_array().unwrap() {
        for key in [
            "compression_ratio",
            "host_zstd_1_ratio",
            "host_zstd_3_ratio",
        ] {
            assert!(row[key].as_f64().unwrap() > 0.5, "{row}");
        }
    }
    for row in document["compressed"]["rows"].as_array().unwrap() {
        assert_eq!(row["subchunks_on_host"], 0);
        assert_eq!(row["limits_gb_per_s"].as_array().unwrap().len(), 4);
        for key in ["compression_ratio", "host_compression_ratio"] {
            assert!(row[key].as_f64().unwrap() > 0.5, "{row}");
        }
        for key in ["host_gb_per_s", "zarrs_gb_per_s"] {
            assert!(row[key]["median"].as_f64().unwrap() > 0.0, "{row}");
        }
        assert!(row["stages_gb_per_s"]["compress"].as_f64().unwrap() > 0.0);
    }
    assert!(lines.contains("goals met"), "{lines}");
}

#[test]
fn what_fails_is_named_and_the_rest_is_measured() {
    let (simulation, document, lines) = measured(Config {
        faults: vec![Inject::OutOfMemoryOf {
            kind: Memory::Device,
            allocation: 1,
        }],
        ..Config::default()
    });
    let errors = document["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 1, "{lines}");
    assert_eq!(errors[0]["what"], "zstd-1, 2 chunks of 256 bytes");
    let reason = errors[0]["reason"].as_str().unwrap();
    assert!(reason.starts_with("allocate "), "{reason}");
    assert_eq!(document["chunks"]["rows"].as_array().unwrap().len(), 13);
    assert_eq!(document["encode"]["rows"].as_array().unwrap().len(), 8);
    assert_eq!(simulation.live(), Live::default());
}

#[test]
fn a_device_that_breaks_is_an_error_and_no_more_is_asked_of_it() {
    for operation in [3, 40, 400, 1500] {
        let (simulation, document, lines) = measured(Config {
            faults: vec![Inject::Sticky { operation }],
            ..Config::default()
        });
        assert!(
            !document["errors"].as_array().unwrap().is_empty(),
            "{lines}"
        );
        let violations = simulation.violations();
        assert!(violations.is_empty(), "{operation}: {violations:#?}");
    }
}

#[test]
fn a_device_that_breaks_under_a_compressor_is_an_error() {
    let sizes = tiny();
    let data = made_up(sizes.data_len());
    let mut reasons = Vec::new();
    for operation in [60, 120, 500, 2000] {
        let simulation = Arc::new(Simulation::new(Config {
            faults: vec![Inject::Sticky { operation }],
            ..Config::default()
        }));
        let driver: Arc<dyn Driver> = simulation.clone();
        let mut report = Report::new(driver.device(), &sizes, &|_| {});
        let mut compressed = || -> Result<()> {
            let workbench = Workbench::new(&*driver, sizes.staging)?;
            let bus = Bus::new(&workbench, &sizes, &data)?;
            let devices = Devices::new(vec![driver.clone()]);
            let engine = CudaEngine::new(devices, sizes.limits.clone(), sizes.tuning);
            compressed::measure(&engine, &bus, &sizes, &mut report)
        };
        reasons.push(compressed().unwrap_err().0);
        let violations = simulation.violations();
        assert!(violations.is_empty(), "{operation}: {violations:#?}");
    }
    let injected = |reason: &String| reason.contains("injected");
    assert!(reasons.iter().all(injected), "{reasons:#?}");
}

#[test]
fn wrong_bytes_are_found_wherever_they_are() {
    let driver = Simulation::eager();
    let workbench = Workbench::new(&driver, 100).unwrap();
    let span = workbench.device(250).unwrap();
    let data: Vec<u8> = (0..250).collect();
    workbench.upload(span, &data).unwrap();
    let pieces = |data: &'static [u8]| [(3, &data[3..90]), (95, &data[95..249])];
    let right: &'static [u8] = data.clone().leak();
    workbench.check("right", span, pieces(right)).unwrap();
    for wrong in [3, 89, 95, 99, 100, 199, 200, 248] {
        let mut data = data.clone();
        data[wrong] ^= 1;
        let result = workbench.check("wrong", span, pieces(data.leak()));
        assert_eq!(
            result.unwrap_err().0,
            format!("wrong: byte {wrong} is wrong")
        );
    }
    // Pieces that do not fit, and no pieces at all.
    let more = [right, &right[..1]].concat();
    workbench.check("more", span, [(0, &more[..])]).unwrap_err();
    workbench.check("none", span, []).unwrap_err();
    workbench.upload(span, &more).unwrap_err();
}

#[test]
fn made_up_data_leave_no_subchunk_empty() {
    let data = made_up(100_001);
    assert_eq!(data.len(), 100_001);
    let zeros = data.chunks(64).filter(|part| part.iter().all(|&b| b == 0));
    assert_eq!(zeros.count(), 0);
    let fill = data
        .chunks(64)
        .filter(|part| part.starts_with(&FILL_VALUE.repeat(8)));
    assert_eq!(fill.count(), 0);
}

#[test]
fn microscopy_is_a_field_and_noise() {
    let data = compressed::microscopy(32, 2);
    assert_eq!(data.len(), 2 * 32 * 32 * 32 * ELEMENT);
    let (values, _) = data.as_chunks();
    let values: Vec<u16> = values
        .iter()
        .map(|&bytes| u16::from_le_bytes(bytes))
        .collect();
    assert!(values.iter().all(|value| (600..5400).contains(value)));
    // All values of the noise occur, and the field hardly changes from one element to the next.
    let noise: std::collections::BTreeSet<u16> = values.iter().map(|value| value & 31).collect();
    assert_eq!(noise.len(), 32);
    let smooth = |row: &[u16]| {
        row.windows(2)
            .all(|two| (two[0] >> 5).abs_diff(two[1] >> 5) <= 1)
    };
    assert!(values.chunks(32).all(smooth));
}

/// A user who names a library wants it measured, so its failure is an error. The rest is measured.
#[test]
fn a_library_that_does_not_load_is_an_error() {
    let simulation = Arc::new(Simulation::eager());
    let driver: Arc<dyn Driver> = simulation.clone();
    let sizes = Sizes {
        nvcomp: Some(StandIn::Four.path()),
        ..tiny()
    };
    let run = Run {
        wants: &|section| ["compressed", "sweep"].contains(&section),
        say: &|_| {},
        save: &|_| {},
    };
    let document = measure(&driver, &sizes, &run);
    assert_eq!(document.get("bus"), None);
    let errors = document["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0]["what"], "the engine with a compressor");
    assert!(
        errors[0]["reason"].as_str().unwrap().contains("4.2"),
        "{errors:?}"
    );
    assert_eq!(document["compressed"]["rows"], json!([]));
    assert_eq!(document["sweep"]["rows"].as_array().unwrap().len(), 6);
}

/// The script of the bundle, with the benchmark on an emulated driver and tiny sizes. Programs that pass stand
/// in for the suites: the tests of the engine run those on an emulated driver.
#[test]
#[cfg(target_os = "linux")]
fn the_script_of_the_bundle_measures_on_an_emulated_driver() {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;
    use std::process::Command;
    let folder = tempfile::tempdir().unwrap();
    let [bundle, driver, out] = ["bundle", "driver", "out"].map(|name| folder.path().join(name));
    fs::create_dir(&bundle).unwrap();
    fs::create_dir(&driver).unwrap();
    zarrs_cuda_emulator::driver::library(&driver).unwrap();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::copy(
        repository.join("xtask/gpu-bundle.sh"),
        bundle.join("run.sh"),
    )
    .unwrap();
    fs::write(bundle.join("commit"), "0123456").unwrap();
    let program = |name: &str, body: &str| {
        let path = bundle.join(name);
        fs::write(&path, format!("#!/usr/bin/env bash\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    let test = module_path!().split_once("::").unwrap().1;
    program(
        "zarrs_cuda-bench",
        &format!(
            "ARGUMENTS=\"$*\" exec '{}' --exact '{test}::is_the_program_of_the_bundle' --ignored --nocapture",
            std::env::current_exe().unwrap().display()
        ),
    );
    let passes = "echo 'running 1 test'; echo 'test result: ok. 1 passed; 0 failed'";
    program("zarrs_cuda-engine-tests", passes);
    program("zarrs_cuda-tests", passes);
    let output = Command::new("bash")
        .arg(bundle.join("run.sh"))
        .env("OUT", &out)
        .env("ZARRS_CUDA_SANITIZER", "")
        .env("ZARRS_CUDA_NCU", "")
        .env("ZARRS_CUDA_LIBCUDA", &driver)
        .env("ZARRS_CUDA_NVCOMP", StandIn::Six.path())
        .env(
            "ZARRS_CUDA_BENCH_MRI",
            repository.join("cli/data/bold.zarr"),
        )
        .output()
        .unwrap();
    let log = fs::read_to_string(out.join("zarrs_cuda-gpu.log")).unwrap();
    assert!(output.status.success(), "{log}");
    let text = fs::read_to_string(out.join("zarrs_cuda-gpu.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    for part in json["parts"].as_array().unwrap() {
        let name = part["part"].as_str().unwrap();
        let is_tool = name.ends_with("check") || name == "profile";
        let expected = if is_tool { "absent" } else { "passed" };
        assert_eq!(part["result"], expected, "{part}\n{log}");
    }
    for start in ["start", "start_again"] {
        // The driver, the context and the kernels, and three shards of three chains.
        let times = json[start]["start"]["times"].as_array().unwrap();
        assert_eq!(times.len(), 3 + 9, "{times:#?}");
    }
    // Three kinds of data and three chains: subchunks of two sizes, and levels.
    for (part, section, rows) in [
        ("stream", "stream", 27),
        ("stream", "shards", 36),
        ("connections_8", "shards", 36),
        ("connections_32", "shards", 36),
        ("chunks", "chunks", 14),
        // Three kinds of data, four chains, whole arrays and crops.
        ("reads", "reads", 24),
        ("benchmark", "compressed", 16),
    ] {
        assert_eq!(json[part]["errors"], json!([]), "{part}\n{log}");
        let measured = json[part][section]["rows"].as_array().unwrap();
        assert_eq!(measured.len(), rows, "{part}, {section}\n{log}");
    }
    assert!(json["machine"]["memory"].is_string());
}

#[test]
#[ignore = "the_script_of_the_bundle_measures_on_an_emulated_driver runs it"]
fn is_the_program_of_the_bundle() {
    let arguments = std::env::var("ARGUMENTS").unwrap_or_default();
    let arguments: Vec<String> = arguments.split_whitespace().map(str::to_string).collect();
    let output = std::env::var_os("ZARRS_CUDA_BENCH_OUT").unwrap_or_default();
    let succeeded = super::program::with_sizes(&tiny(), &arguments, output.as_ref());
    assert!(succeeded);
}
