//! The index of a shard: its place, its size, and its encoding.

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;

use zarrs::array::codec::ShardingIndexLocation;
use zarrs::array::{ArrayBytes, BytesRepresentation, CodecChain, FillValue, data_type};
use zarrs_codec::{ArrayToBytesCodecTraits, CodecError, CodecOptions};
use zarrs_storage::byte_range::ByteRange;

use super::error::{caused, sourced};
use super::recognise::recognise;
use crate::metrics::counters;
use crate::options::Options;
use crate::panics::no_panic;
use zarrs_cuda_engine::contract::Stage;
use zarrs_cuda_engine::layout::{
    ByteOrder, ENTRY_LEN, Entries, Extent, Space, SubchunkGrid, encode_entries,
};

/// The size of a CRC32C, in bytes.
const CHECKSUM_LEN: usize = 4;

/// The codecs that encode an index, and their properties.
#[derive(Clone, Debug)]
pub(crate) struct IndexCodecs {
    chain: Arc<CodecChain>,
    /// The encoding of the index, if this module can encode and decode the index without the codecs.
    plain: Option<PlainIndexEncoding>,
    has_checksum: bool,
}

/// An encoding that stores the entries unchanged, and then checksums of all bytes before.
#[derive(Clone, Copy, Debug)]
struct PlainIndexEncoding {
    order: ByteOrder,
    checksums: usize,
}

impl IndexCodecs {
    /// Returns the codecs as a chain of zarrs.
    pub(crate) fn chain(&self) -> &Arc<CodecChain> {
        &self.chain
    }

    /// Returns the codecs `chain`, for the index of shards with `dimensions` dimensions.
    ///
    /// # Errors
    /// A message for the user if the size of an encoded index is not fixed.
    pub(crate) fn new(chain: Arc<CodecChain>, dimensions: usize) -> Result<Self, String> {
        let shape = shape_of_one(dimensions);
        fixed_size(&chain, &shape).map_err(|error| format!("invalid index codecs: {error}"))?;
        let plain = PlainIndexEncoding::of(&chain);
        Ok(Self {
            has_checksum: match plain {
                Some(plain) => plain.checksums > 0,
                None => notices_a_change(&chain, &shape),
            },
            plain,
            chain,
        })
    }
}

impl PlainIndexEncoding {
    fn of(chain: &CodecChain) -> Option<Self> {
        let known = recognise(chain).ok()?.resolve(
            chain.array_to_bytes_codec().as_ref(),
            1,
            &data_type::uint64(),
            &FillValue::from(u64::MAX),
        );
        let known = known.ok()?;
        let is_plain = chain.array_to_array_codecs().is_empty()
            && known.stages.iter().all(|stage| *stage == Stage::Crc32c);
        is_plain.then_some(Self {
            order: match (ByteOrder::NATIVE, known.swap) {
                (order, 1) => order,
                (ByteOrder::Little, _) => ByteOrder::Big,
                (ByteOrder::Big, _) => ByteOrder::Little,
            },
            checksums: known.stages.len(),
        })
    }

    /// Checks the checksums of `encoded`.
    fn validate(self, encoded: &[u8]) -> Result<(), CodecError> {
        let mut rest = encoded;
        for _ in 0..self.checksums {
            let (before, checksum) = rest
                .split_last_chunk::<CHECKSUM_LEN>()
                .ok_or(CodecError::InvalidChecksum)?;
            if crc32c::crc32c(before) != u32::from_le_bytes(*checksum) {
                return Err(CodecError::InvalidChecksum);
            }
            rest = before;
        }
        Ok(())
    }

    /// Appends the checksums to `entries`.
    fn finish(self, mut entries: Vec<u8>) -> Vec<u8> {
        for _ in 0..self.checksums {
            let checksum = crc32c::crc32c(&entries);
            entries.extend_from_slice(&checksum.to_le_bytes());
        }
        entries
    }
}

