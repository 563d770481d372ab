//! Doubles of stores.

pub mod disk;
pub mod faulty;
pub mod renaming;
pub mod watched;
