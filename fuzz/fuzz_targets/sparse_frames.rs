//! The program for `zarrs_cuda_fuzz::sparse_frames`.
#![cfg_attr(libfuzzer, no_main)]

zarrs_cuda_fuzz::fuzz_target!(sparse_frames);
