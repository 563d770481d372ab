//! Prints failures as text and as JSON, and chooses their exit codes.

use serde_json::{Value, json};
use zarrs_cuda_convert::{Failure, FailureKind};

use crate::exit::Exit;
use crate::stdout;

/// Prints the failure to standard error and, if `as_json`, as JSON to standard output. Returns the exit code.
pub(crate) fn print(failure: &Failure, as_json: bool) -> u8 {
    print_error(failure);
    if as_json {
        stdout::print(&format!("{:#}\n", json_of(failure)));
    }
    exit(failure).code()
}

/// Prints the failure to standard error.
pub(crate) fn print_error(failure: &Failure) {
    tell!("{}: {failure}", kind(failure));
    if let Some(remedy) = failure.remedy() {
        tell!("help: {remedy}");
    }
}

pub(crate) fn json_of(failure: &Failure) -> Value {
    json!({ kind(failure): failure.message(), "help": failure.remedy(), "exit_code": exit(failure).code() })
}

fn kind(failure: &Failure) -> &'static str {
    match failure.kind() {
        FailureKind::Interrupted => "interrupted",
        _ => "error",
    }
}

fn exit(failure: &Failure) -> Exit {
    match failure.kind() {
        FailureKind::Usage => Exit::Usage,
        FailureKind::NotWell => Exit::NotWell,
        FailureKind::Interrupted => Exit::Interrupted,
        _ => Exit::Failed,
    }
}
