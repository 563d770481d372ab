//! The native module of the Python package `zarrs_cuda`: a thin layer between zarr-python's arrays and the
//! library. `python/zarrs_cuda/` has the rest.
#![deny(unsafe_code)]

mod array;
mod asked;
mod batch;
mod chunks;
mod command;
#[allow(unsafe_code)]
mod device_target;
#[allow(unsafe_code)]
mod device_tensor;
mod devices;
mod elements;
mod error;
mod files;
mod given;
mod maintain;
#[allow(unsafe_code)]
mod memory;
mod multiscale;
mod objects;
mod pipeline;
mod pool;
mod read;
mod store;
mod stream;
#[allow(unsafe_code)]
mod tensor;
mod value;
mod write;
mod writing;

use pyo3::prelude::*;

// numpy counts elements in 64 bits, so `usize` must have 64 bits, too.
const _: () = assert!(usize::BITS == 64);

/// The compiled module, which the package `zarrs_cuda` imports when it first needs it.
#[pymodule]
mod _internal {
    #[pymodule_export]
    use crate::command::{run_command, unknown_variables};
    #[pymodule_export]
    use crate::device_target::memory_of_capsule;
    #[pymodule_export]
    use crate::device_tensor::PyDeviceTensor;
    #[pymodule_export]
    use crate::devices::{
        check_backend, check_settings, is_forked_after_devices, missing_devices, shut_down_devices,
    };
    #[pymodule_export]
    use crate::maintain::{Lease, frames, is_left};
    #[pymodule_export]
    use crate::multiscale::{MultiscaleWriter, write_lower_levels};
    #[pymodule_export]
    use crate::objects::PyObjects;
    #[pymodule_export]
    use crate::pipeline::Native;
    #[pymodule_export]
    use crate::stream::{Reader, Writer, metrics};

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        crate::command::register()
    }
}
