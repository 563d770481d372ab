//! Tests that need a process, or most of a machine, for themselves. They run one at a time, with
//! any number of test threads.
//!
//! The files are in the folders of their subjects. A test begins its own process by [`in_its_own_process`].
//!
//! | module | subject | why alone |
//! |---|---|---|
//! | `boxes` | writers of boxes that are killed, in bounded memory | time and memory |
//! | `hostile` | truncated, corrupted or made-up shards | the largest allocation of the process |
//! | `memory` | the memory that encoding needs | the resident memory of the process |
//! | `registration` | `register` | zarrs' registry |
//! | `writer` | writers that are followed or killed, in bounded memory | time and memory |
//! | `zarrs_api` | all of zarrs' array methods | a registration for a long time |

#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "made-up data, and a test's way to fail"
)]

#[path = "boxes/alone/mod.rs"]
mod boxes;
#[path = "codec/hostile/mod.rs"]
mod hostile;
#[cfg(target_os = "linux")]
#[path = "codec/memory.rs"]
mod memory;
#[path = "codec/registration.rs"]
mod registration;
#[path = "writer/alone/mod.rs"]
mod writer;
#[allow(deprecated, reason = "zarrs' deprecated methods are tested, too")]
#[path = "codec/zarrs_api.rs"]
mod zarrs_api;

use std::sync::{Mutex, MutexGuard, PoisonError};

use zarrs_cuda_testing::processes;

/// A lock: no other test of this process runs while it is held.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `body` in a process of its own. That process runs the calling test again: `test` in
/// `module`, which is its `module_path!()`.
fn in_its_own_process(module: &str, test: &str, body: impl FnOnce()) {
    let _alone = alone();
    if let Some(output) = processes::on_its_own(module, test, body) {
        println!("{output}");
    }
}
