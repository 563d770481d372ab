//! Queries of NVIDIA's own library, as packaged, that need no device.
//!
//! `cargo xtask nvcomp-check` installs the packages, and runs these tests.
//!
//! Without a device the library answers: its version and properties, the text of a status, the alignments for
//! compression and decompression, the most bytes that a chunk becomes, and the temporary memory for both. The
//! temporary memory for the compression with zstd is unknown until there is a device.

use super::*;
use libloading::Library;
use std::{env, path::PathBuf};

/// If this variable is 1, an absent library is a failure.
const REQUIRE: &str = "ZARRS_CUDA_REQUIRE_NVCOMP";

/// The folders of the installed packages, and the major version of the library in each. The last one is for
/// CUDA 13, and the others are for CUDA 12.
const INSTALLED: [(&str, u32); 3] = [("nvcomp", 6), ("nvcomp5", 5), ("nvcomp13", 6)];

/// Returns the installed library of a package, or `None` where there is none.
fn installed((folder, major): (&str, u32)) -> Option<PathBuf> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = package.ancestors().nth(2).unwrap_or(package);
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let file = root
        .join(target)
        .join(folder)
        .join("packages/nvidia/libnvcomp/lib64")
        .join(format!("libnvcomp.so.{major}"));
    if file.exists() {
        return Some(file);
    }
    let reason = format!(
        "there is no {}; `cargo xtask nvcomp-check` installs it",
        file.display()
    );
    let required = env::var_os(REQUIRE).is_some_and(|value| value == "1");
    assert!(!required, "{reason}");
    eprintln!("skipped: {reason}");
    None
}

fn libraries() -> Vec<(u32, Nvcomp)> {
    INSTALLED
        .into_iter()
        .filter_map(|package| Some((package.1, Nvcomp::open(&installed(package)?).unwrap())))
        .collect()
}

#[test]
fn it_has_what_is_called() {
    for (major, nvcomp) in libraries() {
        println!("nvCOMP {}", nvcomp.version());
        assert_eq!(nvcomp.version().major, major);
        let success = describe(nvcomp.status_string, sys::SUCCESS);
        assert!(success.len() > "status 0: ".len(), "{success}");
        for algorithm in 0..6 {
            nvcomp.compressor(Format::Deflate { algorithm }).unwrap();
        }
        nvcomp
            .compressor(Format::Deflate { algorithm: 6 })
            .unwrap_err();
        for format in FORMATS {
            let compressor = nvcomp.compressor(format).unwrap();
            let decompressor = nvcomp.decompressor(format).unwrap();
            let (to, from) = (compressor.alignments(), decompressor.alignments());
            println!("{format}: compress {to:?}, decompress {from:?}");
            // Subchunk and frame slots are at multiples of 16.
            for alignments in [to, from] {
                let Alignments { input, output, .. } = alignments;
                assert!(input <= 16 && output <= 16, "{format}: {alignments:?}");
            }
            for len in [1, 8_192, 65_536, format.largest_chunk()] {
                let most = compressor.max_output(len).unwrap();
                println!("{format}: {len} bytes become at most {most}");
                assert!(most >= len);
            }
        }
    }
}

#[test]
fn its_limits_are_no_smaller_than_ours() {
    for (_, nvcomp) in libraries() {
        for format in FORMATS {
            let compressor = nvcomp.compressor(format).unwrap();
            compressor.max_output(format.largest_chunk()).unwrap();
            let decompressor = nvcomp.decompressor(format).unwrap();
            let largest = format.largest_decompressed();
            decompressor.requirements(1, largest, largest).unwrap();
        }
        // For LZ4, nvCOMP's headers have only one limit. The library enforces it.
        let lz4 = nvcomp.compressor(Format::Lz4).unwrap();
        let mut bytes = 0;
        // SAFETY: the options are LZ4's. The query writes the bytes.
        let status = unsafe {
            (lz4.functions.max_output)(
                Format::Lz4.largest_chunk() + 1,
                lz4.library.options,
                &raw mut bytes,
            )
        };
        assert_ne!(status, sys::SUCCESS);
    }
}

#[test]
fn it_tells_what_it_takes() {
    let batches = [(1024, 65_536), (4096, 8192)];
    for (major, nvcomp) in libraries() {
        let version = nvcomp.version();
        // The crate does not call this function. The test compares its result with deflate's.
        let gzip = format!(
            "nvcompBatchedGzipCompressGetTempSize{}",
            if major == 5 { "Async" } else { "" }
        );
        // SAFETY: it is loaded already.
        let library = unsafe { Library::new(nvcomp.path()) }.unwrap();
        // SAFETY: as for the other formats.
        let gzip = unsafe {
            if major == 5 {
                TempSize::Five(*library.get(gzip.as_str()).unwrap())
            } else {
                TempSize::Six(*library.get(gzip.as_str()).unwrap())
            }
        };
        for (chunks, bytes) in batches {
            let total = chunks * bytes;
            let lz4 = nvcomp.compressor(Format::Lz4).unwrap();
            let lz4 = lz4.requirements(chunks, bytes, total).unwrap();
            println!(
                "nvCOMP {version}, {chunks} chunks of {bytes} bytes, MiB of temporary memory: LZ4 {}",
                mebibytes(lz4.temp)
            );
            assert!(lz4.temp > 0);
            for algorithm in [1, 2, 4, 5] {
                let deflate = nvcomp.compressor(Format::Deflate { algorithm }).unwrap();
                let raw = deflate.requirements(chunks, bytes, total).unwrap().temp;
                let members = deflate
                    .library
                    .temp_size(gzip, chunks, bytes, total)
                    .unwrap();
                println!(
                    "  algorithm {algorithm}: deflate {}, gzip {}",
                    mebibytes(raw),
                    mebibytes(members)
                );
                assert!(raw > 0 && raw <= members);
            }
            let zstd = nvcomp.compressor(Format::Zstd).unwrap();
            match zstd.requirements(chunks, bytes, total) {
                Ok(found) => println!("  zstd {}", mebibytes(found.temp)),
                Err(reason) => {
                    println!("  {reason}");
                    let known = "(unknown until a device is there)";
                    assert!(reason.ends_with(known), "{reason}");
                }
            }
            for format in FORMATS {
                let decompressor = nvcomp.decompressor(format).unwrap();
                let found = decompressor.requirements(chunks, bytes, total).unwrap();
                println!("  decompress {format}: {}", mebibytes(found.temp));
            }
        }
    }
}

fn mebibytes(bytes: usize) -> String {
    #[allow(clippy::cast_precision_loss)] // for people
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    format!("{mebibytes:.2}")
}
