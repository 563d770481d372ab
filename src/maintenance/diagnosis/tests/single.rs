//! Objects that no history of updates gives.
