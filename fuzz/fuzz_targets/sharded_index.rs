//! The program for `zarrs_cuda_fuzz::sharded_index`.
#![cfg_attr(libfuzzer, no_main)]

zarrs_cuda_fuzz::fuzz_target!(sharded_index);
