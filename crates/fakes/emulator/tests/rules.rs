//! Tests of the rules for kernels: each order of lanes finds a broken rule.

#![allow(clippy::unwrap_used)]

mod common;

use common::{FIRST, Memory, module, run, strict};
use zarrs_cuda_emulator::{Access, AccessCount, Options, Order};

fn orders() -> impl Iterator<Item = Order> {
    [Order::Together, Order::Apart]
        .into_iter()
        .chain((0..20).map(Order::Random))
}

/// Run a kernel on 64 words, which it updates, in each order.
fn all(threads: u32, shared: &str, body: &str) -> Vec<Result<Vec<u8>, String>> {
    let text = module(threads, 1, shared, body);
    let run_in = |order| {
        let mut words: Vec<u8> = (0..64_u32).flat_map(u32::to_le_bytes).collect();
        let mut memory = [Memory {
            bytes: &mut words,
            access: Access::Update,
        }];
        let options = Options { order, ..strict() };
        run(&text, 1, &mut memory, options).map(|_| words)
    };
    orders().map(run_in).collect()
}

/// The kernel is wrong in each order, for one of these reasons.
fn refused_for(threads: u32, shared: &str, body: &str, reasons: &[&str]) {
    for outcome in all(threads, shared, body) {
        let error = outcome.unwrap_err();
        assert!(
            reasons.iter().any(|reason| error.contains(reason)),
            "{error}"
        );
    }
}

fn refused(threads: u32, shared: &str, body: &str, reason: &str) {
    refused_for(threads, shared, body, &[reason]);
}

const ADDRESS: &str = "\tmul.wide.u32 \t%rd10, %r0, 4;\n\tadd.s64 \t%rd11, %rd0, %rd10;\n";

#[test]
fn outside_of_buffers() {
    for (statement, reason) in [
        (
            "ld.global.u32 %r1, [%rd0+256];",
            "reads 4 bytes at 0x100000000100, which no buffer allows",
        ),
        (
            "ld.global.u32 %r1, [%rd0+-4];",
            "reads 4 bytes at 0xffffffffffc, which no buffer allows",
        ),
        (
            "st.global.u32 [%rd0+256], %r0;",
            "writes 4 bytes at 0x100000000100",
        ),
        (
            "ld.global.u64 %rd1, [%rd0+252];",
            "which is not aligned to 8",
        ),
        (
            "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd0+8];",
            "which is not aligned to 16",
        ),
        (
            "atom.global.or.b32 %r1, [%rd0+2], 1;",
            "which is not aligned to 4",
        ),
    ] {
        refused(32, "", &format!("\t{statement}"), reason);
    }
    let text = module(32, 1, "", "\tst.global.u8 \t[%rd0], 1;");
    let mut bytes = [7];
    let mut memory = [Memory {
        bytes: &mut bytes,
        access: Access::Read,
    }];
    let error = run(&text, 1, &mut memory, Options::default()).unwrap_err();
    assert!(
        error.contains("writes 1 bytes at 0x100000000000"),
        "{error}"
    );
    let line = text.lines().position(|line| line.contains("st.global.u8"));
    let line = line.unwrap() + 1;
    assert!(
        error.contains(&format!("line {line} (`st.global.u8 [%rd0], 1`)")),
        "{error}"
    );
    assert_eq!(FIRST, 0x1000_0000_0000);
    assert_eq!(bytes, [7]);
}

/// A variable has the alignment that the text promises, and no more.
#[test]
fn aligned_by_chance() {
    let shared = ".shared .align 4 .b8 words[256];";
    let body = "\tmov.u64 \t%rd10, words;\n\tst.shared.u64 \t[%rd10], %rd0;";
    refused(32, shared, body, "which is not aligned to 8");
    for outcome in all(
        32,
        &shared.replace("align 4", "align 8"),
        &format!("{body}\n\tbar.sync \t0;"),
    ) {
        let error = outcome.unwrap_err();
        assert!(error.contains("another thread's write"), "{error}");
    }
}

/// Beyond a variable is not another one.
#[test]
fn outside_of_shared_memory() {
    let shared = ".shared .align 4 .b8 one[128];\n.shared .align 4 .b8 two[128];";
    let body = |offset: i64| {
        format!(
            "\tmov.u64 \t%rd10, one;\n\tmov.u32 \t%r1, 1;\n\tst.shared.u32 \t[%rd10+{offset}], %r1;"
        )
    };
    for offset in [-4, 128] {
        refused(
            32,
            shared,
            &body(offset),
            "are in no variable of shared memory",
        );
    }
    let text = "\tmov.u64 \t%rd10, test_param_0;\n\tld.param.u32 \t%r1, [%rd10+8];";
    refused(
        32,
        "",
        text,
        "are in no variable of constants or parameters",
    );
}

