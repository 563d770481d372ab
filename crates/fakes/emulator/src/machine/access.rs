//! Loads, stores and atomics.

use super::block::Block;
use super::global::Piece;
use super::shadow::{Stamp, Use};
use super::shared::offset;
use super::warp::lanes;
use super::{Wrong, warp::Narrow, warp::Wide};
use crate::ptx::instruction::{Atomic, Instruction, LANES, Op, Space, Width};
use crate::ptx::kernel::{CONSTANT, PARAMETER, SHARED};

/// The shape of an access: `count` values of `bytes` bytes in registers of `width`.
#[derive(Clone, Copy)]
struct Shape {
    space: Space,
    width: Width,
    bytes: usize,
    count: usize,
    usage: Use,
}

impl Shape {
    fn len(self) -> usize {
        self.bytes * self.count
    }
}

impl Block<'_> {
    /// Do the access `i`, which is instruction `at`, in the lanes of `mask`.
    pub(super) fn access(
        &mut self,
        warp: usize,
        at: u32,
        i: &Instruction,
        mask: u32,
    ) -> Result<(), Wrong> {
        let shape = match i.op {
            Op::Load {
                space,
                width,
                bytes,
                count,
                volatile,
            } => Shape {
                space,
                width,
                bytes: usize::from(bytes),
                count: usize::from(count),
                usage: if volatile { Use::Volatile } else { Use::Read },
            },
            Op::Store {
                space,
                width,
                bytes,
                count,
                volatile,
            } => Shape {
                space,
                width,
                bytes: usize::from(bytes),
                count: usize::from(count),
                usage: if volatile {
                    Use::VolatileWrite
                } else {
                    Use::Write
                },
            },
            _ => Shape {
                space: Space::Global,
                width: Width::W32,
                bytes: 4,
                count: 1,
                usage: Use::Atomic,
            },
        };
        if mask == 0 {
            return Ok(());
        }
        let running = &self.warps[warp];
        if let Some(taint) = &running.taint
            && taint.has(i.a, Width::W64, mask)
        {
            return Err(self.wrong(at, "the address is undefined".to_string()));
        }
        let base = &running.warp.wide[usize::from(i.a)];
        let addresses = base.map(|base| base.wrapping_add_signed(i.immediate));
        let alignment = shape.len() as u64 - 1;
        let is_misaligned = |lane: &usize| addresses[*lane] & alignment != 0;
        if let Some(lane) = lanes(mask).find(is_misaligned) {
            let message = format!(
                "lane {lane} of warp {warp} accesses {:#x}, which is not aligned to {}",
                addresses[lane],
                shape.len()
            );
            return Err(self.wrong(at, message));
        }
        if self.options.sectors && shape.space == Space::Global {
            let mut touched: Vec<u64> = lanes(mask).map(|lane| addresses[lane]).collect();
            let is_write = shape.usage.writes();
            self.sectors
                .add(i.line, is_write, &mut touched, shape.len() as u64);
        }
        let done = match shape.usage {
            Use::Read | Use::Volatile => self.load(warp, i, mask, shape, &addresses),
            Use::Write | Use::VolatileWrite => self.store(warp, i, mask, shape, &addresses),
            Use::Atomic => self.atomic(warp, i, mask, shape, &addresses),
        };
        done.map_err(|(lane, message)| {
            self.wrong(at, format!("lane {lane} of warp {warp}: {message}"))
        })
    }

    fn stamp(&self, warp: usize, lane: usize) -> Stamp {
        let running = &self.warps[warp];
        Stamp::new(
            self.number,
            running.number * LANES + lane,
            self.epoch,
            running.epoch,
        )
    }

    /// The memory from `first` to `end`, if all of it may be used so.
    #[inline]
    fn piece(&mut self, shape: Shape, first: u64, end: u64) -> Result<Piece<'_>, String> {
        match shape.space {
            Space::Global => self.global.find(first, end - first, shape.usage.writes()),
            Space::Shared => {
                let offset = offset(&self.kernel.shared, SHARED, first, end - first)?;
                Ok(Piece {
                    memory: self.shared.bytes[offset..].as_mut_ptr(),
                    shadow: self.shared.shadow.as_mut(),
                    offset,
                })
            }
            // Nobody writes to these.
            Space::Constant => {
                let offset = offset(&self.kernel.constants, CONSTANT, first, end - first)?;
                let memory = self.kernel.constant_bytes[offset..].as_ptr();
                Ok(Piece::known(memory.cast_mut()))
            }
            Space::Parameter => {
                let offset = offset(&self.kernel.parameters, PARAMETER, first, end - first)?;
                Ok(Piece::known(self.parameters[offset..].as_mut_ptr()))
            }
        }
    }

    /// Calls `each` with each lane of `mask`, its memory, and the bytes that are undefined there.
    /// Stores define what they write: all but `undefined`.
    #[inline]
    fn each_lane(
        &mut self,
        warp: usize,
        mask: u32,
        shape: Shape,
        addresses: &Wide,
        undefined: &[[u64; 2]; LANES],
        mut each: impl FnMut(usize, *mut u8, [u64; 2]) -> Result<(), String>,
    ) -> Result<(), (usize, String)> {
        let len = shape.len();
        let (mut first, mut last) = (u64::MAX, 0);
        for lane in lanes(mask) {
            first = first.min(addresses[lane]);
            last = last.max(addresses[lane]);
        }
        let stamp = self.stamp(warp, 0);
        // Most of the time all lanes are in one piece.
        if let Ok(mut piece) = self.piece(shape, first, last.saturating_add(len as u64)) {
            for lane in lanes(mask) {
                let at = (addresses[lane] - first) as usize;
                // SAFETY: the piece reaches to the end of the last lane's access.
                let memory = unsafe { piece.memory.add(at) };
                let bits = piece.touch(at, len, stamp.of_lane(lane), shape.usage, undefined[lane]);
                bits.and_then(|bits| each(lane, memory, bits))
                    .map_err(|error| (lane, error))?;
            }
            return Ok(());
        }
        for lane in lanes(mask) {
            let address = addresses[lane];
            self.piece(shape, address, address.saturating_add(len as u64))
                .and_then(|mut piece| {
                    let stamp = stamp.of_lane(lane);
                    let bits = piece.touch(0, len, stamp, shape.usage, undefined[lane])?;
                    each(lane, piece.memory, bits)
                })
                .map_err(|error| (lane, error))?;
        }
        Ok(())
    }

    fn load(
        &mut self,
        warp: usize,
        i: &Instruction,
        mask: u32,
        shape: Shape,
        addresses: &Wide,
    ) -> Result<(), (usize, String)> {
        let len = shape.len();
        // The bytes of each lane.
        let mut loaded = [[0_u64; 2]; LANES];
        let mut undefined = [[0_u64; 2]; LANES];
        let mut is_undefined = false;
        let nothing = &[[0; 2]; LANES];
        self.each_lane(
            warp,
            mask,
            shape,
            addresses,
            nothing,
            |lane, memory, bits| {
                // SAFETY: there are `len` bytes.
                loaded[lane] = unsafe { read(memory, len) };
                undefined[lane] = bits;
                is_undefined |= bits != [0; 2];
                Ok(())
            },
        )?;
        let running = &mut self.warps[warp];
        for (number, register) in i.extra.iter().enumerate().take(shape.count) {
            if shape.width == Width::W64 {
                let values = loaded.map(|bytes| value(bytes, number, shape.bytes));
                running.warp.set_wide(*register, mask, values);
            } else {
                let values = loaded.map(|bytes| low(value(bytes, number, shape.bytes)));
                running.warp.set_narrow(*register, mask, values);
            }
            let Some(taint) = &mut running.taint else {
                continue;
            };
            if !is_undefined {
                taint.clear(*register, shape.width, mask);
            } else if shape.width == Width::W64 {
                let bits = undefined.map(|bytes| value(bytes, number, shape.bytes));
                taint.set_wide(*register, mask, bits);
            } else {
                let bits = undefined.map(|bytes| low(value(bytes, number, shape.bytes)));
                taint.set_narrow(*register, mask, bits);
            }
        }
        Ok(())
    }

    fn store(
        &mut self,
        warp: usize,
        i: &Instruction,
        mask: u32,
        shape: Shape,
        addresses: &Wide,
    ) -> Result<(), (usize, String)> {
        let len = shape.len();
        let mut stored = [[0_u64; 2]; LANES];
        let mut undefined = [[0_u64; 2]; LANES];
        let running = &self.warps[warp];
        for (number, register) in i.extra.iter().enumerate().take(shape.count) {
            let (word, shift) = (number * shape.bytes / 8, number * shape.bytes % 8 * 8);
            let all = u64::MAX >> (64 - 8 * shape.bytes);
            for lane in 0..LANES {
                let value = if shape.width == Width::W64 {
                    running.warp.wide[usize::from(*register)][lane]
                } else {
                    u64::from(running.warp.narrow[usize::from(*register)][lane])
                };
                stored[lane][word] |= (value & all) << shift;
            }
            if let Some(taint) = &running.taint
                && taint.has(*register, shape.width, mask)
            {
                for lane in lanes(mask) {
                    let bits = taint.bits(*register, shape.width, lane) & all;
                    undefined[lane][word] |= bits << shift;
                }
            }
        }
        if shape.space == Space::Global
            && let Some(lane) = lanes(mask).find(|lane| undefined[*lane] != [0; 2])
        {
            return Err((lane, "stores a value that is undefined".to_string()));
        }
        self.each_lane(
            warp,
            mask,
            shape,
            addresses,
            &undefined,
            |lane, memory, _| {
                // SAFETY: there are `len` bytes, which may be written.
                unsafe { write(memory, len, stored[lane]) };
                Ok(())
            },
        )
    }

    fn atomic(
        &mut self,
        warp: usize,
        i: &Instruction,
        mask: u32,
        shape: Shape,
        addresses: &Wide,
    ) -> Result<(), (usize, String)> {
        let Op::Atomic(op) = i.op else { return Ok(()) };
        let running = &self.warps[warp];
        if let Some(taint) = &running.taint
            && taint.has(i.b, Width::W32, mask)
        {
            return Err((0, "its operand is undefined".to_string()));
        }
        let operands = running.warp.narrow[usize::from(i.b)];
        let mut found: Narrow = [0; LANES];
        let nothing = &[[0; 2]; LANES];
        self.each_lane(
            warp,
            mask,
            shape,
            addresses,
            nothing,
            |lane, memory, bits| {
                if bits != [0; 2] {
                    return Err("changes what is undefined".to_string());
                }
                // SAFETY: there are 4 bytes, which may be written.
                let before = low(unsafe { read(memory, 4) }[0]);
                let after = match op {
                    Atomic::Or => before | operands[lane],
                    Atomic::Add => before.wrapping_add(operands[lane]),
                };
                // SAFETY: as above.
                unsafe { write(memory, 4, [u64::from(after), 0]) };
                found[lane] = before;
                Ok(())
            },
        )?;
        let running = &mut self.warps[warp];
        running.warp.set_narrow(i.d, mask, found);
        if let Some(taint) = &mut running.taint {
            taint.clear(i.d, Width::W32, mask);
        }
        Ok(())
    }
}

