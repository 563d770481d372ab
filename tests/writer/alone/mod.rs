//! `ArrayWriter` in processes that are watched and killed.

#[cfg(target_os = "linux")]
mod crowd;
mod follower;
#[cfg(unix)]
mod kill;
#[cfg(unix)]
mod levels;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(target_os = "linux")]
mod pauses;
