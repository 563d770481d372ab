//! One instruction, decoded.

/// How many lanes a warp has.
pub const LANES: usize = 32;

/// The width of a register, or of the values that an instruction works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// 16 bits, in a register of 32 whose upper half is 0.
    W16,
    W32,
    W64,
}

impl Width {
    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::W16 => 16,
            Self::W32 => 32,
            Self::W64 => 64,
        }
    }
}

/// An operation of two operands, `a` and `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Add,
    Sub,
    MulLow,
    MulHigh,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
    /// A right shift of a signed number.
    ShiftRightSigned,
    Min,
    Max,
    Divide,
    Remainder,
}

impl Binary {
    /// Whether the result for `b = 0` is not specified.
    pub(crate) fn divides(self) -> bool {
        matches!(self, Self::Divide | Self::Remainder)
    }

    /// Whether `b` is an amount, of 32 bits.
    pub(crate) fn shifts(self) -> bool {
        matches!(
            self,
            Self::ShiftLeft | Self::ShiftRight | Self::ShiftRightSigned
        )
    }
}

/// An operation of two floats of 64 bits, rounded to the nearest, half to even.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Float {
    Add,
    Multiply,
}

/// An operation of the operand `a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    Move,
    Not,
    Negate,
}

/// An operation on predicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logic {
    Move,
    Not,
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Shared,
    Constant,
    Parameter,
}

/// The rule that says which lane's value a lane gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomic {
    Add,
    Or,
}

/// The operation of an instruction on its registers `d`, `a`, `b` and `c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Unary(Unary, Width),
    /// The operands are unsigned but where the name says otherwise, and shifts have an amount of 32 bits.
    Binary(Binary, Width),
    Float(Float),
    /// A float of 32 bits as one of 64.
    WidenFloat,
    /// A float of 64 bits as one of 32, rounded to the nearest, half to even.
    NarrowFloat,
    /// `d = a * b + c`, the lower 32 bits.
    MulAdd,
    /// Twice as wide as its operands, which have this width.
    MulWide(Width),
    /// `d = c ? a : b`, where `c` is a predicate.
    Select(Width),
    /// `d` is a predicate.
    Compare(Comparison, Width, Signed),
    Logic(Logic),
    /// From the first width to the second one; the value is unsigned.
    Convert(Width, Width),
    /// `d = {a, b}`: `a` is the lower half.
    Pack,
    /// `{d, c} = a`: `d` is the lower half.
    Unpack,
    CountOnes,
    /// Bytes of `a` and `b`, by the selectors in `c`.
    Permute,
    /// The lower half of `(b:a) >> (c & 31)`.
    FunnelRight,
    /// `a` of `extra[1]` bits put into `b` from bit `c` on. All but `a` and `b` have 32 bits.
    InsertBits,
    /// `extra[..count]` are loaded from `a` plus the offset; each of the width of a register and of
    /// `bytes` bytes.
    Load {
        space: Space,
        width: Width,
        bytes: u8,
        count: u8,
        volatile: bool,
    },
    Store {
        space: Space,
        width: Width,
        bytes: u8,
        count: u8,
        volatile: bool,
    },
    /// On 32 bits at `a` in global memory, with `b`; `d` is what was there.
    Atomic(Atomic),
    Branch,
    Return,
    /// Waits for the block.
    BlockBarrier,
    /// Waits for the lanes in `a`.
    WarpBarrier,
    /// `d`, and the predicate `extra[0]`, of `a` in another lane; `b` and `c` say which. The lanes in
    /// `extra[1]` take part.
    Shuffle(Shuffle),
    /// The lanes in `b` whose predicate `a` is set.
    Ballot,
}

/// Whether a comparison takes its operands as signed numbers.
pub(crate) type Signed = bool;

/// An instruction. Registers are numbers into a file: predicates, 32 bits (also those of 16), 64
/// bits. Constants have registers of their own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction {
    pub(crate) op: Op,
    pub(crate) d: u16,
    pub(crate) a: u16,
    pub(crate) b: u16,
    pub(crate) c: u16,
    pub(crate) extra: [u16; 4],
    /// The predicate without which lanes skip the instruction, and whether it is negated.
    pub(crate) guard: Option<(u16, bool)>,
    /// The offset of an address, or the instruction that a branch leads to.
    pub(crate) immediate: i64,
    /// The line in the module's text, from 1.
    pub(crate) line: u32,
}

impl Instruction {
    /// Whether lanes wait here for others of their warp or block.
    pub(crate) fn waits(&self) -> bool {
        matches!(
            self.op,
            Op::BlockBarrier | Op::WarpBarrier | Op::Shuffle(_) | Op::Ballot
        )
    }

    /// The register that says for which lanes of the warp a lane waits. `None` if for all.
    pub(crate) fn members(&self) -> Option<u16> {
        match self.op {
            Op::WarpBarrier => Some(self.a),
            Op::Ballot => Some(self.b),
            Op::Shuffle(_) => Some(self.extra[1]),
            _ => None,
        }
    }
}
