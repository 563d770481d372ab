//! The machine: a launch, its blocks, their warps.

mod access;
mod arithmetic;
mod block;
mod global;
mod sectors;
mod shadow;
mod shared;
mod taint;
mod warp;

pub use self::global::{Access, Buffer};
pub use self::sectors::AccessCount;

use std::ops::Range;

use self::block::Block;
use self::global::Global;
use crate::ptx::Kernel;

/// In which order the lanes of a warp run, and the warps and blocks of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Lanes that went different ways meet where their ways do, as on most hardware. Warps and
    /// blocks run one after the other.
    Together,
    /// Lanes that went different ways meet again at an instruction that waits, and not before.
    Apart,
    /// Also lanes that go the same way run apart, by groups of chance; warps take turns of chance,
    /// and blocks are in an order of chance. The number is the seed.
    Random(u64),
}

/// How to run a launch.
#[derive(Clone, Debug)]
pub struct Options {
    /// In which order lanes run.
    pub order: Order,
    /// Whether undefined values and conflicting accesses are errors.
    pub checks: bool,
    /// Whether to count the sectors of each access.
    pub sectors: bool,
    /// After so many instructions of warps the launch is an error: it may not end.
    pub limit: u64,
    /// The blocks to run, of all those of the grid. So a few blocks of a large grid can be run, with
    /// buffers for what they touch.
    pub blocks: Option<Range<u32>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            order: Order::Together,
            checks: false,
            sectors: false,
            limit: u64::MAX,
            blocks: None,
        }
    }
}

/// The value of a parameter: its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Argument<'a>(pub &'a [u8]);

/// The counts of the instructions and of the accesses of a launch.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// How often warps executed each instruction of the kernel.
    pub executed: Vec<u64>,
    /// By the line in the PTX; empty unless [`Options::sectors`] is set.
    pub accesses: Vec<AccessCount>,
}

impl Report {
    /// Returns how many instructions warps executed.
    #[must_use]
    pub fn instructions(&self) -> u64 {
        self.executed.iter().sum()
    }
}

/// Runs `grid` blocks of `kernel`, whose global memory is `buffers`.
///
/// # Errors
/// What the kernel did wrong, and where; or that the arguments are not what it takes. What it wrote
/// before stays written.
///
/// # Safety
/// Each buffer's memory is valid for reads, and for writes unless it is only read. Nothing else
/// uses it during the call.
pub unsafe fn launch(
    kernel: &Kernel,
    grid: u32,
    threads: u32,
    arguments: &[Argument<'_>],
    buffers: &[Buffer],
    options: Options,
) -> Result<Report, String> {
    let name = kernel.name();
    if threads != kernel.threads() {
        return Err(format!(
            "kernel {name} takes blocks of {} threads, not of {threads}",
            kernel.threads()
        ));
    }
    if grid == 0 || grid > i32::MAX.unsigned_abs() {
        return Err(format!("kernel {name} with a grid of {grid} blocks"));
    }
    let sizes = arguments.iter().map(|argument| argument.0.len());
    if !kernel.parameters().eq(sizes.clone()) {
        let takes: Vec<_> = kernel.parameters().collect();
        return Err(format!(
            "kernel {name} takes arguments of {takes:?} bytes, not of {:?}",
            sizes.collect::<Vec<_>>()
        ));
    }
    let global = Global::new(buffers, options.checks)?;
    let mut block = Block::new(kernel, grid, arguments, global, options);
    block.run_all().map_err(|error| {
        let line = error.instruction.map(|number| {
            let (line, text) = (
                kernel.instructions[number as usize].line,
                &kernel.lines[number as usize],
            );
            format!(", line {line} (`{text}`)")
        });
        format!(
            "kernel {name}, block {}{}: {}",
            error.block,
            line.unwrap_or_default(),
            error.message
        )
    })?;
    Ok(block.into_report())
}

/// An error of a kernel, and its place.
#[derive(Debug)]
pub(crate) struct Wrong {
    block: u32,
    instruction: Option<u32>,
    message: String,
}
