//! Executes the kernels of `zarrs_cuda` on the host, for tests: the PTX that ships, not its source.
//!
//! A [`Module`] is the text of a module, decoded. [`launch`] runs one of its kernels, warp by warp,
//! on memory of the host. What a kernel may not do is an error that names the kernel, the block, the
//! lanes and the line of the PTX:
//!
//! - an access outside of the [`Buffer`]s of the launch and of the block's shared memory, or one that
//!   is not aligned to its size;
//! - a barrier, or an operation of a warp, that not all lanes reach, or not at the same place;
//! - an instruction that is not known here.
//!
//! With [`Options::checks`] also:
//!
//! - an undefined value (of a register or of memory that nothing wrote) that becomes an address or a
//!   predicate, or is stored to global memory;
//! - two accesses to one byte that conflict, and that no barrier orders.
//!
//! Undefined is each bit of a register, and each byte of memory. An access that leaves its buffer, or
//! its variable by more than 256 bytes, and meets another one of the launch is not noticed.
//!
//! Since `sm_70`, lanes that went different ways meet again at the next instruction that waits
//! (`.sync`), and nothing says that they meet before. So there are several orders in which lanes may
//! run: see [`Order`].

#![allow(
    clippy::cast_possible_truncation,
    clippy::inline_always,
    clippy::needless_range_loop,
    clippy::too_many_lines,
    reason = "numbers of lanes are small, halves of registers are meant; loops over lanes become vectors where all is inlined; tables"
)]

pub mod device;
pub mod driver;
mod machine;
mod ptx;
mod random;

pub use self::machine::{Access, AccessCount, Argument, Buffer, Options, Order, Report, launch};
pub use self::ptx::{Kernel, LANES, Module};
