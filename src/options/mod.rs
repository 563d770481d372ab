//! Runtime options, which are never stored in array metadata.

mod check;
pub(crate) mod memory_limit;
mod write_strategy;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use check::Check;
use memory_limit::memory_limit;
use write_strategy::CompactionCallback;
pub use write_strategy::{CompactionRequest, WriteStrategy};
use zarrs_cuda_engine::cuda::HighestLevels;

/// The place where shards are encoded and decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// The best place for each shard. Never fails because a GPU is missing.
    ///
    /// Shards with a compressor go to a device if they have at least 1 MiB and 16 subchunks. All other shards
    /// stay on the host. If a device fails, the host encodes or decodes the shard instead.
    #[default]
    Auto,
    /// The CPU of this machine.
    Host,
    /// An NVIDIA GPU. If a device cannot encode a shard, the error names the reason.
    ///
    /// A device runs `bytes`, `transpose`, `crc32c` and, if NVIDIA's nvCOMP library is found, one of `zstd`,
    /// `gzip` and `blosc` (with lz4 or zstd), at the levels of a [`LevelPolicy`].
    ///
    /// The backend applies to writing, and to reading whole shards. Shards with a compressor are
    /// read on the host unless [`Options::with_device_decode`] is set. Parts of shards are always
    /// read on the host.
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

/// The highest level of each compressor at which shards go to a device.
///
/// A device compresses with nvCOMP, which has no levels for zstd and for Blosc's compressors, and few for
/// gzip. Its ratio is roughly the ratio of the lowest levels. So a device can replace a low level, but not a
/// high level.
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
        let HighestLevels { zstd, gzip, blosc } = HighestLevels::default();
        Self { zstd, gzip, blosc }
    }
}

impl LevelPolicy {
    /// Sets the highest level of the `zstd` codec that goes to a device. Default: 3.
    #[must_use]
    pub fn with_zstd(mut self, level: i32) -> Self {
        self.zstd = level;
        self
    }

    /// Returns the highest level of the `zstd` codec that goes to a device.
    #[must_use]
    pub fn zstd(&self) -> i32 {
        self.zstd
    }

    /// Sets the highest level of the `gzip` codec that goes to a device. Default: 9, which is all
    /// levels.
    ///
    /// Level 0, which compresses nothing, never goes to a device.
    #[must_use]
    pub fn with_gzip(mut self, level: u32) -> Self {
        self.gzip = level;
        self
    }

    /// Returns the highest level of the `gzip` codec that goes to a device.
    #[must_use]
    pub fn gzip(&self) -> u32 {
        self.gzip
    }

    /// Sets the highest level of the `blosc` codec, with lz4 or zstd, that goes to a device.
    /// Default: 5, Blosc's own default.
    ///
    /// Level 0, which compresses nothing, never goes to a device.
    #[must_use]
    pub fn with_blosc(mut self, level: u8) -> Self {
        self.blosc = level;
        self
    }

    /// Returns the highest level of the `blosc` codec that goes to a device.
    #[must_use]
    pub fn blosc(&self) -> u8 {
        self.blosc
    }
}

/// Settings of the codec at run time.
///
/// Give them to [`register`](crate::register) for all arrays, to
/// [`CudaShardingCodecBuilder::options`](crate::CudaShardingCodecBuilder::options) for one array,
/// or to one array through zarrs' [`CodecSpecificOptions`](zarrs_codec::CodecSpecificOptions). The
/// [guide](crate::guide::tuning) says when to change an option.
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
    device_idle_time: Option<Duration>,
    device_times: bool,
    host_memory: Option<usize>,
    device_levels: LevelPolicy,
    nvcomp: Option<PathBuf>,
    device_decode: bool,
    device_check: Check,
    untrusted_data: bool,
    write_strategy: WriteStrategy,
    max_dead_fraction: f64,
    on_compaction_request: Option<CompactionCallback>,
    turn_limit: Duration,
}

/// The default memory of all open writers is the memory of the machine divided by this number.
const DEFAULT_DIVISOR: usize = 4;

/// The number of bytes of memory to assume for the machine if the system does not report them.
const UNKNOWN_MEMORY: usize = 8 << 30;

impl Default for Options {
    fn default() -> Self {
        Self {
            backend: Backend::default(),
            huge_pages: true,
            devices: None,
            device_memory: None,
            pinned_memory: 1 << 30,
            device_idle_time: Some(Duration::from_mins(5)),
            device_times: false,
            host_memory: None,
            device_levels: LevelPolicy::default(),
            nvcomp: None,
            device_decode: false,
            device_check: Check::default(),
            untrusted_data: false,
            write_strategy: WriteStrategy::default(),
            max_dead_fraction: 0.25,
            on_compaction_request: None,
            turn_limit: Duration::from_secs(10),
        }
    }
}

