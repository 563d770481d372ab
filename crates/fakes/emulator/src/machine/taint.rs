//! Undefined bits of registers, and the undefined bits that instructions make of them.
//!
//! The rules are those of Valgrind's memcheck (Seward and Nethercote, *Using Valgrind to detect
//! undefined value errors with bit-precision*, 2005). Undefined bits may be computed with. They must
//! not decide where a lane goes or what it addresses, and must not be stored to global memory.

use super::arithmetic::{insert, permute, source};
use super::warp::{ALL, Narrow, Warp, Wide, blend, lanes};
use crate::ptx::Kernel;
use crate::ptx::instruction::{Binary, Instruction, LANES, Logic, Op, Unary, Width};

/// The defined part of a register: all of it, nothing, or some bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Defined,
    Nothing,
    /// The bits say.
    Partly,
}

#[derive(Debug)]
struct File<T> {
    known: Vec<Known>,
    /// Set bits are undefined.
    bits: Vec<[T; LANES]>,
}

impl<T: Copy + Default + PartialEq + std::ops::BitOr<Output = T> + std::ops::Not<Output = T>>
    File<T>
{
    fn new(registers: usize) -> Self {
        Self {
            known: vec![Known::Nothing; registers],
            bits: vec![[T::default(); LANES]; registers],
        }
    }

    fn get(&self, register: u16) -> [T; LANES] {
        match self.known[usize::from(register)] {
            Known::Defined => [T::default(); LANES],
            Known::Nothing => [!T::default(); LANES],
            Known::Partly => self.bits[usize::from(register)],
        }
    }

    /// Whether nothing is undefined in the lanes of `mask`.
    #[inline]
    fn is_clean(&self, register: u16, mask: u32) -> bool {
        match self.known[usize::from(register)] {
            Known::Defined => true,
            Known::Nothing => mask == 0,
            Known::Partly => {
                let bits = &self.bits[usize::from(register)];
                lanes(mask).all(|lane| bits[lane] == T::default())
            }
        }
    }

    /// All of it is defined in the lanes of `mask`.
    #[inline]
    fn clear(&mut self, register: u16, mask: u32) {
        let known = &mut self.known[usize::from(register)];
        if *known == Known::Defined {
            return;
        }
        if mask == ALL {
            *known = Known::Defined;
            return;
        }
        self.set(register, mask, [T::default(); LANES]);
    }

    fn set(&mut self, register: u16, mask: u32, bits: [T; LANES]) {
        let mut all = self.get(register);
        blend(&mut all, mask, bits);
        self.bits[usize::from(register)] = all;
        let is_clean = all.iter().all(|bits| *bits == T::default());
        self.known[usize::from(register)] = if is_clean {
            Known::Defined
        } else {
            Known::Partly
        };
    }
}

/// The undefined bits of the registers of a warp.
#[derive(Debug)]
pub(super) struct Taint {
    predicates: Vec<u32>,
    narrow: File<u32>,
    wide: File<u64>,
}

/// From the lowest undefined bit on a sum may be different.
fn carried(bits: u32) -> u32 {
    bits | bits.wrapping_neg()
}

fn carried_wide(bits: u64) -> u64 {
    bits | bits.wrapping_neg()
}

fn any(bits: u32) -> u32 {
    if bits == 0 { 0 } else { u32::MAX }
}

fn any_wide(bits: u64) -> u64 {
    if bits == 0 { 0 } else { u64::MAX }
}

/// The undefined bits of registers of `width`.
fn cut(bits: Narrow, width: Width) -> Narrow {
    match width {
        Width::W16 => bits.map(|bits| bits & 0xffff),
        _ => bits,
    }
}

impl Taint {
    pub(super) fn new(kernel: &Kernel) -> Self {
        let registers = &kernel.registers;
        let mut taint = Self {
            predicates: vec![ALL; registers.predicates],
            narrow: File::new(registers.narrow),
            wide: File::new(registers.wide),
        };
        taint.renew(kernel);
        taint
    }

