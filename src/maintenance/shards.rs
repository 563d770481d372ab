//! Maintenance of the shards of an array.

use std::sync::Arc;

use zarrs::array::Array;
#[cfg(feature = "async")]
use zarrs_storage::{
    AsyncListableStorageTraits, AsyncReadableStorageTraits, AsyncReadableWritableStorageTraits,
};
use zarrs_storage::{
    ListableStorageTraits, ReadableStorageTraits, ReadableWritableStorageTraits, StorageError,
    StoreKey,
};

#[cfg(feature = "async")]
use super::compact::async_compact;
use super::compact::{Compaction, compact, compact_in, preview_in};
use super::format::ShardFormat;
#[cfg(feature = "async")]
use super::inspect::async_inspect;
use super::inspect::{Inspection, inspect};
use super::io::{failed, undecided};
use super::keys::ShardKeys;
#[cfg(feature = "async")]
use super::recover::async_recover;
use super::recover::{Recovery, recover};
#[cfg(feature = "async")]
use super::verify::async_verify;
use super::verify::{Verification, verify, verify_in_pieces};
use crate::codec::CudaShardingCodec;
use crate::codec::find;
use crate::error::Error;
use crate::options::WriteStrategy;
use crate::shard::error::is_about_stored_bytes;
#[cfg(feature = "async")]
use crate::store::Awaited;
use crate::store::array_lease::ArrayLease;
use crate::store::files::directory_of;
use crate::store::ranges::Merged;
use crate::store::{Blocking, Lists, Reads, Writes, now};
use zarrs_cuda_engine::layout::RECORD_LEN;

/// The shards of an array. Each is named by its chunk indices, and is in the array's own storage.
///
/// ```
/// # use std::sync::Arc;
/// # use zarrs::array::{Array, ArrayBuilder, data_type};
/// # let store = Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = ArrayBuilder::new(vec![64, 64], vec![32, 32], data_type::uint16(), 0u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = builder.build(store, "/volume")?;
/// array.store_chunk(&[0, 1], vec![1_u16; 32 * 32])?;
/// let shards = zarrs_cuda::maintenance::Shards::of(&array)?;
/// println!("{}", shards.recover(&[0, 1])?);
/// for (shard, compaction) in shards.compact_pending()? {
///     println!("{shard:?}: {} -> {} bytes", compaction.before, compaction.after);
/// }
/// # assert_eq!(shards.stored()?, [(vec![0, 1], shards.inspect(&[0, 1])?.unwrap().size)]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Shards<'a, S: ?Sized> {
    array: &'a Array<S>,
    codec: Arc<CudaShardingCodec>,
}

impl<'a, S: ?Sized> Shards<'a, S> {
    /// Returns the shards of `array`, whose codec is this crate's or zarrs' own.
    ///
    /// # Errors
    /// [`Error::NotShards`] if the array is not sharded, or if bytes-to-bytes codecs encode its
    /// shards once more.
    pub fn of(array: &'a Array<S>) -> Result<Self, Error> {
        let codec = find::of_array(array)?;
        Ok(Self { array, codec })
    }

    fn find(&self, shard: &[u64]) -> Result<(StoreKey, ShardFormat), Error> {
        let format = ShardFormat::of_codec(self.codec.clone(), self.array, shard)?;
        Ok((self.array.chunk_key(shard), format))
    }

    async fn stored_in<O: Reads + Lists>(&self, store: &O) -> Result<Vec<(Vec<u64>, u64)>, Error> {
        let failed = |error: StorageError| {
            let key = zarrs::node::meta_key_v3(self.array.path());
            failed("list the shards beside", &key)(error)
        };
        let keys = ShardKeys::of(self.array).map_err(failed)?;
        let mut stored = Vec::new();
        if keys.are_known() {
            for shard in keys.listed(store).await.map_err(failed)? {
                // A shard that was erased after the listing has no size.
                if let Some(size) = self.size_in(store, &shard).await? {
                    stored.push((shard, size));
                }
            }
            return Ok(stored);
        }
        for shard in every_index(self.array.chunk_grid_shape()) {
            if let Some(size) = self.size_in(store, &shard).await? {
                stored.push((shard, size));
            }
        }
        Ok(stored)
    }

    async fn pending_in<O: Reads + Lists>(&self, store: &O) -> Result<Vec<Vec<u64>>, Error> {
        let mut pending = Vec::new();
        if self.codec.options().write_strategy() == WriteStrategy::Slots {
            return Ok(pending);
        }
        for (shard, size) in self.stored_in(store).await? {
            if self.is_pending(store, &shard, size).await? {
                pending.push(shard);
            }
        }
        Ok(pending)
    }

