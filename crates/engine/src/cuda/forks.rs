//! The process that owns a value, and its forked children.

/// The process that owns a value. A forked child has a copy of the value and must not use it. The handles of
/// a device are invalid in the child, and a lock may be held by a thread that the child does not have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process(u32);

impl Process {
    /// Returns whether this process is a forked child of the owner.
    pub(super) fn forked(self) -> bool {
        self.0 != std::process::id()
    }
}

impl Default for Process {
    /// Returns the current process.
    fn default() -> Self {
        Self(std::process::id())
    }
}