#[test]
fn undefined_values() {
    let pointer = "\tadd.s64 \t%rd11, %rd0, %rd50;\n\tld.global.u32 \t%r1, [%rd11];";
    refused(32, "", pointer, "the address is undefined");
    let branch = "\tsetp.eq.s32 \t%p1, %r50, 0;\n\t@%p1 bra \t$L_end;\n$L_end:";
    refused(32, "", branch, "its predicate is undefined");
    let store = format!("{ADDRESS}\tst.global.u32 \t[%rd11], %r50;");
    refused(32, "", &store, "stores a value that is undefined");
    let shared = ".shared .align 4 .b8 words[128];";
    let unwritten = format!(
        "{ADDRESS}\tmov.u64 \t%rd12, words;\n\tld.shared.u32 \t%r1, [%rd12];\n\tst.global.u32 \t[%rd11], %r1;"
    );
    refused(32, shared, &unwritten, "stores a value that is undefined");
    // One lane defines it, and all use it.
    let lanes = format!(
        "{ADDRESS}\tsetp.eq.s32 \t%p1, %r0, 3;\n\t@!%p1 bra \t$L_end;\n\tmov.u32 \t%r1, 1;\n$L_end:\n\
         \tst.global.u32 \t[%rd11], %r1;"
    );
    refused(32, "", &lanes, "stores a value that is undefined");

    // The sign of an undefined byte, in each byte.
    let sign =
        format!("{ADDRESS}\tprmt.b32 \t%r1, %r50, %r0, 34952;\n\tst.global.u32 \t[%rd11], %r1;");
    refused(32, "", &sign, "stores a value that is undefined");
    for division in [
        "div.u32 \t%r1, %r0, 0;\n\tst.global.u32 \t[%rd11], %r1;",
        "rem.u32 \t%r1, %r0, 0;\n\tst.global.u32 \t[%rd11], %r1;",
        "div.u64 \t%rd1, %rd10, 0;\n\tst.global.u64 \t[%rd0], %rd1;",
    ] {
        let body = format!("{ADDRESS}\t{division}");
        refused(32, "", &body, "stores a value that is undefined");
    }
    let lanes = "\tmov.pred \t%p1, -1;\n\tvote.sync.ballot.b32 \t%r1, %p1, %r50;";
    refused(32, "", lanes, "the lanes it waits for are undefined");

    // Bits that are undefined may be cut off.
    let cut = format!("{ADDRESS}\tand.b32 \t%r1, %r50, 0;\n\tst.global.u32 \t[%rd11], %r1;");
    let byte = format!(
        "{ADDRESS}\tshl.b32 \t%r1, %r0, 24;\n\tprmt.b32 \t%r2, %r1, %r50, 13107;\n\
         \tst.global.u32 \t[%rd11], %r2;"
    );
    let half = "\tshl.b16 \t%rs1, %rs50, 16;\n\tsetp.eq.s16 \t%p1, %rs1, 0;\n\t@%p1 bra \t$L_end;\n\
        $L_end:";
    for body in [cut, byte, half.to_string()] {
        for outcome in all(32, "", &body) {
            outcome.unwrap();
        }
    }
}

/// A buffer that is only written holds nothing.
#[test]
fn outputs_are_undefined_until_they_are_written() {
    let body = "\tld.global.u32 \t%r1, [%rd0];\n\tst.global.u32 \t[%rd0+4], %r1;";
    let text = module(32, 1, "", body);
    for (access, is_right) in [(Access::Write, false), (Access::Update, true)] {
        let mut words = [0; 8];
        let mut memory = [Memory {
            bytes: &mut words,
            access,
        }];
        let only = "\tsetp.ne.s32 \t%p1, %r0, 0;\n\t@%p1 bra \t$L_end;\n";
        let text = text.replace("\tld.global", &format!("{only}\tld.global"));
        let text = text.replace("\tret;", "$L_end:\n\tret;");
        let outcome = run(&text, 1, &mut memory, strict());
        assert_eq!(outcome.is_ok(), is_right, "{outcome:?}");
    }
}

