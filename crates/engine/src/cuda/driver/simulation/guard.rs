//! Watches that a library keeps within the spans that it was given. (Kernels are watched by the
//! emulator, access by access.)
//!
//! In every device allocation of which the library has a span, the bytes outside its spans are
//! hidden. Hidden bytes hold a pattern while the library runs, so that reading them gives wrong
//! results, and writing them is seen. Bytes of spans that the library only reads must not change.
//! The zones around each allocation are checked, too. In a stretch of more than two [`EDGE`]s, only
//! the first and the last [`EDGE`] bytes are watched. Pinned memory is left alone, because the host
//! may be using other bytes of it.

use std::ops::Range;

use zarrs_cuda_emulator::device::{Kind, Memory};

use super::intervals::Intervals;
use super::state::Uses;
use crate::cuda::driver::Access;

/// Bytes of an allocation that an operation was given.
#[derive(Clone, Debug)]
pub(super) struct AccessedBytes {
    pub(super) address: u64,
    pub(super) bytes: Range<usize>,
    pub(super) access: Access,
}

/// Bytes that are watched at each end of a long stretch.
const EDGE: usize = 16 << 10;

struct Watched {
    address: u64,
    offset: usize,
    bytes: Vec<u8>,
    hidden: bool,
}

/// The bytes that an operation must not change, as they were before it.
pub(super) struct Guard {
    addresses: Vec<u64>,
    watched: Vec<Watched>,
}

impl Guard {
    /// Hide, and remember, what an operation that runs now must leave alone.
    pub(super) fn new(memory: &Memory<Uses>, places: &[AccessedBytes]) -> Self {
        let mut addresses: Vec<u64> = places.iter().map(|place| place.address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let mut watched = Vec::new();
        for &address in &addresses {
            let Some(allocation) = memory.get(address) else {
                continue;
            };
            if allocation.kind == Kind::Pinned {
                continue;
            }
            let mut given = Intervals::default();
            let mut written = Intervals::default();
            for place in places.iter().filter(|place| place.address == address) {
                given.insert(place.bytes.clone());
                if place.access != Access::Read {
                    written.insert(place.bytes.clone());
                }
            }
            let mut watch = |bytes: Range<usize>, hidden| {
                for bytes in edges(bytes) {
                    watched.push(Watched {
                        address,
                        offset: bytes.start,
                        bytes: allocation.block.read(bytes.clone()),
                        hidden,
                    });
                    if hidden {
                        allocation.block.poison(bytes, &memory.poison);
                    }
                }
            };
            let whole = 0..allocation.block.len();
            for gap in given.gaps(whole.clone()) {
                watch(gap, true);
            }
            for kept in written.gaps(whole) {
                for bytes in given.within(kept) {
                    watch(bytes, false);
                }
            }
        }
        Self { addresses, watched }
    }

    /// Uncovers what was hidden; an error says what the operation wrote that it must not.
    pub(super) fn check(self, memory: &Memory<Uses>) -> Result<(), String> {
        let mut found = Ok(());
        for watched in &self.watched {
            let Some(allocation) = memory.get(watched.address) else {
                continue;
            };
            let block = &allocation.block;
            let end = watched.offset + watched.bytes.len();
            let changed = if watched.hidden {
                let mut pieces = memory.poison.pieces(watched.offset..end);
                let changed = pieces.find_map(|(at, piece)| block.differs(at, piece));
                block.write(watched.offset, &watched.bytes);
                changed
            } else {
                block.differs(watched.offset, &watched.bytes)
            };
            if let Some(at) = changed {
                let why = if watched.hidden {
                    "is in none of its spans"
                } else {
                    "it was to read only"
                };
                let (kind, number) = (allocation.kind, allocation.number);
                found = found.and(Err(format!(
                    "it wrote byte {at} of {kind} {number}, which {why}"
                )));
            }
        }
        for address in self.addresses {
            if let Some(allocation) = memory.get(address)
                && let Some(at) = allocation.block.broken_zone()
            {
                let (kind, number, len) =
                    (allocation.kind, allocation.number, allocation.block.len());
                found = found.and(Err(format!(
                    "it wrote byte {at} of {kind} {number}, which has {len} bytes"
                )));
            }
        }
        found
    }
}

/// Returns the parts of a stretch that are watched.
fn edges(bytes: Range<usize>) -> Vec<Range<usize>> {
    if bytes.len() <= 2 * EDGE {
        vec![bytes]
    } else {
        vec![bytes.start..bytes.start + EDGE, bytes.end - EDGE..bytes.end]
    }
}