/// Value `number` of `bytes` bytes.
#[inline]
fn value(bytes: [u64; 2], number: usize, len: usize) -> u64 {
    let (word, shift) = (number * len / 8, number * len % 8 * 8);
    bytes[word] >> shift & u64::MAX >> (64 - 8 * len)
}

#[inline]
fn low(value: u64) -> u32 {
    value as u32
}

/// Read `len` bytes: 1, 2, 4, 8 or 16.
///
/// # Safety
/// They are valid for reads.
#[inline]
unsafe fn read(from: *const u8, len: usize) -> [u64; 2] {
    // SAFETY: the caller's. The memory of a launch may lie anywhere.
    unsafe {
        match len {
            1 => [u64::from(*from), 0],
            2 => [u64::from(from.cast::<u16>().read_unaligned()), 0],
            4 => [u64::from(from.cast::<u32>().read_unaligned()), 0],
            8 => [from.cast::<u64>().read_unaligned(), 0],
            _ => from.cast::<[u64; 2]>().read_unaligned(),
        }
    }
}

/// Write `len` bytes: 1, 2, 4, 8 or 16.
///
/// # Safety
/// They are valid for writes.
#[inline]
unsafe fn write(to: *mut u8, len: usize, bytes: [u64; 2]) {
    // SAFETY: the caller's.
    unsafe {
        match len {
            1 => *to = bytes[0] as u8,
            2 => to.cast::<u16>().write_unaligned(bytes[0] as u16),
            4 => to.cast::<u32>().write_unaligned(bytes[0] as u32),
            8 => to.cast::<u64>().write_unaligned(bytes[0]),
            _ => to.cast::<[u64; 2]>().write_unaligned(bytes),
        }
    }
}
