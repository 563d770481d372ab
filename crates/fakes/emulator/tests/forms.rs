//! Each form of each instruction, on values at the edges: against results that were worked out from
//! the text of the PTX ISA, with other arithmetic than the emulator's.

#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "halves of registers are meant; tests"
)]

mod common;

use std::fmt::Write as _;

use common::{Memory, module, run, strict};
use zarrs_cuda_emulator::Access;

/// Values at the edges of 16, 32 and 64 bits, and some that are not.
const VALUES: [u64; 32] = [
    0,
    1,
    2,
    3,
    7,
    8,
    15,
    16,
    17,
    31,
    32,
    33,
    63,
    64,
    65,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0x8000,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_ffff_ffff,
    0x0123_4567_89ab_cdef,
    0xfedc_ba98_7654_3210,
    0xdead_beef_0bad_f00d,
];

/// Returns the result of `instruction` for each entry of `operands`, from one lane each. The first
/// of three values is in `%rd10`, `%r10`, `%rs10` and `%p10`, the second in `%rd11`, and so on. The
/// result is in `%rd20`, `%r20`, `%rs20` or `%p20`.
fn results(instruction: &str, operands: &[[u64; 3]]) -> Vec<u64> {
    let result = if instruction.contains("%p20") {
        "\tselp.b64 \t%rd20, 1, 0, %p20;\n"
    } else if instruction.contains("%rs20") {
        // Through memory: 16 bits.
        "\tst.global.u16 \t[%rd31], %rs20;\n\tbra.uni \t$L_end;\n"
    } else if instruction.contains("%r20") {
        "\tcvt.u64.u32 \t%rd20, %r20;\n"
    } else {
        ""
    };
    let mut body = String::from(
        "\tmul.wide.u32 \t%rd30, %r0, 24;\n\tadd.s64 \t%rd32, %rd0, %rd30;\n\
         \tmul.wide.u32 \t%rd33, %r0, 8;\n\tadd.s64 \t%rd31, %rd1, %rd33;\n",
    );
    for operand in 0..3 {
        let (from, to) = (8 * operand, 10 + operand);
        let _ = write!(
            body,
            "\tld.global.u64 \t%rd{to}, [%rd32+{from}];\n\tcvt.u32.u64 \t%r{to}, %rd{to};\n\
             \tcvt.u16.u32 \t%rs{to}, %r{to};\n\tand.b32 \t%r40, %r{to}, 1;\n\
             \tsetp.eq.s32 \t%p{to}, %r40, 1;\n"
        );
    }
    let _ = write!(
        body,
        "\t{instruction}\n{result}\tst.global.u64 \t[%rd31], %rd20;\n$L_end:"
    );
    let text = module(32, 2, "", &body);
    let mut results = Vec::new();
    for operands in operands.chunks(32) {
        let mut padded = operands.to_vec();
        padded.resize(32, operands[0]);
        let bytes = padded
            .iter()
            .flatten()
            .flat_map(|value| value.to_le_bytes());
        let mut input: Vec<u8> = bytes.collect();
        let mut output = vec![0; 32 * 8];
        let mut memory = [
            Memory {
                bytes: &mut input,
                access: Access::Read,
            },
            Memory {
                bytes: &mut output,
                access: Access::Write,
            },
        ];
        run(&text, 1, &mut memory, strict())
            .unwrap_or_else(|error| panic!("{instruction}: {error}"));
        let values = output
            .chunks(8)
            .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
        results.extend(values.take(operands.len()));
    }
    results
}

/// Check `instruction` on all pairs of values, with some third ones.
fn check(instruction: &str, expected: impl Fn(u64, u64, u64) -> u64) {
    let mut operands = Vec::new();
    for (i, a) in VALUES.into_iter().enumerate() {
        for (j, b) in VALUES.into_iter().enumerate() {
            operands.push([a, b, VALUES[(7 * i + 11 * j) % VALUES.len()]]);
        }
    }
    for ([a, b, c], got) in operands.iter().zip(results(instruction, &operands)) {
        let expected = expected(*a, *b, *c);
        assert_eq!(got, expected, "{instruction} of {a:#x}, {b:#x}, {c:#x}");
    }
}

