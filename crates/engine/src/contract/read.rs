//! Reading into device memory: encoded subchunks, and the places of their elements.

use std::fmt;

/// The encoded bytes of a subchunk, in memory of any owner.
pub struct EncodedBytes(Box<dyn AsRef<[u8]> + Send + Sync>);

impl EncodedBytes {
    pub fn new(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self(Box::new(bytes))
    }

    pub fn get(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl fmt::Debug for EncodedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.get().len())
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
