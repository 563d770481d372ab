//! A stream of frames, as a camera makes them, and the same elements as shards.

use std::error::Error;

use crate::microscopy::Microscopy;

/// uint16 elements of a frame along y and x.
pub(crate) const FRAME: u64 = 1024;
/// uint16 elements of a shard along each axis.
pub(crate) const SHARD: u64 = 256;
/// How large the stream is, in MiB: a multiple of 512, which is as many frames as shards are deep.
pub(crate) const SIZE_VARIABLE: &str = "ZARRS_CUDA_BENCH_MIB";

const FRAME_BYTES: usize = (FRAME * FRAME * 2) as usize;
const EPOCH_MIB: u64 = (FRAME * FRAME * 2 * SHARD) >> 20;

/// Frames that are made before the clock starts: those of one shard epoch, over and over.
pub(crate) struct Frames {
    /// Little-endian, frame after frame.
    pool: Vec<u8>,
    epochs: u64,
}

impl Frames {
    /// As many as the environment says, or else `default` MiB of them.
    pub(crate) fn new(default: u64) -> Result<Self, Box<dyn Error>> {
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

    /// Elements of the array along each axis.
    pub(crate) fn shape(&self) -> [u64; 3] {
        [self.epochs * SHARD, FRAME, FRAME]
    }

    /// Bytes of the array.
    pub(crate) fn bytes(&self) -> u64 {
        self.epochs * self.pool.len() as u64
    }

    /// How many times the frames of a shard epoch are written.
    pub(crate) fn epochs(&self) -> u64 {
        self.epochs
    }

    /// The frames, one at a time.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.epochs).flat_map(|_| self.pool.chunks_exact(FRAME_BYTES))
    }

    /// The shards of a shard epoch in C order: where each is in the grid, and its elements.
    pub(crate) fn shards(&self) -> Vec<([u64; 2], Vec<u8>)> {
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
