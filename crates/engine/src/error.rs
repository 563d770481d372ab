//! Errors of engines, with the numbers that a person needs to find the cause.

use std::error::Error;
use std::fmt;

/// The error of an engine.
#[derive(Debug)]
pub enum EngineError {
    /// The input has another length than the shapes of the job.
    InputLength { got: usize, expected: usize },
    /// Elements with strides do not lie in the memory of the caller. Extents are in elements, sizes in bytes.
    Strides {
        shape: Vec<usize>,
        strides: Vec<usize>,
        element_size: usize,
        memory: usize,
    },
    /// An extent from the caller lies outside of the shard.
    Extent {
        subchunk: usize,
        end: usize,
        shard: usize,
    },
    /// Memory could not be allocated.
    OutOfMemory { what: &'static str, bytes: usize },
    /// A stage could not encode a subchunk.
    Encode {
        subchunk: usize,
        stage: &'static str,
        reason: String,
    },
    /// A stage could not decode a subchunk.
    Decode {
        subchunk: usize,
        stage: &'static str,
        reason: String,
    },
    /// A subchunk decoded to the wrong number of bytes.
    DecodedLength {
        subchunk: usize,
        stage: &'static str,
        got: usize,
        expected: usize,
    },
    /// A CRC32C does not match the bytes before it.
    Checksum { subchunk: usize },
    /// An operation of a device, or of its driver, failed.
    Device(DriverError),
    /// A device cannot do this job. The text says why, and what would help.
    Unsuitable(String),
    /// An error of the layer above, passed on: of a foreign codec or of a sink.
    Foreign(Box<dyn Error + Send + Sync>),
    /// The engine has a bug: it broke its own contract. The error takes the place of wrong data.
    Internal(&'static str),
}

impl EngineError {
    /// Returns whether a smaller job may succeed, because the device ran out of memory.
    pub fn wants_less(&self) -> bool {
        matches!(self, Self::Device(error) if error.is_out_of_memory())
    }
}

impl From<DriverError> for EngineError {
    fn from(error: DriverError) -> Self {
        Self::Device(error)
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InputLength { got, expected } => {
                write!(f, "the shard has {got} bytes, its shape needs {expected}")
            }
            Self::Strides {
                shape,
                strides,
                element_size,
                memory,
            } => write!(
                f,
                "a shard of shape {shape:?}, with elements of {element_size} bytes and strides of {strides:?} bytes, does not lie in {memory} bytes of memory; give one stride for each axis, and the memory from the first element to the last"
            ),
            Self::Extent {
                subchunk,
                end,
                shard,
            } => write!(
                f,
                "subchunk {subchunk} ends at byte {end} of a shard of {shard} bytes"
            ),
            Self::OutOfMemory { what, bytes } => {
                write!(f, "out of memory: {bytes} bytes for {what}")
            }
            Self::Encode {
                subchunk,
                stage,
                reason,
            } => write!(f, "{stage} could not encode subchunk {subchunk}: {reason}"),
            Self::Decode {
                subchunk,
                stage,
                reason,
            } => write!(
                f,
                "{stage} could not decode subchunk {subchunk}: {reason}; the shard may be corrupted"
            ),
            Self::DecodedLength {
                subchunk,
                stage,
                got,
                expected,
            } => write!(
                f,
                "subchunk {subchunk} has {got} bytes after decoding with {stage}, expected {expected}; the shard may be corrupted"
            ),
            Self::Checksum { subchunk } => write!(
                f,
                "the crc32c checksum of subchunk {subchunk} is invalid; the shard is corrupted"
            ),
            Self::Device(error) => error.fmt(f),
            Self::Unsuitable(reason) => f.write_str(reason),
            Self::Foreign(error) => error.fmt(f),
            Self::Internal(what) => write!(f, "internal error, please report it: {what}"),
        }
    }
}

impl Error for EngineError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Device(error) => Some(error),
            Self::Foreign(error) => error.source(),
            _ => None,
        }
    }
}

/// The severity of a failed operation on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There is no driver, no device, or no device that can be used.
    Unavailable,
    /// The device has no free memory at this time.
    OutOfMemory,
    /// The operation was refused, and the state of the device has not changed.
    Refused,
    /// The context is broken for the rest of the process, or the device is gone. No function of the driver
    /// may be called any more, not even to free memory.
    Sticky,
    /// The device returned wrong data without an error. It is not used for the rest of the process.
    Wrong,
}

/// The failure of an operation of a device, or of its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverError {
    /// The operation that failed, with its object and its numbers.
    pub operation: String,
    /// The ordinal of the device; `None` if no device was chosen yet.
    pub device: Option<usize>,
    pub fault: Fault,
    /// The driver's explanation.
    pub reason: String,
}

impl DriverError {
    /// Returns whether the device has no free memory at this time.
    pub fn is_out_of_memory(&self) -> bool {
        self.fault == Fault::OutOfMemory
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.operation)?;
        if let Some(device) = self.device {
            write!(f, " on CUDA device {device}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl Error for DriverError {}
