//! The kernels as PTX. Written by `cargo xtask kernels`: do not edit.

/// The PTX of one file of kernels.
#[derive(Debug)]
pub(crate) struct Module {
    /// The name of the file, without its extension.
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
}

/// Every kernel, and the module that it is in.
pub(crate) static KERNELS: &[(&str, &Module)] = &[];
