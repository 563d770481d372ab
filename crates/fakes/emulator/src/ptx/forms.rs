//! The forms of instructions that the kernels have. Others are errors: a new one gets a row in
//! `tests/forms.rs` and in `tests/undefined.rs`.

use super::instruction::{
    Atomic, Binary, Comparison, Float, Logic, Op, Shuffle, Space, Unary, Width,
};
use Width::{W16, W32, W64};

/// The file and the width of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Predicate,
    Bits(Width),
    /// A float; of 32 or 64 bits.
    Float(Width),
}

/// The operands of an instruction, as they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operands {
    /// `d, a`, `d, a, b` or `d, a, b, c`.
    Registers(&'static [Slot]),
    /// `d, a`, both of 64 bits: numbers or floats; or one of them a pair `{low, high}` of half the
    /// width.
    Move64,
    /// `d, a`, both of 32 bits: numbers or floats.
    Move32,
    /// `d, a, b, position, length`.
    Insert,
    /// `d|predicate, a, b, c, lanes`.
    Shuffle,
    /// `d, predicate, lanes`.
    Ballot,
    /// `value, [address]`; or several values in braces.
    Load,
    /// `[address], value`; or several values in braces.
    Store,
    /// `d, [address], value`.
    Atomic,
    /// A label.
    Label,
    /// Lanes.
    Lanes,
    /// The number of a barrier, which is 0.
    Barrier,
    None,
}

const P: Slot = Slot::Predicate;
const R16: Slot = Slot::Bits(W16);
const R32: Slot = Slot::Bits(W32);
const R64: Slot = Slot::Bits(W64);
const F32: Slot = Slot::Float(W32);
const F64: Slot = Slot::Float(W64);

fn binary(op: Binary, width: Width) -> (Op, Operands) {
    let is_shift = op.shifts();
    let operands: &[Slot] = match (width, is_shift) {
        (W16, false) => &[R16, R16, R16],
        (W16, true) => &[R16, R16, R32],
        (W32, _) => &[R32, R32, R32],
        (W64, false) => &[R64, R64, R64],
        (W64, true) => &[R64, R64, R32],
    };
    (Op::Binary(op, width), Operands::Registers(operands))
}

fn unary(op: Unary, width: Width) -> (Op, Operands) {
    let operands: &[Slot] = match width {
        W16 => &[R16, R16],
        W32 => &[R32, R32],
        W64 => &[R64, R64],
    };
    (Op::Unary(op, width), Operands::Registers(operands))
}

fn select(width: Width) -> (Op, Operands) {
    let operands: &[Slot] = match width {
        W16 => &[R16, R16, R16, P],
        W32 => &[R32, R32, R32, P],
        W64 => &[R64, R64, R64, P],
    };
    (Op::Select(width), Operands::Registers(operands))
}

fn compare(comparison: Comparison, width: Width, signed: bool) -> (Op, Operands) {
    let operands: &[Slot] = match width {
        W16 => &[P, R16, R16],
        W32 => &[P, R32, R32],
        W64 => &[P, R64, R64],
    };
    (
        Op::Compare(comparison, width, signed),
        Operands::Registers(operands),
    )
}

/// Loads `count` values of `bytes` bytes. The register says the width.
fn load(space: Space, bytes: u8, count: u8, volatile: bool) -> (Op, Operands) {
    let op = Op::Load {
        space,
        width: W32,
        bytes,
        count,
        volatile,
    };
    (op, Operands::Load)
}

fn store(space: Space, bytes: u8, count: u8, volatile: bool) -> (Op, Operands) {
    let op = Op::Store {
        space,
        width: W32,
        bytes,
        count,
        volatile,
    };
    (op, Operands::Store)
}

