//! The kernels' own checks, on the device.

use super::cases;
use crate::cuda::driver::cuda::gpu_or_skip;
use crate::cuda::kernels::shuffle::Shuffle;
use crate::cuda::kernels::{
    aggregate, chunk_tables, compressed_frames, crc32, crc32c, place, reduce, scatter, shuffle,
    split,
};

macro_rules! checks {
    ($($name:ident: $check:expr;)*) => {$(
        #[test]
        fn $name() {
            if let Some(driver) = gpu_or_skip(stringify!($name)) {
                $check(&*driver, cases());
            }
        }
    )*};
}

checks! {
    scatter: scatter::tests::check_scatter;
    scatter_of_many_shapes: |driver, _| scatter::tests::check_shapes(driver);
    unscatter: scatter::tests::check_unscatter;
    crc32c_append: crc32c::tests::check_append;
    crc32c_verify: crc32c::tests::check_verify;
    crc32c_of_many_shapes: |driver, _| crc32c::tests::check_shapes(driver);
    permute: aggregate::tests::check_permute;
    scan: aggregate::tests::check_scan;
    gather: aggregate::tests::check_gather;
    aggregate_passes: aggregate::tests::check_passes;
    byte_shuffle: |driver, cases| shuffle::tests::check_shuffle(driver, Shuffle::Bytes, cases);
    bit_shuffle: |driver, cases| shuffle::tests::check_shuffle(driver, Shuffle::Bits, cases);
    reduce: reduce::tests::check_reduce;
    reduce_by_every_kernel: |driver, _| reduce::tests::check_every_kernel(driver);
    split: split::tests::check_split;
    place: place::tests::check_place;
    chunk_tables: chunk_tables::tests::check_chunk_tables;
    crc32: crc32::tests::check_crc32;
    frame_zstd: compressed_frames::tests::check_zstd;
    frame_gzip: compressed_frames::tests::check_gzip;
    frame_blosc: compressed_frames::tests::check_blosc;
}

#[test]
fn the_driver_compiles_every_kernel() {
    if let Some(driver) = gpu_or_skip("the_driver_compiles_every_kernel") {
        for (kernel, _) in zarrs_cuda_kernels::KERNELS {
            driver.check_kernel(kernel).unwrap();
        }
    }
}
