//! Private parts, for `benches/device` and the fuzz targets.

pub mod frames;

pub use super::arena;
pub use super::compression;
pub use super::copiers;
pub use super::encode;
pub use super::nvcomp;
pub use super::session;
pub use super::sizing;
pub use super::{Compressors, CudaEngine, Devices, Limits, Tuning};

/// The driver interface below the engine.
pub mod driver {
    pub use crate::engine::cuda::driver::cuda::open_all;
    pub use crate::engine::cuda::driver::instant::{Calls, InstantDevice};
    pub use crate::engine::cuda::driver::{
        Access, DeviceInfo, DeviceMemory, DeviceSpan, Driver, DriverError, EventId, PinnedMemory,
        PinnedSpan, PinnedUse, Site, Span, StreamId,
    };
}

/// The kernels, each with the function that launches it.
pub mod kernels {
    pub use crate::engine::cuda::kernels::{
        aggregate, chunk_tables, crc32c, scatter, shuffle, spans, split,
    };
}
