//! The kernels, each with the launch that it wants.

#[cfg(test)]
mod testing;
