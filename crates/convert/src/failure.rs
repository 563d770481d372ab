//! The reason why work stopped, and a remedy.

use std::error::Error;
use std::fmt;

/// The kind of a [`Failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// Something could not be done.
    Failed,
    /// The settings make no sense together, or for this input.
    Usage,
    /// Damage or a difference was found. The run stopped there, and did not look at the rest.
    NotWell,
    /// The watcher asked the run to stop.
    Interrupted,
}

/// The reason why something stopped, and what to do about it.
///
/// The message and the remedy call settings by the options of the command `zarrs-cuda`, as `--overwrite`.
#[derive(Clone, Debug)]
pub struct Failure {
    kind: FailureKind,
    message: String,
    remedy: Option<String>,
}

impl Failure {
    fn new(kind: FailureKind, message: impl fmt::Display) -> Self {
        let message = message.to_string().trim_end().to_string();
        Self {
            kind,
            message,
            remedy: None,
        }
    }

    /// Returns the failure of an action. The message says the action, its object, and the reason.
    #[must_use]
    pub fn failed(message: impl fmt::Display) -> Self {
        Self::new(FailureKind::Failed, message)
    }

    /// Returns a function that turns an error into a failure: "cannot `doing`", followed by the error.
    /// `doing` is, for example, "open the array".
    pub fn to<E: fmt::Display>(doing: impl fmt::Display) -> impl Fn(E) -> Self {
        move |error| Self::failed(format_args!("cannot {doing}: {error}"))
    }

    /// Returns the failure of settings that make no sense together, or for this input.
    #[must_use]
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::new(FailureKind::Usage, message)
    }

    /// Returns the failure for damage, or a difference, at which the run stopped.
    #[must_use]
    pub fn not_well(message: impl fmt::Display) -> Self {
        Self::new(FailureKind::NotWell, message)
    }

    /// Returns the failure of work that the user stopped. The message says how much of the work is done.
    #[must_use]
    pub fn interrupted(message: impl fmt::Display) -> Self {
        Self::new(FailureKind::Interrupted, message)
    }

    /// Adds `remedy`, which tells the user what to do. If there is a remedy already, it stays.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl fmt::Display) -> Self {
        self.remedy.get_or_insert_with(|| remedy.to_string());
        self
    }

    /// Adds `note` to the message in a line of its own: a fact that holds although the work failed.
    #[must_use]
    pub fn with_note(mut self, note: &str) -> Self {
        self.message = format!("{}\n{note}", self.message);
        self
    }

    /// Says in front of the message which thing it is about: "`what`: message".
    #[must_use]
    pub(crate) fn about(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Returns the condition under which the same work may succeed, as the beginning of a remedy; nothing if the user
    /// stopped it.
    pub(crate) fn condition(&self) -> &'static str {
        match self.kind {
            FailureKind::Interrupted => "",
            _ => "when the cause is gone, ",
        }
    }

    /// Replaces the names of settings in the message and the remedy by those of another front end. `name`
    /// maps an option of the command, as `--overwrite`, to the new name, or to `None` to keep it.
    #[must_use]
    pub fn with_names(mut self, name: impl Fn(&str) -> Option<String>) -> Self {
        self.message = renamed(&self.message, &name);
        self.remedy = self.remedy.map(|remedy| renamed(&remedy, &name));
        self
    }

    /// Returns the kind of this failure.
    #[must_use]
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// Returns the message: the action, its object, and the reason.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the remedy, if there is one.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        self.remedy.as_deref()
    }
}

/// Returns `text` in which options are replaced by the names that `name` returns for them.
fn renamed(text: &str, name: &impl Fn(&str) -> Option<String>) -> String {
    let mut renamed = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("--") {
        let (before, behind) = rest.split_at(at);
        let end = behind.find(|c: char| c != '-' && !c.is_ascii_lowercase());
        let (option, after) = behind.split_at(end.unwrap_or(behind.len()));
        renamed += before;
        renamed += &name(option).unwrap_or_else(|| option.to_string());
        rest = after;
    }
    renamed + rest
}

/// Writes the message without the remedy.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.message.fmt(f)
    }
}

impl Error for Failure {}

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

#[cfg(test)]
mod tests {
    use super::Failure;

    #[test]
    fn settings_have_the_names_of_a_front_end() {
        let failure = Failure::failed("out -- is of --resume, --part")
            .with_remedy("start again with --overwrite")
            .with_names(|option| match option {
                "--resume" => Some("resume=True".to_string()),
                "--overwrite" => Some("overwrite=True".to_string()),
                _ => None,
            });
        assert_eq!(failure.message(), "out -- is of resume=True, --part");
        assert_eq!(failure.remedy(), Some("start again with overwrite=True"));
    }
}
