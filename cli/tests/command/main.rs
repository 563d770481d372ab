//! The command, run as a user runs it. zarrs' own codecs are the judge: this process registers no other.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::format_push_string,
    reason = "a test's way to fail, and made-up data"
)]

mod apart;
mod arrays;
mod bench;
#[path = "../inspect/browser.rs"]
#[allow(dead_code, reason = "the tests of `inspect` use the rest")]
mod browser;
mod chunks;
#[cfg(feature = "remote")]
mod chunks_remote;
mod consolidated;
mod datasets;
mod docs;
mod doctor;
mod errors;
mod full_disk;
#[cfg(feature = "remote")]
mod gone;
mod hierarchy;
#[cfg(feature = "remote")]
mod hostile;
mod interrupted;
#[cfg(feature = "remote")]
mod lost;
mod maintenance;
mod measured;
mod memory;
mod no_dimensions;
mod not_begun;
mod ome;
mod parts;
mod program;
mod pyramid;
mod reencode;
mod remote;
mod resume;
mod rights;
mod stream;
mod strings;
#[cfg(target_os = "linux")]
mod trouble;
mod unfinished;
mod unreadable;
mod vast;
