//! Any Zarr array or group as sharded arrays of Zarr v3.

#![deny(unsafe_code)]
#![allow(
    missing_docs,
    clippy::format_push_string,
    clippy::len_without_is_empty,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "public for the command"
)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test's way to fail"))]

pub mod apart;
pub mod budget;
pub mod chunks;
pub mod claim;
pub mod codec;
pub mod consolidated;
pub mod data_types;
pub mod evidence;
pub mod extensions;
mod failure;
pub mod grid;
#[cfg(feature = "remote")]
mod http;
pub mod names;
pub mod open;
pub mod parts;
mod reencode;
#[cfg(feature = "remote")]
mod remote;
pub mod replace;
pub mod reshard;
pub mod shapes;
pub mod stored;
mod version2;
mod watcher;
pub mod words;

pub use self::codec::SubchunkCodec;
pub use self::failure::{Failure, FailureKind};
pub use self::open::Place;
pub use self::reencode::{ArrayReport, Copied, GroupReport, Reencode, Report, WrittenGroup};
pub use self::reshard::{Layout, Reshard, Resharded};
pub use self::shapes::Wishes;
pub use self::watcher::{Event, Unit, Watcher};
