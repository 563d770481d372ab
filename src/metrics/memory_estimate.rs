//! An estimate of the memory that buffers take.

use std::fmt;

use zarrs_cuda_engine::contract::BufferBytes;

/// The largest memory that buffers take, in bytes. The buffers are those of a shard in flight on a device, or
/// of a [writer](crate::writer).
///
/// `Display` leaves out kinds of memory that are not used.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![0, 64], vec![16, 64], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![4, 16]);
/// # let array = zarrs_cuda::build_sharded(builder, store, "/frames")?;
/// use zarrs_cuda::writer::ArrayWriter;
///
/// let builder = ArrayWriter::builder(&array).with_host_memory(64 << 20);
/// let estimate = builder.memory_estimate()?;
/// println!("the writer takes {estimate}");
/// assert!(estimate.host <= 64 << 20);
/// if estimate.device > 0 {
///     println!("and {} MiB of the device", estimate.device >> 20);
/// }
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryEstimate {
    /// The bytes of pageable host memory. For a writer, at most
    /// [`Options::host_memory`](crate::Options::host_memory).
    pub host: usize,
    /// The bytes of page-locked host memory, at most the budget of
    /// [`Options::with_pinned_memory`](crate::Options::with_pinned_memory).
    pub pinned: usize,
    /// The bytes of device memory, at most [`Options::device_memory`](crate::Options::device_memory), if this
    /// limit is set.
    pub device: usize,
}

impl MemoryEstimate {
    pub(crate) fn of(bytes: BufferBytes) -> Self {
        Self {
            host: bytes.host,
            pinned: bytes.pinned,
            device: bytes.device,
        }
    }
}

impl fmt::Display for MemoryEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        BufferBytes {
            host: self.host,
            pinned: self.pinned,
            device: self.device,
        }
        .fmt(f)
    }
}
