//! `ArrayWriter`, held against zarrs: slices that are appended in any pieces are the same shards as
//! one `store_array_subset` by zarrs' own codec, and what a writer says and promises meanwhile.

mod appending;
mod case;
mod content;
mod dlpack;
mod ending;
mod failing;
mod faults;
mod length;
mod probe;
mod refusals;
mod simple;
mod stream;
mod threads;
mod waiting;
mod watchdog;
