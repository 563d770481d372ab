//! The addresses of device memory.
//!
//! The host cannot touch a device's addresses, as on a real machine: an access ends the process. The
//! bytes are [`DISTANCE`] further on, for the emulator and the stand-in for nvCOMP alone. Addresses
//! are never used twice, so an address that was freed stays one.

use std::ptr;
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The first address of device memory. The stand-in for nvCOMP knows it, too.
const BEGIN: usize = 0x1000_0000_0000;

/// The bytes of all device memory that a process may ever have, and the distance of each byte from
/// its address.
const DISTANCE: usize = 0x1000_0000_0000;

/// Returns where the byte is that has an address of device memory.
#[must_use]
pub fn host(address: u64) -> *mut u8 {
    ptr::with_exposed_provenance_mut((address as usize).wrapping_add(DISTANCE))
}

/// The size of a page, in bytes.
fn page() -> usize {
    // SAFETY: no precondition.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

/// The first address that is free. The first call reserves all addresses.
fn free() -> Result<&'static Mutex<usize>, String> {
    static FREE: OnceLock<Result<Mutex<usize>, String>> = OnceLock::new();
    let reserve = || {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let begin = ptr::without_provenance_mut(BEGIN);
        // SAFETY: replaces no mapping, and takes no memory: nothing can be accessed.
        let mapped = unsafe {
            let flags = flags | libc::MAP_FIXED_NOREPLACE;
            libc::mmap(begin, 2 * DISTANCE, libc::PROT_NONE, flags, -1, 0)
        };
        if mapped.addr() == BEGIN {
            return Ok(Mutex::new(BEGIN));
        }
        Err(format!(
            "reserve {} bytes of addresses from {BEGIN:#x} on: {}",
            2 * DISTANCE,
            std::io::Error::last_os_error()
        ))
    };
    FREE.get_or_init(reserve).as_ref().map_err(Clone::clone)
}

/// Pages of device memory.
#[derive(Debug)]
pub(super) struct Pages {
    address: usize,
    len: usize,
}

impl Pages {
    /// Returns pages with at least `len` bytes, which are 0. `None` if there is no such memory.
    ///
    /// # Panics
    /// The addresses cannot be reserved.
    pub(super) fn new(len: usize) -> Option<Self> {
        let len = len.checked_next_multiple_of(page())?;
        let free = free().unwrap_or_else(|error| panic!("{error}"));
        let mut free = free.lock().unwrap_or_else(PoisonError::into_inner);
        // A page that cannot be accessed is between two allocations.
        let end = free.checked_add(len)?.checked_add(page())?;
        if end > BEGIN + DISTANCE {
            return None;
        }
        let pages = Self {
            address: *free,
            len,
        };
        if !pages.map(libc::PROT_READ | libc::PROT_WRITE) {
            return None;
        }
        *free = end;
        Some(pages)
    }

    fn map(&self, protection: libc::c_int) -> bool {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let first = host(self.address as u64).cast();
        // SAFETY: replaces pages of the reserved addresses, which only this object uses.
        let mapped = unsafe { libc::mmap(first, self.len, protection, flags, -1, 0) };
        mapped == first
    }

    /// Returns the first byte.
    pub(super) fn first(&self) -> Option<NonNull<u8>> {
        NonNull::new(host(self.address as u64))
    }

    /// Returns the address of a byte of these pages.
    pub(super) fn address(byte: NonNull<u8>) -> u64 {
        (byte.as_ptr().expose_provenance() - DISTANCE) as u64
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // A failure leaves the pages accessible, which only a test of misuse could notice.
        let _ = self.map(libc::PROT_NONE);
    }
}
