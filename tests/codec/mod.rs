//! The codec, called in the way of zarrs.

mod build_sharded;
mod delegated_types;
mod regressions;
mod stock_oracle;
