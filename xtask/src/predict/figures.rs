//! Published figures of three machines, with their sources. They change in commits of their own.
//!
//! Sizes are in bytes, times in seconds.

const GB: f64 = 1e9;
pub(super) const GIB: f64 = 1_073_741_824.0;

/// A device, and the bus to its host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) name: &'static str,
    /// Bytes of device memory in a second, read and written.
    pub(super) memory: f64,
    /// Bytes in a second over the bus, each way.
    pub(super) bus: f64,
    /// Instructions of warps in a second: 4 in a cycle of each multiprocessor (NVIDIA, *V100 GPU
    /// architecture*, 2017, "four processing blocks", and the same since).
    pub(super) instructions: f64,
    /// Bytes in a second that nvCOMP compresses to Zstandard and LZ4, with enough chunks.
    pub(super) zstd: f64,
    pub(super) lz4: f64,
    /// Fewer chunks in flight than this leave multiprocessors idle: one for each.
    pub(super) chunks: f64,
}

/// Seconds from one kernel to the next: 3.8 µs less the kernel's own 2.9 µs (Gray, *Getting started
/// with CUDA graphs*, NVIDIA technical blog, 2019; a V100).
pub(super) const LAUNCH: f64 = 0.9e-6;

/// Seconds that the host takes for a call of the driver: 9.6 µs for a launch and a wait, less the
/// kernel's 2.9 µs, for two calls (as above).
pub(super) const CALL: f64 = 3.35e-6;

/// Tesla V100 SXM2: *NVIDIA V100 data sheet*, 2020: 900 GB/s, 32 GB/s of the bus both ways together, of
/// which each way is half; 80 multiprocessors at 1,530 MHz.
/// nvCOMP's rates are those of the RTX PRO 6000, by multiprocessors and clock: nobody published them.
const V100: Machine = Machine {
    name: "V100",
    memory: 900.0 * GB,
    bus: 16.0 * GB,
    instructions: 4.0 * 80.0 * 1.53e9,
    zstd: 18.0 * GIB * V100_SHARE,
    lz4: 33.5 * GIB * V100_SHARE,
    chunks: 80.0,
};
const V100_SHARE: f64 = 80.0 * 1.53 / (188.0 * 2.6);

/// RTX PRO 6000 Blackwell: *NVIDIA RTX PRO 6000 Blackwell Workstation Edition data sheet*, 2025:
/// 1,792 GB/s; 188 multiprocessors at 2,600 MHz. The bus and nvCOMP's rates are those that chucky
/// (github.com/acquire-project/chucky) printed on one: 53.7 GiB/s, Zstandard 18 and LZ4 27 to 40.
const RTX_PRO_6000: Machine = Machine {
    name: "RTX PRO 6000",
    memory: 1_792.0 * GB,
    bus: 53.7 * GIB,
    instructions: 4.0 * 188.0 * 2.6e9,
    zstd: 18.0 * GIB,
    lz4: 33.5 * GIB,
    chunks: 188.0,
};

/// H200 SXM: *NVIDIA H200 data sheet*, 2024: 4.8 TB/s, 128 GB/s of the bus both ways together;
/// 132 multiprocessors at 1,980 MHz. nvCOMP's rates: as for the V100.
const H200: Machine = Machine {
    name: "H200",
    memory: 4_800.0 * GB,
    bus: 64.0 * GB,
    instructions: 4.0 * 132.0 * 1.98e9,
    zstd: 18.0 * GIB * H200_SHARE,
    lz4: 33.5 * GIB * H200_SHARE,
    chunks: 132.0,
};
const H200_SHARE: f64 = 132.0 * 1.98 / (188.0 * 2.6);

pub(super) const MACHINES: [Machine; 3] = [V100, RTX_PRO_6000, H200];

/// How many threads of the host work at a time.
pub(super) const THREADS: [u32; 3] = [2, 8, 16];

/// Each figure may be off by so much, both ways.
pub(super) const SPREAD: f64 = 0.3;

/// What GPGPU-Sim 4.2 computed for 2 MiB on its V100, in cycles of 1,132 MHz (its
/// `SM7_QV100/gpgpusim.config`).
pub(super) const SIMULATED: [(&str, f64); 2] = [("scatter_16", 5_184.0), ("gather", 9_556.0)];
pub(super) const SIMULATED_CLOCK: f64 = 1.132e9;

/// What chucky printed of its own stages on an RTX PRO 6000, in bytes of the array in a second; the
/// kernel here, and the trace that has it. The first two are lower bounds.
pub(super) const CHUCKY: [(&str, &str, &str, f64); 4] = [
    ("scatter", "scatter_16", "writer-none", 180.0 * GIB),
    ("aggregate", "gather", "writer-none", 220.0 * GIB),
    (
        "Zstandard",
        "nvCOMP compresses zstd",
        "writer-zstd",
        18.0 * GIB,
    ),
    (
        "LZ4",
        "nvCOMP compresses lz4",
        "writer-blosc-lz4",
        33.5 * GIB,
    ),
];

impl Machine {
    /// The machine, if every figure of it was this many times as good.
    pub(super) fn times(self, factor: f64) -> Self {
        Self {
            memory: self.memory * factor,
            bus: self.bus * factor,
            instructions: self.instructions * factor,
            zstd: self.zstd * factor,
            lz4: self.lz4 * factor,
            ..self
        }
    }
}