const M16: u128 = 0xffff;
const M32: u128 = 0xffff_ffff;
const M64: u128 = 0xffff_ffff_ffff_ffff;

/// Arithmetic of whole numbers, of which `mask` is kept.
fn whole(mask: u128, f: impl Fn(i128, i128, i128) -> i128) -> impl Fn(u64, u64, u64) -> u64 {
    move |a, b, c| {
        let [a, b, c] = [a, b, c].map(|value| (u128::from(value) & mask).cast_signed());
        (f(a, b, c).cast_unsigned() & mask) as u64
    }
}

/// The number of `bits` bits, with a sign.
fn signed(value: i128, bits: u32) -> i128 {
    if value >> (bits - 1) & 1 == 1 {
        value - (1 << bits)
    } else {
        value
    }
}

#[test]
fn sums_and_products() {
    check("add.s32 %r20, %r10, %r11;", whole(M32, |a, b, _| a + b));
    check("add.s64 %rd20, %rd10, %rd11;", whole(M64, |a, b, _| a + b));
    check("sub.s32 %r20, %r10, %r11;", whole(M32, |a, b, _| a - b));
    check("sub.s64 %rd20, %rd10, %rd11;", whole(M64, |a, b, _| a - b));
    check("neg.s32 %r20, %r10;", whole(M32, |a, _, _| -a));
    check("mul.lo.s32 %r20, %r10, %r11;", whole(M32, |a, b, _| a * b));
    check("mul.lo.s64 %rd20, %rd10, %rd11;", |a, b, _| {
        // In halves of 32 bits: the product of the upper ones is beyond the result.
        let (ah, al, bh, bl) = (a >> 32, a & 0xffff_ffff, b >> 32, b & 0xffff_ffff);
        let middle = (u128::from(ah) * u128::from(bl) + u128::from(al) * u128::from(bh)) << 32;
        ((u128::from(al) * u128::from(bl) + middle) & M64) as u64
    });
    check(
        "mul.hi.u32 %r20, %r10, %r11;",
        whole(M32, |a, b, _| (a * b) >> 32),
    );
    check("mul.wide.u32 %rd20, %r10, %r11;", |a, b, _| {
        (a & 0xffff_ffff) * (b & 0xffff_ffff)
    });
    check("mul.wide.u16 %r20, %rs10, %rs11;", |a, b, _| {
        (a & 0xffff) * (b & 0xffff)
    });
    check(
        "mad.lo.s32 %r20, %r10, %r11, %r12;",
        whole(M32, |a, b, c| a * b + c),
    );
}

/// Floats are not numbers in the results of these tests: their bits are unspecified.
fn is_nan(bits: u64) -> bool {
    bits & !(1 << 63) > 0x7ff << 52
}

/// Values at the edges of floats of 32 and 64 bits. Odd numbers of bits, so that sums and products
/// have to be rounded.
const FLOATS: [f64; 18] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    1.5,
    0.1,
    -3.3,
    1e-30,
    16_777_217.0,
    16_777_219.0,
    9_007_199_254_740_991.0,
    1e300,
    -1e300,
    f64::MAX,
    f64::MIN_POSITIVE,
    5e-324,
    f64::INFINITY,
    f64::NEG_INFINITY,
];

