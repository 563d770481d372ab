//! The kernels, each with the launch that it wants.
