//! Fuzz targets: functions of bytes that fail by panicking.
//!
//! Most inputs become a shape, a chain of codecs, a valid shard, and changes of that shard. So they
//! pass the first checks. A target searches for more than panics: it compares ways of reading with
//! each other and with zarrs, and limits the largest allocation.
//!
//! `cargo test --package zarrs_cuda_fuzz` tries the inputs in `corpus/` and some new ones; `cargo
//! xtask fuzz` lets libFuzzer search for more.

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
/// The last one registers the codec with zarrs. In a process that ran it, zarrs' own codec can no
/// longer be the reference for nested sharding.
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

/// Runs `target` on `input`. Panics of this crate count even if they are caught.
pub fn run(target: Target, input: &[u8]) {
    zarrs_cuda_testing::panics::watch();
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(input))) {
        // Panics of other crates are not printed otherwise.
        let message = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        eprintln!("the target panicked: {}", message.unwrap_or_default());
        resume_unwind(panic);
    }
    zarrs_cuda_testing::panics::assert_none("the target ended");
}

/// Runs `target` on the files in this program's arguments. Programs of targets do this unless they
/// are compiled for libFuzzer.
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

/// Defines the program of a target. `cargo xtask fuzz` compiles it for libFuzzer; otherwise it
/// reproduces findings.
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
