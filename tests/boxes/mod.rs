//! `BoxWriter` compared with a naive array.

mod any;
mod chains;
mod dropped;
mod failing;
mod frames;
mod growing;
mod naive;
mod tensors;
mod threads;
