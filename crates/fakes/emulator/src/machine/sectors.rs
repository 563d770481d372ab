//! How many sectors of 32 bytes the accesses of warps to global memory touch.

use std::collections::BTreeMap;

/// The counts of the accesses of one instruction, over all warps of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessCount {
    /// The line in the PTX.
    pub line: u32,
    /// Whether it wrote.
    pub write: bool,
    /// How often warps did.
    pub accesses: u64,
    /// The 32-byte sectors that each access touched, added up.
    pub sectors: u64,
    /// The fewest sectors that could hold the bytes that each access touched, added up.
    pub ideal: u64,
}

const SECTOR: u64 = 32;

#[derive(Debug, Default)]
pub(super) struct Sectors(BTreeMap<(u32, bool), AccessCount>);

impl Sectors {
    /// Count one access of a warp, of `len` bytes at each of `addresses`.
    pub(super) fn add(&mut self, line: u32, write: bool, addresses: &mut [u64], len: u64) {
        let new = AccessCount {
            line,
            write,
            accesses: 0,
            sectors: 0,
            ideal: 0,
        };
        let count = self.0.entry((line, write)).or_insert(new);
        addresses.sort_unstable();
        let (mut bytes, mut sectors) = (0, 0);
        // The ends of the bytes and of the sectors that were counted.
        let (mut bytes_to, mut sectors_to) = (0, 0);
        for &address in &*addresses {
            let (first, last) = (address.max(bytes_to), address + len);
            if first >= last {
                continue;
            }
            bytes += last - first;
            bytes_to = last;
            let (first, last) = ((first / SECTOR).max(sectors_to), last.div_ceil(SECTOR));
            if first < last {
                sectors += last - first;
                sectors_to = last;
            }
        }
        count.accesses += 1;
        count.sectors += sectors;
        count.ideal += bytes.div_ceil(SECTOR);
    }

    pub(super) fn into_counts(self) -> Vec<AccessCount> {
        self.0.into_values().collect()
    }
}
