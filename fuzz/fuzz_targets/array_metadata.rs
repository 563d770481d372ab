//! The program for `zarrs_cuda_fuzz::array_metadata`.
#![cfg_attr(libfuzzer, no_main)]

zarrs_cuda_fuzz::fuzz_target!(array_metadata);
