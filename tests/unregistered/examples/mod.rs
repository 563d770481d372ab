//! The example programs, run like a user's programs.

mod consolidate;
mod stream_frames;
