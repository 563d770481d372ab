//! Errors of engines, with the numbers that a person needs to find the cause.

use std::error::Error;
use std::fmt;

/// An error from an engine.
#[derive(Debug)]
pub enum EngineError {
    /// The input is not as long as the shapes say.
    InputLength { got: usize, expected: usize },
    /// An extent that the caller gave is outside the shard.
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
    /// A device cannot do this job: why, and what would help.
    Unsuitable(String),
    /// An error of the layer above, passed through: a foreign codec's, or a sink's.
    Foreign(Box<dyn Error + Send + Sync>),
    /// The engine broke its own contract. A bug, reported instead of wrong data.
    Internal(&'static str),
}

impl EngineError {
    /// Returns whether a smaller job may succeed: a device did not have enough memory.
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

/// How bad the failure of an operation on a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There is no driver, no device, or not one that can be used.
    Unavailable,
    /// There is no memory now. There may be some later.
    OutOfMemory,
    /// The operation was refused; the device is as it was.
    Refused,
    /// The context is broken for the rest of the process, or the device is gone. Nothing may be
    /// called any more, not even to free memory.
    Sticky,
}

/// An operation of a device, or of its driver, failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverError {
    /// The operation that failed, with its object and its numbers.
    pub operation: String,
    /// The ordinal of the device, where one was chosen.
    pub device: Option<usize>,
    pub fault: Fault,
    /// The driver's explanation.
    pub reason: String,
}

impl DriverError {
    /// Returns whether there is no memory now.
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