/// Returns whether decoding fails when a bit of an encoded index of `shape` changes.
fn notices_a_change(chain: &CodecChain, shape: &[NonZeroU64]) -> bool {
    let (data_type, fill_value) = (data_type::uint64(), FillValue::from(u64::MAX));
    let options = CodecOptions::default().with_validate_checksums(true);
    let Ok(mut changed) = encode_one(chain, shape) else {
        return false;
    };
    if let Some(byte) = changed.first_mut() {
        *byte ^= 1;
    }
    let changed = Cow::Owned(changed);
    no_panic(|| chain.decode(changed, shape, &data_type, &fill_value, &options)).is_err()
}

/// Returns the shape of the index of a shard that has one subchunk.
fn shape_of_one(dimensions: usize) -> Vec<NonZeroU64> {
    let mut shape = vec![NonZeroU64::MIN; dimensions];
    shape.push(NonZeroU64::MIN.saturating_add(1));
    shape
}

/// Returns the encoded index of a shard whose only subchunk is empty. `shape` is the shape of the index.
fn encode_one(chain: &CodecChain, shape: &[NonZeroU64]) -> Result<Vec<u8>, CodecError> {
    let encoded = no_panic(|| {
        chain.encode(
            ArrayBytes::from(vec![0xFF; ENTRY_LEN]),
            shape,
            &data_type::uint64(),
            &FillValue::from(u64::MAX),
            &CodecOptions::default(),
        )
    });
    encoded.map(Cow::into_owned)
}

/// Returns the size of an encoded index of `shape`.
fn fixed_size(chain: &CodecChain, shape: &[NonZeroU64]) -> Result<u64, CodecError> {
    match chain.encoded_representation(shape, &data_type::uint64(), &FillValue::from(u64::MAX))? {
        BytesRepresentation::FixedSize(size) => Ok(size),
        representation => Err(CodecError::Other(format!(
            "the index codecs encode to a variable size ({representation}), which sharding_indexed does not allow: use `bytes`, and checksums such as `crc32c`"
        ))),
    }
}

/// The index of shards that have one codec and one shape.
#[derive(Clone, Debug)]
pub(crate) struct ShardIndex {
    codecs: IndexCodecs,
    location: ShardingIndexLocation,
    /// The shape of the index: the numbers of subchunks along each axis, and 2 for the two words of an entry.
    shape: Vec<NonZeroU64>,
    num_subchunks: usize,
    len: usize,
}

impl ShardIndex {
    /// # Errors
    /// A [`CodecError`] if the index is larger than this machine can address.
    pub(crate) fn new(
        codecs: &IndexCodecs,
        location: ShardingIndexLocation,
        grid: &SubchunkGrid,
    ) -> Result<Self, CodecError> {
        let num_subchunks = grid.num_subchunks();
        let too_many = || {
            CodecError::Other(format!(
                "the index of {num_subchunks} subchunks is larger than this machine can address"
            ))
        };
        // The memory must hold the entries twice: decoded, and as the encoded bytes.
        num_subchunks
            .checked_mul(2 * ENTRY_LEN)
            .filter(|&len| isize::try_from(len).is_ok())
            .ok_or_else(too_many)?;
        let counts = grid.counts().iter().copied().chain([2]);
        let shape: Vec<_> = counts
            .filter_map(|count| NonZeroU64::new(u64::try_from(count).ok()?))
            .collect();
        let len = fixed_size(&codecs.chain, &shape)?;
        Ok(Self {
            codecs: codecs.clone(),
            location,
            shape,
            num_subchunks,
            len: usize::try_from(len).map_err(|_| too_many())?,
        })
    }

    /// Returns the size of the encoded index, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of subchunks of a shard.
    pub(crate) fn num_subchunks(&self) -> usize {
        self.num_subchunks
    }

    pub(crate) fn location(&self) -> ShardingIndexLocation {
        self.location
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.location == ShardingIndexLocation::End
    }