    /// Does the work of `compact_pending` on `store`.
    async fn compact_pending_in<O: Reads + Writes + Lists>(
        &self,
        store: &O,
    ) -> Result<Vec<(Vec<u64>, Compaction)>, Error> {
        let mut compacted = Vec::new();
        for shard in self.pending_in(store).await? {
            let (key, format) = self.find(&shard)?;
            if let Some(compaction) = compact_in(store, &key, &format).await? {
                compacted.push((shard, compaction));
            }
        }
        Ok(compacted)
    }

    /// Returns the size of a shard in bytes, or `None` if the shard is not stored.
    async fn size_in<O: Reads>(&self, store: &O, shard: &[u64]) -> Result<Option<u64>, Error> {
        let key = self.array.chunk_key(shard);
        let size = store.size(&key).await;
        size.map_err(failed("find the size of", &key))
    }

    /// Returns whether a shard of `size` bytes should be compacted.
    async fn is_pending<O: Reads>(
        &self,
        store: &O,
        shard: &[u64],
        size: u64,
    ) -> Result<bool, Error> {
        let limit = self.codec.options().max_dead_fraction();
        let Some(unused) = self.unused_in(store, shard, size).await? else {
            return Ok(false);
        };
        let (_, format) = self.find(shard)?;
        #[allow(clippy::cast_precision_loss, reason = "a fraction")]
        let is_too_much = unused as f64 > limit * size as f64;
        Ok(is_too_much && unused > (RECORD_LEN + format.shards().index.len()) as u64)
    }

    /// Returns the number of unused bytes of a shard of `size` bytes, from its index. Returns `None` if the
    /// index is invalid.
    async fn unused_in<O: Reads>(
        &self,
        store: &O,
        shard: &[u64],
        size: u64,
    ) -> Result<Option<u64>, Error> {
        let (key, format) = self.find(shard)?;
        let shards = format.shards();
        let range = usize::try_from(size).ok();
        let Some(place) = range.and_then(|size| shards.index.range_in(size)) else {
            return Ok(None);
        };
        let ranges = vec![shards.index.byte_range()];
        let index = store.get_ranges(&key, ranges).await;
        let index = index.map_err(failed("read the index of", &key))?;
        let Some(index) = index.and_then(|mut index| index.pop()) else {
            return Ok(None);
        };
        if index.len() != shards.index.len() {
            let (got, wanted) = (index.len(), shards.index.len());
            let short = format!("the store returned {got} bytes of {wanted}");
            return Err(failed("read the index of", &key)(StorageError::Other(
                short,
            )));
        }
        let entries = match shards.entries(&index, size) {
            Ok(entries) => entries,
            Err(error) if is_about_stored_bytes(&error) => return Ok(None),
            Err(error) => return Err(undecided(&key)(error)),
        };
        let used = entries.iter().flatten().chain([place]);
        let used = used.map(|range| range.start as u64..range.end as u64);
        Ok(Some(size - Merged::of(used).total()))
    }

    async fn usage_in<O: Reads>(&self, store: &O, shard: &[u64]) -> Result<Option<Usage>, Error> {
        let Some(size) = self.size_in(store, shard).await? else {
            return Ok(None);
        };
        let unused = self.unused_in(store, shard, size).await?;
        Ok(Some(Usage { size, unused }))
    }
}

/// The size of a shard, and its unused bytes as the index shows them.
///
/// ```
/// # use zarrs::array::{ArrayBuilder, CodecOptions, data_type};
/// # use zarrs_cuda::{CudaShardingCodecBuilder, Options, WriteStrategy};
/// # let codec = CudaShardingCodecBuilder::new(vec![8.try_into()?; 2], &data_type::uint16())
/// #     .options(Options::default().with_write_strategy(WriteStrategy::Append))
/// #     .build_arc()?;
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = ArrayBuilder::new(vec![64, 64], vec![32, 32], data_type::uint16(), 0_u16);
/// # let array = builder.array_to_bytes_codec(codec).build(store.clone(), "/volume")?;
/// # let options = CodecOptions::default().with_experimental_partial_encoding(true);
/// # for value in 1..=10_u16 {
/// #     array.store_array_subset_opt(&[0..8, 0..8], vec![value; 64], &options)?;
/// # }
/// use zarrs_cuda::maintenance::Shards;
///
/// let usage = Shards::of(&array)?.usage(&[0, 0])?.ok_or("no such shard")?;
/// match usage.unused {
///     Some(unused) => println!("{unused} of {} bytes are unused", usage.size),
///     None => println!("the index is invalid: `recover` the shard"),
/// }
/// # assert!(usage.unused.is_some_and(|unused| unused > 0));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The size of the shard in bytes.
    pub size: u64,
    /// The number of bytes that neither the index nor a subchunk uses. `None` if the index is invalid.
    pub unused: Option<u64>,
}

