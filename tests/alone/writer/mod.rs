//! `ArrayWriter` in processes that are watched and killed.

mod follower;
#[cfg(unix)]
mod kill;
#[cfg(target_os = "linux")]
mod memory;
