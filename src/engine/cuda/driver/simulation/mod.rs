//! A device that is simulated.
