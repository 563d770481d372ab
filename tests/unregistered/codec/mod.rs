//! The codec, called as zarrs calls it.

mod delegated_types;
mod regressions;
mod stock_oracle;
