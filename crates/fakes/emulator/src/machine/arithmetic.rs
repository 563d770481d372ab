//! Instructions that touch no memory and wait for no other lane.

use super::warp::{Narrow, Warp, Wide, lanes};
use crate::ptx::instruction::{
    Binary, Comparison, Float, Instruction, LANES, Logic, Op, Shuffle, Unary, Width,
};

impl Warp {
    /// Do `i` in the lanes of `mask`.
    #[inline]
    pub(super) fn compute(&mut self, i: &Instruction, mask: u32) {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has it.
            return unsafe { self.compute_with_avx2(i, mask) };
        }
        self.compute_inlined(i, mask);
    }

    /// The same, compiled for vectors of eight numbers.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,popcnt")]
    fn compute_with_avx2(&mut self, i: &Instruction, mask: u32) {
        self.compute_inlined(i, mask);
    }

    #[inline(always)]
    fn compute_inlined(&mut self, i: &Instruction, mask: u32) {
        match i.op {
            Op::Unary(op, Width::W64) => {
                let a = &self.wide[usize::from(i.a)];
                let out = match op {
                    Unary::Move => *a,
                    Unary::Not => a.map(|a| !a),
                    Unary::Negate => a.map(u64::wrapping_neg),
                };
                self.set_wide(i.d, mask, out);
            }
            Op::Unary(op, width) => {
                let a = &self.narrow[usize::from(i.a)];
                let out = match op {
                    Unary::Move => *a,
                    Unary::Not => a.map(|a| !a),
                    Unary::Negate => a.map(u32::wrapping_neg),
                };
                self.set_narrow(i.d, mask, cut(out, width));
            }
            Op::Binary(op, Width::W64) => self.binary_wide(op, i, mask),
            Op::Binary(op, width) => {
                let out = self.binary_narrow(op, width, i);
                self.set_narrow(i.d, mask, cut(out, width));
            }
            Op::Float(op) => {
                let (a, b) = self.wide2(i);
                let out = each(a, b, |a, b| {
                    let (a, b) = (f64::from_bits(a), f64::from_bits(b));
                    let out = match op {
                        Float::Add => a + b,
                        Float::Multiply => a * b,
                    };
                    out.to_bits()
                });
                self.set_wide(i.d, mask, out);
            }
            Op::WidenFloat => {
                let a = &self.narrow[usize::from(i.a)];
                let out = a.map(|a| f64::from(f32::from_bits(a)).to_bits());
                self.set_wide(i.d, mask, out);
            }
            Op::NarrowFloat => {
                let a = &self.wide[usize::from(i.a)];
                let out = a.map(|a| (f64::from_bits(a) as f32).to_bits());
                self.set_narrow(i.d, mask, out);
            }
            Op::MulAdd => {
                let (a, b, c) = self.narrow3(i);
                let out = std::array::from_fn(|l| a[l].wrapping_mul(b[l]).wrapping_add(c[l]));
                self.set_narrow(i.d, mask, out);
            }
            Op::MulWide(Width::W32) => {
                let (a, b) = self.narrow2(i);
                let out = std::array::from_fn(|l| u64::from(a[l]) * u64::from(b[l]));
                self.set_wide(i.d, mask, out);
            }
            Op::MulWide(_) => {
                let (a, b) = self.narrow2(i);
                let out = std::array::from_fn(|l| a[l].wrapping_mul(b[l]));
                self.set_narrow(i.d, mask, out);
            }
            Op::Select(Width::W64) => {
                let (a, b) = self.wide2(i);
                let c = self.predicates[usize::from(i.c)];
                let out = std::array::from_fn(|l| if c >> l & 1 != 0 { a[l] } else { b[l] });
                self.set_wide(i.d, mask, out);
            }
            Op::Select(_) => {
                let (a, b) = self.narrow2(i);
                let c = self.predicates[usize::from(i.c)];
                let out = std::array::from_fn(|l| if c >> l & 1 != 0 { a[l] } else { b[l] });
                self.set_narrow(i.d, mask, out);
            }
            Op::Compare(comparison, width, signed) => {
                let out = self.compare(comparison, width, signed, i);
                self.set_predicate(i.d, mask, out);
            }
            Op::Logic(op) => {
                let of = |register: u16| self.predicates[usize::from(register)];
                let out = match op {
                    Logic::Move => of(i.a),
                    Logic::Not => !of(i.a),
                    Logic::And => of(i.a) & of(i.b),
                    Logic::Or => of(i.a) | of(i.b),
                    Logic::Xor => of(i.a) ^ of(i.b),
                };
                self.set_predicate(i.d, mask, out);
            }
            Op::Convert(Width::W64, _) => {
                let out = self.wide[usize::from(i.a)].map(low);
                self.set_narrow(i.d, mask, out);
            }
            Op::Convert(_, Width::W64) => {
                let out = self.narrow[usize::from(i.a)].map(u64::from);
                self.set_wide(i.d, mask, out);
            }
            Op::Convert(_, to) => {
                let out = cut(self.narrow[usize::from(i.a)], to);
                self.set_narrow(i.d, mask, out);
            }
            Op::Pack => {
                let (a, b) = self.narrow2(i);
                let out = std::array::from_fn(|l| u64::from(a[l]) | u64::from(b[l]) << 32);
                self.set_wide(i.d, mask, out);
            }
            Op::Unpack => {
                let a = self.wide[usize::from(i.a)];
                self.set_narrow(i.d, mask, a.map(low));
                self.set_narrow(i.c, mask, a.map(|a| low(a >> 32)));
            }
            Op::CountOnes => {
                let out = self.narrow[usize::from(i.a)].map(u32::count_ones);
                self.set_narrow(i.d, mask, out);
            }
            Op::Permute => {
                let (a, b, c) = self.narrow3(i);
                let out = std::array::from_fn(|l| permute(a[l], b[l], c[l]));
                self.set_narrow(i.d, mask, out);
            }
            Op::FunnelRight => {
                let (a, b, c) = self.narrow3(i);
                let out = std::array::from_fn(|l| {
                    low((u64::from(b[l]) << 32 | u64::from(a[l])) >> (c[l] & 31))
                });
                self.set_narrow(i.d, mask, out);
            }
            Op::InsertBits => {
                let (a, b) = self.wide2(i);
                let position = &self.narrow[usize::from(i.c)];
                let len = &self.narrow[usize::from(i.extra[1])];
                let out = std::array::from_fn(|l| insert(a[l], b[l], position[l], len[l]));
                self.set_wide(i.d, mask, out);
            }
            Op::Shuffle(shuffle) => self.shuffle(shuffle, i, mask),
            Op::Ballot => {
                let out = self.predicates[usize::from(i.a)] & mask;
                self.set_narrow(i.d, mask, [out; LANES]);
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

    #[inline(always)]
    fn narrow2(&self, i: &Instruction) -> (&Narrow, &Narrow) {
        (
            &self.narrow[usize::from(i.a)],
            &self.narrow[usize::from(i.b)],
        )
    }

    #[inline(always)]
    fn narrow3(&self, i: &Instruction) -> (&Narrow, &Narrow, &Narrow) {
        let (a, b) = self.narrow2(i);
        (a, b, &self.narrow[usize::from(i.c)])
    }

    #[inline(always)]
    fn wide2(&self, i: &Instruction) -> (&Wide, &Wide) {
        (&self.wide[usize::from(i.a)], &self.wide[usize::from(i.b)])
    }

    #[inline(always)]
    fn binary_narrow(&self, op: Binary, width: Width, i: &Instruction) -> Narrow {
        let (a, b) = self.narrow2(i);
        let bits = width.bits();
        match op {
            Binary::Add => each(a, b, u32::wrapping_add),
            Binary::Sub => each(a, b, u32::wrapping_sub),
            Binary::MulLow => each(a, b, u32::wrapping_mul),
            Binary::MulHigh => each(a, b, |a, b| low((u64::from(a) * u64::from(b)) >> 32)),
            Binary::And => each(a, b, |a, b| a & b),
            Binary::Or => each(a, b, |a, b| a | b),
            Binary::Xor => each(a, b, |a, b| a ^ b),
            // Amounts beyond the width count as the width.
            Binary::ShiftLeft => each(a, b, |a, b| if b < bits { a << b } else { 0 }),
            Binary::ShiftRight => each(a, b, |a, b| if b < bits { a >> b } else { 0 }),
            Binary::ShiftRightSigned => each(a, b, |a, b| {
                (sign_extended(a, width) >> b.min(31)).cast_unsigned()
            }),
            Binary::Min => each(a, b, u32::min),
            Binary::Max => each(a, b, u32::max),
            // The result of a division by zero is not defined.
            Binary::Divide => each(a, b, |a, b| a.checked_div(b).unwrap_or(u32::MAX)),
            Binary::Remainder => each(a, b, |a, b| a.checked_rem(b).unwrap_or(u32::MAX)),
        }
    }

    #[inline(always)]
    fn binary_wide(&mut self, op: Binary, i: &Instruction, mask: u32) {
        let a = &self.wide[usize::from(i.a)];
        let out = if op.shifts() {
            let b = &self.narrow[usize::from(i.b)];
            match op {
                Binary::ShiftLeft => {
                    std::array::from_fn(|l| if b[l] < u64::BITS { a[l] << b[l] } else { 0 })
                }
                Binary::ShiftRightSigned => std::array::from_fn(|l| {
                    (a[l].cast_signed() >> b[l].min(u64::BITS - 1)).cast_unsigned()
                }),
                _ => std::array::from_fn(|l| if b[l] < u64::BITS { a[l] >> b[l] } else { 0 }),
            }
        } else {
            let b = &self.wide[usize::from(i.b)];
            match op {
                Binary::Add => each(a, b, u64::wrapping_add),
                Binary::Sub => each(a, b, u64::wrapping_sub),
                Binary::MulLow => each(a, b, u64::wrapping_mul),
                Binary::MulHigh => each(a, b, |a, b| {
                    ((u128::from(a) * u128::from(b)) >> u64::BITS) as u64
                }),
                Binary::And => each(a, b, |a, b| a & b),
                Binary::Or => each(a, b, |a, b| a | b),
                Binary::Xor => each(a, b, |a, b| a ^ b),
                Binary::Min => each(a, b, u64::min),
                Binary::Max => each(a, b, u64::max),
                Binary::Divide => each(a, b, |a, b| a.checked_div(b).unwrap_or(u64::MAX)),
                Binary::Remainder => each(a, b, |a, b| a.checked_rem(b).unwrap_or(u64::MAX)),
                Binary::ShiftLeft | Binary::ShiftRight | Binary::ShiftRightSigned => *a,
            }
        };
        self.set_wide(i.d, mask, out);
    }

    #[inline(always)]
    fn compare(&self, comparison: Comparison, width: Width, signed: bool, i: &Instruction) -> u32 {
        match (width, signed) {
            (Width::W64, false) => {
                let (a, b) = self.wide2(i);
                compared(comparison, a, b)
            }
            (Width::W64, true) => {
                let (a, b) = self.wide2(i);
                compared(
                    comparison,
                    &a.map(u64::cast_signed),
                    &b.map(u64::cast_signed),
                )
            }
            (_, false) => {
                let (a, b) = self.narrow2(i);
                compared(comparison, a, b)
            }
            (_, true) => {
                let (a, b) = self.narrow2(i);
                compared(
                    comparison,
                    &a.map(|a| sign_extended(a, width)),
                    &b.map(|b| sign_extended(b, width)),
                )
            }
        }
    }

    fn shuffle(&mut self, shuffle: Shuffle, i: &Instruction, mask: u32) {
        let (a, b, c) = self.narrow3(i);
        let mut out = self.narrow[usize::from(i.d)];
        let mut found = 0;
        for lane in lanes(mask) {
            let (from, is_in_range) = source(shuffle, lane, b[lane], c[lane]);
            out[lane] = a[from];
            found |= u32::from(is_in_range) << lane;
        }
        self.set_narrow(i.d, mask, out);
        self.set_predicate(i.extra[0], mask, found);
    }
}

/// The lane whose value `lane` gets, and whether that is one of its segment: `shfl.sync` in the PTX ISA.
pub(super) fn source(shuffle: Shuffle, lane: usize, b: u32, c: u32) -> (usize, bool) {
    let lane = lane as u32;
    let (amount, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
    let most = lane & segment | clamp & !segment;
    let least = lane & segment;
    let (from, is_in_range) = match shuffle {
        Shuffle::Up => {
            let from = lane.wrapping_sub(amount);
            (from, from.cast_signed() >= most.cast_signed())
        }
        Shuffle::Butterfly => (lane ^ amount, lane ^ amount <= most),
        Shuffle::Index => {
            let from = least | amount & !segment;
            (from, from <= most)
        }
    };
    let from = if is_in_range { from } else { lane };
    (from as usize & (LANES - 1), is_in_range)
}

#[inline(always)]
fn each<T: Copy>(a: &[T; LANES], b: &[T; LANES], f: impl Fn(T, T) -> T) -> [T; LANES] {
    std::array::from_fn(|l| f(a[l], b[l]))
}

#[inline(always)]
fn compared<T: Copy + Ord>(comparison: Comparison, a: &[T; LANES], b: &[T; LANES]) -> u32 {
    match comparison {
        Comparison::Equal => bits(a, b, |a, b| a == b),
        Comparison::NotEqual => bits(a, b, |a, b| a != b),
        Comparison::Less => bits(a, b, |a, b| a < b),
        Comparison::LessOrEqual => bits(a, b, |a, b| a <= b),
        Comparison::Greater => bits(a, b, |a, b| a > b),
        Comparison::GreaterOrEqual => bits(a, b, |a, b| a >= b),
    }
}

/// A bit for each lane.
#[inline(always)]
fn bits<T: Copy>(a: &[T; LANES], b: &[T; LANES], f: impl Fn(T, T) -> bool) -> u32 {
    let mut bits = 0;
    for l in 0..LANES {
        bits |= u32::from(f(a[l], b[l])) << l;
    }
    bits
}

/// The signed number in the lower bits that `width` has.
#[inline(always)]
fn sign_extended(value: u32, width: Width) -> i32 {
    match width {
        Width::W16 => i32::from((value as u16).cast_signed()),
        Width::W32 | Width::W64 => value.cast_signed(),
    }
}

/// The lower bits that `width` has.
#[inline(always)]
fn cut(values: Narrow, width: Width) -> Narrow {
    match width {
        Width::W16 => values.map(|value| value & 0xffff),
        Width::W32 | Width::W64 => values,
    }
}

#[inline]
fn low(value: u64) -> u32 {
    value as u32
}

/// `prmt.b32`: each nibble of `selectors` names a byte of `b:a`, or with its highest bit the sign of one.
#[inline]
pub(super) fn permute(a: u32, b: u32, selectors: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    let mut out = 0;
    for byte in 0..4 {
        let selector = selectors >> (4 * byte) & 0xf;
        let mut value = low(bytes >> (8 * (selector & 7))) & 0xff;
        if selector & 8 != 0 {
            value = if value & 0x80 != 0 { 0xff } else { 0 };
        }
        out |= value << (8 * byte);
    }
    out
}

/// `bfi.b64`: `len` bits of `a` put into `b` from bit `position` on. Both count up to 255.
#[inline]
pub(super) fn insert(a: u64, b: u64, position: u32, len: u32) -> u64 {
    let (position, len) = (position & 0xff, len & 0xff);
    if position >= u64::BITS || len == 0 {
        return b;
    }
    let field = if len >= u64::BITS {
        u64::MAX
    } else {
        (1 << len) - 1
    };
    b & !(field << position) | (a & field) << position
}