/// The words of a block, reversed through shared memory.
fn reverse(between: &str, other: &str) -> String {
    format!(
        "{ADDRESS}\tmov.u64 \t%rd12, words;\n\tadd.s64 \t%rd13, %rd12, %rd10;\n\
         \tld.global.u32 \t%r1, [%rd11];\n\tst.shared.u32 \t[%rd13], %r1;\n{between}\
         \txor.b32 \t%r2, %r0, {other};\n\tmul.wide.u32 \t%rd14, %r2, 4;\n\tadd.s64 \t%rd15, %rd12, %rd14;\n\
         \tld.shared.u32 \t%r3, [%rd15];\n\tst.global.u32 \t[%rd11], %r3;"
    )
}

#[test]
fn missing_barriers() {
    let shared = ".shared .align 4 .b8 words[256];";
    // Who reads first finds nothing there.
    let reasons = [
        "no barrier is between that and",
        "stores a value that is undefined",
    ];
    let shuffle = "\tmov.u32 \t%r9, -1;\n\tshfl.sync.idx.b32 \t%r8|%p8, %r0, 0, 31, %r9;\n";
    refused_for(64, shared, &reverse("", "63"), &reasons);
    refused_for(
        64,
        shared,
        &reverse("\tbar.warp.sync \t-1;\n", "63"),
        &reasons,
    );
    refused_for(64, shared, &reverse("", "31"), &reasons);
    // A shuffle orders no memory.
    refused_for(64, shared, &reverse(shuffle, "31"), &reasons);
    for (barrier, other) in [
        ("bar.sync \t0", "63"),
        ("bar.sync \t0", "31"),
        ("bar.warp.sync \t-1", "31"),
    ] {
        for words in all(64, shared, &reverse(&format!("\t{barrier};\n"), other)) {
            let words = words.unwrap();
            let other: u32 = other.parse().unwrap();
            for (thread, word) in (0_u32..).zip(words.chunks(4)) {
                assert_eq!(word, (thread ^ other).to_le_bytes());
            }
        }
    }
}

/// Blocks are not ordered; atomics and volatile loads may meet.
#[test]
fn blocks_that_meet() {
    let run_blocks = |body: &str, order| {
        let text = module(32, 1, "", &format!("\tmov.u32 \t%r7, %ctaid.x;\n{body}"));
        let mut words = vec![0; 256];
        let mut memory = [Memory {
            bytes: &mut words,
            access: Access::Update,
        }];
        let options = Options { order, ..strict() };
        run(&text, 2, &mut memory, options).map(|_| words)
    };
    let address =
        |of: &str| format!("\tmul.wide.u32 \t%rd10, {of}, 4;\n\tadd.s64 \t%rd11, %rd0, %rd10;\n");
    for order in orders() {
        let same = format!("{}\tst.global.u32 \t[%rd11], %r0;", address("%r0"));
        let error = run_blocks(&same, order).unwrap_err();
        assert!(error.contains("another thread's write"), "{error}");
        let apart = format!(
            "\tmad.lo.s32 \t%r6, %r7, 32, %r0;\n{}\tst.global.u32 \t[%rd11], %r6;",
            address("%r6")
        );
        run_blocks(&apart, order).unwrap();
        // A block reads what the other one writes; in some order it comes first.
        let read = format!(
            "\tmad.lo.s32 \t%r6, %r7, 32, %r0;\n\txor.b32 \t%r5, %r6, 32;\n{}\tld.global.u32 \t%r4, [%rd11];\n{}\tst.global.u32 \t[%rd11], %r6;",
            address("%r5"),
            address("%r6")
        );
        let error = run_blocks(&read, order).unwrap_err();
        assert!(error.contains("another thread"), "{error}");
        run_blocks(
            "\tld.volatile.global.u32 \t%r1, [%rd0];\n\tatom.global.or.b32 \t%r2, [%rd0], 1;\n\
             \tst.volatile.global.u32 \t[%rd0], 1;",
            order,
        )
        .unwrap();
        // Every other block has to be ordered, not only the last one.
        for (first, second) in [
            (
                "atom.global.or.b32 \t%r2, [%rd0], 1",
                "ld.global.u32 \t%r3, [%rd0]",
            ),
            (
                "st.volatile.global.u32 \t[%rd0], 1",
                "ld.global.u32 \t%r3, [%rd0]",
            ),
            (
                "ld.volatile.global.u32 \t%r2, [%rd0]",
                "st.global.u32 \t[%rd0], %r0",
            ),
        ] {
            let both = format!(
                "\tsetp.eq.s32 \t%p1, %r0, 0;\n\t@!%p1 bra \t$L_end;\n\t{first};\n\
                 \tsetp.eq.s32 \t%p2, %r7, 0;\n\t@%p2 bra \t$L_end;\n\t{second};\n$L_end:"
            );
            let error = run_blocks(&both, order).unwrap_err();
            assert!(error.contains("another thread"), "{error}");
        }
        let mixed = "\tatom.global.or.b32 \t%r2, [%rd0], 1;\n\tld.global.u32 \t%r1, [%rd0];";
        run_blocks(mixed, order).unwrap_err();
    }
}

