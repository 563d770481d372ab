//! Memory of the emulated device, and pinned memory of its host. All bytes that were not written hold
//! a pattern.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use super::space::Pages;
use crate::random::Random;

/// The kind of memory that an allocation has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory of the device, which the host cannot touch.
    Device,
    /// Memory of the host, which the device can touch.
    Pinned,
}

impl Kind {
    fn alignment(self) -> usize {
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
#[derive(Debug)]
pub struct Poison(Vec<u8>);

impl Poison {
    const PERIOD: usize = 4096;

    fn new(seed: u64) -> Self {
        let mut numbers = Random::new(seed);
        let page = std::iter::repeat_with(|| numbers.next().to_le_bytes());
        Self(page.take(Self::PERIOD / 8).flatten().collect())
    }

    /// Returns the pattern of these bytes of an allocation, in pieces: their offsets and contents.
    pub fn pieces(&self, bytes: Range<usize>) -> impl Iterator<Item = (usize, &[u8])> {
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

/// The memory of an allocation, between two zones that nothing may write.
#[derive(Debug)]
pub struct Block {
    /// Where the first byte is.
    first: NonNull<u8>,
    len: usize,
    memory: Owned,
}

/// Keeps memory.
#[derive(Debug)]
enum Owned {
    Device(#[allow(dead_code, reason = "it is freed when it is dropped")] Pages),
    Pinned(NonNull<u8>, Layout),
}

// SAFETY: it owns its memory, and gives it out as raw pointers only.
unsafe impl Send for Block {}

/// The length of a zone, in bytes.
const ZONE: usize = 256;
/// The byte that fills a zone.
const ZONE_BYTE: u8 = 0xd7;

/// Allocations with more bytes than this are not filled with the pattern, and take no memory before
/// they are written.
const SPARSE: usize = 256 << 20;

impl Block {
    /// Returns `len` bytes with the pattern, or `None` if there is no such memory.
    fn new(len: usize, kind: Kind, poison: &Poison) -> Option<Self> {
        let front = kind.alignment().max(ZONE);
        let size = len.checked_add(front)?.checked_add(ZONE)?;
        let (start, memory) = match kind {
            Kind::Device => {
                let pages = Pages::new(size)?;
                (pages.first()?, Owned::Device(pages))
            }
            Kind::Pinned => {
                let layout = Layout::from_size_align(size, kind.alignment()).ok()?;
                // SAFETY: the size is not 0.
                let start = NonNull::new(unsafe { alloc(layout) })?;
                (start, Owned::Pinned(start, layout))
            }
        };
        // SAFETY: `front` is within the size.
        let first = unsafe { start.add(front) };
        // SAFETY: both zones are within the allocation, which nothing else knows yet.
        unsafe {
            first.sub(ZONE).write_bytes(ZONE_BYTE, ZONE);
            first.add(len).write_bytes(ZONE_BYTE, ZONE);
        }
        let block = Self { first, len, memory };
        if len <= SPARSE {
            block.poison(0..len, poison);
        }
        Some(block)
    }

    /// Returns the number of bytes, which is not 0.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of the first byte, as the device knows it.
    #[must_use]
    pub fn address(&self) -> u64 {
        match self.memory {
            Owned::Device(_) => Pages::address(self.first),
            Owned::Pinned(..) => self.first.as_ptr().expose_provenance() as u64,
        }
    }

    /// Returns where the byte at `offset` is, for the host.
    ///
    /// # Panics
    /// The offset is beyond the length.
    #[must_use]
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len, "checked where the span was declared");
        // SAFETY: within the allocation, or the byte after it.
        unsafe { self.first.as_ptr().add(offset) }
    }

    /// Returns a copy of bytes that nothing writes now.
    ///
    /// # Panics
    /// The bytes are outside of the allocation.
    #[must_use]
    pub fn read(&self, bytes: Range<usize>) -> Vec<u8> {
        let mut copy = vec![0; bytes.len()];
        assert!(bytes.end <= self.len);
        // SAFETY: within the allocation. Bytes that were never written hold the poison.
        unsafe {
            std::ptr::copy_nonoverlapping(self.at(bytes.start), copy.as_mut_ptr(), copy.len());
        };
        copy
    }

    /// Writes bytes that nothing else uses now.
    ///
    /// # Panics
    /// The bytes are outside of the allocation.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(bytes.len() <= self.len - offset);
        // SAFETY: within the allocation.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset), bytes.len()) };
    }

    /// Returns the offset of the first of `bytes` that differs from the byte in memory. Nothing writes
    /// the memory now.
    ///
    /// # Panics
    /// The bytes are outside of the allocation.
    #[must_use]
    pub fn differs(&self, offset: usize, bytes: &[u8]) -> Option<usize> {
        assert!(bytes.len() <= self.len - offset);
        // SAFETY: within the allocation and initialised when it was made. The caller promises that
        // nothing writes it while this slice lives.
        let now = unsafe { std::slice::from_raw_parts(self.at(offset), bytes.len()) };
        if now == bytes {
            return None;
        }
        now.iter()
            .zip(bytes)
            .position(|(a, b)| a != b)
            .map(|i| offset + i)
    }

    /// Fills bytes with the pattern. Nothing else uses them now.
    pub fn poison(&self, bytes: Range<usize>, poison: &Poison) {
        for (at, piece) in poison.pieces(bytes) {
            self.write(at, piece);
        }
    }

    /// Returns which byte of a zone was written, if one was: its distance from the first byte.
    #[must_use]
    pub fn broken_zone(&self) -> Option<isize> {
        // SAFETY: the zones are within the allocation, and initialised. An operation that writes
        // them does not run now.
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

impl Drop for Owned {
    fn drop(&mut self) {
        if let Self::Pinned(start, layout) = *self {
            // SAFETY: it was allocated with this layout.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }
}

/// A live allocation, and the data that its user keeps about it.
#[derive(Debug)]
pub struct Allocation<T> {
    /// The kind of the memory.
    pub kind: Kind,
    /// Its number among the allocations of the device, from 0, for messages.
    pub number: usize,
    /// Its memory.
    pub block: Block,
    /// The data that the user keeps about the allocation.
    pub known: T,
}

/// An allocation that was freed. It is kept for a while, so that its address stays its own.
#[derive(Debug)]
struct Freed {
    kind: Kind,
    number: usize,
    block: Block,
}

/// The allocations of a device, by their addresses.
#[derive(Debug)]
pub struct Memory<T> {
    /// The pattern of bytes that were not written.
    pub poison: Poison,
    live: BTreeMap<u64, Allocation<T>>,
    freed: VecDeque<Freed>,
    freed_bytes: usize,
    made: usize,
    used: [usize; 2],
    peak: [usize; 2],
}

/// How many freed bytes are kept.
const KEPT: usize = 8 << 20;

/// Returns how much of the capacity an allocation takes, in bytes.
#[must_use]
pub fn granules(len: usize, kind: Kind) -> usize {
    len.checked_next_multiple_of(kind.alignment())
        .unwrap_or(usize::MAX)
}

impl<T: Default> Memory<T> {
    /// Returns a device without allocations. The seed is the pattern's.
    #[must_use]
    pub fn new(seed: u64) -> Self {
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

    /// Returns the bytes of live allocations, in granules.
    #[must_use]
    pub fn used(&self, kind: Kind) -> usize {
        self.used[kind as usize]
    }

    /// Returns the most bytes that live allocations had at a time, in granules.
    #[must_use]
    pub fn peak(&self, kind: Kind) -> usize {
        self.peak[kind as usize]
    }

    /// Returns the number of live allocations.
    #[must_use]
    pub fn count(&self, kind: Kind) -> usize {
        self.live.values().filter(|a| a.kind == kind).count()
    }

    /// Returns the address of `len` bytes of new memory, at least 1; `None` if there is no such memory.
    pub fn allocate(&mut self, len: usize, kind: Kind) -> Option<u64> {
        let block = Block::new(len, kind, &self.poison)?;
        let address = block.address();
        let allocation = Allocation {
            kind,
            number: self.made,
            block,
            known: T::default(),
        };
        self.made += 1;
        let used = &mut self.used[kind as usize];
        *used += granules(len, kind);
        self.peak[kind as usize] = self.peak[kind as usize].max(*used);
        self.live.insert(address, allocation);
        Some(address)
    }

    /// Frees the allocation that begins at an address, if there is one.
    pub fn free(&mut self, address: u64) {
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

    /// Returns the allocation that begins at an address.
    #[must_use]
    pub fn get(&self, address: u64) -> Option<&Allocation<T>> {
        self.live.get(&address)
    }

    /// Returns the allocation that begins at an address.
    pub fn get_mut(&mut self, address: u64) -> Option<&mut Allocation<T>> {
        self.live.get_mut(&address)
    }

    /// Returns the live allocations, in the order of their addresses.
    pub fn live(&self) -> impl Iterator<Item = (u64, &Allocation<T>)> {
        self.live
            .iter()
            .map(|(address, allocation)| (*address, allocation))
    }

    /// Returns where the last live allocation begins that begins at or before an address, and how far
    /// before.
    #[must_use]
    pub fn containing(&self, address: u64) -> Option<(u64, usize)> {
        let (first, _) = self.live.range(..=address).next_back()?;
        let offset = usize::try_from(address - first).ok()?;
        Some((*first, offset))
    }

    /// Says what an address is at which no live allocation begins.
    #[must_use]
    pub fn absent(&self, address: u64) -> String {
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
