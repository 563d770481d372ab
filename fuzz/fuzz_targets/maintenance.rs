//! `zarrs_cuda_fuzz::maintenance`, as a program.
#![cfg_attr(fuzzing, no_main)]

zarrs_cuda_fuzz::fuzz_target!(maintenance);