impl Options {
    /// Sets the place where shards are encoded and decoded. Default: [`Backend::Auto`].
    #[must_use]
    pub fn with_backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Returns the place where shards are encoded and decoded.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Sets whether to ask the operating system for huge pages for outputs of several MiB. Default:
    /// `true`.
    ///
    /// This uses `madvise` on Linux, and changes nothing on other systems.
    #[must_use]
    pub fn with_huge_pages(mut self, huge_pages: bool) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// Returns whether to ask the operating system for huge pages.
    #[must_use]
    pub fn huge_pages(&self) -> bool {
        self.huge_pages
    }

    /// Sets the CUDA devices to use, by the driver's numbers in this process
    /// (`CUDA_VISIBLE_DEVICES` applies). Default: all usable devices.
    ///
    /// If a number has no device, or a device that is too old, [`Backend::Cuda`] returns an error and
    /// [`Backend::Auto`] uses the host.
    #[must_use]
    pub fn with_devices(mut self, devices: impl Into<Vec<usize>>) -> Self {
        self.devices = Some(devices.into());
        self
    }

    /// Returns the CUDA devices to use, by number; `None` for all.
    #[must_use]
    pub fn devices(&self) -> Option<&[usize]> {
        self.devices.as_deref()
    }

    /// Sets the largest number of bytes that buffers take on each device. Default: a quarter of the memory
    /// that is free when the device is first used.
    ///
    /// Buffers are allocated when they are needed, and released after they have been idle. The driver takes
    /// more memory, for its context and the compiled kernels.
    ///
    /// All arrays of a process share the buffers. Buffers that were allocated under other options
    /// count as well, so an array with a small budget may wait for an array with a large one. An
    /// [`ArrayWriter`](crate::writer::ArrayWriter) on a device has a budget of this size to itself.
    #[must_use]
    pub fn with_device_memory(mut self, bytes: usize) -> Self {
        self.device_memory = Some(bytes);
        self
    }

    /// Returns the largest number of bytes that buffers take on each device; `None` for a quarter of the free
    /// memory.
    #[must_use]
    pub fn device_memory(&self) -> Option<usize> {
        self.device_memory
    }

    /// Sets the largest number of bytes of page-locked host memory for each device. Default: 1 GiB.
    ///
    /// The memory is shared like [device memory](Self::with_device_memory).
    #[must_use]
    pub fn with_pinned_memory(mut self, bytes: usize) -> Self {
        self.pinned_memory = bytes;
        self
    }

    /// Returns the largest number of bytes of page-locked host memory for each device.
    #[must_use]
    pub fn pinned_memory(&self) -> usize {
        self.pinned_memory
    }

    /// Sets the time after which idle buffers on devices are freed; `None` to keep them as long as the
    /// process lives. Default: five minutes.
    ///
    /// Freeing a buffer makes the device wait for all work of the process on it.
    /// [`release_idle_memory`](crate::release_idle_memory) frees idle buffers at once.
    #[must_use]
    pub fn with_device_idle_time(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.device_idle_time = time.into();
        self
    }

    /// Returns the time after which idle buffers on devices are freed; `None` if they are kept as long as the
    /// process lives.
    #[must_use]
    pub fn device_idle_time(&self) -> Option<Duration> {
        self.device_idle_time
    }

    /// Sets whether [`metrics`](crate::metrics) have the times of stages on devices. Default:
    /// `false`.
    ///
    /// Measuring a time costs the device and the driver two events for each stage of each slab.
    #[must_use]
    pub fn with_device_times(mut self, times: bool) -> Self {
        self.device_times = times;
        self
    }

    /// Returns whether [`metrics`](crate::metrics) have the times of stages on devices.
    #[must_use]
    pub fn device_times(&self) -> bool {
        self.device_times
    }

    /// Sets the largest number of bytes of pageable host memory that the buffers of all open
    /// [`ArrayWriter`](crate::writer::ArrayWriter)s of the process take: they share one budget. It also
    /// limits the encoded subchunks of a call of an [`ArrayReader`](crate::reader::ArrayReader), unless
    /// [`with_memory`](crate::reader::ArrayReaderBuilder::with_memory) sets another limit.
    ///
    /// At the limit
    /// - a writer encodes fewer slices together, and [`append`](crate::writer::ArrayWriter::append)
    ///   waits until a buffer is free. If the smallest buffers take more, building the writer fails
    ///   with [`WriterError::Memory`](crate::writer::WriterError::Memory), which has the number that
    ///   would do;
    /// - a reader makes smaller requests, of one subchunk at least.
    ///
    /// Not limited are shards that are encoded or decoded through zarrs' calls, outputs of reads, and
    /// memory of devices.
    ///
    /// Default: a quarter of the machine's memory, or of the limit of the process's control groups
    /// (a container, a job) or of its addresses (`ulimit -v`); 2 GiB if the system reports none.
    #[must_use]
    pub fn with_host_memory(mut self, bytes: usize) -> Self {
        self.host_memory = Some(bytes);
        self
    }

