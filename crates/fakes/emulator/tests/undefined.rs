//! Tests of the bits of a result that count as undefined. All bits count that change when undefined
//! bits of the operands change. No other bits count, where an instruction moves bits without
//! computing with them.

#![allow(clippy::unwrap_used)]

mod common;

use std::fmt::Write as _;

use common::{APART, Chance, FIRST, module, strict};
use zarrs_cuda_emulator::{Access, Argument, Buffer, Module, Options, launch};

/// Instructions that compute with their operands. Their results may count as undefined in more bits
/// than change.
const COMPUTE: [&str; 43] = [
    "add.s32 %r20, %r10, %r11;",
    "sub.s32 %r20, %r10, %r11;",
    "mul.lo.s32 %r20, %r10, %r11;",
    "mul.hi.u32 %r20, %r10, %r11;",
    "mad.lo.s32 %r20, %r10, %r11, %r12;",
    "min.u32 %r20, %r10, %r11;",
    "max.u32 %r20, %r10, %r11;",
    "div.u32 %r20, %r10, %r11;",
    "rem.u32 %r20, %r10, %r11;",
    "neg.s32 %r20, %r10;",
    "popc.b32 %r20, %r10;",
    "add.s64 %rd20, %rd10, %rd11;",
    "sub.s64 %rd20, %rd10, %rd11;",
    "mul.lo.s64 %rd20, %rd10, %rd11;",
    "min.u64 %rd20, %rd10, %rd11;",
    "max.u64 %rd20, %rd10, %rd11;",
    "div.u64 %rd20, %rd10, %rd11;",
    "mul.wide.u32 %rd20, %r10, %r11;",
    "mul.wide.u16 %r20, %rs10, %rs11;",
    "shl.b16 %rs20, %rs10, %r11;",
    "shr.u16 %rs20, %rs10, %r11;",
    "shl.b32 %r20, %r10, %r11;",
    "shr.u32 %r20, %r10, %r11;",
    "shl.b64 %rd20, %rd10, %r11;",
    "shr.u64 %rd20, %rd10, %r11;",
    "shf.r.wrap.b32 %r20, %r10, %r11, %r12;",
    "prmt.b32 %r20, %r10, %r11, %r12;",
    "bfi.b64 %rd20, %rd10, %rd11, %r12, %r12;",
    "selp.b32 %r20, %r10, %r11, %p12;",
    "selp.b64 %rd20, %rd10, %rd11, %p12;",
    "selp.b16 %rs20, %rs10, %rs11, %p12;",
    "min.u16 %rs20, %rs10, %rs11;",
    "max.u16 %rs20, %rs10, %rs11;",
    "shr.s32 %r20, %r10, %r11;",
    "shr.s64 %rd20, %rd10, %r11;",
    "setp.lt.s16 %p20, %rs10, %rs11;",
    "setp.gt.s64 %p20, %rd10, %rd11;",
    "mov.b64 %fd10, %rd10;\n\tmov.b64 %fd11, %rd11;\n\tadd.f64 %fd20, %fd10, %fd11;\n\tmov.b64 %rd20, %fd20;",
    "mov.b64 %fd10, %rd10;\n\tmov.b64 %fd11, %rd11;\n\tmul.f64 %fd20, %fd10, %fd11;\n\tmov.b64 %rd20, %fd20;",
    "mov.b32 %f10, %r10;\n\tcvt.f64.f32 %fd20, %f10;\n\tmov.b64 %rd20, %fd20;",
    "mov.b64 %fd10, %rd10;\n\tcvt.rn.f32.f64 %f20, %fd10;\n\tmov.b32 %r20, %f20;",
    "setp.lt.u32 %p20, %r10, %r11;",
    "setp.gt.u64 %p20, %rd10, %rd11;",
];

