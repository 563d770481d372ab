//! PTX: text to instructions.
//!
//! The source is NVIDIA's *Parallel Thread Execution ISA*, version 8.0. What is understood is what
//! NVRTC makes of the kernels: one statement a line, one-dimensional blocks, no functions.

mod forms;
pub(crate) mod instruction;
pub(crate) mod kernel;
mod operand;
mod text;

pub use self::instruction::LANES;
pub use self::kernel::{Kernel, Module};
