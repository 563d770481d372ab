//! The program for `zarrs_cuda_fuzz::whole_shard`.
#![cfg_attr(libfuzzer, no_main)]

zarrs_cuda_fuzz::fuzz_target!(whole_shard);
