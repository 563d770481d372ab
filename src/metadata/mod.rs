//! The stored metadata of arrays and groups.

pub(crate) mod json;
