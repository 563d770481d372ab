//! The suite that every engine passes, and its naive oracle.

mod case;
mod naive;
mod suite;

pub(crate) use suite::{check, check_compressed};

use crate::options::{Backend, Options};
use crate::plan::Engines;

#[test]
fn host_engine() {
    let options = Options::default().with_backend(Backend::Host);
    check(&options, &Engines::of_process(&options), 2000, &|| 0);
}
