//! Describes the resources of this machine, which explain why shards are encoded on the host or on a device.

use std::path::PathBuf;

use super::consent::Consent;
use crate::options::Options;
use crate::options::memory_limit::memory_limit;
use zarrs_cuda_engine::cuda;
use zarrs_cuda_engine::cuda::nvcomp;

/// The resources of this machine that matter for shards: devices, nvCOMP, memory.
///
/// ```
/// use zarrs_cuda::{Backend, Options};
///
/// let options = Options::default().with_backend(Backend::Host);
/// let machine = zarrs_cuda::machine(&options);
/// let (can_be_kept, sentence) = machine.verdict(&options);
/// println!("{sentence}");
/// assert!(can_be_kept);
/// if let Some(bytes) = machine.memory {
///     println!("{} GiB of memory", bytes >> 30);
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Machine {
    /// The devices that this process sees, or the reason why none can be used.
    pub devices: Result<Vec<MachineDevice>, String>,
    /// The versions of the NVIDIA driver, even if it cannot be used.
    pub driver: MachineDriver,
    /// The library nvCOMP, or the reason why it cannot be used.
    pub nvcomp: Result<MachineNvcomp, String>,
    /// The memory that this process may take, in bytes: the memory of the machine, or the limit of its
    /// control groups. `None` if the system does not tell.
    pub memory: Option<usize>,
}

impl Machine {
    /// Returns whether the settings that `options` and the environment make for arrays that are opened now can be
    /// kept on this machine, and a sentence for people that says which devices arrays use, or why none. They
    /// cannot be kept if they name a device that is missing, or [`Backend::Cuda`](crate::Backend::Cuda) without
    /// a usable device, or if a setting cannot be understood.
    ///
    /// Looks for no device if none was asked for.
    #[must_use]
    pub fn verdict(&self, options: &Options) -> (bool, String) {
        let numbers = self.devices.as_deref().map(|devices| {
            let numbers = devices.iter().map(|device| device.ordinal);
            numbers.collect::<Vec<_>>()
        });
        Consent::decide(options).verdict(match &numbers {
            Ok(numbers) => Ok(numbers.as_slice()),
            Err(why) => Err(why.as_str()),
        })
    }
}

/// The versions of the NVIDIA driver. Its library and its kernel module may differ, for example after
/// an update without a restart, or in a container.
///
/// ```no_run
/// use zarrs_cuda::Options;
///
/// // Asks for a device, so the driver is loaded.
/// let driver = zarrs_cuda::machine(&Options::default().with_devices([0])).driver;
/// match driver.cuda {
///     Some((major, _)) if major >= 12 => println!("the driver {:?} will do", driver.library),
///     Some((major, minor)) => println!("the driver is for CUDA {major}.{minor}: update it"),
///     None => println!("no driver; its kernel module: {:?}", driver.kernel_module),
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MachineDriver {
    /// The file of the driver's library that this process has loaded; `None` if it has loaded none.
    pub library: Option<PathBuf>,
    /// The major and the minor version of CUDA that the driver's library supports (`cuDriverGetVersion`).
    /// `None` if the library is missing, or does not return its version.
    pub cuda: Option<(u32, u32)>,
    /// The version of the kernel module, such as `550.54.14`, from `/proc/driver/nvidia/version` on Linux.
    /// `None` if this file does not exist.
    pub kernel_module: Option<String>,
}

/// An NVIDIA GPU.
///
/// ```no_run
/// use zarrs_cuda::Options;
///
/// // Takes the device with the most memory, among all that this process sees.
/// let machine = zarrs_cuda::machine(&Options::default().with_all_devices());
/// let devices = machine.devices.unwrap_or_default();
/// let options = match devices.iter().max_by_key(|device| device.memory) {
///     Some(device) => Options::default().with_devices([device.ordinal]),
///     None => Options::default(),
/// };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MachineDevice {
    /// The number of the device among the devices that this process sees, which
    /// [`Options::with_devices`](crate::Options::with_devices) takes.
    pub ordinal: usize,
    /// The name of the device.
    pub name: String,
    /// The major and the minor version of its compute capability.
    pub compute_capability: (u32, u32),
    /// The memory of the device, in bytes.
    pub memory: usize,
}

