//! `zarrs_cuda_fuzz::partial_decode`, as a program.
#![cfg_attr(libfuzzer, no_main)]

zarrs_cuda_fuzz::fuzz_target!(partial_decode);
