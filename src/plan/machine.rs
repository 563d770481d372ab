//! What this machine has, for people who wonder why shards are encoded where they are.

use std::path::PathBuf;

use crate::Options;
use crate::engine::cuda::{self, nvcomp};
use crate::memory_limit::memory_limit;

/// What this machine has for shards: devices, compressors for them, memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Machine {
    /// The devices that this process sees, or why none can be used.
    pub devices: Result<Vec<MachineDevice>, String>,
    /// nvCOMP, or why it cannot be used.
    pub nvcomp: Result<MachineNvcomp, String>,
    /// The memory that this process may take, in bytes: the machine's, or what its control groups
    /// allow. `None` if the system does not tell.
    pub memory: Option<usize>,
}

/// An NVIDIA GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MachineDevice {
    /// Its number among the devices that this process sees: what
    /// [`Options::with_devices`](crate::Options::with_devices) takes.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// The major and the minor version of its compute capability.
    pub compute_capability: (u32, u32),
    /// Its memory, in bytes.
    pub memory: usize,
}

/// The library nvCOMP.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MachineNvcomp {
    /// The path by which it was loaded.
    pub path: PathBuf,
    /// Its version, such as `6.0.0`.
    pub version: String,
}

/// Looks at this machine: loads the CUDA driver and nvCOMP, if they are there. Encodes nothing.
///
/// What cannot be used is no error, but the reason. The result for a process stays: a driver that is
/// installed later is not seen.
#[must_use]
pub fn machine(options: &Options) -> Machine {
    let devices = cuda::devices().map(|devices| {
        let infos = devices.infos();
        let devices = infos.map(|info| MachineDevice {
            ordinal: info.ordinal,
            name: info.name.clone(),
            compute_capability: info.compute_capability,
            memory: info.total_memory,
        });
        devices.collect()
    });
    Machine {
        devices: devices.map_err(|error| error.to_string()),
        nvcomp: nvcomp::of_process(options.nvcomp()).map(|nvcomp| MachineNvcomp {
            path: nvcomp.path().to_path_buf(),
            version: nvcomp.version().to_string(),
        }),
        memory: memory_limit(),
    }
}
