//! The rules by which partial writes place changed subchunks, and the callback about unused bytes.

use std::fmt;
use std::sync::Arc;

/// The rule by which a partial write places changed subchunks.
///
/// A strategy applies to each write by itself. It is never stored in array metadata, and one shard may be
/// written with different strategies, one after the other. Every result is a shard that any reader opens.
///
/// The [guide](crate::guide::write#parts-of-shards-by-zarrs) helps to choose a strategy. The [reference
/// page](crate::guide::reference::updates#what-is-promised) says what each strategy promises if the process
/// dies during a write.
///
/// ```
/// # use std::sync::Arc;
/// # use zarrs::array::{ArrayBuilder, data_type};
/// # use zarrs::storage::store::MemoryStore;
/// use zarrs::array::CodecOptions;
/// use zarrs_cuda::{CudaShardingCodecBuilder, Options, WriteStrategy};
///
/// let codec = CudaShardingCodecBuilder::new(vec![8.try_into()?; 2], &data_type::uint16())
///     .options(Options::default().with_write_strategy(WriteStrategy::InPlace))
///     .build_arc()?;
/// # let mut builder = ArrayBuilder::new(vec![64, 64], vec![32, 32], data_type::uint16(), 0_u16);
/// # let array = builder.array_to_bytes_codec(codec).build(Arc::new(MemoryStore::new()), "/volume")?;
/// let options = CodecOptions::default().with_experimental_partial_encoding(true);
/// array.store_array_subset_opt(&[0..8, 0..8], vec![1_u16; 64], &options)?;
/// let size = array.storage().size_key(&array.chunk_key(&[0, 0]))?;
/// // The changed subchunk has the size of the old one, and takes its place.
/// array.store_array_subset_opt(&[0..8, 0..8], vec![2_u16; 64], &options)?;
/// # use zarrs::storage::ReadableStorageTraits;
/// assert_eq!(array.storage().size_key(&array.chunk_key(&[0, 0]))?, size);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WriteStrategy {
    /// Works like [`InPlace`](Self::InPlace) if every subchunk has the same encoded size, or if the store
    /// rewrites whole objects. Otherwise works like [`Append`](Self::Append), except that changed subchunks
    /// also go into unused bytes. This is as safe, and shards grow more slowly.
    #[default]
    Auto,
    /// A changed subchunk goes to the end of the shard, and a new index behind it. The bytes of
    /// earlier states stay until [`compact`](crate::compact).
    Append,
    /// A changed subchunk stays in its place if it fits there. Otherwise it goes into unused bytes,
    /// or to the end.
    InPlace,
    /// Every subchunk has a slot of its worst-case encoded size, in C order. No subchunk ever
    /// moves, and unused bytes never add up.
    ///
    /// The *apparent* size of a shard is the sum of its slots. File systems store the gaps as holes; stores
    /// in memory allocate them. If an inner codec states no bound for the encoded size, writes return an
    /// error.
    ///
    /// In a shard that another strategy wrote, subchunks keep their places until they are changed. If other
    /// subchunks occupy the slot of a changed subchunk, it gets a slot at the end of the shard.
    Slots,
}

impl fmt::Display for WriteStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Append => "append",
            Self::InPlace => "in place",
            Self::Slots => "slots",
        })
    }
}

/// A request to compact a shard: a partial write left more unused bytes in it than
/// [`Options::max_dead_fraction`](crate::Options::max_dead_fraction) allows.
///
/// The request does not name the shard, because a codec does not know which shard it writes.
/// [`Shards::compact_pending`](crate::maintenance::Shards::compact_pending) finds the shard.
///
/// ```
/// # use std::sync::{Arc, mpsc};
/// # use zarrs::array::{ArrayBuilder, CodecOptions, data_type};
/// # use zarrs::storage::store::MemoryStore;
/// # use zarrs_cuda::maintenance::Shards;
/// # use zarrs_cuda::{CudaShardingCodecBuilder, Options, WriteStrategy};
/// let (send, requests) = mpsc::channel();
/// let options = Options::default()
///     .with_write_strategy(WriteStrategy::Append)
///     .with_compaction_callback(move |request| {
///         let _ = send.send(*request); // nobody listens any more: no harm
///     });
/// # let codec = CudaShardingCodecBuilder::new(vec![8.try_into()?; 2], &data_type::uint16()).options(options).build_arc()?;
/// # let mut builder = ArrayBuilder::new(vec![64, 64], vec![32, 32], data_type::uint16(), 0_u16);
/// # let array = builder.array_to_bytes_codec(codec).build(Arc::new(MemoryStore::new()), "/volume")?;
/// # let options = CodecOptions::default().with_experimental_partial_encoding(true);
/// # for value in 1..=10_u16 {
/// #     array.store_array_subset_opt(&[0..8, 0..8], vec![value; 64], &options)?;
/// # }
///
/// // After some partial writes of an array with these options, on a thread that may take time:
/// if let Some(request) = requests.try_iter().last() {
///     println!("{} of {} bytes are unused", request.dead, request.size);
///     assert_eq!(Shards::of(&array)?.compact_pending()?.len(), 1);
/// }
/// # assert!(Shards::of(&array)?.pending()?.is_empty());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactionRequest {
    /// The size of the shard after the write, in bytes.
    pub size: u64,
    /// The number of unused bytes in the shard.
    pub dead: u64,
}

/// The function to call with each [`CompactionRequest`]. A callback is equal only to itself and its clones.
#[derive(Clone)]
pub(crate) struct CompactionCallback(pub(crate) Arc<dyn Fn(&CompactionRequest) + Send + Sync>);

impl PartialEq for CompactionCallback {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for CompactionCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CompactionCallback")
    }
}
