//! `zarrs_cuda_fuzz::maintenance`, as a program.
#![cfg_attr(libfuzzer, no_main)]

zarrs_cuda_fuzz::fuzz_target!(maintenance);