#[test]
fn missing_lanes() {
    // Lane 40 ends before the others vote.
    let ended = "\tsetp.eq.s32 \t%p1, %r0, 40;\n\t@%p1 bra \t$L_end;\n\tmov.pred \t%p2, -1;\n\
        \tmov.u32 \t%r2, -1;\n\tvote.sync.ballot.b32 \t%r3, %p2, %r2;\n$L_end:";
    for outcome in all(64, "", ended) {
        let error = outcome.unwrap_err();
        assert!(error.contains("kernel test, block 0, line"), "{error}");
        assert!(error.contains("vote.sync.ballot.b32"), "{error}");
    }
    // Half of a warp waits for the warp, the other half for the block.
    let apart = "\tsetp.lt.u32 \t%p1, %r0, 16;\n\t@%p1 bra \t$L_warp;\n\tbar.sync \t0;\n\tbra.uni \t$L_end;\n\
        $L_warp:\n\tbar.warp.sync \t-1;\n$L_end:";
    refused(64, "", apart, "lanes are missing: ");
    // A warp that ends does not come to the barrier.
    let warp = "\tsetp.lt.u32 \t%p1, %r0, 32;\n\t@%p1 bra \t$L_end;\n\tbar.sync \t0;\n$L_end:";
    refused(64, "", warp, "lanes 0-31 of warp 0 ended");
    let endless = "$L_again:\n\tbra.uni \t$L_again;";
    refused(32, "", endless, "it did not end in 100000 instructions");
}

/// Instructions wait for the lanes of their mask.
#[test]
fn member_masks() {
    let vote = |mask: &str| {
        format!(
            "{ADDRESS}\tmov.pred \t%p2, -1;\n{mask}\tvote.sync.ballot.b32 \t%r3, %p2, %r2;\n\tst.global.u32 \t[%rd11], %r3;"
        )
    };
    // Each half votes alone.
    let half = "\tsetp.lt.u32 \t%p1, %r0, 16;\n\tselp.b32 \t%r2, 65535, -65536, %p1;\n";
    for words in all(32, "", &vote(half)) {
        for (lane, word) in words.unwrap().chunks(4).take(32).enumerate() {
            let expected: u32 = if lane < 16 { 0xffff } else { 0xffff_0000 };
            assert_eq!(word, expected.to_le_bytes());
        }
    }
    // Each lane waits for itself and those above it.
    refused_for(
        32,
        "",
        &vote("\tshl.b32 \t%r2, -1, %r0;\n"),
        &["wait for lanes", "lanes are missing"],
    );
    refused(
        32,
        "",
        "\tmov.u32 \t%r1, 65535;\n\tsetp.lt.u32 \t%p1, %r0, 16;\n\t@!%p1 bra \t$L_end;\n\
         \tbar.warp.sync \t%r1;\n$L_end:",
        "a barrier of lanes 0-15 alone is not emulated",
    );
    // The two halves of the block are at different barriers.
    let apart = "\tsetp.lt.u32 \t%p1, %r0, 32;\n\t@%p1 bra \t$L_other;\n\tbar.sync \t0;\n\tbra.uni \t$L_end;\n\
        $L_other:\n\tbar.sync \t0;\n$L_end:";
    refused(64, "", apart, "lanes are missing: ");
    // Lanes whose predicate is not set do not wait.
    let skipped = format!(
        "{ADDRESS}\tmov.pred \t%p3, 0;\n\tmov.pred \t%p2, -1;\n\t@%p3 bar.sync \t0;\n\
         \tsetp.lt.u32 \t%p1, %r0, 16;\n\tmov.u32 \t%r3, 7;\n\
         \t@%p1 vote.sync.ballot.b32 \t%r3, %p2, 65535;\n\tst.global.u32 \t[%rd11], %r3;"
    );
    for words in all(32, "", &skipped) {
        for (lane, word) in words.unwrap().chunks(4).take(32).enumerate() {
            let expected: u32 = if lane < 16 { 0xffff } else { 7 };
            assert_eq!(word, expected.to_le_bytes());
        }
    }
}

