//! Programs of chance, with branches: each lane against a second evaluation, one thread and one
//! instruction after the other, with arithmetic of its own.

#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "halves of registers are meant; tests"
)]

mod common;

use std::fmt::Write as _;

use common::{Chance, Memory, module, run, strict};
use zarrs_cuda_emulator::{Access, Options, Order};

/// Registers of each kind: `%r8` to `%r15`, `%rd8` to `%rd15`, `%p8` to `%p15`.
const COUNT: usize = 8;
const FIRST: usize = 8;

/// The registers of one thread.
#[derive(Clone, Default)]
struct Thread {
    narrow: [u32; COUNT],
    wide: [u64; COUNT],
    predicates: [bool; COUNT],
}

/// A statement: its text, and what it does to a thread. Operands are numbers of registers.
struct Statement {
    text: String,
    effect: Box<dyn Fn(&mut Thread)>,
    /// Statements that are skipped where this predicate has this value.
    skips: Option<(usize, bool, usize)>,
}

/// A number that is often at an edge.
fn value(chance: &mut Chance) -> u64 {
    match chance.below(4) {
        0 => chance.next() % 70,
        1 => u64::MAX - chance.next() % 3,
        2 => 1 << chance.below(64),
        _ => chance.next(),
    }
}

fn narrow(text: &str, d: usize, effect: impl Fn(&Thread) -> u64 + 'static) -> Statement {
    Statement {
        text: text.to_string(),
        effect: Box::new(move |thread| thread.narrow[d] = effect(thread) as u32),
        skips: None,
    }
}

fn wide(text: &str, d: usize, effect: impl Fn(&Thread) -> u64 + 'static) -> Statement {
    Statement {
        text: text.to_string(),
        effect: Box::new(move |thread| thread.wide[d] = effect(thread)),
        skips: None,
    }
}

fn predicate(text: &str, d: usize, effect: impl Fn(&Thread) -> bool + 'static) -> Statement {
    Statement {
        text: text.to_string(),
        effect: Box::new(move |thread| thread.predicates[d] = effect(thread)),
        skips: None,
    }
}

