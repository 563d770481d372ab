//! Data types and codecs that the command adds to zarrs, or whose implementations it replaces. The codecs of
//! Zarr v2 are in `v2`.
//!
//! zarrs looks at implementations that are registered at run time before those that it was compiled with.

mod fixed_bytes;
mod fixed_scale_offset;
mod number;
mod numpy_time;
mod structure;

use std::sync::Once;

use crate::v2;

pub use self::fixed_scale_offset::Configuration as FixedScaleOffset;
pub use self::number::{ByteOrder, Number};
pub(crate) use self::structure::{Structure, as_simple_name, as_written};

/// Registers all codecs and data types of this module for this process, once. Call it before an array is
/// opened.
pub fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        fixed_scale_offset::register();
        fixed_bytes::register();
        numpy_time::register();
        structure::register();
        v2::register();
    });
}
