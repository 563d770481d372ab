//! Codecs and data types that the command adds to zarrs, or whose implementations it replaces.
//!
//! zarrs looks at implementations that are registered at run time before those that it was compiled with.

mod fixed_bytes;
mod fixed_scale_offset;
mod number;
mod numpy_time;

use std::sync::Once;

pub use self::fixed_scale_offset::Configuration as FixedScaleOffset;
pub use self::number::{ByteOrder, Number};

/// Registers all codecs and data types of this module for this process, once. Call it before an array is
/// opened.
pub fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        fixed_scale_offset::register();
        fixed_bytes::register();
        numpy_time::register();
    });
}