#[test]
fn floats() {
    let pairs: Vec<_> = FLOATS
        .iter()
        .flat_map(|a| FLOATS.iter().map(move |b| [a.to_bits(), b.to_bits(), 0]))
        .collect();
    let through = |form: &str| {
        format!(
            "mov.b64 %fd10, %rd10;\n\tmov.b64 %fd11, %rd11;\n\t{form} %fd20, %fd10, %fd11;\n\tmov.b64 %rd20, %fd20;"
        )
    };
    for ([a, b, _], got) in pairs.iter().zip(results(&through("add.f64"), &pairs)) {
        let expected = (f64::from_bits(*a) + f64::from_bits(*b)).to_bits();
        assert!(
            got == expected || is_nan(got) && is_nan(expected),
            "{a:#x} + {b:#x}"
        );
    }
    for ([a, b, _], got) in pairs.iter().zip(results(&through("mul.f64"), &pairs)) {
        let expected = (f64::from_bits(*a) * f64::from_bits(*b)).to_bits();
        assert!(
            got == expected || is_nan(got) && is_nan(expected),
            "{a:#x} * {b:#x}"
        );
    }
    let half = "mov.b64 %fd10, %rd10;\n\tmul.f64 %fd20, %fd10, 0d3FE0000000000000;\n\tmov.b64 %rd20, %fd20;";
    for ([a, ..], got) in pairs.iter().zip(results(half, &pairs)) {
        assert_eq!(got, (f64::from_bits(*a) / 2.0).to_bits());
    }
    // A tie goes to the even one.
    assert_eq!((16_777_217_f64 as f32).to_bits(), 16_777_216_f32.to_bits());
    let narrow = "mov.b64 %fd10, %rd10;\n\tcvt.rn.f32.f64 %f20, %fd10;\n\tmov.b32 %r20, %f20;";
    for ([a, ..], got) in pairs.iter().zip(results(narrow, &pairs)) {
        assert_eq!(
            got,
            u64::from((f64::from_bits(*a) as f32).to_bits()),
            "{a:#x}"
        );
    }
    let wide = "mov.b32 %f10, %r10;\n\tcvt.f64.f32 %fd20, %f10;\n\tmov.b64 %rd20, %fd20;";
    let singles: Vec<_> = FLOATS
        .iter()
        .map(|a| [u64::from((*a as f32).to_bits()), 0, 0])
        .chain([[1, 0, 0], [0x807f_ffff, 0, 0]])
        .collect();
    for ([a, ..], got) in singles.iter().zip(results(wide, &singles)) {
        assert_eq!(
            got,
            f64::from(f32::from_bits(*a as u32)).to_bits(),
            "{a:#x}"
        );
    }
    check(
        "mov.b64 %fd10, %rd10;\n\tmov.b64 %fd11, %rd11;\n\tselp.f64 %fd20, %fd10, %fd11, %p12;\n\tmov.b64 %rd20, %fd20;",
        |a, b, c| if c % 2 == 1 { a } else { b },
    );
}

#[test]
fn quotients() {
    let operands: Vec<_> = VALUES
        .iter()
        .flat_map(|a| VALUES.iter().map(move |b| [*a, *b, 0]))
        .filter(|[_, b, _]| b & 0xffff_ffff != 0)
        .collect();
    let narrow = |value: u64| value & 0xffff_ffff;
    for ([a, b, _], got) in operands
        .iter()
        .zip(results("div.u32 %r20, %r10, %r11;", &operands))
    {
        assert_eq!(got, narrow(*a) / narrow(*b));
    }
    for ([a, b, _], got) in operands
        .iter()
        .zip(results("rem.u32 %r20, %r10, %r11;", &operands))
    {
        assert_eq!(got, narrow(*a) - narrow(*a) / narrow(*b) * narrow(*b));
    }
    for ([a, b, _], got) in operands
        .iter()
        .zip(results("div.u64 %rd20, %rd10, %rd11;", &operands))
    {
        assert_eq!(got, a / b);
    }
}

#[test]
fn extremes() {
    check(
        "min.u16 %rs20, %rs10, %rs11;",
        whole(M16, |a, b, _| if a < b { a } else { b }),
    );
    check(
        "max.u16 %rs20, %rs10, %rs11;",
        whole(M16, |a, b, _| if a > b { a } else { b }),
    );
    check(
        "min.u32 %r20, %r10, %r11;",
        whole(M32, |a, b, _| if a < b { a } else { b }),
    );
    check(
        "max.u32 %r20, %r10, %r11;",
        whole(M32, |a, b, _| if a > b { a } else { b }),
    );
    check(
        "min.u64 %rd20, %rd10, %rd11;",
        whole(M64, |a, b, _| if a < b { a } else { b }),
    );
    check(
        "max.u64 %rd20, %rd10, %rd11;",
        whole(M64, |a, b, _| if a > b { a } else { b }),
    );
}

