//! The caller's side of a run: a run tells it lines and progress, and asks it whether to stop.

use zarrs_cuda::Explanation;

use crate::reencode::ArrayReport;

/// The unit in which progress is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes of decoded elements.
    Bytes,
    /// Things with this name, such as "shards".
    Things(&'static str),
}

/// News of a run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Text for people: what the run is about to do, and notes.
    Line(&'a str),
    /// The stages of the shards of an output, if [`Reencode::explain`](crate::Reencode::explain) asks for them.
    Explanation(&'a Explanation),
    /// An array of a group is complete.
    Array(&'a ArrayReport),
    /// A step begins that takes long.
    Begin {
        /// The work, such as "writing".
        doing: &'static str,
        /// The unit of all counts of the step.
        unit: Unit,
        /// The units of the whole step.
        total: u64,
    },
    /// So many units more of the step are done.
    Advance(u64),
    /// The step ends, also one that did not come to its end.
    End,
}

/// Watches a run. `()` watches nothing, and never stops a run.
///
/// Several threads of a run call it at the same time.
pub trait Watcher: Sync {
    /// Takes news. It is called often, so it should return soon.
    fn hear(&self, event: Event<'_>);

    /// Whether the run is to stop. A run that stops leaves its output so that it can go on later.
    fn is_stopping(&self) -> bool {
        false
    }
}

impl Watcher for () {
    fn hear(&self, _: Event<'_>) {}
}

/// A step of a run that takes long, until it is dropped.
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

    /// Counts `units` that are done.
    pub(crate) fn add(&self, units: u64) {
        self.0.hear(Event::Advance(units));
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.0.hear(Event::End);
    }
}
