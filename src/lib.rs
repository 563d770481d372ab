//! A `sharding_indexed` codec for [`zarrs`] that is built for throughput.
//!
//! One line, and every sharded array that an application opens afterwards goes through it, in
//! files that any Zarr reader opens:
//!
//! ```
//! let registration = zarrs_cuda::register(zarrs_cuda::Options::default())?;
//! # drop(registration);
//! # Ok::<_, zarrs_cuda::Error>(())
//! ```
#![deny(unsafe_code)]

mod codec;
#[cfg(feature = "conformance")]
pub mod conformance;
mod engine;
mod error;
mod layout;
mod options;
mod plan;
mod registration;

pub use codec::{CudaShardingCodec, CudaShardingCodecBuilder, explain};
pub use error::Error;
pub use options::{Backend, Options};
pub use plan::{ExplainedStage, Explanation, Place};
pub use registration::{Registration, register};
