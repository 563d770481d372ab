//! Kernels for tests, of a few lines, and launches of them.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "shared by tests that do not use all of it"
)]

use zarrs_cuda_emulator::{Access, Argument, Buffer, Module, Options, Report, launch};

/// The address by which kernels know the first buffer of a test. The host has nothing there.
pub const FIRST: u64 = 0x1000_0000_0000;
/// From one buffer to the next.
pub const APART: u64 = 1 << 32;

/// A module with the kernel `test`, of blocks of `threads` threads, whose parameters are `pointers`
/// pointers. Its body has the address of buffer n in `%rdn`, and the thread's number in `%r0`. It may use
/// up to 64 registers of each kind, and the variables of `shared`.
pub fn module(threads: u32, pointers: usize, shared: &str, body: &str) -> String {
    let parameters: Vec<String> = (0..pointers)
        .map(|number| format!("\t.param .u64 test_param_{number}"))
        .collect();
    let loads: Vec<String> = (0..pointers)
        .map(|number| format!("\tld.param.u64 \t%rd{number}, [test_param_{number}];\n"))
        .collect();
    let loads = loads.concat();
    format!(
        ".version 8.0\n.target sm_70\n.address_size 64\n\n.visible .entry test(\n{}\n)\n\
         .maxntid {threads}, 1, 1\n{{\n\t.reg .pred \t%p<64>;\n\t.reg .b16 \t%rs<64>;\n\
         \t.reg .b32 \t%r<64>;\n\t.reg .b64 \t%rd<64>;\n\t.reg .f32 \t%f<64>;\n\t.reg .f64 \t%fd<64>;\n{shared}\n{loads}\tmov.u32 \t%r0, %tid.x;\n\
         {body}\n\tret;\n}}\n",
        parameters.join(",\n")
    )
}

/// A buffer, and how a launch may use it.
pub struct Memory<'a> {
    pub bytes: &'a mut [u8],
    pub access: Access,
}

/// Run the kernel `test` of `text`, with the buffers as its arguments.
pub fn run(
    text: &str,
    grid: u32,
    memory: &mut [Memory<'_>],
    options: Options,
) -> Result<Report, String> {
    let module = Module::parse(text)?;
    let kernel = module.kernel("test").expect("the kernel");
    let mut buffers = Vec::new();
    for (number, memory) in (0..).zip(memory) {
        buffers.push(Buffer {
            address: FIRST + number * APART,
            len: memory.bytes.len(),
            host: memory.bytes.as_mut_ptr(),
            access: memory.access,
        });
    }
    let addresses: Vec<_> = buffers.iter().map(|b| b.address.to_ne_bytes()).collect();
    let arguments: Vec<_> = addresses.iter().map(|bytes| Argument(bytes)).collect();
    // SAFETY: each buffer is a slice that is borrowed for the call.
    unsafe {
        launch(
            kernel,
            grid,
            kernel.threads(),
            &arguments,
            &buffers,
            options,
        )
    }
}

/// Numbers of chance: `SplitMix64`, by Sebastiano Vigna.
pub struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).expect("below `end`")
    }
}

/// All checks.
pub fn strict() -> Options {
    Options {
        checks: true,
        limit: 100_000,
        ..Options::default()
    }
}
