//! A stream of frames, as from a camera, and the same elements as shards.

use crate::Result;
use crate::microscopy::Microscopy;

/// uint16 elements of a frame along y and x.
pub const FRAME: u64 = 1024;
/// uint16 elements of a shard along each axis.
pub const SHARD: u64 = 256;
/// The environment variable for the size of the stream, in MiB: a multiple of 512, the size of a
/// shard epoch.
pub const SIZE_VARIABLE: &str = "ZARRS_CUDA_BENCH_MIB";

const FRAME_BYTES: usize = (FRAME * FRAME * 2) as usize;
const EPOCH_MIB: u64 = (FRAME * FRAME * 2 * SHARD) >> 20;

/// Frames that are generated before the clock starts. The frames of one shard epoch repeat.
pub struct Frames {
    /// The frames of one epoch, little-endian, one after the other.
    pool: Vec<u8>,
    epochs: u64,
}

impl Frames {
    /// Generates the frames. The environment sets the size of the stream, else it has `default`
    /// MiB.
    pub fn new(default: u64) -> Result<Self> {
        let mib = match std::env::var(SIZE_VARIABLE) {
            Ok(mib) => mib.parse()?,
            Err(_) => default,
        };
        if mib == 0 || !mib.is_multiple_of(EPOCH_MIB) {
            return Err(format!(
                "{SIZE_VARIABLE} is {mib}: it has to be a multiple of {EPOCH_MIB}, the MiB of whole \
                 shards of {SHARD}³ behind frames of {FRAME}²"
            )
            .into());
        }
        Ok(Self {
            pool: Microscopy::new().volume([0; 3], [SHARD, FRAME, FRAME], 5),
            epochs: mib / EPOCH_MIB,
        })
    }

    /// The shape of the array, in elements.
    pub fn shape(&self) -> [u64; 3] {
        [self.epochs * SHARD, FRAME, FRAME]
    }

    /// The size of the array, in bytes.
    pub fn bytes(&self) -> u64 {
        self.epochs * self.pool.len() as u64
    }

    /// How many times the frames of a shard epoch are written.
    pub fn epochs(&self) -> u64 {
        self.epochs
    }

    /// The frames of one shard epoch, little-endian, one after the other.
    pub fn pool(&self) -> &[u8] {
        &self.pool
    }

    /// The frames, one at a time.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.epochs).flat_map(|_| self.pool.chunks_exact(FRAME_BYTES))
    }

    /// The shards of a shard epoch in C order: the position in the grid, and the elements.
    pub fn shards(&self) -> Vec<([u64; 2], Vec<u8>)> {
        let across = FRAME / SHARD;
        let row = (SHARD * 2) as usize;
        let mut shards = Vec::new();
        for (y, x) in (0..across).flat_map(|y| (0..across).map(move |x| (y, x))) {
            let mut shard = Vec::with_capacity(row * (SHARD * SHARD) as usize);
            for z in 0..SHARD {
                for line in y * SHARD..(y + 1) * SHARD {
                    let at = (((z * FRAME + line) * FRAME + x * SHARD) * 2) as usize;
                    shard.extend_from_slice(&self.pool[at..at + row]);
                }
            }
            shards.push(([y, x], shard));
        }
        shards
    }
}
