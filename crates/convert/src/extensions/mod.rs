//! Codecs and data types that the command adds to zarrs, or replaces there.
//!
//! Entries made at run time come before those that zarrs was compiled with.

mod fixed_bytes;
mod fixed_scale_offset;
mod number;
mod numpy_time;

use std::sync::Once;

pub use self::fixed_scale_offset::Configuration as FixedScaleOffset;
pub use self::number::{ByteOrder, Number};

/// Registers all of them for this process, once. Nothing may open an array before.
pub fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        fixed_scale_offset::register();
        fixed_bytes::register();
        numpy_time::register();
    });
}
