//! Conversions of any Zarr array or group to sharded arrays of Zarr v3: planned, written, resumed and
//! verified.
//!
//! | type | content |
//! |---|---|
//! | [`Reencode`] | decodes any Zarr v2 or v3 array, or all arrays of a group, and encodes sharded arrays |
//! | [`Reshard`] | moves encoded subchunks between chunks and shards, without decoding them |
//! | [`Watcher`] | the caller's side of a run: it takes lines and progress, and may stop the run |
//! | [`Failure`] | the reason why a run stopped, and a remedy |
//!
//! Arrays are named by [`Place`]s: directories and, with the feature `remote`, `s3://` and `https://`. Nothing is
//! printed, and no signal is listened for. The command `zarrs-cuda` is a front end of this crate; another one gives
//! settings its own names in messages ([`Failure::with_names`]).
//!
//! ```
//! use std::sync::Mutex;
//! use zarrs_cuda_convert::{Event, Failure, FailureKind, Reencode, Watcher};
//!
//! /// Keeps the lines of a run.
//! #[derive(Default)]
//! struct Lines(Mutex<Vec<String>>);
//!
//! impl Watcher for Lines {
//!     fn hear(&self, event: Event<'_>) {
//!         if let (Event::Line(line), Ok(mut lines)) = (event, self.0.lock()) {
//!             lines.push(line.to_string());
//!         }
//!     }
//! }
//!
//! let reencode = Reencode::new("no such array.zarr", "out.zarr");
//! let failure: Failure = reencode.run(&Lines::default()).unwrap_err();
//! assert_eq!(failure.kind(), FailureKind::Failed);
//! assert!(failure.message().starts_with("cannot open no such array.zarr"));
//! assert!(failure.remedy().is_some());
//! ```

#![deny(unsafe_code)]
#![allow(
    clippy::format_push_string,
    clippy::len_without_is_empty,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "text for people; modules that are public for the command alone"
)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test's way to fail"))]

mod claim;
mod codec;
mod evidence;
mod failure;
#[cfg(feature = "remote")]
mod http;
mod names;
mod reencode;
#[cfg(feature = "remote")]
mod remote;
mod shard_file;
mod shared_run;
mod v2;
mod watcher;

// These modules are for the command alone: no promise of semantic versioning covers them.
#[doc(hidden)]
pub mod apart;
#[doc(hidden)]
pub mod budget;
#[doc(hidden)]
pub mod chunks;
#[doc(hidden)]
pub mod consolidated;
#[doc(hidden)]
pub mod data_types;
#[doc(hidden)]
pub mod extensions;
#[doc(hidden)]
pub mod grid;
#[doc(hidden)]
pub mod open;
#[doc(hidden)]
pub mod parts;
mod pattern;
#[doc(hidden)]
pub mod replace;
#[doc(hidden)]
pub mod reshard;
#[doc(hidden)]
pub mod shapes;
#[doc(hidden)]
pub mod stored;
#[doc(hidden)]
pub mod words;

pub use self::chunks::ChunkCounts;
pub use self::codec::SubchunkCodec;
pub use self::failure::{Failure, FailureKind};
pub use self::open::Place;
pub use self::pattern::Pattern;
pub use self::reencode::{
    ArrayReport, ArrayWork, Copied, DryRun, GroupReport, PartReport, PartState, PartWork, Reencode,
    Report, Shared, Work, WrittenGroup, arrays_below,
};
pub use self::reshard::{Layout, Reshard, Resharded};
pub use self::shapes::{ShapesFor, Wishes};
#[doc(hidden)]
pub use self::shared_run::{
    Apart, PartApart, RunApart, is_in_parts, must_not_be_begun, must_not_be_in_parts,
    must_not_be_made_above,
};
pub use self::shared_run::{MissingPart, Part, RunStatus, status};
pub use self::watcher::{Event, Unit, Watcher};
