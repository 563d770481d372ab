//! Memory of the simulated device and of its host: real memory of this process, with a pattern in
//! all that was not written.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use super::clocks::History;
use super::intervals::Intervals;

/// What an allocation is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Device,
    Pinned,
}

impl Kind {
    pub(super) fn alignment(self) -> usize {
        match self {
            Self::Device => 256,
            Self::Pinned => 4096,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device memory",
            Self::Pinned => "pinned memory",
        })
    }
}

/// The pattern of memory that was not written: the same page again and again.
pub(super) struct Poison(Vec<u8>);

impl Poison {
    const PERIOD: usize = 4096;

    pub(super) fn new(seed: u64) -> Self {
        let mut numbers = super::schedule::Numbers::new(seed);
        let page = std::iter::repeat_with(|| numbers.next().to_le_bytes());
        Self(page.take(Self::PERIOD / 8).flatten().collect())
    }

    /// The pattern of these bytes of an allocation, in pieces.
    pub(super) fn pieces(&self, bytes: Range<usize>) -> impl Iterator<Item = (usize, &[u8])> {
        let mut at = bytes.start;
        std::iter::from_fn(move || {
            let from = at % Self::PERIOD;
            let len = (bytes.end - at).min(Self::PERIOD - from);
            let piece = (at, &self.0[from..from + len]);
            at += len;
            (len > 0).then_some(piece)
        })
    }
}

/// Memory, between two zones that nobody may write.
pub(super) struct Block {
    first: NonNull<u8>,
    len: usize,
    /// Bytes before the first.
    front: usize,
    layout: Layout,
}

// SAFETY: it owns its memory, and gives it out as raw pointers only.
unsafe impl Send for Block {}

/// Bytes of a zone that are checked.
const ZONE: usize = 256;
/// What is in a zone.
const ZONE_BYTE: u8 = 0xd7;

impl Block {
    /// `None` if there is no such memory.
    fn new(len: usize, kind: Kind) -> Option<Self> {
        let front = kind.alignment().max(ZONE);
        let size = len.checked_add(front)?.checked_add(ZONE)?;
        let layout = Layout::from_size_align(size, kind.alignment()).ok()?;
        // SAFETY: the size is not 0.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        // SAFETY: `front` is within the size.
        let first = unsafe { start.add(front) };
        // SAFETY: both zones are within the allocation, which nobody else knows yet.
        unsafe {
            first.sub(ZONE).write_bytes(ZONE_BYTE, ZONE);
            first.add(len).write_bytes(ZONE_BYTE, ZONE);
        }
        Some(Self {
            first,
            len,
            front,
            layout,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The address of the first byte.
    pub(super) fn address(&self) -> u64 {
        self.first.as_ptr().expose_provenance() as u64
    }

    /// The byte at `offset`, which is at most the length.
    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len, "checked where the span was declared");
        // SAFETY: within the allocation, or the byte after it.
        unsafe { self.first.as_ptr().add(offset) }
    }

    /// Read bytes that nobody writes now.
    pub(super) fn read(&self, bytes: Range<usize>) -> Vec<u8> {
        let mut copy = vec![0; bytes.len()];
        assert!(bytes.end <= self.len);
        // SAFETY: within the allocation. Bytes that were never written hold the poison.
        unsafe {
            std::ptr::copy_nonoverlapping(self.at(bytes.start), copy.as_mut_ptr(), copy.len());
        };
        copy
    }

    /// Write bytes that nobody reads or writes now.
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(bytes.len() <= self.len - offset);
        // SAFETY: within the allocation.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset), bytes.len()) };
    }

    /// The offset of the first of `bytes` that differ from what is there; nobody writes it now.
    pub(super) fn differs(&self, offset: usize, bytes: &[u8]) -> Option<usize> {
        assert!(bytes.len() <= self.len - offset);
        // SAFETY: within the allocation, initialised when it was made, and nobody writes it while
        // this slice lives: what does is run under the lock that the caller holds.
        let now = unsafe { std::slice::from_raw_parts(self.at(offset), bytes.len()) };
        if now == bytes {
            return None;
        }
        now.iter()
            .zip(bytes)
            .position(|(a, b)| a != b)
            .map(|i| offset + i)
    }

    pub(super) fn poison(&self, bytes: Range<usize>, poison: &Poison) {
        for (at, piece) in poison.pieces(bytes) {
            self.write(at, piece);
        }
    }

