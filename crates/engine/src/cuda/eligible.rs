//! Decides which chains a device can encode, and which chains it can decode.

use super::compressed_frame_parts::{self, CompressedFrameLayout};
use super::compression::{Compression, HighestLevels};
use super::frame_parsing::{blosc_beside_streams, may_split};
use super::kernels::chunk_tables::Chunking;
use crate::contract::{Cname, KnownChain, Stage};
use crate::layout::SubchunkGrid;

/// The most bytes of an element. The fill value of an element is stored repeated, for the widest load.
const MOST_ELEMENT_SIZE: usize = 64 << 10;

/// Returns the compressor of `chain`; `None` if the chain has no compressor.
///
/// # Errors
/// The reason why a device cannot run the chain, or why `levels` keep it on the host.
pub(super) fn chain_on_device(
    grid: &SubchunkGrid,
    chain: &KnownChain,
    levels: HighestLevels,
) -> Result<Option<Compression>, String> {
    check_elements(grid, chain)?;
    Compression::of_chain(grid, chain, levels)
}

/// Checks that a device can scatter the elements of `grid`.
///
/// # Errors
/// The reason why a device cannot scatter the elements.
pub(super) fn check_elements(grid: &SubchunkGrid, chain: &KnownChain) -> Result<(), String> {
    if !matches!(chain.swap, 0 | 1 | 2 | 4 | 8 | 16) {
        return Err(format!(
            "bytes are reversed in groups of {}, the device does 2, 4, 8 and 16",
            chain.swap
        ));
    }
    if grid.element_size() > MOST_ELEMENT_SIZE {
        return Err(format!(
            "an element has {} bytes, the device takes {MOST_ELEMENT_SIZE} at most",
            grid.element_size()
        ));
    }
    Ok(())
}

/// Checks that a device can encode shards of `chain`, and that `levels` allow it.
///
/// # Errors
/// The reason why a device cannot encode the shards, or why `levels` keep them on the host.
pub fn check_chain(
    grid: &SubchunkGrid,
    chain: &KnownChain,
    levels: HighestLevels,
) -> Result<(), String> {
    chain_on_device(grid, chain, levels).map(|_| ())
}

/// Checks that a device can decode shards of `chain`, whose frames any encoder has made at any level.
///
/// # Errors
/// The reason why a device cannot decode the shards.
pub fn check_decoding(grid: &SubchunkGrid, chain: &KnownChain) -> Result<(), String> {
    check_elements(grid, chain)?;
    if chain.is_fixed_size() {
        return Ok(());
    }
    compressed_frame_parts::suits(chain)?;
    expected_layout(grid, chain).map(|_| ())
}

/// Returns the layout of the frames that a device would make with the compressor of `chain`. Frames of other
/// encoders may have other layouts.
///
/// # Errors
/// The reason why a device does not take subchunks of this size, or has no such compressor.
pub(super) fn expected_layout(
    grid: &SubchunkGrid,
    chain: &KnownChain,
) -> Result<CompressedFrameLayout, String> {
    let mut chain = chain.clone();
    for stage in &mut chain.stages {
        // A device decodes what these encoders make, but has no such encoder.
        match stage {
            Stage::Gzip { level } => *level = (*level).max(1),
            Stage::Blosc(blosc) => {
                blosc.level = blosc.level.max(1);
                if blosc.cname == Cname::Lz4Hc {
                    blosc.cname = Cname::Lz4;
                }
            }
            Stage::Zstd { .. } | Stage::Crc32c => {}
        }
    }
    let compression = Compression::of_chain(grid, &chain, HighestLevels::ALL)?;
    compression
        .map(|compression| compression.as_layout(grid, &chain))
        .ok_or_else(|| "a chain without a compressor has no frames".to_string())
}

/// Returns the layout like `layout` of the frames of `chain` that C-Blosc makes, if it splits their blocks into one stream
/// for each byte of an element.
pub(super) fn split_layout(
    layout: CompressedFrameLayout,
    chain: &KnownChain,
) -> Option<CompressedFrameLayout> {
    let split = chain.stages.iter().find_map(|stage| match stage {
        // C-Blosc splits for no other compressor that a device knows.
        Stage::Blosc(blosc) if blosc.cname == Cname::Lz4 => Some(blosc.typesize),
        _ => None,
    })?;
    let block = layout.chunking.block;
    let is_split = split > 1 && block.is_multiple_of(split) && may_split(block, split);
    is_split.then(|| {
        let chunking = Chunking {
            split,
            ..layout.chunking
        };
        let more = blosc_beside_streams(chunking) - blosc_beside_streams(layout.chunking);
        CompressedFrameLayout {
            chunking,
            encoded: layout.encoded.saturating_add(more),
            ..layout
        }
    })
}

/// Returns the number of chunks that nvCOMP compresses for each subchunk of `grid`: the blocks of a Blosc
/// frame, or one.
pub fn chunks_of_subchunk(grid: &SubchunkGrid, chain: &KnownChain) -> usize {
    expected_layout(grid, chain).map_or(1, |layout| layout.chunking.chunks())
}
