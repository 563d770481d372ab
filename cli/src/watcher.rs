//! A run's lines and progress on the terminal, and Ctrl-C for it.

use std::sync::{Mutex, PoisonError};

use zarrs_cuda_convert::{Event, Watcher};

use crate::common::Common;
use crate::outcome::wrapped;
use crate::progress::Progress;
use crate::reports::array_text;
use crate::stop;

/// The terminal as the watcher of a run. While it exists, Ctrl-C asks the run to stop.
pub(crate) struct Terminal<'a> {
    common: &'a Common,
    progress: Mutex<Option<Progress>>,
    _listening: stop::Guard,
}

impl<'a> Terminal<'a> {
    pub(crate) fn new(common: &'a Common) -> Self {
        Self {
            common,
            progress: Mutex::default(),
            _listening: stop::wait_for_me(),
        }
    }
}

impl Watcher for Terminal<'_> {
    fn hear(&self, event: Event<'_>) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Line(line) => self.common.say(line),
            Event::Explanation(explanation) => {
                let text = explanation.to_string();
                self.common.say(wrapped(&text, self.common.columns()));
            }
            Event::Array(report) => self.common.say(array_text(report)),
            Event::Begin { doing, unit, total } => {
                *progress = Some(Progress::new(doing, unit, total));
            }
            Event::Advance(units) => {
                if let Some(progress) = &*progress {
                    progress.add(units);
                }
            }
            Event::End => *progress = None,
            _ => {}
        }
    }

    fn is_stopping(&self) -> bool {
        stop::is_asked()
    }
}