    /// Checks that the index codecs can encode an index.
    ///
    /// # Errors
    /// A [`CodecError`] if they cannot: `bytes` without `endian` is such a codec.
    pub(crate) fn check_codecs(&self) -> Result<(), CodecError> {
        if self.is_plain() {
            return Ok(());
        }
        let encoded = encode_one(&self.codecs.chain, &shape_of_one(self.shape.len() - 1));
        encoded.map(drop).map_err(|error| {
            let message = format!("the index codecs cannot encode an index: {error}");
            caused(message, &error)
        })
    }

    /// Returns whether decoding fails when a bit of the encoded index changes.
    pub(crate) fn has_checksum(&self) -> bool {
        self.codecs.has_checksum
    }

    /// Returns the numbers of bytes to leave for the index before and behind the subchunks.
    pub(crate) fn room(&self) -> (usize, usize) {
        match self.location {
            ShardingIndexLocation::Start => (self.len, 0),
            ShardingIndexLocation::End => (0, self.len),
        }
    }

    /// Returns the byte range of the index in a shard of any size.
    pub(crate) fn byte_range(&self) -> ByteRange {
        let len = self.len as u64;
        match self.location {
            ShardingIndexLocation::Start => ByteRange::FromStart(0, Some(len)),
            ShardingIndexLocation::End => ByteRange::Suffix(len),
        }
    }

    /// Returns the byte range of the index in a shard of `size` bytes, or `None` if the shard is shorter than
    /// the index.
    pub(crate) fn range_in(&self, size: usize) -> Option<Range<usize>> {
        let behind = size.checked_sub(self.len)?;
        Some(match self.location {
            ShardingIndexLocation::Start => 0..self.len,
            ShardingIndexLocation::End => behind..size,
        })
    }

