//! A device: its memory, and the order in which its operations run.
//!
//! Both doors to the emulated device share this: the functions of the CUDA driver, and the simulation
//! of the `Driver` trait in `zarrs_cuda`, which checks more than such functions can see.

mod memory;
mod schedule;
mod space;

pub use self::memory::{Allocation, Block, Kind, Memory, Poison, granules};
pub use self::schedule::{Schedule, Scheduler, Task, Ticket};
pub use self::space::host;
