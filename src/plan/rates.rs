//! The figures from which the times of jobs are estimated, each with its source. No other file has one.
//!
//! No figure is a measurement of this crate on a device: none was made yet. A published range counts with its
//! low end, because a job that goes to a device for a wrong reason blocks the device and makes larger files,
//! while a job that stays on the host costs only time.
//!
//! Rates are in decoded bytes per second.

/// A job goes to a device if the estimate of the device, times this number, is less than the estimate of the
/// host. The margin is a choice: the figures are from other machines.
pub(super) const MARGIN: f64 = 1.5;

/// The direction of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Encode,
    Decode,
}

/// The codec that decides how long a job takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    /// No codec changes the bytes.
    Copy,
    Crc32c,
    Zstd,
    Gzip,
    BloscLz4,
    BloscZstd,
}

/// The rates of one processor of the host, at a level and at the levels above, up to the next row.
#[derive(Clone, Copy, Debug)]
struct HostRate {
    level: i32,
    encode: f64,
    decode: f64,
}

/// Returns a row from a measurement on two processors, in GB/s.
const fn of_two(level: i32, encode: f64, decode: f64) -> HostRate {
    HostRate {
        level,
        encode: encode * 1e9 / 2.0,
        decode: decode * 1e9 / 2.0,
    }
}

// The host's rates are those of `benches/results/2026-11-21-sharding.json`: the best of the subchunks of 16³,
// 32³ and 64³, on two processors. A level without a row of its own has the rate of the row below, and the
// levels below the first row have the rate of a copy. Both are upper bounds: higher levels take longer, and no
// compressor is faster than a copy.
const COPY: HostRate = of_two(i32::MIN, 2.85, 3.22);
const CRC32C: HostRate = of_two(i32::MIN, 2.41, 2.52);
const ZSTD: [HostRate; 2] = [of_two(1, 0.53, 0.74), of_two(3, 0.12, 0.47)];
// The levels of gzip above 1 take longer by the ratios of `benches/results/2026-11-27-gzip-microscopy.json`: the
// best of the subchunks of 16³, 32³ and 64³.
const GZIP: [HostRate; 3] = [
    of_two(1, 0.12, 0.36),
    of_two(3, 0.12 * 0.81, 0.36),
    of_two(8, 0.12 * 0.70, 0.36),
];
const BLOSC_LZ4: [HostRate; 1] = [of_two(5, 1.05, 1.48)];
// Zstandard is not faster than lz4 on the same blocks, so its lower levels have the rate of lz4.
const BLOSC_ZSTD: [HostRate; 2] = [of_two(1, 1.05, 1.48), of_two(5, 0.23, 1.31)];

/// Zstandard's level 0 means its default (`ZSTD_CLEVEL_DEFAULT` in zstd.h).
const ZSTD_DEFAULT: i32 = 3;

/// Returns the rate of one processor of the host.
pub(super) fn host(codec: Codec, level: i32, direction: Direction) -> f64 {
    let (rows, level): (&[HostRate], _) = match codec {
        Codec::Copy => (&[], level),
        Codec::Crc32c => (&[CRC32C], level),
        Codec::Zstd if level == 0 => (&ZSTD, ZSTD_DEFAULT),
        Codec::Zstd => (&ZSTD, level),
        Codec::Gzip => (&GZIP, level),
        Codec::BloscLz4 => (&BLOSC_LZ4, level),
        Codec::BloscZstd => (&BLOSC_ZSTD, level),
    };
    let row = rows.iter().rfind(|row| row.level <= level);
    let HostRate { encode, decode, .. } = *row.unwrap_or(&COPY);
    match direction {
        Direction::Encode => encode,
        Direction::Decode => decode,
    }
}

/// The rates of nvCOMP on a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceRate {
    /// The rate of one chunk, while the device works on others beside it.
    pub(super) chunk: f64,
    /// The rate of all chunks together, on a device of [`MULTIPROCESSORS`] multiprocessors or more.
    pub(super) most: f64,
}

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

// The rates of compressors are published by chucky (github.com/acquire-project/chucky, the sweeps of August
// 2026 in `bench/results/`, with nvCOMP 5): lz4 7 to 12 MB/s for each chunk in flight, and 2.5 to 16 GiB/s in
// total; zstd 36 to 116 MB/s, and 3 to 15 GiB/s.
const LZ4: DeviceRate = DeviceRate {
    chunk: 7e6,
    most: 2.5 * GIB,
};
const ZSTD_ON_DEVICE: DeviceRate = DeviceRate {
    chunk: 36e6,
    most: 3.0 * GIB,
};

/// The number of multiprocessors of an NVIDIA L40, the largest device of these sweeps that is made for
/// servers: 18176 cores (NVIDIA's data sheet), of which a multiprocessor has 128. A device with fewer counts
/// in proportion, and a device with more counts like this one.
pub(super) const MULTIPROCESSORS: f64 = 142.0;

/// Returns nvCOMP's rates, or `None` if no figure is published.
///
/// Decompressors count like compressors. That is a lower bound: by NVIDIA's table of algorithms
/// (`docs.nvidia.com/cuda/nvcomp/algorithm_selection.html`) the decompressors of lz4 and zstd have the higher
/// throughput. The same table calls the throughput of deflate and gzip low, in both directions, and gives no
/// number. So there is no estimate for gzip.
pub(super) fn device(codec: Codec) -> Option<DeviceRate> {
    match codec {
        Codec::BloscLz4 => Some(LZ4),
        Codec::Zstd | Codec::BloscZstd => Some(ZSTD_ON_DEVICE),
        Codec::Gzip | Codec::Copy | Codec::Crc32c => None,
    }
}

/// The rate of the bus in one direction: PCI Express 4 with 16 lanes, nominal (16 GT/s, 128 of 130 bits).
pub(super) const BUS: f64 = 16e9 * 16.0 / 8.0 * 128.0 / 130.0;

/// The rate at which one processor copies into page-locked memory: 9.4 GB/s into warm memory by two
/// processors (`docs/reference/performance.md`, section "What decides speed").
pub(super) const STAGE: f64 = 9.4e9 / 2.0;

/// The rate at which one processor copies into new memory: 4.8 GB/s by two processors (the same section).
pub(super) const FETCH: f64 = 4.8e9 / 2.0;

/// The seconds from the first call of the driver for a job to its last, beside the work that grows with the
/// job: 50 operations, each of 9.6 µs, which is NVIDIA's figure for launching a short kernel and waiting for
/// it ("Getting Started with CUDA Graphs", 2019). The engine makes 28 calls for a batch without a compressor,
/// which its tests count. The rest stands for nvCOMP's kernels, whose number is not documented.
pub(super) const START: f64 = 50.0 * 9.6e-6;