/// Lanes that went different ways meet at an instruction that waits.
#[test]
fn lanes_meet_again() {
    let body = format!(
        "{ADDRESS}\tmov.u32 \t%r1, 0;\n$L_again:\n\tadd.s32 \t%r1, %r1, 1;\n\tsetp.lt.u32 \t%p1, %r1, %r0;\n\
         \t@%p1 bra \t$L_again;\n\tmov.u32 \t%r2, -1;\n\
         \tshfl.sync.idx.b32 \t%r3|%p2, %r1, 31, 31, %r2;\n\tst.global.u32 \t[%rd11], %r3;"
    );
    for words in all(64, "", &body) {
        for (thread, word) in (0_u32..).zip(words.unwrap().chunks(4)) {
            assert_eq!(word, (thread / 32 * 32 + 31).to_le_bytes());
        }
    }
}

/// The sectors of loads that are `stride` words apart, from word `offset` on.
fn sectors(offset: u32, stride: u32) -> (u64, u64, u64) {
    #[repr(align(32))]
    struct Aligned([u8; 4096]);
    let body = format!(
        "\tmad.lo.s32 \t%r1, %r0, {stride}, {offset};\n\tmul.wide.u32 \t%rd10, %r1, 4;\n\
         \tadd.s64 \t%rd11, %rd0, %rd10;\n\tld.global.u32 \t%r2, [%rd11];"
    );
    let mut words = Aligned([0; 4096]);
    let mut memory = [Memory {
        bytes: &mut words.0,
        access: Access::Read,
    }];
    let options = Options {
        sectors: true,
        ..strict()
    };
    let report = run(&module(64, 1, "", &body), 1, &mut memory, options).unwrap();
    let [
        AccessCount {
            write: false,
            accesses,
            sectors,
            ideal,
            ..
        },
    ] = report.accesses[..]
    else {
        panic!("{report:?}");
    };
    (accesses, sectors, ideal)
}

#[test]
fn sectors_of_accesses() {
    // Two warps, each 128 bytes.
    assert_eq!(sectors(0, 1), (2, 8, 8));
    // All lanes read the same word.
    assert_eq!(sectors(0, 0), (2, 2, 2));
    // Every other word; every eighth; further.
    assert_eq!(sectors(0, 2), (2, 16, 8));
    assert_eq!(sectors(0, 8), (2, 64, 8));
    assert_eq!(sectors(0, 9), (2, 64, 8));
    // Not at the beginning of a sector.
    assert_eq!(sectors(1, 1), (2, 10, 8));
}

/// Text that is no kernel of a device.
#[test]
fn kernels_that_cannot_be() {
    let empty = module(32, 0, "", "").replace("\tmov.u32 \t%r0, %tid.x;", "");
    for (text, reason) in [
        (
            empty.replace("\tret;", ""),
            "whose last instruction is no `ret`",
        ),
        (
            module(32, 1, "", "").replace("\tret;", "\t@%p1 ret;"),
            "whose last instruction is no `ret`",
        ),
        (
            module(32, 1, "", "\tbra \t$L_end;").replace("\tret;", "\tret;\n$L_end:"),
            "no instruction has the label",
        ),
        (
            module(32, 1, ".shared .align 4 .b8 words[99999999];", ""),
            "more bytes than any device has",
        ),
        (
            module(32, 1, "", "").replace("%r<64>", "%r<4000000000>"),
            "registers that are not known here",
        ),
    ] {
        let error = zarrs_cuda_emulator::Module::parse(&text).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn launches_that_cannot_be() {
    let text = module(32, 1, "", "");
    let module = zarrs_cuda_emulator::Module::parse(&text).unwrap();
    let kernel = module.kernel("test").unwrap();
    let launch = |grid, threads, arguments: &[zarrs_cuda_emulator::Argument<'_>]| {
        // SAFETY: there are no buffers.
        let done = unsafe {
            zarrs_cuda_emulator::launch(kernel, grid, threads, arguments, &[], Options::default())
        };
        done.map(|_| ())
    };
    let pointer = [0; 8];
    let one = [zarrs_cuda_emulator::Argument(&pointer)];
    assert_eq!(launch(1, 32, &one), Ok(()));
    for (grid, threads, arguments, reason) in [
        (
            1,
            64,
            &one[..],
            "kernel test takes blocks of 32 threads, not of 64",
        ),
        (
            1,
            32,
            &[],
            "kernel test takes arguments of [8] bytes, not of []",
        ),
        (0, 32, &one, "kernel test with a grid of 0 blocks"),
        (
            1 << 31,
            32,
            &one,
            "kernel test with a grid of 2147483648 blocks",
        ),
    ] {
        assert_eq!(launch(grid, threads, arguments), Err(reason.to_string()));
    }
}
