//! Runtime options, which are never stored in array metadata.

mod check;
pub(crate) mod memory_limit;
pub(crate) mod pinned_memory;
mod write_strategy;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use check::Check;
use memory_limit::memory_limit;
use write_strategy::CompactionCallback;
pub use write_strategy::{CompactionRequest, WriteStrategy};
use zarrs_cuda_engine::cuda::{DeviceLimits, HighestLevels};

/// The place where shards are encoded and decoded.
///
/// ```
/// use zarrs_cuda::{Backend, Options};
///
/// // Chooses by an estimate, among the host and the first device.
/// let options = Options::default().with_devices([0]);
/// assert_eq!(options.backend(), Backend::Auto);
///
/// // Never uses a device, whatever the environment asks for.
/// let options = Options::default().with_backend(Backend::Host);
/// assert!(zarrs_cuda::check_backend(&options).is_ok());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// The place that an estimate finds to be faster for the kind of shard. Never fails because a GPU is
    /// missing. Uses only devices that were [asked for](Options::with_devices), and the host otherwise.
    ///
    /// The estimate depends on the codecs, the number and the size of subchunks, the device, and the
    /// processors that the process may use at its start: see the page on [GPUs](crate::guide::gpu).
    /// [`explain`](crate::explain) prints it. If a device fails, the host encodes or decodes the shard
    /// instead.
    #[default]
    Auto,
    /// The CPU of this machine.
    Host,
    /// An NVIDIA GPU. If a device cannot encode a shard, the error names the reason.
    ///
    /// A device runs `bytes`, `transpose`, `crc32c` and, if NVIDIA's nvCOMP library is found, one of `zstd`,
    /// `gzip` and `blosc` (with lz4 or zstd), at the levels of a [`LevelPolicy`].
    ///
    /// The first read or write of an array is an error if no device is usable. If one is, the host still does
    /// the work that a device never does: the page on [GPUs](crate::guide::gpu#what-cuda-means) has the list.
    /// Shards with a compressor are read on the host unless [`Options::with_device_decode`] is set. Parts of
    /// shards are always read on the host.
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

/// The highest level of each compressor at which a device encodes shards. The policy does not limit
/// [decoding](Options::with_device_decode).
///
/// A device compresses with nvCOMP, which has no levels for zstd and for Blosc's compressors, and few for
/// gzip. Files from a device are larger than files from the host, by how much is not known here:
/// [others report](crate::guide::gpu) 8 to 50 %. So a device can replace a low level, but not a high level.
///
/// ```
/// use zarrs_cuda::LevelPolicy;
///
/// let policy = LevelPolicy::default();
/// assert_eq!((policy.zstd(), policy.gzip()), (3, 9));
/// assert_eq!((policy.blosc_lz4(), policy.blosc_zstd()), (5, 2));
/// let all = policy.with_zstd(22).with_blosc_lz4(9).with_blosc_zstd(9);
/// assert_eq!(all.zstd(), 22);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LevelPolicy {
    zstd: i32,
    gzip: u32,
    blosc_lz4: u8,
    blosc_zstd: u8,
}

impl Default for LevelPolicy {
    fn default() -> Self {
        let HighestLevels {
            zstd,
            gzip,
            blosc_lz4,
            blosc_zstd,
        } = HighestLevels::default();
        Self {
            zstd,
            gzip,
            blosc_lz4,
            blosc_zstd,
        }
    }
}

impl LevelPolicy {
    /// Sets the highest level of the `zstd` codec that a device encodes. Default: 3.
    #[must_use]
    pub fn with_zstd(mut self, level: i32) -> Self {
        self.zstd = level;
        self
    }

    /// Returns the highest level of the `zstd` codec that a device encodes.
    #[must_use]
    pub fn zstd(&self) -> i32 {
        self.zstd
    }

    /// Sets the highest level of the `gzip` codec that a device encodes. Default: 9, which is all
    /// levels.
    ///
    /// Level 0, which compresses nothing, is never encoded on a device.
    #[must_use]
    pub fn with_gzip(mut self, level: u32) -> Self {
        self.gzip = level;
        self
    }

    /// Returns the highest level of the `gzip` codec that a device encodes.
    #[must_use]
    pub fn gzip(&self) -> u32 {
        self.gzip
    }

    /// Sets the highest level of the `blosc` codec with lz4 that a device encodes. Default: 5, Blosc's own
    /// default.
    ///
    /// Level 0, which compresses nothing, is never encoded on a device.
    #[must_use]
    pub fn with_blosc_lz4(mut self, level: u8) -> Self {
        self.blosc_lz4 = level;
        self
    }