impl<S: ReadableStorageTraits + ?Sized> Shards<'_, S> {
    /// Inspects the shard with the chunk indices `shard`: see [`inspect`](inspect()).
    ///
    /// # Errors
    /// The errors of [`inspect`](inspect()) and [`ShardFormat::of`].
    pub fn inspect(&self, shard: &[u64]) -> Result<Option<Inspection>, Error> {
        let (key, format) = self.find(shard)?;
        inspect(&*self.array.storage(), &key, &format)
    }

    /// Returns the sizes that [`compact`](Self::compact) would return for the shard with the chunk indices
    /// `shard`, and changes nothing. The shard is read as a whole. Returns `None` if the shard is not stored.
    ///
    /// # Errors
    /// The errors of [`compact`](compact()) and [`ShardFormat::of`].
    pub fn preview_compact(&self, shard: &[u64]) -> Result<Option<Compaction>, Error> {
        let (key, format) = self.find(shard)?;
        now(preview_in(
            &Blocking::new(&*self.array.storage()),
            &key,
            &format,
        ))
    }

    /// Asks the store for each shard of the grid in C order, and returns the chunk indices and the size in
    /// bytes of each stored shard. It is for stores that cannot list keys, such as HTTP. For other stores use
    /// [`stored`](Self::stored).
    ///
    /// Each step of the iterator sends requests until a shard is found. In total there is a request for each
    /// shard in [`Array::chunk_grid_shape`], so look at this shape first. Nothing is kept from step to step.
    ///
    /// # Errors
    /// [`Error::Storage`] for a shard whose size the store does not return. The next step continues with the
    /// next shard.
    pub fn stored_by_asking(&self) -> impl Iterator<Item = Result<(Vec<u64>, u64), Error>> {
        let storage = self.array.storage();
        every_index(self.array.chunk_grid_shape()).filter_map(move |shard| {
            let size = now(self.size_in(&Blocking::new(&*storage), &shard));
            size.map(|size| Some((shard, size?))).transpose()
        })
    }

    /// Verifies the shard with the chunk indices `shard`: see [`verify`](verify()).
    ///
    /// # Errors
    /// The errors of [`verify`](verify()) and [`ShardFormat::of`].
    pub fn verify(&self, shard: &[u64]) -> Result<Option<Verification>, Error> {
        let (key, format) = self.find(shard)?;
        verify(&*self.array.storage(), &key, &format)
    }

    /// Verifies the shard with the chunk indices `shard` as [`verify`](Self::verify) does, but reads at most
    /// `bytes` bytes, or one subchunk, together, and decodes at most `at_once` subchunks at once. So it takes
    /// little memory, however large the shard is.
    ///
    /// Returns `None` if the shard is not stored, or if only the whole shard can show whether it is damaged:
    /// its index has no checksum or is invalid, or an update of the shard was interrupted.
    ///
    /// # Errors
    /// The errors of [`verify`](verify()) and [`ShardFormat::of`].
    pub fn verify_in_pieces(
        &self,
        shard: &[u64],
        bytes: u64,
        at_once: usize,
    ) -> Result<Option<Verification>, Error> {
        let (key, format) = self.find(shard)?;
        let storage = self.array.storage();
        let store = Blocking::new(&*storage);
        now(verify_in_pieces(&store, &key, &format, bytes, at_once))
    }

    /// Returns the size of the shard with the chunk indices `shard`, and the number of its unused bytes.
    /// Returns `None` if the shard is not stored.
    ///
    /// Sends two requests: one for the size of the shard, and one for its index.
    ///
    /// # Errors
    /// [`Error::Storage`] if the store fails, and the errors of [`ShardFormat::of`].
    pub fn usage(&self, shard: &[u64]) -> Result<Option<Usage>, Error> {
        now(self.usage_in(&Blocking::new(&*self.array.storage()), shard))
    }
}

