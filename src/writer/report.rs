//! Reports how much a writer has appended, encoded and stored.

use std::fmt;
use std::time::Duration;

/// The amounts of data that a writer has appended, encoded and stored until now.
///
/// `finished_slices` and `covered_slices` are positions: they count the slices of the array from its beginning,
/// also those that earlier writers stored. All other fields count from the start of this writer, or say what
/// holds now.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![0, 64], vec![16, 64], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![4, 16]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/frames")?;
/// # array.store_metadata()?;
/// use zarrs_cuda::writer::ArrayWriter;
///
/// let mut writer = ArrayWriter::builder(&array).build()?;
/// writer.append(&[7_u16; 20 * 64])?;
/// writer.flush()?; // a shard has 16 slices
/// let progress = writer.progress();
/// assert_eq!((progress.appended_slices, progress.covered_slices), (20, 16));
/// assert_eq!(progress.at_risk, 4); // a kill would lose these
/// if progress.waits > 0 {
///     println!("the input waited {:?} for the encoder or the store", progress.waiting);
/// }
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// The number of bytes that were appended. Slices that [`Start::Resume`](super::Start::Resume) reads back
    /// do not count.
    pub appended_bytes: u64,
    /// The number of whole slices among the appended bytes.
    pub appended_slices: u64,
    /// The number of bytes that were encoded, counted before encoding, with the slices that were read back.
    pub encoded_bytes: u64,
    /// The number of bytes to which `encoded_bytes` were encoded.
    pub packed_bytes: u64,
    /// The position in the array below which all slices are stored. A new writer has its first slice here.
    pub finished_slices: u64,
    /// The position in the array below which the shape in the array's metadata covers all slices.
    pub covered_slices: u64,
    /// The number of whole slices that were appended and are not stored, or not covered by the shape. If the
    /// process is killed, they are lost.
    pub at_risk: u64,
    /// The number of slices that are appended within 60 seconds; `None` until a shard took longer to fill.
    /// Shards of so many slices would fill in time: see
    /// [`ArrayWriterBuilder::with_flush_after`](super::ArrayWriterBuilder::with_flush_after).
    pub slow_shard: Option<u64>,
    /// The number of shards that this writer has stored. The shard in which it resumed counts.
    pub shards_stored: u64,
    /// The number of shards of nothing but the fill value, which are not stored.
    pub shards_empty: u64,
    /// The number of bytes that were given to the store.
    pub stored_bytes: u64,
    /// The number of full batches that wait to be encoded.
    pub batches_waiting: usize,
    /// The number of batches that are being encoded.
    pub batches_encoding: usize,
    /// The number of shards that wait to be stored, or are being stored.
    pub shards_waiting: usize,
    /// The number of times that an append waited for the encoder or the store.
    pub waits: u64,
    /// The number of calls of `try_append` or `try_append_bytes` that did not append everything.
    pub refusals: u64,
    /// The total time that appends waited.
    pub waiting: Duration,
    /// The total time that was spent on encoding.
    pub encoding: Duration,
    /// The total time that was spent on storing, summed over all threads that store.
    pub storing: Duration,
}

impl Progress {
    /// Returns the compression ratio, encoded bytes over packed bytes; `None` before anything was encoded.
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        reason = "a ratio needs no more digits than these"
    )]
    pub fn ratio(&self) -> Option<f64> {
        (self.packed_bytes > 0).then(|| self.encoded_bytes as f64 / self.packed_bytes as f64)
    }
}

/// The results of a writer. `Display` prints a summary for people.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![0, 64], vec![16, 64], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![4, 16]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/frames")?;
/// # array.store_metadata()?;
/// use zarrs_cuda::writer::ArrayWriter;
///
/// let mut writer = ArrayWriter::builder(&array).build()?;
/// writer.append(&[7_u16; 20 * 64])?;
/// let report = writer.finish()?;
/// println!("{report}"); // for people
/// assert_eq!((report.finished_slices, report.shards), (20, 2));
/// if report.waiting > report.elapsed / 2 {
///     println!("the {} engine or the store is too slow for this input", report.engine);
/// }
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct WriterReport {
    /// The engine that encoded: `host` or `cuda`.
    pub engine: &'static str,
    /// The first slice that was appended.
    pub first_slice: u64,
    /// All slices below this one are stored.
    pub finished_slices: u64,
    /// The number of shards that were stored.
    pub shards: u64,
    /// The number of shards of nothing but the fill value, which are not stored.
    pub shards_empty: u64,
    /// The number of bytes that were appended. Slices that [`Start::Resume`](super::Start::Resume) reads back
    /// do not count.
    pub raw_bytes: u64,
    /// The number of bytes that were given to the store, with the slices that were read back.
    pub stored_bytes: u64,
    /// The time from the first append to the end.
    pub elapsed: Duration,
    /// The total time that appends waited for the encoder or the store.
    pub waiting: Duration,
    /// The total time that was spent on encoding.
    pub encoding: Duration,
    /// The total time that was spent on storing, summed over all threads that store.
    pub storing: Duration,
}

impl WriterReport {
    /// Returns the ratio of appended bytes to stored bytes.
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        reason = "a ratio needs no more digits than these"
    )]
    pub fn ratio(&self) -> f64 {
        self.raw_bytes as f64 / self.stored_bytes.max(1) as f64
    }
}

impl fmt::Display for WriterReport {
    #[allow(
        clippy::cast_precision_loss,
        reason = "for a person, who needs three digits"
    )]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.raw_bytes as f64 / self.elapsed.as_secs_f64().max(1e-9) / 1e9;
        write!(
            f,
            "slices {} to {} in {:.3} s ({rate:.2} GB/s) by the {} engine: {} shards of {} bytes, ratio {:.2}, {} empty; encoding {:.3} s, storing {:.3} s, appends waited {:.3} s",
            self.first_slice,
            self.finished_slices,
            self.elapsed.as_secs_f64(),
            self.engine,
            self.shards,
            self.stored_bytes,
            self.ratio(),
            self.shards_empty,
            self.encoding.as_secs_f64(),
            self.storing.as_secs_f64(),
            self.waiting.as_secs_f64(),
        )
    }
}
