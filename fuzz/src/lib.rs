//! Fuzz targets: functions of bytes that fail by panicking.
//!
//! Most bytes become a shape, a chain of codecs, a valid shard, and then changes of that shard, so
//! that they get past the first checks. A target is more than a search for panics: it compares ways
//! to read with each other and with zarrs, and looks at the largest allocation.
//!
//! `cargo test --package zarrs_cuda_fuzz` tries the inputs in `corpus/` and some new ones;
//! `cargo xtask fuzz` lets libFuzzer look for more.

#![allow(
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "a target fails by panicking, and says where"
)]

mod array_metadata;
mod case;
mod device_frames;
mod harm;
mod maintenance;
mod memory;
mod outcome;
mod partial_decode;
mod partial_encode;
#[cfg(test)]
mod replay;
mod sharded_index;
mod sparse_frames;
mod whole_shard;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;

pub use array_metadata::array_metadata;
pub use device_frames::device_frames;
pub use maintenance::maintenance;
pub use partial_decode::partial_decode;
pub use partial_encode::partial_encode;
pub use sharded_index::sharded_index;
pub use sparse_frames::sparse_frames;
pub use whole_shard::whole_shard;

/// A function of bytes that panics if something is wrong.
pub type Target = fn(&[u8]);

/// All targets, by their names.
///
/// The last one registers the codec with zarrs: in a process that ran it, zarrs' own codec is no
/// longer a judge of nested sharding.
pub const TARGETS: [(&str, Target); 8] = [
    ("whole_shard", whole_shard),
    ("partial_decode", partial_decode),
    ("partial_encode", partial_encode),
    ("maintenance", maintenance),
    ("sparse_frames", sparse_frames),
    ("sharded_index", sharded_index),
    ("device_frames", device_frames),
    ("array_metadata", array_metadata),
];

/// Run `target` on `input`. A panic of this crate counts, also if it is caught on its way.
pub fn run(target: Target, input: &[u8]) {
    zarrs_cuda_testing::panics::watch();
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(input))) {
        // Panics of other crates were not printed yet.
        let message = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        eprintln!("the target panicked: {}", message.unwrap_or_default());
        resume_unwind(panic);
    }
    zarrs_cuda_testing::panics::assert_none("the target ended");
}

/// Run `target` on the files that are the arguments of this program: what a program of a target
/// does that is not compiled for libFuzzer.
#[must_use]
pub fn reproduce(target: Target) -> ExitCode {
    for file in std::env::args_os().skip(1) {
        match std::fs::read(&file) {
            Ok(input) => run(target, &input),
            Err(error) => {
                eprintln!("cannot read the input {}: {error}", file.display());
                return ExitCode::FAILURE;
            }
        }
        println!("{}: nothing is wrong", file.display());
    }
    ExitCode::SUCCESS
}

/// The program of a target: for libFuzzer if `cargo xtask fuzz` compiles it, one that reproduces what was
/// found otherwise.
#[macro_export]
macro_rules! fuzz_target {
    ($target:ident) => {
        #[cfg(libfuzzer)]
        libfuzzer_sys::fuzz_target!(|input: &[u8]| $crate::run($crate::$target, input));

        #[cfg(not(libfuzzer))]
        fn main() -> std::process::ExitCode {
            $crate::reproduce($crate::$target)
        }
    };
}
