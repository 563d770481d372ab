//! Kernels: their PTX, executed on the host.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{LazyLock, Mutex, PoisonError};

use zarrs_cuda_emulator::{Buffer, Kernel, Options, Order, Report};

use super::answers::Question;
use super::modules;
use crate::cuda::driver::{Access, Arg, DeviceSpan, Dims};

pub use zarrs_cuda_emulator::AccessCount;

/// An argument of a kernel, kept until the kernel runs.
pub(super) enum Argument {
    Span(DeviceSpan, Access),
    /// The bytes of a value.
    Value(Vec<u8>),
}

impl Argument {
    pub(super) fn new(argument: &Arg<'_>) -> Self {
        match argument {
            Arg::Span(span, access) => Self::Span(*span, *access),
            Arg::Null => Self::Value(vec![0; 8]),
            Arg::U32(number) => Self::Value(number.to_ne_bytes().to_vec()),
            Arg::U64(number) => Self::Value(number.to_ne_bytes().to_vec()),
            Arg::Struct(bytes) => Self::Value(bytes.to_vec()),
        }
    }
}

/// How many launches that are alike are checked. Of those after them, one of so many is checked, too.
const CHECKED: u32 = 8;

/// Counts a launch of `name` with the dimensions and arguments. Returns whether there were few that were alike
/// in this process: the same values, and spans of the same lengths.
fn is_rare(name: &str, dims: Dims, arguments: &[Argument]) -> bool {
    static COUNTS: LazyLock<Mutex<HashMap<u64, u32>>> = LazyLock::new(Mutex::default);
    let mut hasher = DefaultHasher::new();
    (name, dims.grid, dims.block).hash(&mut hasher);
    for argument in arguments {
        match argument {
            Argument::Span(span, _) => span.len.hash(&mut hasher),
            Argument::Value(bytes) => bytes.hash(&mut hasher),
        }
    }
    let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let count = counts.entry(hasher.finish()).or_default();
    *count += 1;
    *count <= CHECKED || count.is_multiple_of(CHECKED)
}

/// Returns the options of a launch. Lanes that went different ways never meet before they have to.
/// In one launch of eight, everything runs in a random order. Where sectors are counted, lanes meet
/// as on hardware.
///
/// The checks for undefined values and for unordered accesses take the most time. They are made for
/// launches that are rare, or for each launch of a simulation that `checks_each`. The environment
/// variable `ZARRS_CUDA_TEST_CHECKS=0` leaves these checks out.
pub(super) fn options(
    (name, dims, arguments): (&str, Dims, &[Argument]),
    seed: u64,
    launch: u64,
    sectors: bool,
    checks_each: bool,
) -> Options {
    static CHECKS: LazyLock<bool> = LazyLock::new(|| {
        std::env::var("ZARRS_CUDA_TEST_CHECKS").map_or(true, |checks| checks != "0")
    });
    let order = if sectors {
        Order::Together
    } else if launch.is_multiple_of(8) {
        Order::Random(seed ^ launch)
    } else {
        Order::Apart
    };
    Options {
        order,
        checks: *CHECKS && (checks_each || is_rare(name, dims, arguments)),
        sectors,
        limit: 1 << 30,
        ..Options::default()
    }
}

/// Runs a kernel. Returns what it did; `None` if it did the same before, and wrote that. An error says which rule
/// the kernel broke.
///
/// # Safety
/// The spans of `arguments` are live and nobody else uses them.
pub(super) unsafe fn run(
    name: &str,
    dims: Dims,
    arguments: &[Argument],
    options: Options,
) -> Result<Option<(&'static Kernel, Report)>, String> {
    let kernel = modules::kernel(name)?;
    // SAFETY: the caller's.
    let question = unsafe { Question::new(name, dims, arguments, &options) };
    if let Some(question) = &question {
        // SAFETY: the caller's.
        if unsafe { question.answer(arguments) } {
            return Ok(None);
        }
    }
    let mut buffers = Vec::new();
    let values: Vec<Vec<u8>> = arguments
        .iter()
        .map(|argument| match argument {
            Argument::Span(span, access) => {
                let address = span.memory.0 + span.offset as u64;
                buffers.push(Buffer {
                    address,
                    len: span.len,
                    host: zarrs_cuda_emulator::device::host(address),
                    access: match access {
                        Access::Read => zarrs_cuda_emulator::Access::Read,
                        Access::Write => zarrs_cuda_emulator::Access::Write,
                        Access::Update => zarrs_cuda_emulator::Access::Update,
                    },
                });
                address.to_ne_bytes().to_vec()
            }
            Argument::Value(bytes) => bytes.clone(),
        })
        .collect();
    let values: Vec<_> = values
        .iter()
        .map(|bytes| zarrs_cuda_emulator::Argument(bytes))
        .collect();
    // SAFETY: the caller's.
    let report = unsafe {
        zarrs_cuda_emulator::launch(kernel, dims.grid, dims.block, &values, &buffers, options)
    }?;
    modules::executed(kernel, &report);
    if let Some(question) = question {
        // SAFETY: the caller's.
        unsafe { question.remember(arguments) };
    }
    Ok(Some((kernel, report)))
}