/// Instructions of which each bit of the result depends on few bits of the operands.
const MOVE: [&str; 35] = [
    "mov.u32 %r20, %r10;",
    "mov.u64 %rd20, %rd10;",
    "mov.u16 %rs20, %rs10;",
    "mov.b64 %rd20, {%r10, %r11};",
    "mov.b64 {%r20, %r21}, %rd10;",
    "not.b32 %r20, %r10;",
    "not.b64 %rd20, %rd10;",
    "cvt.u16.u32 %rs20, %r10;",
    "cvt.u32.u64 %r20, %rd10;",
    "cvt.u64.u32 %rd20, %r10;",
    "and.b16 %rs20, %rs10, %rs11;",
    "and.b32 %r20, %r10, %r11;",
    "and.b64 %rd20, %rd10, %rd11;",
    "or.b16 %rs20, %rs10, %rs11;",
    "or.b32 %r20, %r10, %r11;",
    "or.b64 %rd20, %rd10, %rd11;",
    "xor.b32 %r20, %r10, %r11;",
    "xor.b64 %rd20, %rd10, %rd11;",
    "and.pred %p20, %p10, %p11;",
    "or.pred %p20, %p10, %p11;",
    "xor.pred %p20, %p10, %p11;",
    "not.pred %p20, %p10;",
    "mov.b32 %r20, %r10;",
    "not.b16 %rs20, %rs10;",
    "xor.b16 %rs20, %rs10, %rs11;",
    "cvt.u32.u16 %r20, %rs10;",
    "cvt.u64.u16 %rd20, %rs10;",
    "shr.s32 %r20, %r10, 5;",
    "shr.s64 %rd20, %rd10, 37;",
    "shl.b16 %rs20, %rs10, 5;",
    "shl.b32 %r20, %r10, 5;",
    "shr.u64 %rd20, %rd10, 37;",
    "shf.r.wrap.b32 %r20, %r10, %r11, 11;",
    // Bytes 7, 3, the sign of byte 5, and 0.
    "prmt.b32 %r20, %r10, %r11, 29648;",
    "bfi.b64 %rd20, %rd10, %rd11, 7, 40;",
];

/// The kernel of an instruction with the operands `%r10`, `%rd10`, `%rs10`, `%p10` and so on, which are
/// value ^ (noise & mask). It stores one bit of the result, whose number follows the masks.
fn text(instruction: &str) -> String {
    let mut body = String::new();
    for operand in 0..3 {
        let (to, at) = (10 + operand, 8 * operand);
        let _ = write!(
            body,
            "\tld.global.u64 \t%rd{to}, [%rd0+{at}];\n\tld.global.u64 \t%rd30, [%rd0+{}];\n\
             \tld.global.u64 \t%rd31, [%rd1+{at}];\n\tand.b64 \t%rd31, %rd31, %rd30;\n\
             \txor.b64 \t%rd{to}, %rd{to}, %rd31;\n\tcvt.u32.u64 \t%r{to}, %rd{to};\n\
             \tcvt.u16.u32 \t%rs{to}, %r{to};\n\tand.b32 \t%r30, %r{to}, 1;\n\
             \tsetp.eq.s32 \t%p{to}, %r30, 1;\n",
            24 + at
        );
    }
    let _ = writeln!(body, "\t{instruction}");
    body += if instruction.contains("%p20") {
        "\tselp.b64 \t%rd20, 1, 0, %p20;\n"
    } else if instruction.contains("%rs20") {
        "\tld.global.u32 \t%r31, [%rd0+48];\n\tmov.u32 \t%r32, 1;\n\tshl.b32 \t%r33, %r32, %r31;\n\
         \tcvt.u16.u32 \t%rs21, %r33;\n\tand.b16 \t%rs22, %rs20, %rs21;\n\
         \tsetp.ne.s16 \t%p20, %rs22, 0;\n\tselp.b32 \t%r20, %r33, 0, %p20;\n\
         \tcvt.u64.u32 \t%rd20, %r20;\n"
    } else if instruction.contains("%r20") {
        "\tcvt.u64.u32 \t%rd20, %r20;\n"
    } else {
        ""
    };
    body += "\tld.global.u32 \t%r31, [%rd0+48];\n\tshr.u64 \t%rd21, %rd20, %r31;\n\
        \tand.b64 \t%rd21, %rd21, 1;\n\tmul.wide.u32 \t%rd22, %r0, 8;\n\tadd.s64 \t%rd23, %rd2, %rd22;\n\
        \tst.global.u64 \t[%rd23], %rd21;";
    module(32, 3, "", &body)
}

