//! The arguments of a launch.

use crate::cuda::driver::{Arg, DeviceSpan};
use cudarc::driver::sys::CUdeviceptr;
use std::ffi::c_void;

/// Returns the address of the first byte of `span`.
pub(super) fn address(span: DeviceSpan) -> CUdeviceptr {
    span.memory.0.wrapping_add(span.offset as u64)
}

/// The arguments of a kernel launch. Each argument is stored at an address with the alignment that it needs.
pub(super) struct Arguments {
    words: Vec<u64>,
    /// For each argument, the index of its first word in `words`.
    starts: Vec<usize>,
}

impl Arguments {
    pub(super) fn new(args: &[Arg<'_>]) -> Self {
        let (mut words, mut starts) = (Vec::new(), Vec::new());
        for arg in args {
            starts.push(words.len());
            match *arg {
                Arg::Span(span, _) => words.push(address(span)),
                Arg::Null => words.push(0),
                // The driver reads the first four bytes of the word, in native order.
                Arg::U32(value) => words.push(first_bytes(&value.to_ne_bytes())),
                Arg::U64(value) => words.push(value),
                Arg::Struct(bytes) => words.extend(bytes.chunks(8).map(first_bytes)),
            }
        }
        Self { words, starts }
    }

    /// Returns a pointer to each argument. The pointers are valid until the next use of `self`.
    pub(super) fn pointers(&mut self) -> Vec<*mut c_void> {
        let words = self.words.as_mut_ptr();
        let pointers = self
            .starts
            .iter()
            .map(|&start| words.wrapping_add(start).cast());
        pointers.collect()
    }
}

/// Returns at most 8 `bytes` as a word in native order. Zeros follow the bytes.
fn first_bytes(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_ne_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::driver::{Access, DeviceMemory};

    #[test]
    fn arguments_are_read_where_the_pointers_point() {
        let span = DeviceSpan {
            memory: DeviceMemory(0x7000),
            offset: 0x34,
            len: 1,
        };
        let bytes: Vec<u8> = (1..=20).collect();
        let mut arguments = Arguments::new(&[
            Arg::Struct(&bytes),
            Arg::U32(0xDEAD_BEEF),
            Arg::Span(span, Access::Read),
            Arg::Null,
            Arg::U64(u64::MAX - 1),
        ]);
        let pointers = arguments.pointers();
        assert!(pointers.iter().all(|p| p.addr() % 8 == 0));
        // SAFETY: each points to a value of at least this size.
        unsafe {
            assert_eq!(pointers[0].cast::<[u8; 20]>().read(), bytes[..]);
            assert_eq!(pointers[1].cast::<u32>().read(), 0xDEAD_BEEF);
            assert_eq!(pointers[2].cast::<u64>().read(), 0x7034);
            assert_eq!(pointers[3].cast::<u64>().read(), 0);
            assert_eq!(pointers[4].cast::<u64>().read(), u64::MAX - 1);
        }
        assert_eq!(pointers.len(), 5);
    }
}
