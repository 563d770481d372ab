//! The program for `zarrs_cuda_fuzz::device_frames`.
#![cfg_attr(libfuzzer, no_main)]

zarrs_cuda_fuzz::fuzz_target!(device_frames);
