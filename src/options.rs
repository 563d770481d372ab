//! Runtime options: they never reach array metadata.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::memory_limit::memory_limit;
use crate::write_strategy::{CompactionCallback, CompactionRequest, WriteStrategy};

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
    /// It takes `bytes`, `transpose`, `crc32c` and, where NVIDIA's nvCOMP library is found, one of
    /// `zstd`, `gzip` and `blosc` (with lz4 or zstd), at the levels of a [`LevelPolicy`]. The choice
    /// governs writing, and reading of whole shards; those with a compressor only if
    /// [`Options::with_device_decode`] says so. Others, and parts of shards, are read on the host.
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

/// Up to which level each compressor goes to a device.
///
/// A device compresses with nvCOMP, which has no levels for zstd and for Blosc's compressors, and
/// few for gzip: roughly the ratio of the lowest levels, at a speed that no CPU has. So who asked
/// for a low level gets about what was asked for, and who asked for a high one would not.
///
/// ```
/// use zarrs_cuda::LevelPolicy;
///
/// let policy = LevelPolicy::default();
/// assert_eq!((policy.zstd(), policy.gzip(), policy.blosc()), (3, 9, 5));
/// let all = policy.with_zstd(22).with_blosc(9);
/// assert_eq!(all.zstd(), 22);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LevelPolicy {
    zstd: i32,
    gzip: u32,
    blosc: u8,
}

impl Default for LevelPolicy {
    fn default() -> Self {
        Self {
            zstd: 3,
            gzip: 9,
            blosc: 5,
        }
    }
}

impl LevelPolicy {
    /// The highest level of the zstd codec that goes to a device. Default: 3.
    #[must_use]
    pub fn with_zstd(mut self, level: i32) -> Self {
        self.zstd = level;
        self
    }

    /// The highest level of the zstd codec that goes to a device.
    #[must_use]
    pub fn zstd(&self) -> i32 {
        self.zstd
    }

    /// The highest level of the gzip codec that goes to a device. Default: 9, all of them; level 0,
    /// which compresses nothing, never does.
    #[must_use]
    pub fn with_gzip(mut self, level: u32) -> Self {
        self.gzip = level;
        self
    }

    /// The highest level of the gzip codec that goes to a device.
    #[must_use]
    pub fn gzip(&self) -> u32 {
        self.gzip
    }

    /// The highest level of the blosc codec that goes to a device, with lz4 or zstd. Default: 5,
    /// which is Blosc's own; level 0, which compresses nothing, never does.
    #[must_use]
    pub fn with_blosc(mut self, level: u8) -> Self {
        self.blosc = level;
        self
    }

    /// The highest level of the blosc codec that goes to a device.
    #[must_use]
    pub fn blosc(&self) -> u8 {
        self.blosc
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
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a setting of its own"
)]
pub struct Options {
    backend: Backend,
    huge_pages: bool,
    devices: Option<Vec<usize>>,
    device_memory: Option<usize>,
    pinned_memory: usize,
    host_memory: Option<usize>,
    device_levels: LevelPolicy,
    nvcomp: Option<PathBuf>,
    device_decode: bool,
    untrusted_data: bool,
    write_strategy: WriteStrategy,
    max_dead_fraction: f64,
    on_compaction_request: Option<CompactionCallback>,
    turn_limit: Duration,
}

/// The share of the machine's memory that a writer may take, unless the options say otherwise.
const DEFAULT_SHARE: usize = 4;

/// What there is where nobody says, in bytes.
const UNKNOWN_MEMORY: usize = 8 << 30;

