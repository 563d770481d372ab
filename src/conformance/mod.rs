//! For whoever measures or writes an engine: the engine conformance suite, its naive oracle, and
//! the limits that benchmarks compare with.
//!
//! Not covered by semantic versioning.

mod case;
mod device;
mod limit;
mod naive;
mod suite;

pub use device::measure_device;
pub use limit::Limit;
pub use suite::check_host;
#[cfg(test)]
pub(crate) use suite::{check, check_compressed};
