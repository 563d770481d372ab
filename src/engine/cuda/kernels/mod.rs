//! The kernels, each with the launch that it wants.

pub(crate) mod ptx;
#[cfg(test)]
mod testing;
