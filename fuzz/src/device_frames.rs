//! The parsers of zstd, gzip and Blosc frames for devices. If a parser accepts the streams and a
//! device decodes them without an error, the host decodes the same elements.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use serde_json::{Value, json};
use zarrs_cuda::CudaShardingCodec;
use zarrs_cuda::maintenance::ShardFormat;
use zarrs_cuda_engine::contract::{BloscStage, Chain, Cname, KnownChain, ShardJob, Shuffle, Stage};
use zarrs_cuda_engine::cuda::compressed_frame_parts::{self, CompressedFrameParts};
use zarrs_cuda_engine::cuda::kernels::shuffle::{BloscBlocks, Shuffle as DeviceShuffle};
use zarrs_cuda_engine::cuda::nvcomp::Format;
use zarrs_cuda_engine::layout::{Extent, SubchunkGrid};

use crate::case::Case;
use crate::harm::harmed;
use crate::memory::limited;
use crate::outcome::of_ours;
use zarrs_cuda_testing::{codecs, types};

/// Parses any bytes as frames of a shard.
pub fn device_frames(input: &[u8]) {
    let _too_short = judge(&mut Unstructured::new(input));
}

fn judge(u: &mut Unstructured<'_>) -> Result<()> {
    let mut case = Case::new(u)?;
    case.data_type = types::named("uint8");
    case.shards.data_type = case.data_type.data_type.clone();
    let last = case.shards.shape.len().checked_sub(1);
    if let Some(last) = last {
        // Larger subchunks with several blocks.
        let factor = u.int_in_range(1..=12)?;
        case.shards.shape[last] *= factor;
        case.shards.subchunk[last] *= factor;
    }
    case.shards.fill = vec![u.arbitrary()?];
    let elements = case.shards.num_elements();
    case.elements.resize(elements, 1);
    let (before, compressor, after) = chain(u)?;
    let mut stages = vec![Stage::Crc32c; before];
    stages.push(stage(&compressor));
    stages.resize(1 + before + after, Stage::Crc32c);
    let known = KnownChain {
        order: (0..case.shards.shape.len()).collect(),
        swap: 1,
        stages,
    };
    let mut chain = vec![codecs::bytes("little")];
    chain.resize(1 + before, codecs::crc32c());
    chain.push(compressor);
    chain.resize(2 + before + after, codecs::crc32c());
    case.shards.codecs = chain;
    let Some(ours) = case.ours() else {
        return Ok(());
    };
    let Some(encoded) = case.encoded(&ours) else {
        return Ok(());
    };
    let harmed = harmed(u, &case, &encoded)?;
    let shards = &case.shards;
    let parsed = limited(case.most_memory(harmed.len()), "parsing frames", || {
        parse(&case, &ours, &known, &harmed)
    });
    let Some(parsed) = parsed else {
        return Ok(());
    };
    let extents = shards.index.subchunks(&harmed, shards.num_subchunks());
    let Some(decoded) = decoded(&parsed, &extents, before) else {
        // A device reports the same, and the host decodes instead.
        return Ok(());
    };
    let shown = || format!("{}, {shards:?}, {parsed:?}", shards.json());
    let by_host = of_ours(|| shards.decode(ours.as_ref(), &harmed, &case.options));
    let Ok(by_host) = by_host else {
        panic!(
            "a device decodes what the host refuses, {by_host:?}: {}",
            shown()
        );
    };
    let mut subchunks = vec![Vec::new(); shards.num_subchunks()];
    let indices = zarrs_cuda_testing::all_indices(&shards.shape);
    for (element, indices) in by_host.iter().zip(indices) {
        subchunks[shards.subchunk_of(&indices)].push(*element);
    }
    for (number, (subchunk, decoded)) in subchunks.iter().zip(&decoded).enumerate() {
        if let Some(decoded) = decoded {
            let shown = shown();
            assert!(subchunk == decoded, "subchunk {number} differs: {shown}");
        }
    }
    Ok(())
}

/// The compressor as the engine has it.
fn stage(codec: &Value) -> Stage {
    let configuration = &codec["configuration"];
    let number = |name: &str| configuration[name].as_i64().expect("a number");
    let size = |name: &str| usize::try_from(number(name)).expect("a size");
    let level = |name: &str| number(name).try_into().expect("a level");
    match codec["name"].as_str() {
        Some("zstd") => Stage::Zstd {
            level: number("level").try_into().expect("a level"),
            checksum: false,
        },
        Some("gzip") => Stage::Gzip {
            level: number("level").try_into().expect("a level"),
        },
        _ => Stage::Blosc(BloscStage {
            cname: match configuration["cname"].as_str() {
                Some("lz4") => Cname::Lz4,
                Some("lz4hc") => Cname::Lz4Hc,
                _ => Cname::Zstd,
            },
            level: level("clevel"),
            shuffle: match configuration["shuffle"].as_str() {
                Some("shuffle") => Shuffle::Byte,
                Some("bitshuffle") => Shuffle::Bit,
                _ => Shuffle::None,
            },
            typesize: size("typesize"),
            blocksize: size("blocksize"),
        }),
    }
}

