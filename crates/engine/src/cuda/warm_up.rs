//! Makes devices ready for the first shard.
//!
//! ```text
//! compile our kernels for each device
//! for each device, for each format of nvCOMP and each of its algorithms
//!     compress a shard of two small subchunks; decompress it, if shards are decompressed on devices
//! ```
//!
//! CUDA loads a kernel of a library when it is first used. Without the small shards, the first shard of an
//! application waits for this.

use std::num::NonZeroUsize;

use super::engine::CudaEngine;
use super::nvcomp;
use super::sizing::Compressors;
use super::{DeviceLimits, HighestLevels};
use crate::contract::{
    BloscStage, Chain, Cname, EngineError, KnownChain, ShardJob, Shuffle, Stage,
};
use crate::error::DriverError;
use crate::layout::SubchunkGrid;

/// The number of bytes of a small subchunk.
const SUBCHUNK: u64 = 16 << 10;

/// Returns a compressor for each format of nvCOMP, and for each algorithm of deflate.
fn compressors() -> [Stage; 5] {
    [
        Stage::Zstd {
            level: 1,
            checksum: false,
        },
        Stage::Gzip { level: 1 },
        Stage::Gzip { level: 6 },
        Stage::Gzip { level: 9 },
        Stage::Blosc(BloscStage {
            cname: Cname::Lz4,
            level: 5,
            shuffle: Shuffle::None,
            typesize: 1,
            blocksize: 0,
        }),
    ]
}

impl CudaEngine {
    /// Makes the devices that the engine may use ready: compiles the kernels, loads nvCOMP as `compressors`
    /// says, and runs each of nvCOMP's compressors once on each device. The levels of `compressors` do not
    /// matter.
    ///
    /// Without nvCOMP, and for a compressor that fails here, the host runs chains with the compressor. This
    /// is no error; the reason is logged.
    ///
    /// # Errors
    /// No device is usable, or a device could not compile the kernels. The error has the reason.
    pub fn warm_up(&self, compressors: &Compressors) -> Result<(), DriverError> {
        let compiled = self.devices.warm_up(&self.limits);
        if nvcomp::of_process(compressors.nvcomp.as_deref()).is_ok() {
            for device in self.devices.usable_numbers(&self.limits)? {
                self.load_compressors(device, compressors);
            }
        }
        compiled?;
        // A device that failed may have been put in quarantine.
        self.devices.check_usable(&self.limits)
    }

    /// Runs each compressor once on the device with the number `device`. Logs the reasons of those that fail.
    fn load_compressors(&self, device: usize, compressors: &Compressors) {
        for stage in self::compressors() {
            let name = stage.name();
            if let Err(error) = self.load_compressor(device, stage, compressors) {
                tracing::warn!(
                    device,
                    compressor = name,
                    %error,
                    "a compressor of nvCOMP does not work on a small shard"
                );
            }
        }
    }

    fn load_compressor(
        &self,
        device: usize,
        stage: Stage,
        compressors: &Compressors,
    ) -> Result<(), EngineError> {
        let chain = KnownChain {
            order: vec![0],
            swap: 1,
            stages: vec![stage],
        };
        let grid = SubchunkGrid::new(&[2 * SUBCHUNK], &[SUBCHUNK], 1)
            .map_err(|error| EngineError::Unsuitable(error.to_string()))?;
        let compressors = Compressors {
            levels: HighestLevels::ALL,
            ..compressors.clone()
        };
        let mut engine = self.clone();
        engine.limits = DeviceLimits {
            devices: Some(vec![device]),
            ..self.limits.clone()
        };
        let engine = engine.for_chain(&chain, compressors);
        let decodes = engine.decodes();
        let shards = engine.shards(&grid, &chain)?;
        let job = ShardJob {
            grid: &grid,
            chain: Chain::Known(&chain),
            fill_value: &[0],
            store_empty: false,
            validate_checksums: true,
            threads: NonZeroUsize::MIN,
            huge_pages: false,
        };
        // The bytes are neither all equal, so that no subchunk is empty, nor random.
        let bytes = (1..=u8::MAX).cycle();
        let decoded: Vec<u8> = bytes.take(grid.shard_bytes()).collect();
        let encoded = shards.encode_checked(&job, &decoded, (0, 0))?;
        if decodes {
            shards.decompress(&job, &encoded.bytes, &encoded.extents)?;
        }
        Ok(())
    }
}