    /// Returns the largest number of bytes of pageable host memory that the buffers of all open writers take:
    /// see [`with_host_memory`](Self::with_host_memory).
    #[must_use]
    pub fn host_memory(&self) -> usize {
        self.host_memory
            .unwrap_or_else(|| memory_limit().unwrap_or(UNKNOWN_MEMORY) / DEFAULT_DIVISOR)
    }

    /// Sets the highest level of each compressor that goes to a device. Default:
    /// [`LevelPolicy::default`].
    #[must_use]
    pub fn with_device_levels(mut self, levels: LevelPolicy) -> Self {
        self.device_levels = levels;
        self
    }

    /// Returns the highest level of each compressor that goes to a device.
    #[must_use]
    pub fn device_levels(&self) -> LevelPolicy {
        self.device_levels
    }

    /// Sets the file of NVIDIA's nvCOMP library, version 5 or 6, which compresses on a device.
    ///
    /// Default: the environment variable `ZARRS_CUDA_NVCOMP`; then `libnvcomp.so.6` and
    /// `libnvcomp.so.5`, as the loader finds them; then the package `nvidia-libnvcomp-cu12` of the
    /// Python environment.
    #[must_use]
    pub fn with_nvcomp(mut self, file: impl Into<PathBuf>) -> Self {
        self.nvcomp = Some(file.into());
        self
    }

    /// Returns the file of the nvCOMP library; `None` to search for it.
    #[must_use]
    pub fn nvcomp(&self) -> Option<&Path> {
        self.nvcomp.as_deref()
    }

    /// Sets whether whole shards with a compressor (zstd, gzip, blosc with lz4 or zstd) are decoded
    /// on a device, if the [backend](Self::with_backend) uses one for them. Default: `false`: the
    /// host decodes them.
    ///
    /// **For trusted data only.** nvCOMP's decompressors are undefined on corrupt input: they may
    /// hang, or fault, which costs this process the device. The data must come from an encoder.
    ///
    /// Before a decompressor runs, the host checks
    ///
    /// - the headers, sizes and borders of frames, blocks and streams, but not the content of a
    ///   compressed stream;
    /// - the checksums of `crc32c` codecs behind the compressor, unless zarrs is told not to
    ///   validate checksums. A checksum finds accidental damage. It does not make maliciously
    ///   crafted data safe.
    ///
    /// The checks run on the calling thread. They read each encoded byte once for every checksum
    /// behind the compressor, and once for gzip, whose members do not state where they end. For
    /// other formats they read only the headers.
    ///
    /// [`LevelPolicy`] and the limits of compressors apply to decoding too: a shard that would not
    /// be compressed on a device is not decompressed there.
    ///
    /// Some legal frames cannot be decoded on a device:
    ///
    /// - gzip of several members;
    /// - zstd without its content size, or with a checksum or a dictionary;
    /// - Blosc frames that are not compressed, that have other compressors inside, or whose blocks
    ///   are split into several streams (as C-Blosc does with lz4 and elements of 2 to 16 bytes).
    ///
    /// The host decodes shards with such a frame, even under [`Backend::Cuda`]. It also decodes
    /// shards that turn out to be corrupt; the host's result, or its error, is returned.
    /// [`Metrics::fallbacks`](crate::Metrics::fallbacks) counts both.
    #[must_use]
    pub fn with_device_decode(mut self, device_decode: bool) -> Self {
        self.device_decode = device_decode;
        self
    }

    /// Returns whether whole shards with a compressor are decoded on a device.
    #[must_use]
    pub fn device_decode(&self) -> bool {
        self.device_decode
    }

    /// Sets how often the results of devices are compared with those of the host. Default: [`Check::Warmup`].
    ///
    /// A device that returned a wrong result is not used any more in this process. Under [`Backend::Auto`] the
    /// host encodes the shard again. Under [`Backend::Cuda`] the shard is an error, and an
    /// [`ArrayWriter`](crate::writer::ArrayWriter) stops under both. The error says how much was returned without
    /// a comparison.
    #[must_use]
    pub fn with_device_check(mut self, check: Check) -> Self {
        self.device_check = check;
        self
    }

