//! A stream of slices becomes finished shards.

mod leftovers;
mod metadata;
mod sink;

#[cfg(test)]
#[path = "../../tests/common/faulty.rs"]
mod faulty;
#[cfg(test)]
mod interrupted;
