//! The example programs, run like a user's programs.

mod consolidate;
mod reencode;
mod stream_frames;
