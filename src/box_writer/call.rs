//! Writes the boxes of one call: each shard once, several shards at once.
//!
//! ```text
//! look for subchunks beside the shards              if there are some, nothing is written
//! for each shard
//!     encode it, if a box covers it                from the caller's memory
//!     lock its key                                  against other writers of boxes
//!     look for subchunks beside it                  they would hide its elements
//!     replace it; or change it, and replace it; or update it in place
//!     look again
//!     unlock
//! let the array grow                                if the writer may
//! ```

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use zarrs::array::{Array, ArrayBytes, ArraySubset, Indexer};
use zarrs_codec::CodecOptions;

use super::by_zarrs;
use super::encoded::encoded;
use super::error::{BoxWriterError, BoxWriterErrorKind as Kind};
use super::pool::encoding;
use super::report::BoxReport;
use super::request::{self, BoxesInMemory, ShardToWrite};
use super::target::{Changes, NewShard, Target, Update};
use super::{Settings, ShardUpdate};
use crate::maintenance::ShardFormat;
use crate::reader::DecodedBy;
use crate::reader::request::WantedPart;
use crate::reader::threads::{Each, Task, decoding};

/// One call of a writer.
pub(super) struct Call<'c> {
    array: &'c Array<()>,
    encoded_by: &'c DecodedBy,
    settings: &'c Settings,
    memories: Vec<BoxesInMemory<'c>>,
    shards: Vec<ShardToWrite>,
    /// The length that the array must have after the call.
    length: u64,
    /// Whether subchunks may be stored beside shards.
    is_marked: AtomicBool,
    report: Mutex<BoxReport>,
}

impl<'c> Call<'c> {
    /// Finds the shards of `memories`, whose boxes are inside `array`.
    pub(super) fn new(
        array: &'c Array<()>,
        encoded_by: &'c DecodedBy,
        settings: &'c Settings,
        memories: Vec<BoxesInMemory<'c>>,
    ) -> Result<Self, Kind> {
        let shards = request::shards(array, &memories)?;
        let boxes = memories.iter().flat_map(|memory| &memory.boxes);
        let boxes = boxes.filter(|one| !one.subset.is_empty());
        let ends = boxes.filter_map(|one| one.subset.end_exc().first().copied());
        Ok(Self {
            length: ends.max().unwrap_or(0),
            is_marked: AtomicBool::new(true),
            report: Mutex::new(BoxReport {
                wanted: shards.len(),
                ..BoxReport::default()
            }),
            array,
            encoded_by,
            settings,
            memories,
            shards,
        })
    }

