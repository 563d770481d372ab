//! NVIDIA's own compressors, on the device.

use crate::engine::cuda::{
    driver::{Driver, cuda::gpu_or_skip},
    nvcomp::{
        Format, Nvcomp, Search,
        tests::{FORMATS, batches},
    },
};
use std::env;

/// The library; `None` where there is none, and a failure with `ZARRS_CUDA_REQUIRE_NVCOMP=1`.
pub(super) fn library(test: &str) -> Option<Nvcomp> {
    match Search::new(None).load() {
        Ok(nvcomp) => Some(nvcomp),
        Err(reason) => {
            let required = env::var_os("ZARRS_CUDA_REQUIRE_NVCOMP").is_some_and(|v| v == "1");
            assert!(!required, "{reason}");
            eprintln!("skipped {test}: {reason}");
            None
        }
    }
}

fn run(test: &str, check: impl FnOnce(&dyn Driver, &Nvcomp)) {
    if let Some(driver) = gpu_or_skip(test)
        && let Some(nvcomp) = library(test)
    {
        check(&*driver, &nvcomp);
    }
}

#[test]
fn what_nvcomp_compresses_comes_back() {
    run("what_nvcomp_compresses_comes_back", |driver, nvcomp| {
        for format in FORMATS {
            batches::check_round_trips(driver, nvcomp, format);
        }
    });
}

#[test]
fn nvcomp_is_deterministic() {
    run("nvcomp_is_deterministic", |driver, nvcomp| {
        for format in FORMATS {
            batches::check_determinism(driver, nvcomp, format);
        }
    });
}

/// What depends on the device, or is said nowhere, is printed.
#[test]
fn what_nvcomp_takes_and_writes() {
    run("what_nvcomp_takes_and_writes", |driver, nvcomp| {
        println!("nvCOMP {}", nvcomp.version());
        let lengths = [1, 255, 256, 4096, 65_536, 1 << 20];
        let sized = batches::content_sizes(driver, nvcomp, lengths);
        println!("zstd frames of {lengths:?} bytes have their content size: {sized:?}");
        driver.enter().unwrap();
        for (chunks, bytes) in [(1024, 65_536), (4096, 8192)] {
            for format in [Format::Zstd, Format::Lz4] {
                let compressor = nvcomp.compressor(format).unwrap();
                let found = compressor.requirements(chunks, bytes, chunks * bytes);
                let found = found.unwrap();
                println!("{format}, {chunks} chunks of {bytes} bytes: {found:?}");
                assert!(found.temp > 0);
            }
        }
        driver.leave().unwrap();
    });
}