/// The library nvCOMP.
///
/// ```no_run
/// use zarrs_cuda::Options;
///
/// match zarrs_cuda::machine(&Options::default().with_devices([0])).nvcomp {
///     Ok(nvcomp) => println!("nvCOMP {} of {}", nvcomp.version, nvcomp.path.display()),
///     Err(reason) => println!("compressed shards stay on the host: {reason}"),
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MachineNvcomp {
    /// The path from which the library was loaded.
    pub path: PathBuf,
    /// The version of the library, such as `6.0.0`.
    pub version: String,
}

/// Describes this machine. Encodes nothing, and creates no context on a device.
///
/// If a device was [asked for](Options::with_devices), by `options` or otherwise, loads and initialises the
/// CUDA driver, and loads nvCOMP. Otherwise looks for neither, and the result says so. An initialised driver
/// cannot be used in processes that are forked afterwards, so ask in a process of its own if that matters.
///
/// A device or a library that cannot be used is no error: the result has the reason. Within one process the
/// result stays the same: a driver that is installed later is not found.
///
/// ```
/// use zarrs_cuda::{Backend, Options};
///
/// // The host alone: neither the driver nor nvCOMP is looked for.
/// let machine = zarrs_cuda::machine(&Options::default().with_backend(Backend::Host));
/// match machine.devices {
///     Ok(devices) => println!("{} devices", devices.len()),
///     Err(reason) => println!("no device: {reason}"),
/// }
/// # assert!(zarrs_cuda::machine(&Options::default().with_backend(Backend::Host)).devices.is_err());
/// ```
#[must_use]
pub fn machine(options: &Options) -> Machine {
    let consent = Consent::decide(options).devices;
    let asked = consent.map_err(|refusal| refusal.text().to_string());
    let found = asked.clone().and_then(|_| {
        let devices = cuda::devices();
        devices.map_err(|error| error.to_string())
    });
    let devices = found.map(|devices| {
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
        devices,
        driver: MachineDriver {
            library: loaded_driver(),
            cuda: cuda::driver_version(),
            kernel_module: std::fs::read_to_string("/proc/driver/nvidia/version")
                .ok()
                .and_then(|text| kernel_module(&text)),
        },
        nvcomp: asked
            .and_then(|_| nvcomp::of_process(options.nvcomp()))
            .map(|nvcomp| MachineNvcomp {
                path: nvcomp.path().to_path_buf(),
                version: nvcomp.version().to_string(),
            }),
        memory: memory_limit(),
    }
}

/// Returns the file of the driver's library that this process has loaded.
fn loaded_driver() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let paths = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]));
    let is_driver = |path: &&str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        name.starts_with("libcuda.so")
    };
    paths.into_iter().find(is_driver).map(PathBuf::from)
}

/// Returns the version in the first line of `/proc/driver/nvidia/version`: its first word that is made of
/// numbers with dots between them.
fn kernel_module(text: &str) -> Option<String> {
    let is_version = |word: &&str| {
        let mut parts = word.split('.');
        word.contains('.') && parts.all(|part| part.parse::<u32>().is_ok())
    };
    let version = text.lines().next()?.split_whitespace().find(is_version)?;
    Some(version.to_string())
}

#[cfg(test)]
mod tests {
    use super::kernel_module;

    #[test]
    fn both_kernel_modules_say_their_version() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\nGCC version:  gcc version 12.2.0\n";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86  Release Build  (root@host)\n";
        assert_eq!(kernel_module(closed).as_deref(), Some("550.54.14"));
        assert_eq!(kernel_module(open).as_deref(), Some("570.86"));
        for text in ["", "NVRM version: none\n12.2.0\n"] {
            assert_eq!(kernel_module(text), None, "{text}");
        }
    }
}
