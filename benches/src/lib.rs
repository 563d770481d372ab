//! What the benchmarks of `zarrs_cuda` share, and the measurements of devices.
//!
//! | module | content |
//! |---|---|
//! | [`arguments`] | the command lines of benchmarks |
//! | [`chains`] | the inner codecs that are measured, by name |
//! | [`clock`] | elapsed time and CPU time |
//! | [`device`] | the CUDA engine on a device, stage by stage |
//! | [`discarding`] | a store that keeps nothing |
//! | [`frames`], [`stream`] | a stream of frames, and our writer for it |
//! | [`goals`], [`results`] | goals that are met or missed; files of results |
//! | [`keeping`] | a store in memory that copies nothing |
//! | [`limit`] | the most that the host engine could reach |
//! | [`microscopy`] | data similar to microscopy |
//! | [`python`] | the Python environment of the peers, and their scripts |
//! | [`warm`] | memory that is touched before the clock starts |

#![deny(unsafe_code)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "made-up data, and rates for people"
)]
#![allow(
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    clippy::new_without_default,
    reason = "public for the benchmarks alone"
)]

pub mod arguments;
pub mod chains;
pub mod clock;
#[allow(unsafe_code, reason = "calls of a driver")]
pub mod device;
pub mod discarding;
pub mod frames;
pub mod goals;
pub mod keeping;
pub mod limit;
pub mod microscopy;
pub mod python;
pub mod results;
pub mod stream;
pub mod warm;

use std::error::Error;

/// The result of a benchmark, whose errors are texts for people.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The median of `values`, if there are any.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
