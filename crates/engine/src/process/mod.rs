//! State that exists once per process: its threads, its account of memory, and values that a forked child
//! makes anew.

pub mod account;
pub mod along;
#[allow(unsafe_code)]
pub mod crew;
#[allow(unsafe_code)]
pub mod per_process;
