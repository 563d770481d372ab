//! `ArrayWriter` compared with zarrs. Slices appended in any pieces become the same shards as one
//! `store_array_subset` by zarrs' own codec. The writer's reports and promises are checked, too.

mod appending;
pub(crate) mod case;
pub(crate) mod content;
mod dlpack;
mod ending;
mod failing;
mod faults;
mod length;
mod pauses;
mod probe;
mod refusals;
mod resume;
mod simple;
mod stream;
mod threads;
mod two;
mod waiting;
mod watchdog;