    /// Nothing is known but the constants.
    pub(super) fn renew(&mut self, kernel: &Kernel) {
        let registers = &kernel.registers;
        self.predicates.fill(ALL);
        self.narrow.known.fill(Known::Nothing);
        self.wide.known.fill(Known::Nothing);
        for (register, _) in &registers.constant_predicates {
            self.predicates[usize::from(*register)] = 0;
        }
        let narrow = registers.constants.iter().map(|(register, _)| *register);
        for register in narrow.chain(registers.specials.iter().map(|(register, _)| *register)) {
            self.narrow.clear(register, ALL);
        }
        for (register, _) in &registers.wide_constants {
            self.wide.clear(*register, ALL);
        }
    }

    /// Whether predicate `register` is undefined in a lane of `mask`.
    pub(super) fn has_predicate(&self, register: u16, mask: u32) -> bool {
        self.predicates[usize::from(register)] & mask != 0
    }

    /// Whether any bit of a register of `width` is undefined in a lane of `mask`.
    pub(super) fn has(&self, register: u16, width: Width, mask: u32) -> bool {
        match width {
            Width::W64 => !self.wide.is_clean(register, mask),
            _ => !self.narrow.is_clean(register, mask),
        }
    }

    /// The undefined bits of a register of `width`, in `lane`.
    pub(super) fn bits(&self, register: u16, width: Width, lane: usize) -> u64 {
        match width {
            Width::W64 => self.wide.get(register)[lane],
            _ => u64::from(self.narrow.get(register)[lane]),
        }
    }

    pub(super) fn set_narrow(&mut self, register: u16, mask: u32, bits: Narrow) {
        self.narrow.set(register, mask, bits);
    }

    pub(super) fn set_wide(&mut self, register: u16, mask: u32, bits: Wide) {
        self.wide.set(register, mask, bits);
    }

    pub(super) fn clear(&mut self, register: u16, width: Width, mask: u32) {
        match width {
            Width::W64 => self.wide.clear(register, mask),
            _ => self.narrow.clear(register, mask),
        }
    }

    fn set_predicate(&mut self, register: u16, mask: u32, bits: u32) {
        let to = &mut self.predicates[usize::from(register)];
        *to = *to & !mask | bits & mask;
    }

