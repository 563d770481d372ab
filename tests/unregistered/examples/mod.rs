//! The example programs, run as a user runs them.

mod consolidate;
mod reencode;
mod stream_frames;