/// A statement of chance.
#[allow(clippy::too_many_lines, reason = "a table")]
fn statement(chance: &mut Chance) -> Statement {
    let [d, a, b, c] = std::array::from_fn(|_| chance.below(COUNT));
    let [rd, ra, rb, rc] = [d, a, b, c].map(|register| register + FIRST);
    let number = chance.below(70) as u64;
    let long = |value: u32| u128::from(value);
    match chance.below(26) {
        0 => narrow(&format!("add.s32 %r{rd}, %r{ra}, %r{rb};"), d, move |t| {
            u64::from(t.narrow[a]) + u64::from(t.narrow[b])
        }),
        1 => narrow(&format!("sub.s32 %r{rd}, %r{ra}, {number};"), d, move |t| {
            u64::from(t.narrow[a]).wrapping_sub(number)
        }),
        2 => narrow(
            &format!("mad.lo.s32 %r{rd}, %r{ra}, %r{rb}, %r{rc};"),
            d,
            move |t| (long(t.narrow[a]) * long(t.narrow[b]) + long(t.narrow[c])) as u64,
        ),
        3 => narrow(
            &format!("mul.hi.u32 %r{rd}, %r{ra}, %r{rb};"),
            d,
            move |t| ((long(t.narrow[a]) * long(t.narrow[b])) / (1 << 32)) as u64,
        ),
        4 => wide(
            &format!("mul.wide.u32 %rd{rd}, %r{ra}, %r{rb};"),
            d,
            move |t| (long(t.narrow[a]) * long(t.narrow[b])) as u64,
        ),
        5 => narrow(&format!("shl.b32 %r{rd}, %r{ra}, {number};"), d, move |t| {
            (0..number.min(32))
                .fold(t.narrow[a], |value, _| value.wrapping_add(value))
                .into()
        }),
        6 => narrow(&format!("shr.u32 %r{rd}, %r{ra}, %r{rb};"), d, move |t| {
            (0..t.narrow[b].min(32))
                .fold(t.narrow[a], |value, _| value / 2)
                .into()
        }),
        7 => wide(
            &format!("shl.b64 %rd{rd}, %rd{ra}, {number};"),
            d,
            move |t| (0..number.min(64)).fold(t.wide[a], |value, _| value.wrapping_add(value)),
        ),
        8 => wide(&format!("shr.u64 %rd{rd}, %rd{ra}, %r{rb};"), d, move |t| {
            (0..t.narrow[b].min(64)).fold(t.wide[a], |value, _| value / 2)
        }),
        9 => wide(
            &format!("add.s64 %rd{rd}, %rd{ra}, %rd{rb};"),
            d,
            move |t| (u128::from(t.wide[a]) + u128::from(t.wide[b])) as u64,
        ),
        10 => wide(
            &format!("sub.s64 %rd{rd}, %rd{ra}, %rd{rb};"),
            d,
            move |t| t.wide[a].wrapping_add(!t.wide[b]).wrapping_add(1),
        ),
        11 => wide(
            &format!("mul.lo.s64 %rd{rd}, %rd{ra}, %rd{rb};"),
            d,
            move |t| {
                (0..64)
                    .filter(|bit| t.wide[b] >> bit & 1 == 1)
                    .fold(0_u64, |sum, bit| sum.wrapping_add(t.wide[a] << bit))
            },
        ),
        12 => wide(
            &format!("xor.b64 %rd{rd}, %rd{ra}, %rd{rb};"),
            d,
            move |t| (t.wide[a] | t.wide[b]) & !(t.wide[a] & t.wide[b]),
        ),
        13 => narrow(&format!("and.b32 %r{rd}, %r{ra}, %r{rb};"), d, move |t| {
            u64::from(!(!t.narrow[a] | !t.narrow[b]))
        }),
        14 => narrow(&format!("or.b32 %r{rd}, %r{ra}, %r{rb};"), d, move |t| {
            u64::from(!(!t.narrow[a] & !t.narrow[b]))
        }),
        15 => wide(
            &format!("mov.b64 %rd{rd}, {{%r{ra}, %r{rb}}};"),
            d,
            move |t| u64::from(t.narrow[b]) * (1 << 32) + u64::from(t.narrow[a]),
        ),
        16 => narrow(&format!("cvt.u32.u64 %r{rd}, %rd{ra};"), d, move |t| {
            t.wide[a] % (1 << 32)
        }),
        17 => narrow(&format!("popc.b32 %r{rd}, %r{ra};"), d, move |t| {
            format!("{:b}", t.narrow[a]).matches('1').count() as u64
        }),
        18 => narrow(
            &format!("selp.b32 %r{rd}, %r{ra}, %r{rb}, %p{rc};"),
            d,
            move |t| u64::from(t.narrow[if t.predicates[c] { a } else { b }]),
        ),
        19 => wide(
            &format!("selp.b64 %rd{rd}, %rd{ra}, %rd{rb}, %p{rc};"),
            d,
            move |t| t.wide[if t.predicates[c] { a } else { b }],
        ),
        20 => predicate(
            &format!("setp.lt.u32 %p{rd}, %r{ra}, %r{rb};"),
            d,
            move |t| {
                t.narrow[b]
                    .checked_sub(t.narrow[a])
                    .is_some_and(|more| more > 0)
            },
        ),
        21 => predicate(
            &format!("setp.gt.s32 %p{rd}, %r{ra}, %r{rb};"),
            d,
            move |t| {
                i64::from(t.narrow[a].cast_signed()) - i64::from(t.narrow[b].cast_signed()) > 0
            },
        ),
        22 => predicate(
            &format!("setp.ge.u64 %p{rd}, %rd{ra}, %rd{rb};"),
            d,
            move |t| t.wide[a].checked_sub(t.wide[b]).is_some(),
        ),
        23 => predicate(&format!("and.pred %p{rd}, %p{ra}, %p{rb};"), d, move |t| {
            t.predicates[a] && t.predicates[b]
        }),
        24 => narrow(
            &format!("shf.r.wrap.b32 %r{rd}, %r{ra}, %r{rb}, {number};"),
            d,
            move |t| {
                let both = u64::from(t.narrow[b]) * (1 << 32) + u64::from(t.narrow[a]);
                both / (1 << (number % 32))
            },
        ),
        _ => {
            let value = chance.below(2) == 0;
            let not = if value { "" } else { "!" };
            Statement {
                text: format!("@{not}%p{ra} bra "),
                effect: Box::new(|_| {}),
                skips: Some((a, value, 1 + chance.below(6))),
            }
        }
    }
}