    /// Writes all shards to `target`, at most `at_once` of them at once, which `each` calls.
    pub(super) async fn run<T: Target>(
        self,
        target: &T,
        at_once: NonZeroUsize,
        each: Each<Kind>,
    ) -> Result<BoxReport, BoxWriterError> {
        let call = &self;
        let at_once = call.settings.shards_at_once(at_once);
        let mut threads = call.settings.threads().get();
        if !T::IS_POLLED {
            threads /= at_once.get().min(call.shards.len().max(1));
        }
        let one = |number: usize| -> Task<'_, Kind> {
            Box::pin(async move {
                if call.settings.is_cancelled() {
                    return Err(Kind::Cancelled);
                }
                call.write(target, &call.shards[number], threads.max(1))
                    .await
            })
        };
        let all = async {
            if !self.shards.is_empty() {
                target.check(self.settings.update).await?;
            }
            if let Some(growth) = &self.settings.growth {
                growth.check(self.array, target, self.length).await?;
            }
            let looks = self.settings.update != ShardUpdate::Shared;
            let is_marked = looks && target.is_marked().await?;
            self.is_marked.store(is_marked, Ordering::Relaxed);
            if is_marked && call.shards.len() > 1 {
                let look = |number: usize| -> Task<'_, Kind> {
                    Box::pin(call.look(target, &call.shards[number], "before"))
                };
                each(call.shards.len(), at_once, &look).await?;
            }
            each(call.shards.len(), at_once, &one).await?;
            if looks && !is_marked && target.is_marked().await? {
                self.is_marked.store(true, Ordering::Relaxed);
                for shard in &self.shards {
                    self.look(target, shard, "after").await?;
                }
            }
            Ok(())
        };
        let mut written = all.await;
        if written.is_ok()
            && let Some(growth) = &call.settings.growth
            && call.length > 0
        {
            let grown = growth.grow(call.array, target, call.length).await;
            written = grown.map(|length| call.change(|report| report.length = Some(length)));
        }
        let report = self.report.into_inner();
        let report = report.unwrap_or_else(PoisonError::into_inner);
        match written {
            Ok(()) => Ok(report),
            Err(kind) => Err(BoxWriterError::new(kind, report)),
        }
    }

    fn change(&self, change: impl FnOnce(&mut BoxReport)) {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut report);
        if let Some(on_progress) = &self.settings.on_progress {
            on_progress.0(&report);
        }
    }

    /// Notes that the shard was stored with so many bytes, or erased.
    fn done(&self, shard: &ShardToWrite, stored: Option<u64>) {
        self.change(|report| match stored {
            Some(bytes) => {
                report.stored.push(shard.key.clone());
                report.stored_bytes += bytes;
            }
            None => report.empty.push(shard.key.clone()),
        });
    }

    /// Returns the codec's options for a shard that `threads` threads encode.
    fn options(&self, threads: usize) -> CodecOptions {
        self.settings.codec_options.with_concurrent_target(threads)
    }

    /// Returns the elements of a part, in C order.
    fn elements(&self, (memory, part): &(usize, WantedPart)) -> Result<ArrayBytes<'_>, Kind> {
        let source = &self.memories[*memory].source;
        let elements = source.elements(&part.shape, part.offset, self.array.data_type())?;
        Ok(ArrayBytes::new_flen(elements))
    }

    /// Returns the boxes of a shard, in elements of the array, whose shard begins at `origin`, and their elements.
    fn boxes(
        &self,
        shard: &ShardToWrite,
        origin: &[u64],
    ) -> Result<Vec<(ArraySubset, ArrayBytes<'_>)>, Kind> {
        let boxes = shard.parts.iter().map(|one| {
            let subset = ShardToWrite::subset(&one.1);
            let starts = subset.start().iter().zip(subset.shape()).zip(origin);
            let ranges = starts.map(|((start, len), origin)| start + origin..start + origin + len);
            Ok((ArraySubset::from(ranges), self.elements(one)?))
        });
        boxes.collect()
    }

    /// Returns the changes of a shard. Many small boxes are one change, so that each subchunk is encoded once.
    fn changes(&self, shard: &ShardToWrite) -> Result<Changes<'_>, Kind> {
        /// The most elements of boxes that are one change: each of them takes some memory for its coordinates.
        const TOGETHER: usize = 1 << 16;

        let len = |part: &WantedPart| part.shape.iter().product::<usize>();
        let mut changes: Changes<'_> = Vec::new();
        let mut rest = &shard.parts[..];
        while !rest.is_empty() {
            let mut sum = 0_usize;
            let fits = |(_, part): &&(usize, WantedPart)| {
                sum = sum.saturating_add(len(part));
                sum <= TOGETHER
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (together, others) = rest.split_at(count);
            rest = others;
            if let [one] = together {
                let at: Box<dyn Indexer> = Box::new(ShardToWrite::subset(&one.1));
                changes.push((at, self.elements(one)?));
                continue;
            }
            let mut all = Vec::new();
            for (memory, part) in together {
                let source = &self.memories[*memory].source;
                let elements = source.elements(&part.shape, part.offset, self.array.data_type())?;
                all.extend_from_slice(&elements);
            }
            let parts = together.iter().map(|(_, part)| ShardToWrite::subset(part));
            let at: Vec<ArraySubset> = parts.collect();
            changes.push((Box::new(at), ArrayBytes::new_flen(all)));
        }
        Ok(changes)
    }

    async fn write<T: Target>(
        &self,
        target: &T,
        shard: &ShardToWrite,
        threads: usize,
    ) -> Result<(), Kind> {
        match (self.encoded_by, self.settings.update) {
            (DecodedBy::Zarrs(_), _) => self.write_by_zarrs(target, shard, threads).await,
            (DecodedBy::ThisCrate(_), ShardUpdate::Shared) => self.share(target, shard).await,
            (DecodedBy::ThisCrate(codec), update) => {
                let format = ShardFormat::of_codec(codec.clone(), self.array, &shard.indices);
                let format = format.map_err(|error| Kind::Shard {
                    doing: "encode",
                    key: shard.key.clone(),
                    error: Box::new(error),
                })?;
                self.write_shard(target, (shard, &format, update), threads)
                    .await
            }
        }
    }

    /// Stores the new value of a shard, or erases it, and notes it.
    async fn put<T: Target>(
        &self,
        (target, locked): (&T, &mut T::Guard),
        shard: &ShardToWrite,
        value: Option<NewShard>,
    ) -> Result<(), Kind> {
        let key = &shard.key;
        let Some(value) = value else {
            let erased = target.erase(locked, key).await;
            erased.map_err(Kind::store("erase", key))?;
            self.done(shard, None);
            return Ok(());
        };
        let size = value.size();
        let stored = target.replace(locked, key, value).await;
        stored.map_err(Kind::store("store", key))?;
        self.done(shard, Some(size));
        Ok(())
    }

    /// Checks that no subchunks are stored beside the shard, unless the whole array has none.
    async fn look<T: Target>(
        &self,
        target: &T,
        shard: &ShardToWrite,
        when: &'static str,
    ) -> Result<(), Kind> {
        if !self.is_marked.load(Ordering::Relaxed) {
            return Ok(());
        }
        let key = &shard.key;
        let framed = target.has_frame(key).await;
        let framed = framed.map_err(Kind::store("look for subchunks beside", key))?;
        if framed {
            let key = key.clone();
            return Err(Kind::FramesPending { key, when });
        }
        Ok(())
    }

    async fn write_shard<T: Target>(
        &self,
        target: &T,
        (shard, format, update): (&ShardToWrite, &ShardFormat, ShardUpdate),
        threads: usize,
    ) -> Result<(), Kind> {
        let key = &shard.key;
        let extents: Vec<u64> = format.shape().iter().map(|extent| extent.get()).collect();
        // A covered shard is encoded before it is locked, so that others wait for its write alone.
        let covered = shard.covering(&extents).map(|(memory, part)| {
            let source = &self.memories[*memory].source;
            let spares = target.spares();
            let encode = |threads| {
                let options = self.options(threads);
                encoded(format, (key, part, source), spares, &options)
            };
            // The engines call no rayon for one thread.
            let is_alone = threads == 1 && format.shards().known().is_ok();
            decoding(|| {
                if is_alone {
                    return encode(1);
                }
                encoding(threads, encode)
            })
        });
        let covered = covered.transpose()?;
        let mut locked = target.lock(key).await.map_err(Kind::store("lock", key))?;
        self.look(target, shard, "before").await?;
        match covered {
            Some(value) => {
                self.put((target, &mut locked), shard, value.map(NewShard::Encoded))
                    .await?;
            }
            None if update == ShardUpdate::InPlace => {
                let update = Update {
                    format,
                    changes: self.changes(shard)?,
                    options: &self.options(1),
                };
                target.update(&mut locked, key, update).await?;
                self.done(shard, Some(0));
            }
            None => {
                let stored = target.stored(key).await.map_err(Kind::store("read", key))?;
                let rewrite = |threads| {
                    let changes = self.changes(shard)?;
                    let rewritten = format.rewrite_indexed(stored, changes, &self.options(threads));
                    rewritten.map_err(|error| Kind::Shard {
                        doing: "change",
                        key: key.clone(),
                        error: Box::new(error),
                    })
                };
                let rewritten = decoding(|| encoding(threads, rewrite))?;
                self.put(
                    (target, &mut locked),
                    shard,
                    rewritten.map(NewShard::Rewritten),
                )
                .await?;
            }
        }
        self.look(target, shard, "after").await
    }

    async fn share<T: Target>(&self, target: &T, shard: &ShardToWrite) -> Result<(), Kind> {
        let key = &shard.key;
        let origin = self.array.chunk_origin(&shard.indices);
        let origin = origin.map_err(|error| Kind::unsupported(error.to_string()))?;
        // zarrs reads and stores a subchunk that a box meets in part, in two steps.
        let _locked = target.lock(key).await.map_err(Kind::store("lock", key))?;
        let boxes = self.boxes(shard, &origin)?;
        target.share(shard, boxes, &self.options(1)).await?;
        self.done(shard, Some(0));
        Ok(())
    }

    /// Writes a chunk that zarrs encodes.
    async fn write_by_zarrs<T: Target>(
        &self,
        target: &T,
        shard: &ShardToWrite,
        threads: usize,
    ) -> Result<(), Kind> {
        let key = &shard.key;
        let shape = self.array.chunk_shape(&shard.indices);
        let shape = shape.map_err(|error| Kind::unsupported(error.to_string()))?;
        let extents: Vec<u64> = shape.iter().map(|extent| extent.get()).collect();
        let mut locked = target.lock(key).await.map_err(Kind::store("lock", key))?;
        let stored = match shard.covering(&extents) {
            Some(_) => None,
            None => target.stored(key).await.map_err(Kind::store("read", key))?,
        };
        let encode = |threads| {
            let (of_part, options) = (|one: &_| self.elements(one), self.options(threads));
            by_zarrs::encoded(self.array, (shard, &shape, stored), &of_part, &options)
        };
        let value = decoding(|| encoding(threads, encode))?;
        self.put((target, &mut locked), shard, value.map(NewShard::Encoded))
            .await
    }
}