    /// Returns the highest level of the `blosc` codec with lz4 that a device encodes.
    #[must_use]
    pub fn blosc_lz4(&self) -> u8 {
        self.blosc_lz4
    }

    /// Sets the highest level of the `blosc` codec with zstd that a device encodes. Default: 2, which is
    /// level 3 of Zstandard: C-Blosc hands level `2 * clevel - 1` to Zstandard.
    ///
    /// Level 0, which compresses nothing, is never encoded on a device.
    #[must_use]
    pub fn with_blosc_zstd(mut self, level: u8) -> Self {
        self.blosc_zstd = level;
        self
    }

    /// Returns the highest level of the `blosc` codec with zstd that a device encodes.
    #[must_use]
    pub fn blosc_zstd(&self) -> u8 {
        self.blosc_zstd
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
    /// The backend; `None` if the caller set none.
    backend: Option<Backend>,
    /// The setting of a user that asked for devices, if the caller names one.
    asked_by: Option<&'static str>,
    huge_pages: bool,
    devices: Option<Vec<usize>>,
    all_devices: bool,
    device_memory: Option<usize>,
    pinned_memory: Option<usize>,
    device_idle_time: Option<Duration>,
    device_timeout: Duration,
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
            backend: None,
            asked_by: None,
            huge_pages: true,
            devices: None,
            all_devices: false,
            device_memory: None,
            pinned_memory: None,
            device_idle_time: Some(Duration::from_mins(5)),
            device_timeout: DeviceLimits::TIMEOUT,
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
    /// Sets the place where shards are encoded and decoded. Default: the environment variable
    /// `ZARRS_CUDA_BACKEND` (`auto`, `host` or `cuda`), else [`Backend::Auto`].
    ///
    /// [`Backend::Cuda`] asks for a device; the others do not, see [`with_devices`](Self::with_devices).
    #[must_use]
    pub fn with_backend(mut self, backend: Backend) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Returns the place where shards are encoded and decoded, as these options say, whatever the environment
    /// says.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.backend.unwrap_or_default()
    }

    /// Returns the backend; `None` if the caller set none.
    pub(crate) fn backend_setting(&self) -> Option<Backend> {
        self.backend
    }

    /// Notes that the user asked for devices by the setting `by`, without or with numbers of devices. For the
    /// Python package and the command, whose users have settings of their own.
    #[doc(hidden)]
    #[must_use]
    pub fn with_consent(mut self, by: &'static str) -> Self {
        self.asked_by = Some(by);
        self
    }

