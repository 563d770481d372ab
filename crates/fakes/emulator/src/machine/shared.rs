//! The shared memory of a block.

use super::shadow::Shadow;
use crate::ptx::Kernel;
use crate::ptx::kernel::{SHARED, Variable};

/// The variables of a block, with gaps between them.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) bytes: Vec<u8>,
    pub(super) shadow: Option<Shadow>,
}

impl Shared {
    pub(super) fn new(kernel: &Kernel, checks: bool) -> Self {
        let len = Kernel::extent(&kernel.shared);
        Self {
            bytes: vec![0; len],
            shadow: checks.then(|| Shadow::new(len, false)),
        }
    }

    /// Fill the memory with what nobody wrote.
    pub(super) fn begin(&mut self, block: u32) {
        self.bytes.fill(0xa5 ^ block as u8);
        if let Some(shadow) = &mut self.shadow {
            shadow.renew();
        }
    }
}

/// The offset of `len` bytes at `address` in the space that begins at `base`, if they are in one of its
/// `variables`.
#[inline]
pub(super) fn offset(
    variables: &[Variable],
    base: u64,
    address: u64,
    len: u64,
) -> Result<usize, String> {
    let offset = usize::try_from(address.wrapping_sub(base)).unwrap_or(usize::MAX);
    let holds = |variable: &Variable| {
        let end = (variable.offset + variable.len) as u64;
        variable.offset <= offset && (offset as u64).saturating_add(len) <= end
    };
    if variables.iter().any(holds) {
        return Ok(offset);
    }
    let space = if base == SHARED {
        "shared memory"
    } else {
        "constants or parameters"
    };
    let list = variables.iter().map(|v| {
        format!(
            "{} of {} bytes at {:#x}",
            v.name,
            v.len,
            base + v.offset as u64
        )
    });
    Err(format!(
        "{len} bytes at {address:#x} are in no variable of {space}: there are {}",
        list.collect::<Vec<_>>().join(", ")
    ))
}
