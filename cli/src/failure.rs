//! Reasons to stop, what to do about them, and exit codes.

use std::fmt;

use serde_json::{Value, json};

use crate::exit::Exit;
use crate::stdout;

/// Why a subcommand stopped, and what to do about it.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
    remedy: Option<String>,
}

impl Failure {
    fn new(exit: Exit, message: impl fmt::Display) -> Self {
        let message = message.to_string().trim_end().to_string();
        Self {
            exit,
            message,
            remedy: None,
        }
    }

    /// Something could not be done. The message says what, to what, and why.
    pub(crate) fn failed(message: impl fmt::Display) -> Self {
        Self::new(Exit::Failed, message)
    }

    /// The arguments make no sense together.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Returns the failure of a command that found damage or a difference, and leaves out the rest.
    pub(crate) fn not_well(message: impl fmt::Display) -> Self {
        Self::new(Exit::NotWell, message)
    }

    /// The user stopped the command. The message says how far it came.
    pub(crate) fn interrupted(message: impl fmt::Display) -> Self {
        Self::new(Exit::Interrupted, message)
    }

    /// Adds what to do. A remedy that is there already stays.
    pub(crate) fn with_remedy(mut self, remedy: impl fmt::Display) -> Self {
        self.remedy.get_or_insert_with(|| remedy.to_string());
        self
    }

    /// Adds what is true nevertheless.
    pub(crate) fn with_note(mut self, note: &str) -> Self {
        self.message = format!("{}\n{note}", self.message);
        self
    }

    /// Prints the failure, also as JSON to standard output if that is asked for, and returns the exit code.
    pub(crate) fn print(&self, as_json: bool) -> u8 {
        self.print_error();
        if as_json {
            stdout::print(&format!("{:#}\n", self.json()));
        }
        self.exit.code()
    }

    /// Prints the failure to standard error.
    pub(crate) fn print_error(&self) {
        tell!("{}: {}", self.kind(), self.message);
        if let Some(remedy) = &self.remedy {
            tell!("help: {remedy}");
        }
    }

    pub(crate) fn json(&self) -> Value {
        json!({ self.kind(): self.message, "help": self.remedy, "exit_code": self.exit.code() })
    }

    fn kind(&self) -> &'static str {
        match self.exit {
            Exit::Interrupted => "interrupted",
            _ => "error",
        }
    }
}

/// The message alone.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.message.fmt(f)
    }
}

impl From<zarrs_cuda::Error> for Failure {
    fn from(error: zarrs_cuda::Error) -> Self {
        let failure = Self::failed(&error);
        match error {
            zarrs_cuda::Error::BackendUnavailable { .. } => failure.with_remedy(
                "`zarrs-cuda doctor` says what this machine has; without --backend the processor does \
                 what a device cannot",
            ),
            zarrs_cuda::Error::ShardChanged { .. } => failure.with_remedy(
                "`zarrs-cuda consolidate --over-changed` packs the subchunks over such shards",
            ),
            zarrs_cuda::Error::Undecided { .. } => failure.with_remedy(
                "give the process more memory, or let fewer threads work (--threads), and run the same \
                 command again",
            ),
            _ => failure,
        }
    }
}