/// Returns the operation of `opcode`, and its operands. Returns `None` if no kernel had this form
/// when this was written.
pub(crate) fn form(opcode: &str) -> Option<(Op, Operands)> {
    use Binary::{
        Add, And, Divide, Max, Min, MulHigh, MulLow, Or, Remainder, ShiftLeft, ShiftRight,
        ShiftRightSigned, Sub, Xor,
    };
    use Comparison::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
    use Space::{Constant, Global, Parameter, Shared};
    Some(match opcode {
        "add.f64" => (Op::Float(Float::Add), Operands::Registers(&[F64, F64, F64])),
        "add.s32" => binary(Add, W32),
        "add.s64" => binary(Add, W64),
        "and.b16" => binary(And, W16),
        "and.b32" => binary(And, W32),
        "and.b64" => binary(And, W64),
        "and.pred" => (Op::Logic(Logic::And), Operands::Registers(&[P, P, P])),
        "atom.global.or.b32" => (Op::Atomic(Atomic::Or), Operands::Atomic),
        "atom.global.add.u32" => (Op::Atomic(Atomic::Add), Operands::Atomic),
        "bar.sync" => (Op::BlockBarrier, Operands::Barrier),
        "bar.warp.sync" => (Op::WarpBarrier, Operands::Lanes),
        "bfi.b64" => (Op::InsertBits, Operands::Insert),
        "bra" | "bra.uni" => (Op::Branch, Operands::Label),
        "cvt.f64.f32" => (Op::WidenFloat, Operands::Registers(&[F64, F32])),
        "cvt.rn.f32.f64" => (Op::NarrowFloat, Operands::Registers(&[F32, F64])),
        "cvt.u16.u32" => (Op::Convert(W32, W16), Operands::Registers(&[R16, R32])),
        "cvt.u32.u16" => (Op::Convert(W16, W32), Operands::Registers(&[R32, R16])),
        "cvt.u32.u64" => (Op::Convert(W64, W32), Operands::Registers(&[R32, R64])),
        "cvt.u64.u16" => (Op::Convert(W16, W64), Operands::Registers(&[R64, R16])),
        "cvt.u64.u32" => (Op::Convert(W32, W64), Operands::Registers(&[R64, R32])),
        "div.u32" => binary(Divide, W32),
        "div.u64" => binary(Divide, W64),
        "ld.const.u32" => load(Constant, 4, 1, false),
        "ld.global.u8" => load(Global, 1, 1, false),
        "ld.global.u16" => load(Global, 2, 1, false),
        "ld.global.u32" => load(Global, 4, 1, false),
        "ld.global.u64" => load(Global, 8, 1, false),
        "ld.global.v4.u32" => load(Global, 4, 4, false),
        "ld.param.u16" => load(Parameter, 2, 1, false),
        "ld.param.u32" => load(Parameter, 4, 1, false),
        "ld.param.u64" => load(Parameter, 8, 1, false),
        "ld.param.v2.u32" => load(Parameter, 4, 2, false),
        "ld.shared.u8" => load(Shared, 1, 1, false),
        "ld.shared.u16" => load(Shared, 2, 1, false),
        "ld.shared.u32" => load(Shared, 4, 1, false),
        "ld.shared.u64" => load(Shared, 8, 1, false),
        "ld.shared.v4.u32" => load(Shared, 4, 4, false),
        "ld.volatile.global.u32" => load(Global, 4, 1, true),
        "mad.lo.s32" => (Op::MulAdd, Operands::Registers(&[R32, R32, R32, R32])),
        "max.u16" => binary(Max, W16),
        "max.u32" => binary(Max, W32),
        "max.u64" => binary(Max, W64),
        "min.u16" => binary(Min, W16),
        "min.u32" => binary(Min, W32),
        "min.u64" => binary(Min, W64),
        "mov.b32" => (Op::Unary(Unary::Move, W32), Operands::Move32),
        "mov.b64" => (Op::Unary(Unary::Move, W64), Operands::Move64),
        "mov.pred" => (Op::Logic(Logic::Move), Operands::Registers(&[P, P])),
        "mov.u16" => unary(Unary::Move, W16),
        "mov.u32" => unary(Unary::Move, W32),
        // The addresses of global memory are those of all memory.
        "mov.u64" | "cvta.to.global.u64" => unary(Unary::Move, W64),
        "mul.f64" => (
            Op::Float(Float::Multiply),
            Operands::Registers(&[F64, F64, F64]),
        ),
        "mul.hi.u32" => binary(MulHigh, W32),
        "mul.lo.s32" => binary(MulLow, W32),
        "mul.lo.s64" => binary(MulLow, W64),
        "mul.wide.u16" => (Op::MulWide(W16), Operands::Registers(&[R32, R16, R16])),
        "mul.wide.u32" => (Op::MulWide(W32), Operands::Registers(&[R64, R32, R32])),
        "neg.s32" => unary(Unary::Negate, W32),
        "not.b16" => unary(Unary::Not, W16),
        "not.b32" => unary(Unary::Not, W32),
        "not.b64" => unary(Unary::Not, W64),
        "not.pred" => (Op::Logic(Logic::Not), Operands::Registers(&[P, P])),
        "or.b16" => binary(Or, W16),
        "or.b32" => binary(Or, W32),
        "or.b64" => binary(Or, W64),
        "or.pred" => (Op::Logic(Logic::Or), Operands::Registers(&[P, P, P])),
        "popc.b32" => (Op::CountOnes, Operands::Registers(&[R32, R32])),
        "prmt.b32" => (Op::Permute, Operands::Registers(&[R32, R32, R32, R32])),
        "rem.u32" => binary(Remainder, W32),
        "ret" => (Op::Return, Operands::None),
        "selp.b16" | "selp.u16" => select(W16),
        "selp.b32" | "selp.u32" => select(W32),
        "selp.b64" | "selp.s64" | "selp.u64" => select(W64),
        "selp.f64" => (Op::Select(W64), Operands::Registers(&[F64, F64, F64, P])),
        "setp.eq.b32" | "setp.eq.s32" => compare(Equal, W32, false),
        "setp.eq.b64" | "setp.eq.s64" => compare(Equal, W64, false),
        "setp.eq.s16" => compare(Equal, W16, false),
        "setp.ge.u32" => compare(GreaterOrEqual, W32, false),
        "setp.ge.u64" => compare(GreaterOrEqual, W64, false),
        "setp.gt.s16" => compare(Greater, W16, true),
        "setp.gt.s32" => compare(Greater, W32, true),
        "setp.gt.s64" => compare(Greater, W64, true),
        "setp.gt.u32" => compare(Greater, W32, false),
        "setp.gt.u64" => compare(Greater, W64, false),
        "setp.le.u32" => compare(LessOrEqual, W32, false),
        "setp.le.u64" => compare(LessOrEqual, W64, false),
        "setp.lt.s16" => compare(Less, W16, true),
        "setp.lt.s32" => compare(Less, W32, true),
        "setp.lt.s64" => compare(Less, W64, true),
        "setp.lt.u32" => compare(Less, W32, false),
        "setp.lt.u64" => compare(Less, W64, false),
        "setp.ne.s16" => compare(NotEqual, W16, false),
        "setp.ne.s32" => compare(NotEqual, W32, false),
        "setp.ne.s64" => compare(NotEqual, W64, false),
        "shf.r.wrap.b32" => (Op::FunnelRight, Operands::Registers(&[R32, R32, R32, R32])),
        "shfl.sync.bfly.b32" => (Op::Shuffle(Shuffle::Butterfly), Operands::Shuffle),
        "shfl.sync.idx.b32" => (Op::Shuffle(Shuffle::Index), Operands::Shuffle),
        "shfl.sync.up.b32" => (Op::Shuffle(Shuffle::Up), Operands::Shuffle),
        "shl.b16" => binary(ShiftLeft, W16),
        "shl.b32" => binary(ShiftLeft, W32),
        "shl.b64" => binary(ShiftLeft, W64),
        "shr.s32" => binary(ShiftRightSigned, W32),
        "shr.s64" => binary(ShiftRightSigned, W64),
        "shr.u16" => binary(ShiftRight, W16),
        "shr.u32" => binary(ShiftRight, W32),
        "shr.u64" => binary(ShiftRight, W64),
        "st.global.u8" => store(Global, 1, 1, false),
        "st.global.u16" => store(Global, 2, 1, false),
        "st.global.u32" => store(Global, 4, 1, false),
        "st.global.u64" => store(Global, 8, 1, false),
        "st.global.v4.u32" => store(Global, 4, 4, false),
        "st.shared.u8" => store(Shared, 1, 1, false),
        "st.shared.u16" => store(Shared, 2, 1, false),
        "st.shared.u32" => store(Shared, 4, 1, false),
        "st.shared.u64" => store(Shared, 8, 1, false),
        "st.shared.v4.u32" => store(Shared, 4, 4, false),
        "st.volatile.global.u32" => store(Global, 4, 1, true),
        "sub.s32" => binary(Sub, W32),
        "sub.s64" => binary(Sub, W64),
        "vote.sync.ballot.b32" => (Op::Ballot, Operands::Ballot),
        "xor.b16" => binary(Xor, W16),
        "xor.b32" => binary(Xor, W32),
        "xor.b64" => binary(Xor, W64),
        "xor.pred" => (Op::Logic(Logic::Xor), Operands::Registers(&[P, P, P])),
        _ => return None,
    })
}