impl Default for Options {
    fn default() -> Self {
        Self {
            backend: Backend::default(),
            huge_pages: true,
            devices: None,
            device_memory: None,
            pinned_memory: 1 << 30,
            host_memory: None,
            device_levels: LevelPolicy::default(),
            nvcomp: None,
            device_decode: false,
            untrusted_data: false,
            write_strategy: WriteStrategy::default(),
            max_dead_fraction: 0.25,
            on_compaction_request: None,
            turn_limit: Duration::from_secs(10),
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
    /// An [`ArrayWriter`](crate::writer::ArrayWriter) on a device takes at most as much for itself,
    /// beside them.
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

    /// The most pageable host memory that an [`ArrayWriter`](crate::writer::ArrayWriter) takes for its
    /// buffers, in bytes. Default: a quarter of what the machine has, or of what the control groups of
    /// the process (a container, a job) allow; 2 GiB where nobody says. Each writer has a budget of its
    /// own.
    #[must_use]
    pub fn with_host_memory(mut self, bytes: usize) -> Self {
        self.host_memory = Some(bytes);
        self
    }

    /// The most pageable host memory that an [`ArrayWriter`](crate::writer::ArrayWriter) takes for its
    /// buffers, in bytes.
    #[must_use]
    pub fn host_memory(&self) -> usize {
        self.host_memory
            .unwrap_or_else(|| memory_limit().unwrap_or(UNKNOWN_MEMORY) / DEFAULT_SHARE)
    }

    /// Up to which level each compressor goes to a device. Default: [`LevelPolicy::default`].
    #[must_use]
    pub fn with_device_levels(mut self, levels: LevelPolicy) -> Self {
        self.device_levels = levels;
        self
    }

    /// Up to which level each compressor goes to a device.
    #[must_use]
    pub fn device_levels(&self) -> LevelPolicy {
        self.device_levels
    }

    /// The file of NVIDIA's nvCOMP library, version 5 or 6, which compresses on a device. Default:
    /// the environment variable `ZARRS_CUDA_NVCOMP`, then `libnvcomp.so.6` and `libnvcomp.so.5` as
    /// the loader finds them, then the package `nvidia-libnvcomp-cu12` of the Python environment.
    #[must_use]
    pub fn with_nvcomp(mut self, file: impl Into<PathBuf>) -> Self {
        self.nvcomp = Some(file.into());
        self
    }

    /// The file of the nvCOMP library; `None` to look for one.
    #[must_use]
    pub fn nvcomp(&self) -> Option<&Path> {
        self.nvcomp.as_deref()
    }

    /// Whether whole shards of chains with a compressor (zstd, gzip, blosc with lz4 or zstd) are
    /// decoded on a device, where [`backend`](Self::with_backend) takes one for them. Default:
    /// `false`: the host decodes them.
    ///
    /// **For trusted data only.** nvCOMP's decompressors are undefined on corrupt input: they may
    /// hang, or fault, which costs this process the device. Before they run, the host checks the
    /// headers, sizes and borders of frames, blocks and streams, and compares the checksums of
    /// `crc32c` codecs behind the compressor, unless zarrs is told not to validate checksums. What is
    /// within a compressed stream it does not check. A checksum finds accidental damage; it does not
    /// make data safe that somebody made to do harm. So the data must be what an encoder wrote.
    ///
    /// [`LevelPolicy`] and the limits of compressors apply to decoding, too: what this machine would
    /// not compress on a device, it does not decompress there.
    ///
    /// The checks run on the calling thread. They read each encoded byte once for every checksum
    /// behind the compressor, and once for gzip, whose members do not say where they end; of other
    /// formats only the headers.
    ///
    /// Some legal frames are not for a device: gzip of several members, zstd without its content
    /// size, with a checksum or a dictionary, Blosc frames that are not compressed, whose blocks are
    /// split into several streams (as C-Blosc does with lz4 and elements of 2 to 16 bytes), or that
    /// have other compressors inside. The host decodes shards that have one, also under
    /// [`Backend::Cuda`], and those that turn out to be corrupt: then its result, or its error, is
    /// what is returned. [`Metrics::fallbacks`](crate::Metrics::fallbacks) counts them.
    #[must_use]
    pub fn with_device_decode(mut self, device_decode: bool) -> Self {
        self.device_decode = device_decode;
        self
    }

    /// Whether whole shards of chains with a compressor are decoded on a device.
    #[must_use]
    pub fn device_decode(&self) -> bool {
        self.device_decode
    }

    /// Whether to refuse to decode arrays of which a hostile shard could take more memory than the
    /// array's metadata justify. Default: `false`: everything is decoded that can be.
    ///
    /// Such an array can be opened, and whole shards of it can be written. It does not hold for the
    /// chunks of a [`SparseShardStore`](crate::storage::SparseShardStore) or a
    /// [`ShardedStore`](crate::storage::ShardedStore), which zarrs decodes.
    ///
    /// What is decoded with this option takes memory in proportion to the array's shards and to what
    /// the store has. Reading from any other array is an error, and so are partial writes of it, which
    /// read first. The error names the first inner codec that is not bounded:
    ///
    /// - codecs that neither this crate nor zarrs knows, unless they are checksums or filters; of zarrs'
    ///   codecs `numcodecs.bz2`, `gdeflate`, `zfp` and `numcodecs.zfpy`, and `numcodecs.pcodec` without
    ///   this crate's feature `pcodec`;
    /// - any compressor of elements of variable length: no metadata say how long they may be.
    ///
    /// The metadata themselves are trusted: an array of huge shards takes huge memory. Whoever opens
    /// arrays of others looks at the shard shape first.
    #[must_use]
    pub fn with_untrusted_data(mut self, untrusted_data: bool) -> Self {
        self.untrusted_data = untrusted_data;
        self
    }

    /// Whether arrays are refused of which a hostile shard could take more memory than the array's
    /// metadata justify.
    #[must_use]
    pub fn untrusted_data(&self) -> bool {
        self.untrusted_data
    }

    /// Where partial writes put what they change. Default: [`WriteStrategy::Auto`].
    #[must_use]
    pub fn with_write_strategy(mut self, write_strategy: WriteStrategy) -> Self {
        self.write_strategy = write_strategy;
        self
    }

    /// Where partial writes put what they change.
    #[must_use]
    pub fn write_strategy(&self) -> WriteStrategy {
        self.write_strategy
    }

    /// How much of a shard may be bytes that nothing uses, before a partial write asks for
    /// compaction: a fraction of its size, 0 to 1. Default: 0.25. Others are taken as the nearest of
    /// these, and what is not a number as the default.
    ///
    /// A shard of [`WriteStrategy::Slots`] never asks: its unused bytes do not add up.
    #[must_use]
    pub fn with_max_dead_fraction(mut self, fraction: f64) -> Self {
        self.max_dead_fraction = if fraction.is_nan() {
            Self::default().max_dead_fraction
        } else {
            fraction.clamp(0.0, 1.0)
        };
        self
    }

    /// How much of a shard may be bytes that nothing uses.
    #[must_use]
    pub fn max_dead_fraction(&self) -> f64 {
        self.max_dead_fraction
    }

    /// Call `callback` on the writing thread, after each partial write that leaves a shard with more
    /// unused bytes than [`max_dead_fraction`](Self::with_max_dead_fraction). Default: nothing is
    /// called. [`Metrics::compaction_requests`](crate::Metrics::compaction_requests) counts them in
    /// any case.
    #[must_use]
    pub fn with_compaction_callback(
        mut self,
        callback: impl Fn(&CompactionRequest) + Send + Sync + 'static,
    ) -> Self {
        self.on_compaction_request = Some(CompactionCallback(Arc::new(callback)));
        self
    }

    /// What to call when a shard should be compacted.
    pub(crate) fn compaction_callback(&self) -> Option<&CompactionCallback> {
        self.on_compaction_request.as_ref()
    }

    /// The longest time that a partial write waits for other partial writes of this process, before
    /// it is refused. Default: 10 seconds.
    ///
    /// Writes that update one shard where it is stored take turns. So do writes that create shards of
    /// one array, because a codec cannot tell absent shards apart. A refused write has written
    /// nothing of its shard, and may be tried again: zarrs returns a [`CodecError::IOError`] of the kind
    /// [`ResourceBusy`](std::io::ErrorKind::ResourceBusy).
    ///
    /// [`CodecError::IOError`]: zarrs_codec::CodecError::IOError
    #[must_use]
    pub fn with_turn_limit(mut self, limit: Duration) -> Self {
        self.turn_limit = limit;
        self
    }

    /// The longest time that a partial write waits for other partial writes of this process.
    #[must_use]
    pub fn turn_limit(&self) -> Duration {
        self.turn_limit
    }
}