/// Operands: values, and masks of their undefined bits.
struct Case {
    values: [u64; 3],
    masks: [u64; 3],
}

/// Bit `probe` of what the instruction makes of `case`, if the undefined bits are those of `noise`.
fn bit(
    kernel: &Module,
    case: &Case,
    mut noise: [u64; 3],
    probe: u64,
    checks: bool,
) -> Result<bool, String> {
    let [a, b, c] = case.values;
    let [x, y, z] = case.masks;
    let mut known = [a, b, c, x, y, z, probe];
    let mut out = [0_u64; 32];
    let mut buffers = Vec::new();
    for (number, (words, access)) in (0..).zip([
        (&mut known[..], Access::Read),
        (&mut noise[..], Access::Write),
        (&mut out[..], Access::Write),
    ]) {
        buffers.push(Buffer {
            address: FIRST + number * APART,
            len: size_of_val(words),
            host: words.as_mut_ptr().cast(),
            access,
        });
    }
    let addresses: Vec<_> = buffers.iter().map(|b| b.address.to_ne_bytes()).collect();
    let arguments: Vec<_> = addresses.iter().map(|bytes| Argument(bytes)).collect();
    let options = Options { checks, ..strict() };
    let kernel = kernel.kernel("test").unwrap();
    // SAFETY: each buffer is an array of this function.
    unsafe { launch(kernel, 1, 32, &arguments, &buffers, options) }?;
    Ok(out[0] == 1)
}

fn any_case(chance: &mut Chance) -> Case {
    let values = std::array::from_fn(|_| match chance.next() % 3 {
        0 => chance.next() % 70 + 1,
        _ => chance.next(),
    });
    let masks = std::array::from_fn(|_| match chance.next() % 4 {
        0 => 0,
        1 => 1 << (chance.next() % 64),
        2 => 1 << (chance.next() % 8),
        _ => chance.next() & chance.next() & chance.next(),
    });
    Case { values, masks }
}

fn check(instruction: &str, is_exact: bool) {
    let kernel = Module::parse(&text(instruction)).unwrap();
    let mut chance = Chance(1);
    let bits = match instruction {
        _ if instruction.contains("%rd20") => 64,
        _ if instruction.contains("%p20") => 1,
        _ => 32,
    };
    for _ in 0..12 {
        let case = any_case(&mut chance);
        let divides = instruction.starts_with("div") || instruction.starts_with("rem");
        if divides && case.values[1].trailing_zeros() >= 32 {
            continue;
        }
        let mut undefined = 0_u64;
        for probe in 0..bits {
            match bit(&kernel, &case, [0; 3], probe, true) {
                Ok(_) => {}
                Err(error) if error.contains("is undefined") => undefined |= 1 << probe,
                Err(error) => panic!("{instruction} {error}"),
            }
        }
        let result = |noise| {
            (0..bits)
                .filter(|probe| bit(&kernel, &case, noise, *probe, false).unwrap())
                .fold(0_u64, |all, probe| all | 1 << probe)
        };
        let first = result([0; 3]);
        let mut changed = 0;
        for turn in 0..24 {
            // All of the bits of some operands; or some bits.
            let noise = std::array::from_fn(|operand| match turn {
                0..8 if turn >> operand & 1 == 1 => u64::MAX,
                0..8 => 0,
                _ => chance.next(),
            });
            changed |= first ^ result(noise);
        }
        let Case { values, masks } = &case;
        let context = format!("{instruction} of {values:x?} with {masks:x?} undefined");
        assert_eq!(
            changed & !undefined,
            0,
            "{context}: {changed:x} changes, {undefined:x} are undefined"
        );
        if is_exact {
            assert_eq!(undefined, changed, "{context}");
        }
    }
}

#[test]
fn what_may_change_is_undefined() {
    for instruction in COMPUTE {
        check(instruction, false);
    }
}

#[test]
fn what_stays_is_defined() {
    for instruction in MOVE {
        check(instruction, true);
    }
}
