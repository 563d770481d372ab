//! Kernels, as they are executed.

use super::instruction::Instruction;
use super::text;

/// Where the addresses of a space begin. The lower half of an address is the offset in its space.
pub(crate) const SHARED: u64 = 0x0600_0000_0000_0000;
pub(crate) const CONSTANT: u64 = 0x0700_0000_0000_0000;
pub(crate) const PARAMETER: u64 = 0x0800_0000_0000_0000;

/// Bytes between two variables, so that an access beyond one of them is seen.
pub(crate) const GAP: usize = 256;

/// The kernels of a module.
#[derive(Debug)]
pub struct Module {
    pub(super) kernels: Vec<Kernel>,
}

impl Module {
    /// Parses the `text` of a module.
    ///
    /// # Errors
    /// Names the line, and says what is not understood there.
    pub fn parse(text: &str) -> Result<Self, String> {
        text::parse(text)
    }

    /// Returns the kernels, in the order of the text.
    #[must_use]
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// Returns the kernel called `name`.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }
}

/// A parameter of a kernel, or a variable.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// The value of a special register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    /// The number of the thread in its block.
    Thread,
    /// The number of the block.
    Block,
    BlockSize,
    BlockCount,
}

/// How many registers of each file there are, the constants included.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registers {
    pub(crate) predicates: usize,
    pub(crate) narrow: usize,
    pub(crate) wide: usize,
    /// Registers that hold one value, in each file.
    pub(crate) constant_predicates: Vec<(u16, bool)>,
    pub(crate) constants: Vec<(u16, u32)>,
    pub(crate) wide_constants: Vec<(u16, u64)>,
    /// Registers of 32 bits.
    pub(crate) specials: Vec<(u16, Special)>,
}

/// A kernel.
#[derive(Debug)]
pub struct Kernel {
    /// Another one for each kernel of the process.
    pub(crate) id: u64,
    pub(crate) name: String,
    /// Threads of a block.
    pub(crate) threads: u32,
    pub(crate) parameters: Vec<Variable>,
    pub(crate) shared: Vec<Variable>,
    pub(crate) constants: Vec<Variable>,
    pub(crate) constant_bytes: Vec<u8>,
    pub(crate) registers: Registers,
    pub(crate) instructions: Vec<Instruction>,
    /// The text of each instruction.
    pub(crate) lines: Vec<String>,
}

impl Kernel {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns how many threads a block has.
    #[must_use]
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// Returns the bytes of shared memory that a block has, without the gaps of the emulator.
    #[must_use]
    pub fn shared_bytes(&self) -> usize {
        self.shared.iter().map(|variable| variable.len).sum()
    }

    /// Returns the size of each parameter, in bytes.
    #[must_use]
    pub fn parameters(&self) -> impl ExactSizeIterator<Item = usize> {
        self.parameters.iter().map(|parameter| parameter.len)
    }

    /// Returns the line in the module's text, and the text, of each instruction.
    pub fn instructions(&self) -> impl ExactSizeIterator<Item = (u32, &str)> {
        let texts = self.lines.iter().map(String::as_str);
        self.instructions.iter().map(|i| i.line).zip(texts)
    }

    /// The length of a space with `variables`.
    pub(crate) fn extent(variables: &[Variable]) -> usize {
        variables
            .last()
            .map_or(0, |variable| variable.offset + variable.len)
    }
}
