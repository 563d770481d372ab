//! `ArrayReader` compared with zarrs' own calls.

mod any;
mod damaged;
mod growing;
mod replaced;
mod slow;
mod tensors;
