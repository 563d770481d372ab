//! The state of each byte of memory: whether the byte is defined, and who used the byte.

/// Who uses memory, and when: a thread of a block, between two barriers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamp {
    /// From 1; 0 is nobody.
    block: u32,
    thread: u16,
    /// Barriers of the block before.
    block_epoch: u32,
    /// Barriers of the warp before.
    warp_epoch: u32,
}

impl Stamp {
    pub(super) fn new(block: u32, thread: usize, block_epoch: u32, warp_epoch: u32) -> Self {
        Self {
            block: block + 1,
            thread: u16::try_from(thread).unwrap_or(u16::MAX),
            block_epoch,
            warp_epoch,
        }
    }

    /// Returns the stamp of lane `lane`, where this is the stamp of lane 0 of the same warp.
    pub(super) fn of_lane(self, lane: usize) -> Self {
        Self {
            thread: self.thread + lane as u16,
            ..self
        }
    }

    fn is_nobody(self) -> bool {
        self.block == 0
    }

    fn warp(self) -> u16 {
        self.thread / 32
    }

    /// Whether something orders this one, which came first, before `later`.
    fn is_before(self, later: Self) -> bool {
        self.is_nobody()
            || self.block == later.block
                && (self.thread == later.thread
                    || self.block_epoch != later.block_epoch
                    || self.warp() == later.warp() && self.warp_epoch != later.warp_epoch)
    }
}

/// How memory is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Read,
    Write,
    /// Volatile: does not conflict with others that are, or with atomics.
    Volatile,
    VolatileWrite,
    Atomic,
}

impl Use {
    pub(super) fn writes(self) -> bool {
        matches!(self, Self::Write | Self::VolatileWrite | Self::Atomic)
    }
}

/// Who used a byte, as far as no barrier orders them among each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Who {
    /// One thread, or nobody.
    #[default]
    One,
    /// Several threads of one warp.
    Warp,
    /// Several warps of one block.
    Block,
    /// Several blocks.
    Grid,
}

/// The uses of one kind since the last weak write: neither volatile nor atomic.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    last: Stamp,
    by: Who,
}

impl Uses {
    /// Whether nothing orders one of the uses before `stamp`.
    fn are_beside(&self, stamp: Stamp) -> bool {
        let last = self.last;
        let same_epoch = last.block_epoch == stamp.block_epoch;
        let same_warp = last.warp() == stamp.warp();
        !last.is_nobody()
            && (!last.is_before(stamp)
                || match self.by {
                    Who::One => false,
                    Who::Warp => same_epoch && (!same_warp || last.warp_epoch == stamp.warp_epoch),
                    Who::Block => same_epoch,
                    Who::Grid => true,
                })
    }

    /// One more use.
    fn add(&mut self, stamp: Stamp) {
        let last = self.last;
        self.by = if last.is_nobody() {
            Who::One
        } else if last.block != stamp.block || self.by == Who::Grid {
            Who::Grid
        } else if last.block_epoch != stamp.block_epoch {
            Who::One
        } else if last.warp() != stamp.warp() || self.by == Who::Block {
            Who::Block
        } else if last.warp_epoch != stamp.warp_epoch {
            Who::One
        } else if last.thread != stamp.thread || self.by == Who::Warp {
            Who::Warp
        } else {
            Who::One
        };
        self.last = stamp;
    }
}

/// The last uses of a byte, or of bytes that were used alike.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// The last weak write.
    written: Stamp,
    reads: Uses,
    strong_writes: Uses,
    volatile_reads: Uses,
}

impl Cell {
    /// Enter a use, of memory that other blocks have, too, unless it `is_of_block`. An error says with
    /// what it conflicts.
    #[inline]
    fn enter(&mut self, stamp: Stamp, usage: Use, is_of_block: bool) -> Result<(), &'static str> {
        if is_of_block && self.block() != stamp.block {
            *self = Self::default();
        }
        let is_strong = !matches!(usage, Use::Read | Use::Write);
        if !self.written.is_before(stamp) || !is_strong && self.strong_writes.are_beside(stamp) {
            return Err("another thread's write");
        }
        let conflicts_strongly = usage == Use::Write && self.volatile_reads.are_beside(stamp);
        if usage.writes() && self.reads.are_beside(stamp) || conflicts_strongly {
            return Err("another thread's read");
        }
        match usage {
            Use::Read => self.reads.add(stamp),
            Use::Volatile => self.volatile_reads.add(stamp),
            Use::VolatileWrite | Use::Atomic => self.strong_writes.add(stamp),
            Use::Write => {
                *self = Self {
                    written: stamp,
                    ..Self::default()
                }
            }
        }
        Ok(())
    }

    /// The block that used it last, of memory that blocks do not share.
    fn block(&self) -> u32 {
        let read = self.reads.last.block.max(self.volatile_reads.last.block);
        self.written
            .block
            .max(self.strong_writes.last.block)
            .max(read)
    }
}

