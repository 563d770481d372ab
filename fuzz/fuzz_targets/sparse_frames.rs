//! `zarrs_cuda_fuzz::sparse_frames`, as a program.
#![cfg_attr(libfuzzer, no_main)]

zarrs_cuda_fuzz::fuzz_target!(sparse_frames);
