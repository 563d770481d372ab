//! Reports the shards that a call has written.

use std::fmt;

use zarrs_storage::StoreKey;

/// The shards that a call of a [`BoxWriter`](super::BoxWriter) has written. `Display` prints a summary for people.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// use zarrs_cuda::writer::BoxWriter;
///
/// let writer = BoxWriter::builder(&array).build()?;
/// let mut elements = vec![7_u16; 32 * 64];
/// elements.chunks_mut(64).for_each(|row| row[32..].fill(0)); // the fill value
/// let report = writer.write(&[0..32, 0..64], &elements)?;
/// assert_eq!((report.wanted, report.stored.len(), report.empty.len()), (2, 1, 1));
/// println!("{} bytes for {}", report.stored_bytes, elements.len() * 2);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BoxReport {
    /// The number of shards that have elements of the boxes.
    pub wanted: usize,
    /// The shards that were stored, in the order in which they were complete.
    pub stored: Vec<StoreKey>,
    /// The shards that have only the fill value now, and are not stored.
    pub empty: Vec<StoreKey>,
    /// The number of bytes of `stored` that were given to the store. Shards that are updated in place, or beside
    /// which subchunks are stored, are not counted.
    pub stored_bytes: u64,
    /// The length of the array along its first axis after the call, if the writer lets the array grow.
    pub length: Option<u64>,
}

impl BoxReport {
    /// Returns the number of shards that were written.
    pub(super) fn done(&self) -> usize {
        self.stored.len() + self.empty.len()
    }
}

impl fmt::Display for BoxReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} shards written", self.done(), self.wanted)?;
        if self.stored_bytes > 0 {
            write!(f, ", {} bytes stored", self.stored_bytes)?;
        }
        if !self.empty.is_empty() {
            write!(f, ", {} empty", self.empty.len())?;
        }
        Ok(())
    }
}
