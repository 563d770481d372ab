//! The exit codes of the command.

/// The reason why the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Done,
    Failed,
    Usage,
    /// The command did its work, and found damage or differences, or an output that is not complete.
    NotWell,
    Interrupted,
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotWell => 3,
            Self::Interrupted => 130,
        }
    }
}