/// Bit by bit.
fn bitwise(bits: u32, f: impl Fn(bool, bool) -> bool) -> impl Fn(u64, u64, u64) -> u64 {
    move |a, b, _| {
        (0..bits)
            .map(|bit| u64::from(f(a >> bit & 1 == 1, b >> bit & 1 == 1)) << bit)
            .sum()
    }
}

#[test]
fn bits() {
    for (width, registers) in [(16, "rs"), (32, "r"), (64, "rd")] {
        let operands = format!("%{registers}20, %{registers}10, %{registers}11;");
        check(
            &format!("and.b{width} {operands}"),
            bitwise(width, |a, b| a && b),
        );
        check(
            &format!("or.b{width} {operands}"),
            bitwise(width, |a, b| a || b),
        );
        check(
            &format!("xor.b{width} {operands}"),
            bitwise(width, |a, b| a != b),
        );
        let one = format!("not.b{width} %{registers}20, %{registers}10;");
        check(&one, bitwise(width, |a, _| !a));
    }
    check("popc.b32 %r20, %r10;", |a, _, _| {
        (0..32).map(|bit| a >> bit & 1).sum()
    });
    check("and.pred %p20, %p10, %p11;", |a, b, _| a % 2 * (b % 2));
    check("or.pred %p20, %p10, %p11;", |a, b, _| (a % 2).max(b % 2));
    check("xor.pred %p20, %p10, %p11;", |a, b, _| (a % 2 + b % 2) % 2);
    check("not.pred %p20, %p10;", |a, _, _| 1 - a % 2);
    check("mov.pred %p20, %p10;", |a, _, _| a % 2);
    check("mov.pred %p20, -1;", |_, _, _| 1);
    check("mov.pred %p20, 0;", |_, _, _| 0);
}

#[test]
fn shifts() {
    // Amounts beyond the width count as the width.
    for (width, registers, mask) in [(16, "rs", M16), (32, "r", M32), (64, "rd", M64)] {
        let left = move |a: u64, b: u64, _| {
            let amount = (b & 0xffff_ffff).min(width) as u32;
            (((u128::from(a) & mask) * (1 << amount)) & mask) as u64
        };
        let right = move |a: u64, b: u64, _| {
            let amount = (b & 0xffff_ffff).min(width) as u32;
            ((u128::from(a) & mask) / (1 << amount)) as u64
        };
        let operands = format!("%{registers}20, %{registers}10, %r11;");
        check(&format!("shl.b{width} {operands}"), left);
        check(&format!("shr.u{width} {operands}"), right);
        if width > 16 {
            check(&format!("shr.s{width} {operands}"), move |a, b, _| {
                let amount = (b & 0xffff_ffff).min(width) as u32;
                let value = signed((u128::from(a) & mask).cast_signed(), width as u32);
                (value.div_euclid(1 << amount).cast_unsigned() & mask) as u64
            });
        }
    }
    check("shf.r.wrap.b32 %r20, %r10, %r11, %r12;", |a, b, c| {
        // The result is 32 of 64 bits, from bit `c % 32` on.
        let both = (b & 0xffff_ffff) * (1 << 32) + (a & 0xffff_ffff);
        both / (1 << (c % 32)) % (1 << 32)
    });
}

