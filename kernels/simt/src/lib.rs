//! Runs the kernels of `zarrs_cuda` on the host, for tests.
