//! Updates by hand, torn at every byte, recovered by recoveries that are torn at every byte.

mod simulator;
mod single;
mod torn;