    /// Sets the bits that `i` leaves undefined in the lanes of `mask`. `warp` has the values from
    /// before `i`.
    pub(super) fn compute(&mut self, warp: &Warp, i: &Instruction, mask: u32) {
        match i.op {
            Op::Unary(op, Width::W64) => {
                if self.wide.is_clean(i.a, mask) {
                    return self.wide.clear(i.d, mask);
                }
                let a = self.wide.get(i.a);
                let out = if op == Unary::Negate {
                    a.map(carried_wide)
                } else {
                    a
                };
                self.wide.set(i.d, mask, out);
            }
            Op::Unary(op, width) => {
                if self.narrow.is_clean(i.a, mask) {
                    return self.narrow.clear(i.d, mask);
                }
                let a = self.narrow.get(i.a);
                let out = if op == Unary::Negate {
                    a.map(carried)
                } else {
                    a
                };
                self.narrow.set(i.d, mask, cut(out, width));
            }
            Op::Binary(op, Width::W64) => self.binary_wide(warp, op, i, mask),
            Op::Binary(op, width) => self.binary_narrow(warp, op, width, i, mask),
            Op::Float(_) => {
                if self.wide.is_clean(i.a, mask) && self.wide.is_clean(i.b, mask) {
                    return self.wide.clear(i.d, mask);
                }
                let (a, b) = (self.wide.get(i.a), self.wide.get(i.b));
                let out = std::array::from_fn(|l| any_wide(a[l] | b[l]));
                self.wide.set(i.d, mask, out);
            }
            Op::WidenFloat => {
                let a = self.narrow.get(i.a);
                let out = a.map(|bits| any_wide(u64::from(bits)));
                self.wide.set(i.d, mask, out);
            }
            Op::NarrowFloat => {
                let a = self.wide.get(i.a);
                self.narrow
                    .set(i.d, mask, a.map(|bits| any(u32::from(bits != 0))));
            }
            Op::MulAdd => {
                let [a, b, c] = [i.a, i.b, i.c];
                if [a, b, c].iter().all(|r| self.narrow.is_clean(*r, mask)) {
                    return self.narrow.clear(i.d, mask);
                }
                let [a, b, c] = [a, b, c].map(|r| self.narrow.get(r));
                let out = std::array::from_fn(|l| carried(a[l] | b[l] | c[l]));
                self.narrow.set(i.d, mask, out);
            }
            Op::MulWide(width) => {
                let is_clean = self.narrow.is_clean(i.a, mask) && self.narrow.is_clean(i.b, mask);
                if is_clean {
                    let to = if width == Width::W32 {
                        Width::W64
                    } else {
                        Width::W32
                    };
                    return self.clear(i.d, to, mask);
                }
                let (a, b) = (self.narrow.get(i.a), self.narrow.get(i.b));
                if width == Width::W32 {
                    let out = std::array::from_fn(|l| carried_wide(u64::from(a[l] | b[l])));
                    self.wide.set(i.d, mask, out);
                } else {
                    let out = std::array::from_fn(|l| carried(a[l] | b[l]));
                    self.narrow.set(i.d, mask, out);
                }
            }
            Op::Select(Width::W64) => {
                let (a, b) = (self.wide.get(i.a), self.wide.get(i.b));
                let chosen = warp.predicates[usize::from(i.c)];
                let unknown = self.predicates[usize::from(i.c)];
                let out = std::array::from_fn(|l| match (unknown >> l & 1, chosen >> l & 1) {
                    (1, _) => u64::MAX,
                    (_, 1) => a[l],
                    _ => b[l],
                });
                self.wide.set(i.d, mask, out);
            }
            Op::Select(width) => {
                let clean = self.predicates[usize::from(i.c)] & mask == 0
                    && self.narrow.is_clean(i.a, mask)
                    && self.narrow.is_clean(i.b, mask);
                if clean {
                    return self.narrow.clear(i.d, mask);
                }
                let (a, b) = (self.narrow.get(i.a), self.narrow.get(i.b));
                let chosen = warp.predicates[usize::from(i.c)];
                let unknown = self.predicates[usize::from(i.c)];
                let out = std::array::from_fn(|l| match (unknown >> l & 1, chosen >> l & 1) {
                    (1, _) => u32::MAX,
                    (_, 1) => a[l],
                    _ => b[l],
                });
                self.narrow.set(i.d, mask, cut(out, width));
            }
            Op::Compare(_, width, _) => {
                let out = self.lanes_with(width, i.a) | self.lanes_with(width, i.b);
                self.set_predicate(i.d, mask, out);
            }
            Op::Logic(op) => {
                let taint = |r: u16| self.predicates[usize::from(r)];
                let value = |r: u16| warp.predicates[usize::from(r)];
                let (ta, tb) = (taint(i.a), taint(i.b));
                let (va, vb) = (value(i.a), value(i.b));
                let out = match op {
                    Logic::Move | Logic::Not => ta,
                    Logic::And => ta & tb | ta & vb | tb & va,
                    Logic::Or => ta & tb | ta & !vb | tb & !va,
                    Logic::Xor => ta | tb,
                };
                self.set_predicate(i.d, mask, out);
            }
            Op::Convert(Width::W64, _) => {
                let out = self.wide.get(i.a).map(|bits| bits as u32);
                self.narrow.set(i.d, mask, out);
            }
            Op::Convert(_, Width::W64) => {
                let out = self.narrow.get(i.a).map(u64::from);
                self.wide.set(i.d, mask, out);
            }
            Op::Convert(_, to) => {
                let out = self.narrow.get(i.a);
                self.narrow.set(i.d, mask, cut(out, to));
            }
            Op::Pack => {
                let (a, b) = (self.narrow.get(i.a), self.narrow.get(i.b));
                let out = std::array::from_fn(|l| u64::from(a[l]) | u64::from(b[l]) << 32);
                self.wide.set(i.d, mask, out);
            }
            Op::Unpack => {
                let a = self.wide.get(i.a);
                self.narrow.set(i.d, mask, a.map(|bits| bits as u32));
                self.narrow
                    .set(i.c, mask, a.map(|bits| (bits >> 32) as u32));
            }
            Op::CountOnes => {
                let out = self.narrow.get(i.a).map(any);
                self.narrow.set(i.d, mask, out);
            }
            Op::Permute => {
                let [a, b, c] = [i.a, i.b, i.c].map(|r| self.narrow.get(r));
                let selectors = warp.narrow[usize::from(i.c)];
                let out = std::array::from_fn(|l| match c[l] {
                    0 => permute(a[l], b[l], selectors[l]),
                    _ => u32::MAX,
                });
                self.narrow.set(i.d, mask, out);
            }
            Op::FunnelRight => {
                let [a, b, c] = [i.a, i.b, i.c].map(|r| self.narrow.get(r));
                let amount = warp.narrow[usize::from(i.c)];
                let out = std::array::from_fn(|l| match c[l] {
                    0 => ((u64::from(b[l]) << 32 | u64::from(a[l])) >> (amount[l] & 31)) as u32,
                    _ => u32::MAX,
                });
                self.narrow.set(i.d, mask, out);
            }
            Op::InsertBits => {
                let (a, b) = (self.wide.get(i.a), self.wide.get(i.b));
                let unknown: Narrow = {
                    let (c, len) = (self.narrow.get(i.c), self.narrow.get(i.extra[1]));
                    std::array::from_fn(|l| c[l] | len[l])
                };
                let position = warp.narrow[usize::from(i.c)];
                let len = warp.narrow[usize::from(i.extra[1])];
                let out = std::array::from_fn(|l| match unknown[l] {
                    0 => insert(a[l], b[l], position[l], len[l]),
                    _ => u64::MAX,
                });
                self.wide.set(i.d, mask, out);
            }
            Op::Shuffle(shuffle) => {
                let a = self.narrow.get(i.a);
                let (b, c) = (warp.narrow[usize::from(i.b)], warp.narrow[usize::from(i.c)]);
                let out = std::array::from_fn(|l| {
                    let (from, _) = source(shuffle, l, b[l], c[l]);
                    // A lane that does not take part has no value to give.
                    if mask >> from & 1 != 0 {
                        a[from]
                    } else {
                        u32::MAX
                    }
                });
                self.narrow.set(i.d, mask, out);
                self.set_predicate(i.extra[0], mask, 0);
            }
            Op::Ballot => {
                let unknown = self.predicates[usize::from(i.a)] & mask;
                self.narrow.set(i.d, mask, [unknown; LANES]);
            }
            Op::Load { .. }
            | Op::Store { .. }
            | Op::Atomic(_)
            | Op::Branch
            | Op::Return
            | Op::BlockBarrier
            | Op::WarpBarrier => {}
        }
    }