    /// Which zone was written, if one was: the distance of the byte from the first one.
    pub(super) fn broken_zone(&self) -> Option<isize> {
        // SAFETY: the zones are within the allocation, and initialised. Who writes them breaks
        // the rules, and runs under the lock that the caller holds.
        let zones = unsafe {
            [
                std::slice::from_raw_parts(self.first.as_ptr().sub(ZONE), ZONE),
                std::slice::from_raw_parts(self.first.as_ptr().add(self.len), ZONE),
            ]
        };
        let origins = [-ZONE.cast_signed(), self.len.cast_signed()];
        zones.into_iter().zip(origins).find_map(|(zone, origin)| {
            let at = zone.iter().position(|b| *b != ZONE_BYTE)?;
            Some(origin + at.cast_signed())
        })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: `first` is `front` bytes into what was allocated with this layout.
        unsafe { dealloc(self.first.as_ptr().sub(self.front), self.layout) };
    }
}

/// A live allocation.
pub(super) struct Allocation {
    pub(super) kind: Kind,
    /// From 0, in messages.
    pub(super) number: usize,
    pub(super) block: Block,
    /// Who touched it.
    pub(super) history: History,
    /// What was written, when everything that is enqueued has run.
    pub(super) written: Intervals,
}

/// An allocation that was freed. It is kept for a while, so that its address stays its own.
struct Freed {
    kind: Kind,
    number: usize,
    block: Block,
}

/// All allocations, by their addresses.
pub(super) struct Memory {
    pub(super) poison: Poison,
    live: BTreeMap<u64, Allocation>,
    freed: VecDeque<Freed>,
    freed_bytes: usize,
    made: usize,
    used: [usize; 2],
    peak: [usize; 2],
}

/// Freed bytes that are kept.
const KEPT: usize = 8 << 20;

/// What an allocation takes of the capacity.
pub(super) fn granules(len: usize, kind: Kind) -> usize {
    len.checked_next_multiple_of(kind.alignment())
        .unwrap_or(usize::MAX)
}

impl Memory {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            poison: Poison::new(seed),
            live: BTreeMap::new(),
            freed: VecDeque::new(),
            freed_bytes: 0,
            made: 0,
            used: [0; 2],
            peak: [0; 2],
        }
    }

    /// The bytes of live allocations.
    pub(super) fn used(&self, kind: Kind) -> usize {
        self.used[kind as usize]
    }

    /// The most that there were at a time.
    pub(super) fn peak(&self, kind: Kind) -> usize {
        self.peak[kind as usize]
    }

    /// The number of live allocations.
    pub(super) fn count(&self, kind: Kind) -> usize {
        self.live.values().filter(|a| a.kind == kind).count()
    }

    /// `None` if there is no such memory.
    pub(super) fn allocate(&mut self, len: usize, kind: Kind) -> Option<NonNull<u8>> {
        let block = Block::new(len, kind)?;
        block.poison(0..len, &self.poison);
        let first = block.first;
        let allocation = Allocation {
            kind,
            number: self.made,
            history: History::default(),
            written: Intervals::default(),
            block,
        };
        self.made += 1;
        let used = &mut self.used[kind as usize];
        *used += granules(len, kind);
        self.peak[kind as usize] = self.peak[kind as usize].max(*used);
        self.live.insert(allocation.block.address(), allocation);
        Some(first)
    }

    pub(super) fn free(&mut self, address: u64) {
        let Some(Allocation {
            kind,
            number,
            block,
            ..
        }) = self.live.remove(&address)
        else {
            return;
        };
        self.used[kind as usize] -= granules(block.len(), kind);
        if block.len() > KEPT {
            return;
        }
        block.poison(0..block.len(), &self.poison);
        self.freed_bytes += block.len();
        self.freed.push_back(Freed {
            kind,
            number,
            block,
        });
        while self.freed_bytes > KEPT
            && let Some(oldest) = self.freed.pop_front()
        {
            self.freed_bytes -= oldest.block.len();
        }
    }

    /// Let these bytes be as if they had never been written.
    pub(super) fn discard(&mut self, address: u64, bytes: Range<usize>) {
        if let Some(allocation) = self.live.get_mut(&address) {
            // The rest still has the poison.
            for written in allocation.written.within(bytes.clone()) {
                allocation.block.poison(written, &self.poison);
            }
            allocation.written.remove(bytes);
        }
    }

    pub(super) fn get(&self, address: u64) -> Option<&Allocation> {
        self.live.get(&address)
    }

    pub(super) fn get_mut(&mut self, address: u64) -> Option<&mut Allocation> {
        self.live.get_mut(&address)
    }

    /// The live allocation that begins at or before an address, and how far before.
    pub(super) fn containing(&self, address: u64) -> Option<(u64, usize)> {
        let (first, _) = self.live.range(..=address).next_back()?;
        let offset = usize::try_from(address - first).ok()?;
        Some((*first, offset))
    }

    /// What an address is that no live allocation has.
    pub(super) fn absent(&self, address: u64) -> String {
        let freed = self
            .freed
            .iter()
            .rev()
            .find(|f| f.block.address() == address);
        freed.map_or_else(
            || format!("no allocation begins at {address:#x} (it may have been freed)"),
            |f| format!("{} {} was freed", f.kind, f.number),
        )
    }
}
