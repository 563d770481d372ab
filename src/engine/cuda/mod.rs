//! The CUDA engine.

#![allow(dead_code)] // until the engine uses all of it

mod driver;
#[allow(unsafe_code)]
mod kernels;
