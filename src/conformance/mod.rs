//! The suite that every engine passes, and its naive oracle.

mod case;
mod naive;
mod suite;

pub(crate) use suite::{check, check_compressed};

use crate::plan::Engines;
use crate::{Backend, Options};

#[test]
fn host_engine() {
    let options = Options::default().with_backend(Backend::Host);
    check(&options, &Engines::default(), 2000, &|| 0);
}
