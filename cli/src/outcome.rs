//! What a subcommand found or did.

use std::io::{self, Write};

use serde_json::Value;

use crate::common::Common;
use crate::failure::Exit;

/// What a subcommand found or did: for people, and as a JSON object.
#[derive(Debug)]
pub(crate) struct Outcome {
    text: String,
    json: Value,
    exit: Exit,
}

impl Outcome {
    /// `text` has lines without a last line break; it may be empty.
    pub(crate) fn new(text: impl Into<String>, json: Value) -> Self {
        Self {
            text: text.into(),
            json,
            exit: Exit::Done,
        }
    }

    /// Sets the exit code to the one for damage and differences.
    pub(crate) fn not_well(mut self) -> Self {
        self.exit = Exit::NotWell;
        self
    }

    /// Prints the outcome, and returns the exit code.
    pub(crate) fn print(&self, common: &Common) -> u8 {
        if common.json {
            print(&format!("{:#}\n", self.json));
        } else if !self.text.is_empty() {
            print(&format!("{}\n", self.text));
        }
        self.exit.code()
    }
}

/// Prints to standard output. A reader that went away, as `head` does, ends the process quietly.
pub(crate) fn print(text: &str) {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            eprintln!("error: cannot write to standard output: {error}");
            std::process::exit(i32::from(Exit::Failed.code()));
        }
    }
}
