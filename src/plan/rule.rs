//! Decides which shards are better encoded on a device.

use zarrs_cuda_engine::contract::KnownChain;
use zarrs_cuda_engine::contract::stream::{StreamChain, StreamJob};
use zarrs_cuda_engine::layout::SubchunkGrid;

/// The rule by which [`Backend::Auto`](crate::Backend::Auto) chooses a device. The rule depends on the kind
/// of shard alone and never on load, so that equal data give equal shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineRule {
    /// Whether chains without a compressor go to a device.
    pub(crate) uncompressed: bool,
    /// The smallest number of bytes of a decoded shard with a compressor that goes to a device.
    pub(crate) least_bytes: usize,
    /// The smallest number of subchunks of such a shard: a device compresses each subchunk with a few of its
    /// threads.
    pub(crate) least_subchunks: usize,
}

impl Default for EngineRule {
    fn default() -> Self {
        Self {
            uncompressed: false,
            least_bytes: 1 << 20,
            least_subchunks: 16,
        }
    }
}

impl EngineRule {
    /// Everything that a device can do goes there.
    #[cfg(test)]
    pub(crate) const ALL: Self = Self {
        uncompressed: true,
        least_bytes: 0,
        least_subchunks: 0,
    };

    /// Returns the reason why a shard stays on the host, or `None` if it goes to a device.
    pub(super) fn on_host(&self, grid: &SubchunkGrid, chain: &KnownChain) -> Option<String> {
        self.host_is_better(chain, grid.shard_bytes(), grid.num_subchunks())
    }

    /// Returns the reason why `subchunks` subchunks that are encoded together, with `bytes` bytes in total,
    /// stay on the host. Returns `None` if they go to a device.
    fn host_is_better(&self, chain: &KnownChain, bytes: usize, subchunks: usize) -> Option<String> {
        if chain.is_fixed_size() {
            return (!self.uncompressed).then(|| {
                "without a compressor the host copies each byte once, and a device would add a trip over its bus in each direction".to_string()
            });
        }
        if bytes < self.least_bytes {
            return Some(format!(
                "a shard of {bytes} bytes is compressed here before a device has begun: from {} on it would go there",
                self.least_bytes
            ));
        }
        (subchunks < self.least_subchunks).then(|| {
            format!(
                "{subchunks} subchunks leave a device idle: from {} on it would compress them",
                self.least_subchunks
            )
        })
    }

    /// Returns the reason why a stream stays on the host, or `None` if it goes to a device. The reasons are
    /// the same as for a shard, except that all shards of a shard epoch are encoded together.
    pub(super) fn stream_on_host(&self, job: &StreamJob) -> Option<String> {
        let StreamChain::Known(chain) = &job.chain else {
            return Some("the CUDA engine does not know the inner codecs".to_string());
        };
        let grid = &job.grid;
        let all = grid
            .subchunks_per_epoch()
            .saturating_mul(grid.epochs_per_shard());
        self.host_is_better(
            chain,
            all.saturating_mul(grid.shard().subchunk_bytes()),
            all,
        )
    }
}
