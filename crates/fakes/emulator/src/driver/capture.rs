//! Captures of streams into graphs, as far as they concern other calls.

use std::thread::ThreadId;

use super::codes::{self, Code};

/// The modes of a capture, and of a thread.
pub(super) const GLOBAL: u32 = 0;
pub(super) const THREAD_LOCAL: u32 = 1;
pub(super) const RELAXED: u32 = 2;

/// A capture that has begun and not ended.
#[derive(Debug)]
pub(super) struct Capture {
    pub(super) number: u64,
    /// The handle of the stream in which it began.
    pub(super) origin: u64,
    pub(super) mode: u32,
    pub(super) thread: ThreadId,
    /// The handles of streams that were pulled in, because they waited for an event of the capture.
    pub(super) joined: Vec<u64>,
    pub(super) is_invalid: bool,
}

/// All captures of a process.
#[derive(Debug, Default)]
pub(super) struct Captures {
    begun: u64,
    active: Vec<Capture>,
}

impl Captures {
    pub(super) fn begin(&mut self, origin: u64, mode: u32, thread: ThreadId) {
        self.begun += 1;
        self.active.push(Capture {
            number: self.begun,
            origin,
            mode,
            thread,
            joined: Vec::new(),
            is_invalid: false,
        });
    }

    /// Returns the capture to which a stream belongs.
    pub(super) fn of(&mut self, stream: u64) -> Option<&mut Capture> {
        self.active
            .iter_mut()
            .find(|capture| capture.origin == stream || capture.joined.contains(&stream))
    }

    pub(super) fn by_number(&mut self, number: u64) -> Option<&mut Capture> {
        self.active
            .iter_mut()
            .find(|capture| capture.number == number)
    }

    /// Ends the capture that began in a stream.
    pub(super) fn end(&mut self, origin: u64, thread: ThreadId) -> Result<(), Code> {
        let at = self
            .active
            .iter()
            .position(|capture| capture.origin == origin);
        let capture = &self.active[at.ok_or(codes::INVALID_VALUE)?];
        if capture.mode != RELAXED && capture.thread != thread {
            return Err(codes::STREAM_CAPTURE_UNMATCHED);
        }
        let result = match capture {
            capture if capture.is_invalid => Err(codes::STREAM_CAPTURE_INVALIDATED),
            capture if !capture.joined.is_empty() => Err(codes::STREAM_CAPTURE_UNJOINED),
            _ => Ok(()),
        };
        self.active.retain(|capture| capture.origin != origin);
        result
    }

    /// Checks a call that is "potentially unsafe" while a stream is captured. `mode` is the thread's.
    /// If it is prohibited, the captures that prohibit it become invalid.
    pub(super) fn allow(&mut self, mode: u32, thread: ThreadId) -> Result<(), Code> {
        let mut result = Ok(());
        for capture in &mut self.active {
            let is_own = capture.thread == thread && capture.mode != RELAXED;
            let is_global = capture.thread != thread && capture.mode == GLOBAL;
            let prohibits = match mode {
                GLOBAL => is_own || is_global,
                THREAD_LOCAL => is_own,
                _ => false,
            };
            if prohibits {
                capture.is_invalid = true;
                result = Err(codes::STREAM_CAPTURE_UNSUPPORTED);
            }
        }
        result
    }
}