    /// Returns how often the results of devices are compared with those of the host.
    #[must_use]
    pub fn device_check(&self) -> Check {
        self.device_check
    }

    /// Sets whether to refuse to decode arrays whose hostile shards could take more memory than the
    /// array's metadata justify. Default: `false`: everything that can be decoded is decoded.
    ///
    /// With this option, decoding takes memory in proportion to the array's shards and to the bytes
    /// in the store. Other arrays can be opened, and whole shards of them can be written. Reads,
    /// and partial writes, which read first, are errors that name the first inner codec without a
    /// bound:
    ///
    /// - codecs that neither this crate nor zarrs knows, unless they are checksums or filters;
    /// - of zarrs' codecs `numcodecs.bz2`, `gdeflate`, `zfp` and `numcodecs.zfpy`, and
    ///   `numcodecs.pcodec` without this crate's feature `pcodec`;
    /// - any compressor of elements of variable length, because no metadata state their length.
    ///
    /// The option does not apply to the chunks of a
    /// [`SparseShardStore`](crate::storage::SparseShardStore) or a
    /// [`ShardedStore`](crate::storage::ShardedStore), which zarrs decodes.
    ///
    /// The metadata themselves are trusted: an array of huge shards takes huge memory. Check the
    /// shard shape before you read an array of unknown origin.
    #[must_use]
    pub fn with_untrusted_data(mut self, untrusted_data: bool) -> Self {
        self.untrusted_data = untrusted_data;
        self
    }

    /// Returns whether to refuse to decode arrays whose hostile shards could take more memory than their
    /// metadata justify.
    #[must_use]
    pub fn untrusted_data(&self) -> bool {
        self.untrusted_data
    }

    /// Sets the rule by which partial writes place changed subchunks. Default: [`WriteStrategy::Auto`].
    #[must_use]
    pub fn with_write_strategy(mut self, write_strategy: WriteStrategy) -> Self {
        self.write_strategy = write_strategy;
        self
    }

    /// Returns the rule by which partial writes place changed subchunks.
    #[must_use]
    pub fn write_strategy(&self) -> WriteStrategy {
        self.write_strategy
    }

    /// Sets the unused fraction of a shard above which a partial write asks for compaction. Default: 0.25.
    /// Clamped to 0–1; NaN selects the default.
    ///
    /// Shards of [`WriteStrategy::Slots`] never ask for compaction, because their unused bytes do not add up.
    #[must_use]
    pub fn with_max_dead_fraction(mut self, fraction: f64) -> Self {
        self.max_dead_fraction = if fraction.is_nan() {
            Self::default().max_dead_fraction
        } else {
            fraction.clamp(0.0, 1.0)
        };
        self
    }

    /// Returns the unused fraction of a shard, 0–1, above which a partial write asks for compaction.
    #[must_use]
    pub fn max_dead_fraction(&self) -> f64 {
        self.max_dead_fraction
    }

    /// Sets a function to call after each partial write that leaves more unused bytes in a shard
    /// than [`max_dead_fraction`](Self::with_max_dead_fraction) allows. Default: none.
    ///
    /// The function runs on the writing thread.
    /// [`Metrics::compaction_requests`](crate::Metrics::compaction_requests) counts such writes, also without
    /// a callback.
    #[must_use]
    pub fn with_compaction_callback(
        mut self,
        callback: impl Fn(&CompactionRequest) + Send + Sync + 'static,
    ) -> Self {
        self.on_compaction_request = Some(CompactionCallback(Arc::new(callback)));
        self
    }

    /// Returns the function to call when a shard should be compacted.
    pub(crate) fn compaction_callback(&self) -> Option<&CompactionCallback> {
        self.on_compaction_request.as_ref()
    }

    /// Sets how long a partial write waits for other partial writes of this process before it is
    /// refused. Default: 10 seconds.
    ///
    /// Writes that update one shard where it is stored take turns. So do writes that create shards
    /// of one array, because a codec cannot tell absent shards apart. A refused write has stored
    /// nothing of its shard, and may be repeated. zarrs returns a [`CodecError::IOError`] of the
    /// kind [`ResourceBusy`](std::io::ErrorKind::ResourceBusy).
    ///
    /// [`CodecError::IOError`]: zarrs_codec::CodecError::IOError
    #[must_use]
    pub fn with_turn_limit(mut self, limit: Duration) -> Self {
        self.turn_limit = limit;
        self
    }

    /// Returns how long a partial write waits for other partial writes of this process.
    #[must_use]
    pub fn turn_limit(&self) -> Duration {
        self.turn_limit
    }
}
