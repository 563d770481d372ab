//! Reading into device memory: encoded subchunks, and the places of their elements.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Memory of any owner. An engine may know the owner.
trait BytesOwner: AsRef<[u8]> + Any + Send + Sync {}

impl<T: AsRef<[u8]> + Any + Send + Sync> BytesOwner for T {}

/// Encoded bytes of subchunks, in memory of any owner. Clones and parts share the memory.
#[derive(Clone)]
pub struct EncodedBytes {
    memory: Arc<dyn BytesOwner>,
    range: Range<usize>,
}

impl EncodedBytes {
    /// Returns all bytes of `memory`, which always returns the same ones.
    pub fn new(memory: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let range = 0..memory.as_ref().len();
        Self {
            memory: Arc::new(memory),
            range,
        }
    }

    pub fn get(&self) -> &[u8] {
        let all = (*self.memory).as_ref();
        all.get(self.range.clone()).unwrap_or_default()
    }

    /// Returns the bytes `range` of these bytes; `None` if there are fewer.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Option<Self> {
        let start = self.range.start.checked_add(range.start)?;
        let end = self.range.start.checked_add(range.end)?;
        (start <= end && end <= self.range.end).then(|| Self {
            memory: self.memory.clone(),
            range: start..end,
        })
    }

    /// Returns the owner of the memory if it is a `T`, and where the bytes lie in its memory.
    pub fn owner<T: Any + Send + Sync>(&self) -> Option<(Arc<T>, Range<usize>)> {
        let memory: Arc<dyn Any + Send + Sync> = self.memory.clone();
        let owner = memory.downcast().ok()?;
        Some((owner, self.range.clone()))
    }
}

impl AsRef<[u8]> for EncodedBytes {
    fn as_ref(&self) -> &[u8] {
        self.get()
    }
}

impl fmt::Debug for EncodedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.range.len())
    }
}

/// A box of a subchunk, and its place in the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoxToPlace {
    /// The first element of the box in the subchunk, along each axis.
    pub start: Vec<usize>,
    pub shape: Vec<usize>,
    /// The offset of the box's first element in the output, in bytes.
    pub target: usize,
}

/// An array of elements in the memory of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceArray {
    /// The address of the first element.
    pub pointer: u64,
    /// The number of bytes from the first element to the end of the last one.
    pub len: usize,
    /// The distance from one element to the next along each axis, in bytes.
    pub strides: Vec<usize>,
}
