//! The caller's side of a run, which takes lines and progress from the run, and may stop it.

use zarrs_cuda::Explanation;

use crate::reencode::ArrayReport;

/// The unit in which progress is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes of decoded elements.
    Bytes,
    /// Things that have this name in the plural, such as "shards".
    Things(&'static str),
}

/// A message of a run to its watcher.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Text for people: what the run is about to do, and notes.
    Line(&'a str),
    /// The stages of the shards of an output, if [`Reencode::explain`](crate::Reencode::explain) asks for them.
    Explanation(&'a Explanation),
    /// An array of a group is complete.
    Array(&'a ArrayReport),
    /// A long step of the run begins.
    Begin {
        /// The work, such as "writing".
        doing: &'static str,
        /// The unit of `total`, and of [`Advance`](Event::Advance).
        unit: Unit,
        /// The number of units in the whole step.
        total: u64,
    },
    /// This number of units more are done in the step.
    Advance(u64),
    /// The step ends, whether all of its units are done or not.
    End,
}

/// Watches a run. The watcher `()` ignores all messages, and never stops a run.
///
/// Several threads of a run call its functions at the same time.
pub trait Watcher: Sync {
    /// Takes a message. A run calls this function often, so it should return soon.
    fn hear(&self, event: Event<'_>);

    /// Returns whether the run should stop. A run that stops leaves its output so that a later run can resume
    /// it.
    fn is_stopping(&self) -> bool {
        false
    }
}

impl Watcher for () {
    fn hear(&self, _: Event<'_>) {}
}

/// A long step of a run, which ends when this value is dropped.
pub(crate) struct Step<'a>(&'a dyn Watcher);

impl<'a> Step<'a> {
    pub(crate) fn begin(
        watcher: &'a dyn Watcher,
        doing: &'static str,
        unit: Unit,
        total: u64,
    ) -> Self {
        watcher.hear(Event::Begin { doing, unit, total });
        Self(watcher)
    }

    /// Tells the watcher that `units` more are done.
    pub(crate) fn add(&self, units: u64) {
        self.0.hear(Event::Advance(units));
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.0.hear(Event::End);
    }
}