    /// The lanes in which any bit of a register is undefined.
    fn lanes_with(&self, width: Width, register: u16) -> u32 {
        let set = |is: &dyn Fn(usize) -> bool| {
            (0..LANES).fold(0, |all, lane| all | u32::from(is(lane)) << lane)
        };
        match width {
            Width::W64 if self.wide.known[usize::from(register)] == Known::Defined => 0,
            Width::W64 => {
                let bits = self.wide.get(register);
                set(&|lane| bits[lane] != 0)
            }
            _ if self.narrow.known[usize::from(register)] == Known::Defined => 0,
            _ => {
                let bits = self.narrow.get(register);
                set(&|lane| bits[lane] != 0)
            }
        }
    }

    fn binary_narrow(&mut self, warp: &Warp, op: Binary, width: Width, i: &Instruction, mask: u32) {
        let (va, vb) = (warp.narrow[usize::from(i.a)], warp.narrow[usize::from(i.b)]);
        let by_zero = op.divides() && lanes(mask).any(|lane| vb[lane] == 0);
        if self.narrow.is_clean(i.a, mask) && self.narrow.is_clean(i.b, mask) && !by_zero {
            return self.narrow.clear(i.d, mask);
        }
        let (a, b) = (self.narrow.get(i.a), self.narrow.get(i.b));
        let out: Narrow = std::array::from_fn(|l| match op {
            _ if op.divides() && vb[l] == 0 => u32::MAX,
            Binary::Add | Binary::Sub | Binary::MulLow => carried(a[l] | b[l]),
            Binary::And => a[l] & b[l] | a[l] & vb[l] | b[l] & va[l],
            Binary::Or => a[l] & b[l] | a[l] & !vb[l] | b[l] & !va[l],
            Binary::Xor => a[l] | b[l],
            Binary::ShiftLeft if b[l] == 0 => a[l].checked_shl(vb[l]).unwrap_or(0),
            Binary::ShiftRight if b[l] == 0 => a[l].checked_shr(vb[l]).unwrap_or(0),
            // An undefined sign is in every bit that comes in. No kernel has this with 16 bits.
            Binary::ShiftRightSigned if b[l] == 0 => {
                (a[l].cast_signed() >> vb[l].min(u32::BITS - 1)).cast_unsigned()
            }
            _ => any(a[l] | b[l]),
        });
        self.narrow.set(i.d, mask, cut(out, width));
    }

