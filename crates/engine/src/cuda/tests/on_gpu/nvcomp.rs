//! NVIDIA's own compressors, on the device.

use crate::cuda::driver::Driver;
use crate::cuda::driver::cuda::gpu_or_skip;
use crate::cuda::nvcomp::tests::{FORMATS, batches};
use crate::cuda::nvcomp::{Format, Nvcomp};
use crate::fakes::nvcomp_or_skip;

/// Returns the library, or `None` if there is none.
pub(super) fn library(test: &str) -> Option<Nvcomp> {
    nvcomp_or_skip(test, zarrs_cuda_nvcomp_stand_in::is_stand_in)
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

/// Printed only: NVIDIA does not promise it.
#[test]
fn whether_nvcomp_is_deterministic() {
    run("whether_nvcomp_is_deterministic", |driver, nvcomp| {
        for format in FORMATS {
            let same = batches::is_deterministic(driver, nvcomp, format);
            println!("{format}: equal chunks become equal bytes: {same}");
        }
    });
}

/// Prints the properties that depend on the device or are not documented.
#[test]
fn what_nvcomp_takes_and_writes() {
    run("what_nvcomp_takes_and_writes", |driver, nvcomp| {
        println!("nvCOMP {}", nvcomp.version());
        let lengths = [1, 255, 256, 4096, 65_536, 1 << 20];
        let sized = batches::content_sizes(driver, nvcomp, lengths);
        println!("zstd frames of {lengths:?} bytes have their content size: {sized:?}");
        driver.enter().unwrap();
        let deflate = [2, 4, 5].map(|algorithm| Format::Deflate { algorithm });
        let formats = [Format::Zstd, Format::Lz4].into_iter().chain(deflate);
        let mut shrinking = Vec::new();
        for format in formats {
            let compressor = nvcomp.compressor(format).unwrap();
            for bytes in [4096, 65_536] {
                let mut fewer = 0;
                for chunks in (0..=12).map(|power| 1 << power) {
                    let found = compressor.requirements(chunks, bytes, chunks * bytes);
                    let found = found.unwrap();
                    println!("{format}, {chunks} chunks of {bytes} bytes: {found:?}");
                    if found.temp < fewer {
                        shrinking.push((format, chunks, bytes));
                    }
                    fewer = found.temp;
                }
            }
        }
        driver.leave().unwrap();
        // Printed only. The engine gives a batch the memory of the next longer batch that it asked about. If
        // there are numbers here, the engine has to ask about all of them.
        println!("less temporary memory than for fewer chunks: {shrinking:?}");
    });
}