/// Returns the state of a thread after the statements.
fn evaluate(statements: &[Statement], mut thread: Thread) -> Thread {
    let mut at = 0;
    while let Some(statement) = statements.get(at) {
        (statement.effect)(&mut thread);
        at += 1;
        if let Some((predicate, value, skipped)) = statement.skips
            && thread.predicates[predicate] == value
        {
            at += skipped;
        }
    }
    thread
}

/// The kernel of some statements. Each thread has 16 numbers of 64 bits: 8 for the narrow registers,
/// whose lowest bits are the predicates, and 8 for the wide ones.
fn text(statements: &[Statement]) -> String {
    let mut body = String::from(
        "\tmul.wide.u32 \t%rd20, %r0, 128;\n\tadd.s64 \t%rd21, %rd0, %rd20;\n\tadd.s64 \t%rd22, %rd1, %rd20;\n",
    );
    for register in 0..COUNT {
        let (r, from) = (register + FIRST, 8 * register);
        let _ = write!(
            body,
            "\tld.global.u32 \t%r{r}, [%rd21+{from}];\n\tld.global.u64 \t%rd{r}, [%rd21+{}];\n\
             \tand.b32 \t%r30, %r{r}, 1;\n\tsetp.eq.s32 \t%p{r}, %r30, 1;\n",
            from + 64
        );
    }
    for (number, statement) in statements.iter().enumerate() {
        let target = statement
            .skips
            .map_or(0, |(_, _, skipped)| number + 1 + skipped);
        let label = match statement.skips {
            Some(_) => format!("$L_{};", target.min(statements.len())),
            None => String::new(),
        };
        let _ = writeln!(body, "$L_{number}:\n\t{}{label}", statement.text);
    }
    let _ = writeln!(body, "$L_{}:", statements.len());
    for register in 0..COUNT {
        let (r, to) = (register + FIRST, 8 * register);
        let _ = write!(
            body,
            "\tselp.u32 \t%r30, 1, 0, %p{r};\n\tmov.b64 \t%rd30, {{%r{r}, %r30}};\n\
             \tst.global.u64 \t[%rd22+{to}], %rd30;\n\tst.global.u64 \t[%rd22+{}], %rd{r};\n",
            to + 64
        );
    }
    module(64, 2, "", &body)
}

#[test]
fn programs_of_chance() {
    for seed in 0..200 {
        let mut chance = Chance(seed);
        let statements: Vec<_> = (0..60).map(|_| statement(&mut chance)).collect();
        let text = text(&statements);
        let numbers: Vec<u64> = (0..64 * 16).map(|_| value(&mut chance)).collect();
        let mut input: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        let mut expected = Vec::new();
        for numbers in numbers.chunks(16) {
            let thread = Thread {
                narrow: std::array::from_fn(|register| numbers[register] as u32),
                wide: std::array::from_fn(|register| numbers[COUNT + register]),
                predicates: std::array::from_fn(|register| numbers[register] % 2 == 1),
            };
            let thread = evaluate(&statements, thread);
            for (narrow, predicate) in std::iter::zip(thread.narrow, thread.predicates) {
                expected.push(u64::from(narrow) + if predicate { 1 << 32 } else { 0 });
            }
            expected.extend(thread.wide);
        }
        for order in [Order::Together, Order::Apart, Order::Random(seed)] {
            let mut output = vec![0; 64 * 128];
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
            let options = Options { order, ..strict() };
            run(&text, 1, &mut memory, options).unwrap_or_else(|e| panic!("{e}\n{text}"));
            let got: Vec<u64> = output
                .chunks(8)
                .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
                .collect();
            assert!(got == expected, "seed {seed}, {order:?}\n{text}");
        }
    }
}
