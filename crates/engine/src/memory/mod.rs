//! Allocates buffers, and gives parts of them to several threads.

#[allow(unsafe_code)]
pub mod allocate;

pub mod buffers;
#[allow(unsafe_code)]
pub mod disjoint;
pub(crate) mod fill;
#[allow(unsafe_code)]
pub mod fresh;
pub mod pack;
pub mod pieces;
pub mod spares;
