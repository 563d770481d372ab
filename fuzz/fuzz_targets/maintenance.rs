//! The program for `zarrs_cuda_fuzz::maintenance`.
#![cfg_attr(libfuzzer, no_main)]

zarrs_cuda_fuzz::fuzz_target!(maintenance);
