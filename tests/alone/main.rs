//! Tests that need a process, or most of a machine, for themselves: they run one at a time, whatever
//! the number of threads that tests may have.
//!
//! | module | what is tested | why alone |
//! |---|---|---|
//! | `hostile` | shards that are truncated, corrupted or made up | the largest allocation of the process |
//! | `memory` | what encoding takes | the resident memory of the process |
//! | `registration` | `register` | what zarrs' registry has |
//! | `writer` | followed, killed, in bounded memory | time and memory |
//! | `zarrs_api` | all of zarrs' array methods | registered and not, for longer |

#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "made-up data, and a test's way to fail"
)]

mod hostile;
#[cfg(target_os = "linux")]
mod memory;
mod registration;
mod writer;
#[allow(deprecated, reason = "zarrs' deprecated methods are tested, too")]
mod zarrs_api;

use std::sync::{Mutex, MutexGuard, PoisonError};

use zarrs_cuda_testing::processes;

/// No other test of this process runs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Run `body` in a process of its own, in which the test that calls this is called again: `test` in
/// `module`, which is `module_path!()` there.
fn in_its_own_process(module: &str, test: &str, body: impl FnOnce()) {
    const PROCESS: &str = "ZARRS_CUDA_TEST_PROCESS";
    if std::env::var(PROCESS).is_ok_and(|process| process == test) {
        body();
        return;
    }
    let _alone = alone();
    let mut process = processes::again(module, test, false);
    let output = process.env(PROCESS, test).output().unwrap();
    println!("{}", processes::assert_passed(&output));
}