#[test]
fn bytes_and_fields() {
    check("prmt.b32 %r20, %r10, %r11, %r12;", |a, b, c| {
        let mut bytes = (a as u32).to_le_bytes().to_vec();
        bytes.extend((b as u32).to_le_bytes());
        let select = |nibble: u64| {
            let byte = bytes[(nibble % 8) as usize];
            match (nibble >= 8, byte >= 0x80) {
                (false, _) => u64::from(byte),
                (true, true) => 0xff,
                (true, false) => 0,
            }
        };
        (0..4).map(|n| select(c >> (4 * n) & 0xf) << (8 * n)).sum()
    });
    for (position, len) in [
        (0, 0),
        (0, 8),
        (8, 8),
        (24, 16),
        (56, 8),
        (60, 8),
        (63, 1),
        (0, 64),
        (32, 64),
        (64, 8),
    ] {
        let instruction = format!("bfi.b64 %rd20, %rd10, %rd11, {position}, {len};");
        check(&instruction, |a, b, _| {
            (0..64)
                .map(|bit| {
                    let is_field = bit >= position && bit < position + len;
                    let value = if is_field {
                        a >> (bit - position)
                    } else {
                        b >> bit
                    };
                    (value & 1) << bit
                })
                .sum()
        });
    }
}

#[test]
fn moves() {
    check("mov.u16 %rs20, %rs10;", |a, _, _| a & 0xffff);
    check("mov.u32 %r20, %r10;", |a, _, _| a & 0xffff_ffff);
    check("mov.u64 %rd20, %rd10;", |a, _, _| a);
    check("mov.b64 %rd20, %rd10;", |a, _, _| a);
    check("mov.b64 %rd20, {%r10, %r11};", |a, b, _| {
        b << 32 | a & 0xffff_ffff
    });
    check("mov.b64 {%r20, %r41}, %rd10;", |a, _, _| a & 0xffff_ffff);
    check("mov.b64 {%r41, %r20}, %rd10;", |a, _, _| a >> 32);
    check("mov.u32 %r20, -559038737;", |_, _, _| 0xdead_beef);
    check("mov.u64 %rd20, -1;", |_, _, _| u64::MAX);
    check("cvta.to.global.u64 %rd20, %rd10;", |a, _, _| a);
    check("mov.b32 %r20, %r10;", |a, _, _| a & 0xffff_ffff);
    check("cvt.u32.u16 %r20, %rs10;", |a, _, _| a & 0xffff);
    check("cvt.u64.u16 %rd20, %rs10;", |a, _, _| a & 0xffff);
    check("cvt.u64.u32 %rd20, %r10;", |a, _, _| a & 0xffff_ffff);
    check("cvt.u32.u64 %r20, %rd10;", |a, _, _| a & 0xffff_ffff);
    check("cvt.u16.u32 %rs20, %r10;", |a, _, _| a & 0xffff);
}

#[test]
fn selections() {
    let chosen =
        |mask: u64| move |a: u64, b: u64, c: u64| if c % 2 == 1 { a & mask } else { b & mask };
    for form in ["selp.b16", "selp.u16"] {
        check(
            &format!("{form} %rs20, %rs10, %rs11, %p12;"),
            chosen(0xffff),
        );
    }
    for form in ["selp.b32", "selp.u32"] {
        check(
            &format!("{form} %r20, %r10, %r11, %p12;"),
            chosen(0xffff_ffff),
        );
    }
    for form in ["selp.b64", "selp.s64", "selp.u64"] {
        let instruction = format!("{form} %rd20, %rd10, %rd11, %p12;");
        check(&instruction, chosen(u64::MAX));
    }
}

