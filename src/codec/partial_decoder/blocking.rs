//! The partial decoder of a store that blocks: groups of subchunks are read in parallel.

use std::ops::RangeInclusive;
use std::sync::Arc;

use rayon::iter::ParallelIterator;
use rayon::slice::ParallelSlice;
use zarrs::array::{ArrayBytes, ArrayBytesRaw, DataType, Indexer};
use zarrs_codec::{
    ArrayBytesDecodeIntoTarget, ArrayPartialDecoderTraits, ArrayToBytesCodecTraits, CodecError,
    CodecOptions,
};
use zarrs_storage::StorageError;

use super::interval::Interval;
use super::request::{InnerReads, PartialReadOutput, PartialReadRequest, SubchunkRead};
use super::{PartialDecoder, ReadsParts};
use crate::panics::no_panic;
use crate::store::parts::RangeCost;
use crate::store::{BlockingHandle, now};

impl ReadsParts for BlockingHandle {
    // Most stores that block are files or memory.
    const RANGE_COST: RangeCost = RangeCost::CACHED;

    async fn read_groups(
        decoder: &PartialDecoder<Self>,
        request: &PartialReadRequest<'_>,
        output: &PartialReadOutput<'_, '_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        /// The number of bytes that a group takes to read: enough to be worth a request, and so few that the
        /// memory has room for one group per thread.
        const GROUP: RangeInclusive<usize> = (256 << 10)..=(16 << 20);
        const GROUPS_PER_THREAD: usize = 4;

        let threads = match options.concurrent_target() {
            0 => rayon::current_num_threads(),
            target => target,
        };
        let cost = request.cost() / (threads * GROUPS_PER_THREAD);
        let groups = request.groups(cost.clamp(*GROUP.start(), *GROUP.end()));
        let read = |groups: &[&[SubchunkRead]], options: &CodecOptions| {
            let mut groups = groups.iter();
            groups.try_for_each(|group| now(decoder.read_group(request, group, output, options)))
        };
        if groups.len() < 2 || threads < 2 {
            return read(&groups, options);
        }
        let options = options.with_concurrent_target(1);
        groups
            .par_chunks(groups.len().div_ceil(threads))
            .try_for_each(|groups| read(groups, &options))
    }

    async fn read_inner(
        decoder: &PartialDecoder<Self>,
        reads: Vec<InnerReads<'_>>,
        options: &CodecOptions,
    ) -> Result<Vec<ArrayBytesRaw<'static>>, CodecError> {
        let shards = &decoder.shards;
        let read = |InnerReads { extent, indexer }: InnerReads<'_>| {
            let interval = Interval::new(decoder.input.clone(), extent);
            no_panic(|| {
                let inner = shards.codec.inner_codecs.clone().partial_decoder(
                    Arc::new(interval),
                    &shards.codec.subchunk_shape,
                    &shards.data_type,
                    &shards.fill_value,
                    options,
                )?;
                let elements = inner.partial_decode(&*indexer, options)?;
                Ok(elements.into_owned().into_fixed()?)
            })
        };
        reads.into_iter().map(read).collect()
    }
}

impl ArrayPartialDecoderTraits for PartialDecoder<BlockingHandle> {
    fn data_type(&self) -> &DataType {
        &self.shards.data_type
    }

    fn exists(&self) -> Result<bool, StorageError> {
        self.input.exists()
    }

    fn size_held(&self) -> usize {
        self.input.size_held() + self.size_of_index()
    }

    fn partial_decode(
        &self,
        indexer: &dyn Indexer,
        options: &CodecOptions,
    ) -> Result<ArrayBytes<'_>, CodecError> {
        now(self.decode(indexer, options))
    }

    fn partial_decode_into(
        &self,
        indexer: &dyn Indexer,
        output_target: ArrayBytesDecodeIntoTarget<'_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        now(self.decode_into(indexer, output_target, options))
    }

    fn supports_partial_decode(&self) -> bool {
        self.input.supports_partial_decode()
    }
}