/// The compressed streams of the shard `encoded`, as a device would be given them; `None` if the host decodes
/// the shard.
fn parse(
    case: &Case,
    codec: &Arc<CudaShardingCodec>,
    chain: &KnownChain,
    encoded: &[u8],
) -> Option<CompressedFrameParts> {
    let shards = &case.shards;
    let fill_value = shards.fill_value();
    let format = ShardFormat::new(
        codec.clone(),
        shards.chunk_shape(),
        shards.data_type.clone(),
        fill_value.clone(),
    );
    let format = format.expect("a codec that encodes has a format");
    let in_memory =
        |extent: Range<u64>| Some(extent.start.try_into().ok()?..extent.end.try_into().ok()?);
    let size = encoded.len() as u64;
    let index = encoded.get::<Range<usize>>(in_memory(format.index_range(size)?)?)?;
    let extents = format.decode_index(index, size).ok()?;
    let extents: Vec<Extent> = extents
        .into_iter()
        .map(|extent| extent.and_then(in_memory))
        .collect();
    let grid = SubchunkGrid::new(&shards.shape, &shards.subchunk, 1).expect("it divides");
    let job = ShardJob {
        grid: &grid,
        chain: Chain::Known(chain),
        fill_value: fill_value.as_ne_bytes(),
        store_empty: false,
        validate_checksums: case.options.validate_checksums(),
        threads: NonZeroUsize::MIN,
        huge_pages: false,
    };
    compressed_frame_parts::parse(&job, chain, encoded, &extents).ok()
}

/// A compressor, with the numbers of checksums before and after it.
fn chain(u: &mut Unstructured<'_>) -> Result<(usize, Value, usize)> {
    let before = usize::from(u.ratio(1, 4)?) * u.int_in_range(1..=2)?;
    let compressor = match u.int_in_range(0..=3)? {
        0 => codecs::zstd(u.int_in_range(-5..=19)?, false),
        1 => codecs::gzip(u.int_in_range(0..=9)?),
        _ => json!({ "name": "blosc", "configuration": {
            "cname": u.choose(&["lz4", "lz4hc", "zstd"])?,
            "clevel": u.int_in_range(0..=9)?,
            "shuffle": u.choose(&codecs::BLOSC_SHUFFLES)?,
            "typesize": u.int_in_range(1..=20)?,
            "blocksize": 256 * u.int_in_range(0..=3)?,
        } }),
    };
    let after = usize::from(u.ratio(1, 4)?) * u.int_in_range(1..=2)?;
    Ok((before, compressor, after))
}

/// The elements of each stored subchunk, unless it is shuffled by bits. `None` if a stream is
/// invalid or a checksum is wrong.
fn decoded(
    parsed: &CompressedFrameParts,
    encoded: &[Option<Vec<u8>>],
    before: usize,
) -> Option<Vec<Option<Vec<u8>>>> {
    let mut decoded = Vec::new();
    let chunking = parsed.layout.chunking;
    for (number, encoded) in encoded.iter().enumerate() {
        let streams = parsed.of_subchunk(number);
        let Some(encoded) = encoded else {
            assert!(
                streams.is_empty(),
                "streams of a subchunk that is not stored"
            );
            decoded.push(None);
            continue;
        };
        // The streams of a block are shuffled together.
        let mut shuffled = Vec::new();
        for (place, stream) in streams.iter().enumerate() {
            let len = chunking.chunk(place).len();
            let stream_bytes = encoded.get(stream.start..stream.start + stream.len);
            let bytes = stream_bytes.expect("a stream is within its subchunk");
            let decoded = if stream.raw {
                assert_eq!(bytes.len(), len, "what is raw is as long as its chunk");
                bytes.to_vec()
            } else {
                decompressed(parsed.layout.format, bytes, len)?
            };
            shuffled.extend(decoded);
        }
        let all = shuffled.len();
        assert_eq!(all, chunking.bytes, "the streams are all of a subchunk");
        let mut content = Vec::new();
        for block in shuffled.chunks(chunking.block) {
            content.extend(unshuffled(parsed, block.to_vec())?);
        }
        if let Some(checksum) = parsed.checksums.get(number)
            && libdeflater::crc32(&content) != *checksum
        {
            return None;
        }
        for _ in 0..before {
            let (bytes, checksum) = content.split_last_chunk::<4>()?;
            if crc32c::crc32c(bytes).to_le_bytes() != *checksum {
                return None;
            }
            content.truncate(content.len() - 4);
        }
        decoded.push(Some(content));
    }
    if matches!(parsed.layout.shuffle, Some((DeviceShuffle::Bits, _))) {
        // The kernel's tests compare this shuffle with C-Blosc.
        decoded.fill(None);
    }
    Some(decoded)
}

/// Decompresses one stream to exactly `len` bytes.
fn decompressed(format: Format, stream: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut block = vec![0; len];
    let made = match format {
        Format::Zstd => zstd_safe::decompress(&mut block[..], stream).ok()?,
        Format::Deflate { .. } => {
            let mut decompressor = libdeflater::Decompressor::new();
            let made = decompressor.deflate_decompress(stream, &mut block).ok()?;
            // libdeflate ignores bytes behind the last block, as a device may. The host refuses such a member: its
            // checksum is not behind the last block. The elements are right, because the checksum is compared.
            let mut member = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
            member.extend_from_slice(stream);
            member.extend(libdeflater::crc32(&block).to_le_bytes());
            member.extend(u32::try_from(made).ok()?.to_le_bytes());
            let mut again = vec![0; made];
            decompressor.gzip_decompress(&member, &mut again).ok()?;
            made
        }
        Format::Lz4 => lz4_flex::block::decompress_into(stream, &mut block).ok()?,
    };
    (made == len).then_some(block)
}

/// Reverses the shuffle of a block's bytes.
fn unshuffled(parsed: &CompressedFrameParts, block: Vec<u8>) -> Option<Vec<u8>> {
    let Some((DeviceShuffle::Bytes, BloscBlocks { element: size, .. })) = parsed.layout.shuffle
    else {
        return Some(block);
    };
    let elements = block.len() / size;
    let mut plain = block.clone();
    for element in 0..elements {
        for byte in 0..size {
            plain[element * size + byte] = *block.get(byte * elements + element)?;
        }
    }
    Some(plain)
}
