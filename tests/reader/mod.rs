//! `ArrayReader` compared with zarrs' own calls.

mod absent;
pub(crate) mod any;
mod damaged;
mod growing;
mod long;
mod replaced;
mod slow;
mod tensors;
