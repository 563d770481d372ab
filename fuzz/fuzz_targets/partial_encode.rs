//! The program for `zarrs_cuda_fuzz::partial_encode`.
#![cfg_attr(libfuzzer, no_main)]

zarrs_cuda_fuzz::fuzz_target!(partial_encode);
