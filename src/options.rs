//! Runtime options: they never reach array metadata.

use std::fmt;

/// Where shards are encoded and decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// Whatever is best for the shard at hand. Never fails for want of a GPU.
    #[default]
    Auto,
    /// This machine's CPU.
    Host,
    /// An NVIDIA GPU, or an error that names what is missing.
    ///
    /// It takes chains without a compressor (`bytes`, `transpose`, `crc32c`). The choice governs
    /// writing, and reading of whole shards; parts of shards are read on the host.
    Cuda,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Host => "host",
            Self::Cuda => "CUDA",
        })
    }
}

/// How the codec works: given to [`register`](crate::register) for every array, or to one array
/// through zarrs' [`CodecSpecificOptions`](zarrs_codec::CodecSpecificOptions).
///
/// ```
/// use zarrs_cuda::{Backend, Options};
///
/// let options = Options::default().with_backend(Backend::Host);
/// assert_eq!(options.backend(), Backend::Host);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    backend: Backend,
    huge_pages: bool,
    devices: Option<Vec<usize>>,
    device_memory: Option<usize>,
    pinned_memory: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            backend: Backend::default(),
            huge_pages: true,
            devices: None,
            device_memory: None,
            pinned_memory: 1 << 30,
        }
    }
}

impl Options {
    /// Where shards are encoded and decoded. Default: [`Backend::Auto`].
    #[must_use]
    pub fn with_backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Where shards are encoded and decoded.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Whether to ask the operating system for huge pages behind outputs of several MiB
    /// (`madvise` on Linux; elsewhere this changes nothing). Default: `true`.
    #[must_use]
    pub fn with_huge_pages(mut self, huge_pages: bool) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// Whether to ask the operating system for huge pages.
    #[must_use]
    pub fn huge_pages(&self) -> bool {
        self.huge_pages
    }

    /// The CUDA devices to use, by the numbers that the driver gives them in this process
    /// (`CUDA_VISIBLE_DEVICES` applies). Default: all that can be used.
    ///
    /// A number that no device has, or whose device is too old, is an error under
    /// [`Backend::Cuda`], and a reason to use the host under [`Backend::Auto`].
    #[must_use]
    pub fn with_devices(mut self, devices: impl Into<Vec<usize>>) -> Self {
        self.devices = Some(devices.into());
        self
    }

    /// The CUDA devices to use; `None` for all of them.
    #[must_use]
    pub fn devices(&self) -> Option<&[usize]> {
        self.devices.as_deref()
    }

    /// The most memory to take on each device for buffers, in bytes. Default: a quarter of what is
    /// free when the device is first used. It is taken when it is needed, and given back when it is
    /// idle.
    ///
    /// What the driver takes on a device for its context and for the compiled kernels comes on top,
    /// and stays. All arrays of a process share the buffers: those that were taken under other
    /// options count as well, so that an array of a small budget may wait for one of a large budget.
    #[must_use]
    pub fn with_device_memory(mut self, bytes: usize) -> Self {
        self.device_memory = Some(bytes);
        self
    }

    /// The most memory to take on each device for buffers, in bytes; `None` for a quarter of what is free.
    #[must_use]
    pub fn device_memory(&self) -> Option<usize> {
        self.device_memory
    }

    /// The most page-locked host memory to take for each device, in bytes. Default: 1 GiB. It is
    /// shared as [device memory](Self::with_device_memory) is.
    #[must_use]
    pub fn with_pinned_memory(mut self, bytes: usize) -> Self {
        self.pinned_memory = bytes;
        self
    }

    /// The most page-locked host memory to take for each device, in bytes.
    #[must_use]
    pub fn pinned_memory(&self) -> usize {
        self.pinned_memory
    }
}