/// Finds the stored shards by a listing of the store.
impl<S: ReadableStorageTraits + ListableStorageTraits + ?Sized> Shards<'_, S> {
    /// Returns the chunk indices of the stored shards in C order, and the size of each in bytes. Shards
    /// outside of the grid, which remain from an array that was larger, are left out.
    ///
    /// Lists the array directory by directory, and asks for the size of each stored shard. Time and memory
    /// are in proportion to the number of stored shards, however large the grid is. If the chunk key encoding
    /// does not write indices in decimal digits, keys cannot be read back: in this case the size of each
    /// shard of the grid is asked for.
    ///
    /// zarrs' `FilesystemStore` lists nothing, without an error, in a directory that it cannot read.
    ///
    /// # Errors
    /// [`Error::Storage`] if the store fails.
    pub fn stored(&self) -> Result<Vec<(Vec<u64>, u64)>, Error> {
        now(self.stored_in(&Blocking::new(&*self.array.storage())))
    }

    /// Returns the chunk indices of the shards to compact. The unused part of such a shard is larger than
    /// [`Options::max_dead_fraction`](crate::Options::max_dead_fraction) allows, and has more bytes than one
    /// update needs. Under [`WriteStrategy::Slots`] no shard is returned, because unused bytes do not add up.
    ///
    /// Finds the [stored](Self::stored) shards, and reads the index of each. Shards with an invalid index are
    /// left out: [`recover`](Self::recover) them.
    ///
    /// # Errors
    /// [`Error::Storage`] if the store fails.
    pub fn pending(&self) -> Result<Vec<Vec<u64>>, Error> {
        now(self.pending_in(&Blocking::new(&*self.array.storage())))
    }
}

impl<S: ?Sized + 'static> Shards<'_, S> {
    /// Takes the lease of the array, if its store is zarrs' store of files.
    fn lease(&self) -> Result<Option<ArrayLease>, Error> {
        let Some(root) = directory_of(&self.array.storage()) else {
            return Ok(None);
        };
        let path = self.array.path().as_str().trim_start_matches('/');
        ArrayLease::take(&root.join(path))
            .map(Some)
            .map_err(|error| {
                let key = zarrs::node::meta_key_v3(self.array.path());
                failed("begin to change the shards beside", &key)(error.into())
            })
    }
}

/// Changes shards. On zarrs' `FilesystemStore` each method holds the [lease](ArrayLease) of the array while
/// it runs. If a writer extends the array, or another process has the lease, the error is an
/// [`Error::Storage`] whose source has the kind [`ResourceBusy`](std::io::ErrorKind::ResourceBusy), and no
/// shard was touched.
impl<S: ReadableWritableStorageTraits + ?Sized + 'static> Shards<'_, S> {
    /// Compacts the shard with the chunk indices `shard`: see [`compact`](compact()).
    ///
    /// # Errors
    /// The errors of [`compact`](compact()) and [`ShardFormat::of`].
    pub fn compact(&self, shard: &[u64]) -> Result<Option<Compaction>, Error> {
        let (key, format) = self.find(shard)?;
        let _lease = self.lease()?;
        compact(&*self.array.storage(), &key, &format)
    }

    /// Recovers the shard with the chunk indices `shard`: see [`recover`](recover()).
    ///
    /// # Errors
    /// The errors of [`recover`](recover()) and [`ShardFormat::of`].
    pub fn recover(&self, shard: &[u64]) -> Result<Recovery, Error> {
        let (key, format) = self.find(shard)?;
        let _lease = self.lease()?;
        recover(&*self.array.storage(), &key, &format)
    }
}

impl<S> Shards<'_, S>
where
    S: ReadableWritableStorageTraits + ListableStorageTraits + ?Sized + 'static,
{
    /// Compacts the [pending](Self::pending) shards, and returns the chunk indices and the sizes of each: see
    /// [`compact`](compact()). It holds the [lease](ArrayLease) of the array, as [`compact`](Self::compact)
    /// does.
    ///
    /// # Errors
    /// The errors of [`pending`](Self::pending) and [`compact`](compact()). Shards before the one that failed
    /// have been compacted.
    pub fn compact_pending(&self) -> Result<Vec<(Vec<u64>, Compaction)>, Error> {
        let _lease = self.lease()?;
        now(self.compact_pending_in(&Blocking::new(&*self.array.storage())))
    }
}