    /// Returns the encoded index of the shard `object`.
    ///
    /// # Errors
    /// A [`CodecError`] if the shard is shorter than the index.
    pub(crate) fn of<'b>(&self, object: &'b [u8]) -> Result<&'b [u8], CodecError> {
        let range = self.range_in(object.len());
        range.map(|range| &object[range]).ok_or_else(|| {
            CodecError::Other(format!(
                "the encoded shard has {} bytes, fewer than its index of {}: it is truncated",
                object.len(),
                self.len
            ))
        })
    }

    /// Finds, decodes and checks the index of the shard `object`.
    ///
    /// # Errors
    /// The errors of [`of`](Self::of) and [`decode`](Self::decode).
    pub(crate) fn decode_in<'b>(
        &self,
        object: &'b [u8],
        options: &CodecOptions,
    ) -> Result<Entries<'b>, CodecError> {
        let encoded = Cow::Borrowed(self.of(object)?);
        self.decode(encoded, object.len() as u64, options)
    }

    /// Decodes the encoded index, and checks that no subchunk ends beyond byte `limit` of the shard.
    ///
    /// If the size of the shard is not known, `limit` is the largest possible size.
    ///
    /// # Errors
    /// A [`CodecError`] if the index codecs fail, or if a subchunk ends beyond `limit`.
    pub(crate) fn decode<'b>(
        &self,
        encoded: Cow<'b, [u8]>,
        limit: u64,
        options: &CodecOptions,
    ) -> Result<Entries<'b>, CodecError> {
        let entries = self.decode_unchecked(encoded, options)?;
        let checked = entries.check(limit);
        checked.map_err(sourced)?;
        Ok(entries)
    }

    /// Checks that no two subchunks share bytes, if the data are not trusted. Shared bytes are legal. But
    /// zarrs decodes all subchunks of elements without a fixed size at once, and the sum of their sizes has
    /// no limit.
    pub(crate) fn check_overlaps(
        entries: &Entries<'_>,
        options: &Options,
    ) -> Result<(), CodecError> {
        if options.untrusted_data() && Space::of(entries.iter()).overlaps() {
            return Err(CodecError::Other(
                "two subchunks of the shard have bytes in common, so that a small shard could take any amount of memory, and the options say that the data are not to be trusted. Read it without `Options::with_untrusted_data`, if they are".to_string(),
            ));
        }
        Ok(())
    }

    /// Decodes the encoded index without checking where its entries lie.
    pub(crate) fn decode_unchecked<'b>(
        &self,
        encoded: Cow<'b, [u8]>,
        options: &CodecOptions,
    ) -> Result<Entries<'b>, CodecError> {
        if encoded.len() != self.len {
            return Err(CodecError::Other(format!(
                "the shard has {} bytes where its index of {} should be: it is truncated",
                encoded.len(),
                self.len
            )));
        }
        let (bytes, order) = match self.codecs.plain {
            Some(plain) => {
                if options.validate_checksums() {
                    plain.validate(&encoded)?;
                }
                (encoded, plain.order)
            }
            None => (
                Cow::Owned(self.decode_by_codecs(encoded, options)?),
                ByteOrder::NATIVE,
            ),
        };
        let len = bytes.len();
        Entries::new(bytes, self.num_subchunks, order).ok_or_else(|| {
            CodecError::Other(format!(
                "the index codecs decoded the shard index to {len} bytes for {} subchunks",
                self.num_subchunks
            ))
        })
    }

    fn decode_by_codecs(
        &self,
        encoded: Cow<'_, [u8]>,
        options: &CodecOptions,
    ) -> Result<Vec<u8>, CodecError> {
        counters::host_coding();
        no_panic(|| {
            let decoded = self.codecs.chain.decode(
                encoded,
                &self.shape,
                &data_type::uint64(),
                &FillValue::from(u64::MAX),
                options,
            )?;
            Ok(decoded.into_fixed()?.into_owned())
        })
    }

    /// Returns whether the decoded entries are stored in the same bytes as the encoded index.
    pub(crate) fn is_plain(&self) -> bool {
        self.codecs.plain.is_some()
    }

    fn order(&self) -> ByteOrder {
        self.codecs
            .plain
            .map_or(ByteOrder::NATIVE, |plain| plain.order)
    }

    /// Returns the entries of a shard whose subchunks are all empty.
    pub(crate) fn empty(&self) -> Entries<'static> {
        Entries::empty(self.num_subchunks, self.order())
    }

    /// Encodes the index of a shard whose subchunks lie at `extents`.
    pub(crate) fn encode(
        &self,
        extents: &[Extent],
        options: &CodecOptions,
    ) -> Result<Vec<u8>, CodecError> {
        debug_assert_eq!(extents.len(), self.num_subchunks);
        self.finish(encode_entries(extents, self.order(), self.spare()), options)
    }

    /// Encodes the decoded index `old` with `changes`, which are numbers of subchunks and their new extents.
    pub(crate) fn encode_changed(
        &self,
        old: &Entries<'_>,
        changes: impl IntoIterator<Item = (usize, Extent)>,
        options: &CodecOptions,
    ) -> Result<Vec<u8>, CodecError> {
        self.finish(old.with(changes, self.spare()), options)
    }

    /// Returns the number of bytes of the encoded index beside its entries, such as those of a checksum.
    fn spare(&self) -> usize {
        self.len.saturating_sub(self.num_subchunks * ENTRY_LEN)
    }

    fn encode_by_codecs(
        &self,
        entries: Vec<u8>,
        options: &CodecOptions,
    ) -> Result<Vec<u8>, CodecError> {
        counters::host_coding();
        let encoded = self.codecs.chain.encode(
            ArrayBytes::from(entries),
            &self.shape,
            &data_type::uint64(),
            &FillValue::from(u64::MAX),
            options,
        )?;
        Ok(encoded.into_owned())
    }

    fn finish(&self, entries: Vec<u8>, options: &CodecOptions) -> Result<Vec<u8>, CodecError> {
        let index = match self.codecs.plain {
            Some(plain) => plain.finish(entries),
            None => self.encode_by_codecs(entries, options)?,
        };
        if index.len() == self.len {
            Ok(index)
        } else {
            Err(CodecError::Other(format!(
                "the index codecs encoded to {} bytes, and had said {}",
                index.len(),
                self.len
            )))
        }
    }
}
