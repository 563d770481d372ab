//! Writers of boxes that are killed, and the memory that they take.

#[cfg(target_os = "linux")]
mod full;
mod kill;
#[cfg(target_os = "linux")]
mod memory;
