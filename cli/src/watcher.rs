//! Shows the lines and the progress of a run on the terminal, and lets Ctrl-C stop the run.

use std::sync::{Mutex, PoisonError};

use zarrs_cuda_convert::{Event, Watcher};

use crate::common::Common;
use crate::outcome::wrapped;
use crate::progress::Progress;
use crate::reports::array_text;
use crate::stop;

/// The terminal as the watcher of a run. From the first step of the run on, Ctrl-C asks it to stop.
pub(crate) struct Terminal<'a> {
    common: &'a Common,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    progress: Option<Progress>,
    listening: Option<stop::Guard>,
}

impl<'a> Terminal<'a> {
    pub(crate) fn new(common: &'a Common) -> Self {
        Self {
            common,
            state: Mutex::default(),
        }
    }
}

impl Watcher for Terminal<'_> {
    fn hear(&self, event: Event<'_>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Line(line) => self.common.say(line),
            Event::Explanation(explanation) => {
                let text = explanation.to_string();
                self.common.say(wrapped(&text, self.common.columns()));
            }
            Event::Array(report) => self.common.say(array_text(report)),
            Event::Begin { doing, unit, total } => {
                state.listening.get_or_insert_with(stop::wait_for_me);
                state.progress = Some(Progress::new(doing, unit, total));
            }
            Event::Advance(units) => {
                if let Some(progress) = &state.progress {
                    progress.add(units);
                }
            }
            Event::End => state.progress = None,
            _ => {}
        }
    }

    fn is_stopping(&self) -> bool {
        stop::is_asked()
    }
}
