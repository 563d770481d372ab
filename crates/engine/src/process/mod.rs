//! State that a process has once: its threads, its account of memory, and values that a forked
//! child has anew.

pub mod account;
pub mod along;
#[allow(unsafe_code)]
pub mod crew;
#[allow(unsafe_code)]
pub mod per_process;