    /// Returns the setting of a user that asked for devices, if the caller named one.
    pub(crate) fn asked_by(&self) -> Option<&'static str> {
        self.asked_by
    }

    /// Returns whether these options ask for a device.
    pub(crate) fn asks_for_devices(&self) -> bool {
        self.devices.is_some()
            || self.all_devices
            || self.asked_by.is_some()
            || self.backend == Some(Backend::Cuda)
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
    /// (`CUDA_VISIBLE_DEVICES` applies). Default: no device.
    ///
    /// **No device is used that nobody asked for.** CUDA takes device memory, and cannot be used in a process
    /// that is forked after it was initialised. A device is asked for by this option, by
    /// [`Backend::Cuda`], by [`warm_up`](crate::warm_up), and by the environment variables
    /// `ZARRS_CUDA_DEVICES` (numbers, as in `0,1`, or `all`) and `ZARRS_CUDA_BACKEND` (`auto` or `cuda`).
    /// Whether a device is asked for is decided when an array or a writer is opened. Until then, the driver's
    /// library is not loaded.
    ///
    /// If a device is asked for without a number, one device is used. It is the first of: the devices of
    /// `ZARRS_CUDA_DEVICES`; the devices that were warmed up; the device of the CUDA context that is current
    /// on the thread; the device whose number is `LOCAL_RANK`, modulo the number of visible devices; device 0.
    ///
    /// If a number has no device, or a device that is too old, [`Backend::Cuda`] returns an error and
    /// [`Backend::Auto`] uses the host; [`metrics`](crate::metrics) name such numbers. A number that is given
    /// twice counts once.
    #[must_use]
    pub fn with_devices(mut self, devices: impl Into<Vec<usize>>) -> Self {
        self.devices = Some(devices.into());
        self.all_devices = false;
        self
    }

    /// Asks for every CUDA device that this process sees and that can be used. Otherwise like
    /// [`with_devices`](Self::with_devices), of which the last call counts.
    #[must_use]
    pub fn with_all_devices(mut self) -> Self {
        self.devices = None;
        self.all_devices = true;
        self
    }

    /// Returns whether these options ask for every device.
    #[must_use]
    pub fn all_devices(&self) -> bool {
        self.all_devices
    }

    /// Returns the CUDA devices to use, by number; `None` if these options name none.
    #[must_use]
    pub fn devices(&self) -> Option<&[usize]> {
        self.devices.as_deref()
    }

    /// Sets the largest number of bytes that buffers take on each device. Default: 2 GiB, or a quarter of
    /// the memory that is free when the device is first used if that is less.
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

    /// Returns the largest number of bytes that buffers take on each device; `None` for the
    /// default.
    #[must_use]
    pub fn device_memory(&self) -> Option<usize> {
        self.device_memory
    }

    /// Sets the largest number of bytes of page-locked host memory for each device. Default: the memory of
    /// three inputs and three outputs of a stream whose batches keep the device busy, at least 1 GiB, and at
    /// most 4 GiB or [`host_memory`](Self::host_memory).
    ///
    /// A batch keeps the device busy if it has four chunks of the compressor for each multiprocessor. A chunk
    /// is a subchunk or, with Blosc, a block of it. The levels of an image share the largest default.
    ///
    /// The memory is shared like [device memory](Self::with_device_memory). It is allocated when it is needed.
    ///
    /// Reads into the memory of a device take a block of their own besides, for encoded bytes: a quarter of
    /// this number for each device, at most 256 MiB. The first read decides its size.
    #[must_use]
    pub fn with_pinned_memory(mut self, bytes: usize) -> Self {
        self.pinned_memory = Some(bytes);
        self
    }

    /// Returns the largest number of bytes of page-locked host memory for each device; `None` for the
    /// default.
    #[must_use]
    pub fn pinned_memory(&self) -> Option<usize> {
        self.pinned_memory
    }

    /// Returns the largest number of bytes of page-locked host memory for any device.
    #[doc(hidden)]
    #[must_use]
    pub fn most_pinned_memory(&self) -> usize {
        let most = || pinned_memory::most_pinned(self.host_memory());
        self.pinned_memory.unwrap_or_else(most)
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

    /// Sets the time after which a device that does not finish counts as hanging. Default: one minute.
    ///
    /// The time limits each wait of a thread for work that this crate gave to the device. It does not count
    /// the time for which this work waits for work of the application: the stream of a
    /// [`DeviceSlice`](crate::writer::DeviceSlice) may take any time. A kernel of the application in another
    /// stream counts, if it keeps the device from running anything else. A second after the time, the thread
    /// looks again. If the device has still not finished, the process does not use it any more. The device
    /// may still use the memory that it was given, so no such memory is freed.
    ///
    /// The time does not limit functions of the driver that block: those that allocate or free memory, load
    /// kernels or create a context, and those that enqueue work while the device's queue is full.
    #[must_use]
    pub fn with_device_timeout(mut self, time: Duration) -> Self {
        self.device_timeout = time;
        self
    }

    /// Returns the time after which a device that does not finish counts as hanging.
    #[must_use]
    pub fn device_timeout(&self) -> Duration {
        self.device_timeout
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

    /// Sets the highest level of each compressor at which a device encodes. Default:
    /// [`LevelPolicy::default`].
    #[must_use]
    pub fn with_device_levels(mut self, levels: LevelPolicy) -> Self {
        self.device_levels = levels;
        self
    }

    /// Returns the highest level of each compressor at which a device encodes.
    #[must_use]
    pub fn device_levels(&self) -> LevelPolicy {
        self.device_levels
    }

    /// Sets the file of NVIDIA's nvCOMP library, version 5 or 6, which compresses on a device. A relative path
    /// begins in the folder that is current now, a `~` at the start is the user's home, and a name without a
    /// folder is looked up by the loader.
    ///
    /// Default: the environment variable `ZARRS_CUDA_NVCOMP`; then `libnvcomp.so.6` and
    /// `libnvcomp.so.5`, as the loader finds them; then the package `nvidia-libnvcomp-cu12` of the
    /// Python environment.
    #[must_use]
    pub fn with_nvcomp(mut self, file: impl Into<PathBuf>) -> Self {
        let file = file.into();
        let is_of_loader = file.components().count() < 2;
        self.nvcomp = Some(if is_of_loader || file.starts_with("~") {
            file
        } else {
            std::path::absolute(&file).unwrap_or(file)
        });
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
    /// A [`LevelPolicy`] limits encoding alone: a device decodes shards of every level. Under
    /// [`Backend::Auto`] a device decodes the shards for which the estimate finds it to be faster.
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
