//! Doubles of stores.

pub mod faulty;
pub mod renaming;
pub mod watched;