#[test]
fn comparisons() {
    type Test = fn(i128, i128) -> bool;
    let tests: [(&str, Test); 6] = [
        ("eq", |a, b| a == b),
        ("ne", |a, b| a != b),
        ("lt", |a, b| a < b),
        ("le", |a, b| a <= b),
        ("gt", |a, b| a > b),
        ("ge", |a, b| a >= b),
    ];
    let forms = [
        "eq.s16", "ne.s16", "lt.s16", "gt.s16", "lt.s64", "gt.s64", "eq.s32", "ne.s32", "eq.b32",
        "lt.s32", "gt.s32", "lt.u32", "le.u32", "gt.u32", "ge.u32", "eq.s64", "ne.s64", "eq.b64",
        "lt.u64", "le.u64", "gt.u64", "ge.u64",
    ];
    for form in forms {
        let (name, kind) = form.split_once('.').unwrap();
        let (_, test) = tests.iter().find(|(n, _)| *n == name).unwrap();
        let bits: u32 = kind[1..].parse().unwrap();
        let registers = match bits {
            16 => "rs",
            32 => "r",
            _ => "rd",
        };
        let is_signed = kind.starts_with('s');
        let instruction = format!("setp.{form} %p20, %{registers}10, %{registers}11;");
        check(&instruction, |a, b, _| {
            let [a, b] = [a, b].map(|value| {
                let value = i128::from(value) & ((1 << bits) - 1);
                if is_signed {
                    signed(value, bits)
                } else {
                    value
                }
            });
            u64::from(test(a, b))
        });
    }
}

/// Loads and stores of each width, in each space.
#[test]
fn memory() {
    for (form, bytes, register) in [
        ("u8", 1, "rs"),
        ("u16", 2, "rs"),
        ("u32", 4, "r"),
        ("u64", 8, "rd"),
    ] {
        let body = format!(
            "\tmov.u64 \t%rd10, words;\n\tmul.wide.u32 \t%rd11, %r0, {bytes};\n\
             \tadd.s64 \t%rd12, %rd0, %rd11;\n\tadd.s64 \t%rd13, %rd1, %rd11;\n\
             \tadd.s64 \t%rd14, %rd10, %rd11;\n\
             \tld.global.{form} \t%{register}20, [%rd12];\n\tst.shared.{form} \t[%rd14], %{register}20;\n\
             \tld.shared.{form} \t%{register}21, [%rd14];\n\tst.global.{form} \t[%rd13], %{register}21;"
        );
        let text = module(32, 2, ".shared .align 8 .b8 words[256];", &body);
        let mut input: Vec<u8> = (0..32 * bytes).map(|n| (n * 37 + 11) as u8).collect();
        let expected = input.clone();
        let mut output = vec![0; 32 * bytes];
        let mut memory = [
            Memory {
                bytes: &mut input,
                access: Access::Read,
            },
            Memory {
                bytes: &mut output,
                access: Access::Write,
            },
        ];
        run(&text, 1, &mut memory, strict()).unwrap();
        assert_eq!(output, expected, "{form}");
    }
    let body = "\tmov.u64 \t%rd10, words;\n\tmul.wide.u32 \t%rd11, %r0, 16;\n\
        \tadd.s64 \t%rd12, %rd0, %rd11;\n\tadd.s64 \t%rd13, %rd1, %rd11;\n\tadd.s64 \t%rd14, %rd10, %rd11;\n\
        \tld.global.v4.u32 \t{%r1, %r2, %r3, %r4}, [%rd12];\n\
        \tst.shared.v4.u32 \t[%rd14], {%r1, %r2, %r3, %r4};\n\
        \tld.shared.v4.u32 \t{%r5, %r6, %r7, %r8}, [%rd14];\n\
        \tst.global.v4.u32 \t[%rd13], {%r5, %r6, %r7, %r8};";
    let text = module(32, 2, ".shared .align 16 .b8 words[512];", body);
    let mut input: Vec<u8> = (0..512_u32).map(|n| (n * 37 + 11) as u8).collect();
    let expected = input.clone();
    let mut output = vec![0; 512];
    let mut memory = [
        Memory {
            bytes: &mut input,
            access: Access::Read,
        },
        Memory {
            bytes: &mut output,
            access: Access::Write,
        },
    ];
    run(&text, 1, &mut memory, strict()).unwrap();
    assert_eq!(output, expected);
}

