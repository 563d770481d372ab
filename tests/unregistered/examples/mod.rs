//! The example programs, run like a user's programs.

mod stream_frames;
