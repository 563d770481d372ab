//! `SparseShardStore`.

mod changed;
#[cfg(target_os = "linux")]
mod files;
#[cfg(unix)]
mod kill;
mod nested;
mod view;
