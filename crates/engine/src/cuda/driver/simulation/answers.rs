//! Launches that ran before, answered from memory.
//!
//! A test of a fault at each operation of a shard runs the same launches hundreds of times, and the emulator takes
//! most of the time of such a test. A launch is a function of the kernel, the values, the bytes of the spans, and how
//! the emulator runs them. So what one wrote is known when all of these come again.
//!
//! The addresses of the spans are no part of that: they are never used twice. A kernel that writes addresses would
//! give other bytes each time, so a launch is answered only after two runs that wrote the same.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use zarrs_cuda_emulator::{Options, Order};

use super::kernels::Argument;
use crate::cuda::driver::{Access, DeviceSpan, Dims};

/// The most bytes of the spans of a launch that is remembered.
const LARGEST: usize = 256 << 10;

/// The most bytes that are remembered in a process.
const MOST: usize = 128 << 20;

/// The known output of a launch that ran.
enum Answer {
    /// The hash of what it wrote, once.
    Once(u64),
    /// Two runs wrote the same: the bytes of all spans that it may write, one after the other.
    Known(Vec<u8>),
}

#[derive(Default)]
struct Answers {
    /// The known output of each launch, by the hash of its kernel, arguments and inputs.
    known: HashMap<u64, Answer>,
    /// The bytes of all known outputs.
    bytes: usize,
}

fn answers() -> MutexGuard<'static, Answers> {
    static ANSWERS: LazyLock<Mutex<Answers>> = LazyLock::new(Mutex::default);
    ANSWERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns where the first byte of `span` is, for the emulator.
fn first(span: &DeviceSpan) -> *mut u8 {
    zarrs_cuda_emulator::device::host(span.memory.0 + span.offset as u64)
}

/// Returns the bytes of `span`.
///
/// # Safety
/// The span is live, and nobody writes to it.
unsafe fn bytes<'a>(span: &DeviceSpan) -> &'a [u8] {
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts(first(span), span.len) }
}

/// Returns the spans that a launch with the arguments may write.
fn spans_written(arguments: &[Argument]) -> impl Iterator<Item = &DeviceSpan> {
    arguments.iter().filter_map(|argument| match argument {
        Argument::Span(span, Access::Write | Access::Update) => Some(span),
        Argument::Span(_, Access::Read) | Argument::Value(_) => None,
    })
}

/// A launch that may be answered.
pub(super) struct Question(u64);

impl Question {
    /// Returns the launch of the kernel `name` as a question; `None` if it is too large, or more is wanted than what
    /// it writes.
    ///
    /// # Safety
    /// The spans of `arguments` are live and nobody writes to them.
    pub(super) unsafe fn new(
        name: &str,
        dims: Dims,
        arguments: &[Argument],
        options: &Options,
    ) -> Option<Self> {
        let spans = arguments.iter().filter_map(|argument| match argument {
            Argument::Span(span, access) => Some((span, *access)),
            Argument::Value(_) => None,
        });
        let len: usize = spans.clone().map(|(span, _)| span.len).sum();
        if len > LARGEST || options.sectors || options.blocks.is_some() {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        let order = match options.order {
            Order::Together => (0, 0),
            Order::Apart => (1, 0),
            Order::Random(seed) => (2, seed),
        };
        (name, dims.grid, dims.block, order, options.checks).hash(&mut hasher);
        for argument in arguments {
            match argument {
                Argument::Value(bytes) => bytes.hash(&mut hasher),
                Argument::Span(span, access) => {
                    // How the spans lie to each other: their memory begins at the begin of a page.
                    let memory = spans
                        .clone()
                        .position(|(other, _)| other.memory == span.memory);
                    (memory, span.offset, *access as u8).hash(&mut hasher);
                    // SAFETY: the caller's.
                    unsafe { bytes(span) }.hash(&mut hasher);
                }
            }
        }
        Some(Self(hasher.finish()))
    }

    /// Writes what the launch wrote before, to the spans of its arguments. Returns whether that is known.
    ///
    /// # Safety
    /// The spans of `arguments`, which the question was made of, are live, and nobody else uses them.
    pub(super) unsafe fn answer(&self, arguments: &[Argument]) -> bool {
        let answers = answers();
        let Some(Answer::Known(written)) = answers.known.get(&self.0) else {
            return false;
        };
        let mut rest = &written[..];
        for span in spans_written(arguments) {
            let (these, after) = rest.split_at(span.len);
            rest = after;
            // SAFETY: the caller's.
            unsafe { first(span).copy_from_nonoverlapping(these.as_ptr(), span.len) };
        }
        true
    }

    /// Remembers what the launch wrote to the spans of its arguments.
    ///
    /// # Safety
    /// The spans of `arguments`, which the question was made of, are live, and nobody writes to them.
    pub(super) unsafe fn remember(self, arguments: &[Argument]) {
        // SAFETY: the caller's.
        let written = || spans_written(arguments).map(|span| unsafe { bytes(span) });
        let mut hasher = DefaultHasher::new();
        written().for_each(|bytes| bytes.hash(&mut hasher));
        let hash = hasher.finish();
        let mut answers = answers();
        match answers.known.insert(self.0, Answer::Once(hash)) {
            // Random tests launch most things once, so the bytes are kept from the second time on.
            Some(Answer::Once(before)) if before == hash => {
                let written: Vec<u8> = written().flatten().copied().collect();
                if answers.bytes + written.len() <= MOST {
                    answers.bytes += written.len();
                    answers.known.insert(self.0, Answer::Known(written));
                }
            }
            _ => {}
        }
    }
}
