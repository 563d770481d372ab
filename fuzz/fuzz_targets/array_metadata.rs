//! `zarrs_cuda_fuzz::array_metadata`, as a program.
#![cfg_attr(libfuzzer, no_main)]

zarrs_cuda_fuzz::fuzz_target!(array_metadata);