/// Bytes of a constant, and of a parameter that is a structure.
#[test]
fn constants_and_structures() {
    let body = "\tmov.u64 \t%rd10, table;\n\tmul.wide.u32 \t%rd11, %r0, 4;\n\tadd.s64 \t%rd12, %rd10, %rd11;\n\
        \tadd.s64 \t%rd13, %rd0, %rd11;\n\tsetp.lt.u32 \t%p1, %r0, 2;\n\tmov.u32 \t%r1, 0;\n\
        \t@%p1 ld.const.u32 \t%r1, [%rd12];\n\tst.global.u32 \t[%rd13], %r1;";
    let text = module(32, 1, "", body).replace(
        ".visible",
        ".const .align 4 .b8 table[8] = {1, 2, 3, 4, 5, 6};\n.visible",
    );
    let mut output = vec![9; 128];
    let mut memory = [Memory {
        bytes: &mut output,
        access: Access::Write,
    }];
    run(&text, 1, &mut memory, strict()).unwrap();
    assert_eq!(output[..9], [1, 2, 3, 4, 5, 6, 0, 0, 0]);

    let body = "\tld.param.v2.u32 \t{%r1, %r2}, [test_param_1+8];\n\tld.param.u16 \t%rs3, [test_param_1+4];\n\
        \tcvt.u32.u16 \t%r4, %rs3;\n\tld.param.u32 \t%r5, [test_param_1+4];\n\tadd.s32 \t%r3, %r4, %r5;\n\
        \tmov.b64 \t%rd1, {%r2, %r1};\n\tcvt.u64.u32 \t%rd2, %r3;\n\tadd.s64 \t%rd3, %rd1, %rd2;\n\
        \tsetp.eq.s32 \t%p1, %r0, 0;\n\t@%p1 st.global.u64 \t[%rd0], %rd3;";
    let text = module(32, 1, "", body).replace(
        "test_param_0\n)",
        "test_param_0,\n\t.param .align 8 .b8 test_param_1[16]\n)",
    );
    let module = zarrs_cuda_emulator::Module::parse(&text).unwrap();
    let mut output = 0_u64;
    let buffer = zarrs_cuda_emulator::Buffer {
        address: common::FIRST,
        len: 8,
        host: (&raw mut output).cast(),
        access: Access::Write,
    };
    let structure: Vec<u8> = [1_u32, 20, 300, 4000].map(u32::to_le_bytes).concat();
    let pointer = buffer.address.to_le_bytes();
    let arguments = [&pointer[..], &structure].map(zarrs_cuda_emulator::Argument);
    let kernel = module.kernel("test").unwrap();
    // SAFETY: the buffer is a number of this function.
    unsafe { zarrs_cuda_emulator::launch(kernel, 1, 32, &arguments, &[buffer], strict()) }.unwrap();
    assert_eq!(output, (300 << 32) + 4000 + 20 + 20);
}

/// The lanes that a shuffle reads: `shfl.sync` in the PTX ISA, worked out for segments of 32 and of 8.
#[test]
fn shuffles() {
    // The upper bits of `c` are the segments' mask, the lower ones the last (or first) lane.
    /// The lane that is read by a lane with this amount.
    type Source = fn(u32, u32) -> Option<u32>;
    let cases: [(&str, u32, Source); 6] = [
        ("up", 0, |lane, b| lane.checked_sub(b)),
        ("bfly", 31, |lane, b| Some(lane ^ b)),
        ("idx", 31, |_, b| Some(b)),
        ("up", 24 << 8, |lane, b| {
            (lane % 8).checked_sub(b).map(|from| lane / 8 * 8 + from)
        }),
        ("bfly", 24 << 8 | 31, |lane, b| {
            let from = lane ^ b;
            (from <= lane / 8 * 8 + 7).then_some(from)
        }),
        ("idx", 24 << 8 | 31, |lane, b| Some(lane / 8 * 8 + b % 8)),
    ];
    for (mode, c, from) in cases {
        for b in [0, 1, 3, 7] {
            let body = format!(
                "\tadd.s32 \t%r1, %r0, 100;\n\tmov.u32 \t%r2, -1;\n\
                 \tshfl.sync.{mode}.b32 \t%r3|%p1, %r1, {b}, {c}, %r2;\n\
                 \tselp.u32 \t%r4, 1000, 0, %p1;\n\tadd.s32 \t%r5, %r3, %r4;\n\
                 \tmul.wide.u32 \t%rd10, %r0, 4;\n\tadd.s64 \t%rd11, %rd0, %rd10;\n\
                 \tst.global.u32 \t[%rd11], %r5;"
            );
            let mut output = vec![0; 128];
            let mut memory = [Memory {
                bytes: &mut output,
                access: Access::Write,
            }];
            run(&module(32, 1, "", &body), 1, &mut memory, strict()).unwrap();
            for (lane, got) in (0..).zip(output.chunks(4)) {
                let got = u32::from_le_bytes(got.try_into().unwrap());
                let expected = match from(lane, b) {
                    Some(from) => 1100 + from,
                    None => 100 + lane,
                };
                assert_eq!(got, expected, "{mode} by {b} of {c:#x} in lane {lane}");
            }
        }
    }
}

