//! Writers of boxes that are killed, and the memory that they take.

mod kill;
#[cfg(target_os = "linux")]
mod memory;