/// Maintains shards in an asynchronous store.
#[cfg(feature = "async")]
impl<S: AsyncReadableWritableStorageTraits + ?Sized> Shards<'_, S> {
    /// Does the work of [`compact`](Self::compact) for an asynchronous store.
    ///
    /// # Errors
    /// The errors of [`compact`](Self::compact).
    pub async fn async_compact(&self, shard: &[u64]) -> Result<Option<Compaction>, Error> {
        let (key, format) = self.find(shard)?;
        async_compact(&*self.array.storage(), &key, &format).await
    }

    /// Does the work of [`recover`](Self::recover) for an asynchronous store.
    ///
    /// # Errors
    /// The errors of [`recover`](Self::recover).
    pub async fn async_recover(&self, shard: &[u64]) -> Result<Recovery, Error> {
        let (key, format) = self.find(shard)?;
        async_recover(&*self.array.storage(), &key, &format).await
    }

    /// Does the work of [`inspect`](Self::inspect) for an asynchronous store.
    ///
    /// # Errors
    /// The errors of [`inspect`](Self::inspect).
    pub async fn async_inspect(&self, shard: &[u64]) -> Result<Option<Inspection>, Error> {
        let (key, format) = self.find(shard)?;
        async_inspect(&*self.array.storage(), &key, &format).await
    }

    /// Does the work of [`verify`](Self::verify) for an asynchronous store.
    ///
    /// # Errors
    /// The errors of [`verify`](Self::verify).
    pub async fn async_verify(&self, shard: &[u64]) -> Result<Option<Verification>, Error> {
        let (key, format) = self.find(shard)?;
        async_verify(&*self.array.storage(), &key, &format).await
    }

    /// Does the work of [`preview_compact`](Self::preview_compact) for an asynchronous store.
    ///
    /// # Errors
    /// The errors of [`preview_compact`](Self::preview_compact).
    pub async fn async_preview_compact(&self, shard: &[u64]) -> Result<Option<Compaction>, Error> {
        let (key, format) = self.find(shard)?;
        preview_in(&Awaited(&*self.array.storage()), &key, &format).await
    }

    /// Does the work of [`usage`](Self::usage) for an asynchronous store.
    ///
    /// # Errors
    /// The errors of [`usage`](Self::usage).
    pub async fn async_usage(&self, shard: &[u64]) -> Result<Option<Usage>, Error> {
        self.usage_in(&Awaited(&*self.array.storage()), shard).await
    }
}

/// Finds the stored shards by a listing of an asynchronous store.
#[cfg(feature = "async")]
impl<S: AsyncReadableStorageTraits + AsyncListableStorageTraits + ?Sized> Shards<'_, S> {
    /// Does the work of [`stored`](Self::stored) for an asynchronous store, with one request after the other.
    ///
    /// # Errors
    /// The errors of [`stored`](Self::stored).
    pub async fn async_stored(&self) -> Result<Vec<(Vec<u64>, u64)>, Error> {
        self.stored_in(&Awaited(&*self.array.storage())).await
    }

    /// Does the work of [`pending`](Self::pending) for an asynchronous store, with one request after the
    /// other.
    ///
    /// # Errors
    /// The errors of [`pending`](Self::pending).
    pub async fn async_pending(&self) -> Result<Vec<Vec<u64>>, Error> {
        self.pending_in(&Awaited(&*self.array.storage())).await
    }
}

#[cfg(feature = "async")]
impl<S: AsyncReadableWritableStorageTraits + AsyncListableStorageTraits + ?Sized> Shards<'_, S> {
    /// Does the work of [`compact_pending`](Self::compact_pending) for an asynchronous store, one shard after
    /// the other.
    ///
    /// # Errors
    /// The errors of [`compact_pending`](Self::compact_pending).
    pub async fn async_compact_pending(&self) -> Result<Vec<(Vec<u64>, Compaction)>, Error> {
        let storage = self.array.storage();
        self.compact_pending_in(&Awaited(&*storage)).await
    }
}

/// Returns the chunk indices of each shard in a grid of `shape`, in C order.
fn every_index(shape: &[u64]) -> impl Iterator<Item = Vec<u64>> {
    let first = (!shape.contains(&0)).then(|| vec![0; shape.len()]);
    std::iter::successors(first, move |indices| {
        let mut next = indices.clone();
        for (index, &count) in next.iter_mut().zip(shape).rev() {
            *index += 1;
            if *index < count {
                return Some(next);
            }
            *index = 0;
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::every_index;

    #[test]
    fn indices_are_in_c_order() {
        let all: Vec<_> = every_index(&[2, 1, 2]).collect();
        assert_eq!(all, [[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1]]);
        assert_eq!(every_index(&[2, 0]).count(), 0);
        assert_eq!(every_index(&[]).count(), 1);
    }
}
