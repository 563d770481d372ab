//! The CUDA engine.

#![allow(dead_code)] // until the engine uses all of it

mod driver;
#[cfg(test)]
#[allow(unsafe_code)]
mod gpu;
#[allow(unsafe_code)]
mod kernels;
