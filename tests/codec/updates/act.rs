//! Applies each step to an array.

use futures::executor::block_on;
use zarrs::array::{ArrayBytes, Indexer};
use zarrs::storage::WritableStorageTraits;
use zarrs_cuda::compact;
use zarrs_cuda::maintenance::ShardFormat;

use super::case::{Outer, Values};
use super::step::{By, Step, What, subset};
use super::subject::{Subject, key};
use zarrs_cuda_testing::Rng;

fn text<E: std::fmt::Display>(error: E) -> String {
    error.to_string()
}

impl Subject {
    /// Applies `step` to the array.
    pub(crate) fn act(&mut self, step: &Step) -> Result<(), String> {
        match &step.what {
            What::ArraySubset(..) | What::ChunkSubset(..) => self.store_part(step),
            What::Encode(shard, ranges, values) => {
                self.encode(step, *shard, &subset(ranges), *values)
            }
            What::Points(shard, points, values) => self.encode(step, *shard, points, *values),
            other => {
                self.encoder = None;
                self.act_on_shard(step, other)
            }
        }
    }

    fn bytes(&self, values: Values, len: u64) -> ArrayBytes<'static> {
        let len = usize::try_from(len).unwrap();
        self.case.to_bytes(&values.elements(&self.case, len))
    }

    /// Writes with the methods of zarrs' `Array`.
    fn store_part(&mut self, step: &Step) -> Result<(), String> {
        self.encoder = None;
        let options = self.options();
        let array = self.ours(step.strategy);
        let asynchronous = self.asynchronous(step.strategy);
        match &step.what {
            What::ArraySubset(ranges, values) => {
                let subset = subset(ranges);
                let bytes = self.bytes(*values, subset.num_elements());
                if step.asynchronous {
                    block_on(asynchronous.async_store_array_subset_opt(&subset, bytes, &options))
                } else {
                    array.store_array_subset_opt(&subset, bytes, &options)
                }
            }
            What::ChunkSubset(shard, ranges, values) => {
                let (subset, chunk) = (subset(ranges), self.chunk(*shard));
                let bytes = self.bytes(*values, subset.num_elements());
                if step.asynchronous {
                    let storing =
                        asynchronous.async_store_chunk_subset_opt(&chunk, &subset, bytes, &options);
                    block_on(storing)
                } else {
                    array.store_chunk_subset_opt(&chunk, &subset, bytes, &options)
                }
            }
            other => panic!("{other:?} is none of these"),
        }
        .map_err(text)
    }

    /// Writes with a partial encoder, and checks that the encoder reads the written elements.
    fn encode(
        &mut self,
        step: &Step,
        shard: usize,
        indexer: &dyn Indexer,
        values: Values,
    ) -> Result<(), String> {
        let (chunk, options) = (self.chunk(shard), self.options());
        let bytes = self.bytes(values, indexer.len());
        // zarrs' string decoder cannot find single elements in empty subchunks.
        let points = matches!(step.what, What::Points(..));
        let readable = !(points && self.case.is_strings());
        // A kept encoder is valid only if nothing else writes to the shard.
        let kept = self.encoder.take();
        if step.asynchronous {
            let array = self.asynchronous(step.strategy);
            return block_on(async {
                let encoder = array.async_partial_encoder(&chunk, &options);
                let encoder = encoder.await.map_err(text)?;
                let encoding = encoder.partial_encode(indexer, &bytes, &options);
                encoding.await.map_err(text)?;
                if !readable {
                    return Ok(());
                }
                let part = encoder.partial_decode(indexer, &options).await;
                self.check_part(shard, indexer, part.map_err(text)?)
            });
        }
        let encoder = match kept {
            Some((of, strategy, kept)) if (of, strategy) == (shard, step.strategy) => kept,
            _ => {
                let array = self.ours(step.strategy);
                array.partial_encoder(&chunk, &options).map_err(text)?
            }
        };
        let encoded = encoder.partial_encode(indexer, &bytes, &options);
        encoded.map_err(text)?;
        if readable {
            let part = encoder.partial_decode(indexer, &options).map_err(text)?;
            self.check_part(shard, indexer, part)?;
        }
        self.encoder = Some((shard, step.strategy, encoder));
        Ok(())
    }

    /// Applies steps that affect a whole shard, or all shards.
    fn act_on_shard(&mut self, step: &Step, what: &What) -> Result<(), String> {
        let options = self.options();
        let array = self.ours(step.strategy);
        match what {
            What::Store(shard, values, by) => {
                let bytes = self.bytes(*values, self.case.num_elements() as u64);
                let array = match by {
                    By::Zarrs => self.stock(),
                    By::Us => array,
                };
                let stored = array.store_chunk_opt(&self.chunk(*shard), bytes, &options);
                stored.map_err(text)
            }
            What::Erase(shard) => array.erase_chunk(&self.chunk(*shard)).map_err(text),
            What::EncodeErase(shard) => {
                let encoder = array.partial_encoder(&self.chunk(*shard), &options);
                encoder.map_err(text)?.erase().map_err(text)
            }
            What::Compact(shard) if step.asynchronous || self.case.outer == Outer::Compressor => {
                let compacted = array.compact_chunk(&self.chunk(*shard), &options);
                compacted.map(|_| ()).map_err(text)
            }
            What::Compact(shard) => {
                let format = ShardFormat::of(array, &self.chunk(*shard)).map_err(text)?;
                let key = key(*shard, &self.case);
                let compaction = compact(&*self.store, &key, &format).map_err(text)?;
                let size = self.object(*shard).map_or(0, |object| object.len() as u64);
                if compaction.map_or(0, |compaction| compaction.after) == size {
                    Ok(())
                } else {
                    Err(format!("{compaction:?}, and {size} bytes"))
                }
            }
            What::Junk(shard, seed) => {
                let Some(mut object) = self.object(*shard) else {
                    return Ok(());
                };
                let mut rng = Rng(*seed);
                let len = rng.below(300);
                object.extend((0..len).map(|_| rng.byte()));
                let key = key(*shard, &self.case);
                self.store.set(&key, object.into()).map_err(text)
            }
            What::Reopen => {
                self.reopen();
                Ok(())
            }
            other => panic!("{other:?} is none of these"),
        }
    }
}