#[test]
fn ballots_and_atomics() {
    let body = "\tand.b32 \t%r1, %r0, 5;\n\tsetp.eq.s32 \t%p1, %r1, 5;\n\tmov.u32 \t%r2, -1;\n\
        \tvote.sync.ballot.b32 \t%r3, %p1, %r2;\n\tatom.global.or.b32 \t%r4, [%rd0], %r3;\n\
        \tatom.global.add.u32 \t%r5, [%rd0+4], 3;\n\tld.volatile.global.u32 \t%r6, [%rd0+4];\n\
        \tst.volatile.global.u32 \t[%rd0+8], 9;";
    let mut words = vec![0; 12];
    let mut memory = [Memory {
        bytes: &mut words,
        access: Access::Update,
    }];
    run(&module(64, 1, "", body), 5, &mut memory, strict()).unwrap();
    let lanes: u32 = (0..32)
        .filter(|lane| lane & 5 == 5)
        .map(|lane| 1 << lane)
        .sum();
    assert_eq!(words[..4], lanes.to_le_bytes());
    assert_eq!(words[4..8], (3 * 5 * 64_u32).to_le_bytes());
    assert_eq!(words[8..], 9_u32.to_le_bytes());
}

/// Statements that are not understood are errors that name the line and the form.
#[test]
fn other_forms() {
    for (statement, reason) in [
        (
            "fma.rn.f32 %r1, %r2, %r3, %r4;",
            "no kernel had a `fma.rn.f32` before",
        ),
        (
            "add.s32 %r1, %rd2, %r3;",
            "%rd2 is no register %r of the kernel",
        ),
        (
            "add.s32 %r1, %r64, %r3;",
            "%r64 is no register %r of the kernel",
        ),
        ("add.s32 5, %r2, %r3;", "5 is no register to write"),
        (
            "mov.u32 %r1, %clock;",
            "%clock is no register %r of the kernel",
        ),
        ("bra $L_nowhere;", "no instruction has the label $L_nowhere"),
        ("ld.global.u32 %r1, %rd2;", "%rd2 is no address"),
        ("ld.global.u32 {%r1, %r2}, [%rd2];", "2 values instead of 1"),
        ("ld.global.u32 {}, [%rd2];", "0 values instead of 1"),
        ("ld.global.u32 5, [%rd2];", "5 is no register to write"),
        ("bar.sync 1;", "operands that do not fit"),
        ("mov.u64 %rd1, nothing;", "nothing is no number"),
    ] {
        let text = module(32, 1, "", &format!("\t{statement}"));
        let error = zarrs_cuda_emulator::Module::parse(&text).unwrap_err();
        let line = 1 + text
            .lines()
            .position(|line| line.contains(statement))
            .unwrap();
        assert!(error.starts_with(&format!("line {line}: ")), "{error}");
        assert!(error.contains(reason), "{error}");
        assert!(error.contains(statement), "{error}");
    }
}