    fn binary_wide(&mut self, warp: &Warp, op: Binary, i: &Instruction, mask: u32) {
        if op.shifts() {
            if self.wide.is_clean(i.a, mask) && self.narrow.is_clean(i.b, mask) {
                return self.wide.clear(i.d, mask);
            }
            let (a, b) = (self.wide.get(i.a), self.narrow.get(i.b));
            let amount = warp.narrow[usize::from(i.b)];
            let out = std::array::from_fn(|l| match op {
                _ if b[l] != 0 => u64::MAX,
                Binary::ShiftLeft => a[l].checked_shl(amount[l]).unwrap_or(0),
                Binary::ShiftRightSigned => {
                    (a[l].cast_signed() >> amount[l].min(u64::BITS - 1)).cast_unsigned()
                }
                _ => a[l].checked_shr(amount[l]).unwrap_or(0),
            });
            return self.wide.set(i.d, mask, out);
        }
        let (va, vb) = (warp.wide[usize::from(i.a)], warp.wide[usize::from(i.b)]);
        let by_zero = op.divides() && lanes(mask).any(|lane| vb[lane] == 0);
        if self.wide.is_clean(i.a, mask) && self.wide.is_clean(i.b, mask) && !by_zero {
            return self.wide.clear(i.d, mask);
        }
        let (a, b) = (self.wide.get(i.a), self.wide.get(i.b));
        let out: Wide = std::array::from_fn(|l| match op {
            _ if op.divides() && vb[l] == 0 => u64::MAX,
            Binary::Add | Binary::Sub | Binary::MulLow => carried_wide(a[l] | b[l]),
            Binary::And => a[l] & b[l] | a[l] & vb[l] | b[l] & va[l],
            Binary::Or => a[l] & b[l] | a[l] & !vb[l] | b[l] & !va[l],
            Binary::Xor => a[l] | b[l],
            _ => any_wide(a[l] | b[l]),
        });
        self.wide.set(i.d, mask, out);
    }
}