/// Bytes that are kept together until they are used apart.
const GRANULE: usize = 4;

/// The shadow of a piece of memory.
#[derive(Debug)]
pub(super) struct Shadow {
    len: usize,
    /// Bits: whether a byte is defined.
    defined: Vec<u8>,
    /// Allocated when memory is used first.
    cells: Vec<Cell>,
    /// Where the bytes of a granule are, from 1.
    split: Vec<u32>,
    bytes: Vec<[Cell; GRANULE]>,
    /// Whether each block has memory of its own here, one after the other.
    is_of_block: bool,
}

impl Shadow {
    pub(super) fn new(len: usize, is_defined: bool) -> Self {
        Self {
            len,
            defined: vec![if is_defined { u8::MAX } else { 0 }; len.div_ceil(8)],
            cells: Vec::new(),
            split: Vec::new(),
            bytes: Vec::new(),
            is_of_block: false,
        }
    }

    /// Another block has the memory now, and nothing is in it. Uses by blocks before do not count.
    pub(super) fn renew(&mut self) {
        self.is_of_block = true;
        self.defined.fill(0);
    }

    /// `len` bytes from `offset` on are defined, or not.
    pub(super) fn set_defined(&mut self, offset: usize, len: usize, is_defined: bool) {
        for byte in offset..offset + len {
            let bit = 1 << (byte % 8);
            self.defined[byte / 8] &= !bit;
            self.defined[byte / 8] |= if is_defined { bit } else { 0 };
        }
    }

    /// A byte of 0xff for each undefined byte of the `len` from `offset` on, up to 8.
    #[inline]
    pub(super) fn undefined(&self, offset: usize, len: usize) -> u64 {
        let mut bits = u32::from(self.defined[offset / 8]) >> (offset % 8);
        if offset % 8 + len > 8 {
            bits |= u32::from(self.defined[offset / 8 + 1]) << (8 - offset % 8);
        }
        let all = (1_u32 << len) - 1;
        if bits & all == all {
            return 0;
        }
        (0..len)
            .filter(|byte| bits >> byte & 1 == 0)
            .map(|byte| 0xff << (8 * byte))
            .sum()
    }

    /// Remember which of `len` bytes from `offset` on have undefined bits.
    #[inline]
    pub(super) fn define(&mut self, offset: usize, len: usize, undefined: u64) {
        if undefined == 0 && offset % 8 + len <= 8 {
            self.defined[offset / 8] |= (u8::MAX >> (8 - len)) << (offset % 8);
            return;
        }
        for byte in 0..len {
            let at = offset + byte;
            let bit = 1 << (at % 8);
            let bits = undefined >> (8 * byte) & 0xff;
            if bits == 0 {
                self.defined[at / 8] |= bit;
            } else {
                self.defined[at / 8] &= !bit;
            }
        }
    }

    /// Enter a use of `len` bytes from `offset` on.
    #[inline]
    pub(super) fn enter(
        &mut self,
        offset: usize,
        len: usize,
        stamp: Stamp,
        usage: Use,
    ) -> Result<(), &'static str> {
        if self.cells.is_empty() {
            self.cells = vec![Cell::default(); self.len.div_ceil(GRANULE)];
            self.split = vec![0; self.len.div_ceil(GRANULE)];
        }
        let is_of_block = self.is_of_block;
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let granule = at / GRANULE;
            let to = end.min((granule + 1) * GRANULE);
            let is_whole = to - at == GRANULE;
            match self.split[granule] {
                0 if is_whole => self.cells[granule].enter(stamp, usage, is_of_block)?,
                0 => {
                    self.bytes.push([self.cells[granule]; GRANULE]);
                    self.split[granule] = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
                    continue;
                }
                number => {
                    let cells = &mut self.bytes[number as usize - 1];
                    for cell in &mut cells[at % GRANULE..=(to - 1) % GRANULE] {
                        cell.enter(stamp, usage, is_of_block)?;
                    }
                }
            }
            at = to;
        }
        Ok(())
    }
}
