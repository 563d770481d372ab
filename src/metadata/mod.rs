//! Reads, compares and replaces the stored metadata of arrays and groups.

pub(crate) mod json;
pub(crate) mod same_array;
pub(crate) mod stored;
pub(crate) mod temporary;
