//! Operands of instructions: registers, constants, addresses, labels.

use std::collections::HashMap;

use super::forms::{self, Slot, form};
use super::instruction::{Instruction, Op, Width};
use super::kernel::{Registers, Special};

type Result<T> = std::result::Result<T, String>;

/// The names of a kernel, and its constants so far.
pub(super) struct Operands<'a> {
    symbols: HashMap<&'a str, u64>,
    labels: HashMap<&'a str, usize>,
    declared: Declared,
    registers: Registers,
    predicates: HashMap<bool, u16>,
    constants: HashMap<u32, u16>,
    wide_constants: HashMap<u64, u16>,
}

/// The registers of the text.
#[derive(Clone, Copy)]
pub(super) struct Declared {
    pub(super) predicates: usize,
    /// Registers of 16 bits; `narrow` counts 32 bits, and `wide` 64.
    pub(super) half: usize,
    pub(super) narrow: usize,
    pub(super) wide: usize,
    /// Floats of 32 and 64 bits.
    pub(super) floats: usize,
    pub(super) wide_floats: usize,
}

impl<'a> Operands<'a> {
    pub(super) fn new(
        symbols: HashMap<&'a str, u64>,
        labels: HashMap<&'a str, usize>,
        declared: Declared,
    ) -> Self {
        Self {
            symbols,
            labels,
            declared,
            registers: Registers {
                predicates: declared.predicates,
                // Registers of 16 bits are behind those of 32 bits, and floats behind both.
                narrow: declared.narrow + declared.half + declared.floats,
                wide: declared.wide + declared.wide_floats,
                ..Registers::default()
            },
            predicates: HashMap::new(),
            constants: HashMap::new(),
            wide_constants: HashMap::new(),
        }
    }

    pub(super) fn into_registers(self) -> Registers {
        self.registers
    }

    /// Decode `statement`.
    pub(super) fn instruction(&mut self, statement: &str, line: u32) -> Result<Instruction> {
        let (guard, rest) = match statement.strip_prefix('@') {
            None => (None, statement),
            Some(guarded) => {
                let Some((predicate, rest)) = guarded.split_once(char::is_whitespace) else {
                    return Err("a predicate without an instruction".to_string());
                };
                let negated = predicate.starts_with('!');
                let register = self.register(predicate.trim_start_matches('!'), Slot::Predicate)?;
                (Some((register, negated)), rest.trim_start())
            }
        };
        let (opcode, operands) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let Some((op, shape)) = form(opcode) else {
            return Err(format!(
                "no kernel had a `{opcode}` before: add it to the forms"
            ));
        };
        let mut instruction = Instruction {
            op,
            d: 0,
            a: 0,
            b: 0,
            c: 0,
            extra: [0; 4],
            guard,
            immediate: 0,
            line,
        };
        let operands = split(operands);
        self.fill(&mut instruction, shape, &operands)?;
        Ok(instruction)
    }

    fn fill(&mut self, i: &mut Instruction, shape: forms::Operands, texts: &[&str]) -> Result<()> {
        use Width::{W32, W64};
        let (r32, r64) = (Slot::Bits(W32), Slot::Bits(W64));
        match (shape, texts) {
            (forms::Operands::Registers(slots), texts) if slots.len() == texts.len() => {
                let mut registers = [0; 4];
                for (register, (slot, text)) in registers.iter_mut().zip(slots.iter().zip(texts)) {
                    *register = self.operand(text, *slot)?;
                }
                Self::is_register(texts[0])?;
                [i.d, i.a, i.b, i.c] = registers;
            }
            (forms::Operands::Move64, [d, a]) => match (pair(d), pair(a)) {
                (None, None) => {
                    i.d = self.register(d, bits_or_float(d, W64))?;
                    i.a = self.operand(a, bits_or_float(a, W64))?;
                }
                (None, Some((low, high))) => {
                    i.op = Op::Pack;
                    i.d = self.register(d, r64)?;
                    (i.a, i.b) = (self.operand(low, r32)?, self.operand(high, r32)?);
                }
                (Some((low, high)), None) => {
                    i.op = Op::Unpack;
                    (i.d, i.c) = (self.register(low, r32)?, self.register(high, r32)?);
                    i.a = self.operand(a, r64)?;
                }
                _ => return Err("a pair moved to a pair".to_string()),
            },
            (forms::Operands::Move32, [d, a]) => {
                i.d = self.register(d, bits_or_float(d, W32))?;
                i.a = self.operand(a, bits_or_float(a, W32))?;
            }
            (forms::Operands::Insert, [d, a, b, position, len]) => {
                i.d = self.register(d, r64)?;
                (i.a, i.b) = (self.operand(a, r64)?, self.operand(b, r64)?);
                i.c = self.operand(position, r32)?;
                i.extra[1] = self.operand(len, r32)?;
            }
            (forms::Operands::Shuffle, [d, a, b, c, lanes]) => {
                let Some((d, predicate)) = d.split_once('|') else {
                    return Err("a shuffle without a predicate".to_string());
                };
                i.d = self.register(d, r32)?;
                i.extra[0] = self.register(predicate, Slot::Predicate)?;
                i.a = self.operand(a, r32)?;
                (i.b, i.c) = (self.operand(b, r32)?, self.operand(c, r32)?);
                i.extra[1] = self.operand(lanes, r32)?;
            }
            (forms::Operands::Ballot, [d, predicate, lanes]) => {
                i.d = self.register(d, r32)?;
                i.a = self.operand(predicate, Slot::Predicate)?;
                i.b = self.operand(lanes, r32)?;
            }
            (forms::Operands::Load, [values, address]) => {
                self.address(i, address)?;
                for text in self.values(i, values)? {
                    Self::is_register(text)?;
                }
            }
            (forms::Operands::Store, [address, values]) => {
                self.address(i, address)?;
                self.values(i, values)?;
            }
            (forms::Operands::Atomic, [d, address, value]) => {
                i.d = self.register(d, r32)?;
                self.address(i, address)?;
                i.b = self.operand(value, r32)?;
            }
            (forms::Operands::Label, [label]) => match self.labels.get(label) {
                Some(target) => i.immediate = i64::try_from(*target).map_err(|e| e.to_string())?,
                None => return Err(format!("no instruction has the label {label}")),
            },
            (forms::Operands::Lanes, [lanes]) => i.a = self.operand(lanes, r32)?,
            (forms::Operands::Barrier, ["0"]) | (forms::Operands::None, []) => {}
            _ => return Err("operands that do not fit the instruction".to_string()),
        }
        Ok(())
    }

    /// `[register+offset]` or `[name+offset]`.
    fn address(&mut self, i: &mut Instruction, text: &str) -> Result<()> {
        let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
        let Some(inner) = inner else {
            return Err(format!("{text} is no address"));
        };
        let (base, offset) = match inner.split_once('+') {
            None => (inner, 0),
            Some((base, offset)) => match offset.parse() {
                Ok(offset) => (base, offset),
                Err(_) => return Err(format!("{offset} is no offset")),
            },
        };
        i.a = self.operand(base, Slot::Bits(Width::W64))?;
        i.immediate = offset;
        Ok(())
    }

    /// The registers that are loaded or stored: their width is the first one's. Returns their texts.
    fn values<'t>(&mut self, i: &mut Instruction, text: &'t str) -> Result<Vec<&'t str>> {
        let inner = text.strip_prefix('{').and_then(|t| t.strip_suffix('}'));
        let texts = split(inner.unwrap_or(text));
        let first = texts.first().copied().unwrap_or_default();
        let width = if first.starts_with("%rd") {
            Width::W64
        } else if first.starts_with("%rs") {
            Width::W16
        } else {
            Width::W32
        };
        let expected = match &mut i.op {
            Op::Load {
                width: w,
                bytes,
                count,
                ..
            }
            | Op::Store {
                width: w,
                bytes,
                count,
                ..
            } => {
                *w = width;
                if u32::from(*bytes) * 8 > width.bits() {
                    return Err("a register that is too narrow".to_string());
                }
                usize::from(*count)
            }
            _ => 0,
        };
        if expected != texts.len() {
            return Err(format!("{} values instead of {expected}", texts.len()));
        }
        for (register, text) in i.extra.iter_mut().zip(&texts) {
            *register = self.operand(text, Slot::Bits(width))?;
        }
        Ok(texts)
    }

    fn is_register(text: &str) -> Result<()> {
        if text.starts_with('%') && special(text).is_none() {
            return Ok(());
        }
        Err(format!("{text} is no register to write"))
    }

    /// The register called `text`.
    fn register(&self, text: &str, slot: Slot) -> Result<u16> {
        let digits = text
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(text.len());
        let (prefix, number) = text.split_at(digits);
        let Declared {
            predicates,
            half,
            narrow,
            wide,
            floats,
            wide_floats,
        } = self.declared;
        let (expected, count, base) = match slot {
            Slot::Predicate => ("%p", predicates, 0),
            Slot::Bits(Width::W16) => ("%rs", half, narrow),
            Slot::Bits(Width::W32) => ("%r", narrow, 0),
            Slot::Bits(Width::W64) => ("%rd", wide, 0),
            Slot::Float(Width::W64) => ("%fd", wide_floats, wide),
            Slot::Float(_) => ("%f", floats, narrow + half),
        };
        match number.parse::<usize>() {
            Ok(number) if prefix == expected && number < count => {
                u16::try_from(base + number).map_err(|_| "too many registers".to_string())
            }
            _ => Err(format!("{text} is no register {expected} of the kernel")),
        }
    }

    /// A register that has the value of `text`.
    fn operand(&mut self, text: &str, slot: Slot) -> Result<u16> {
        if let Some(special) = special(text) {
            if slot != Slot::Bits(Width::W32) {
                return Err(format!("{text} has 32 bits"));
            }
            let known = self.registers.specials.iter().find(|(_, s)| *s == special);
            if let Some((register, _)) = known {
                return Ok(*register);
            }
            let register = new(&mut self.registers.narrow)?;
            self.registers.specials.push((register, special));
            return Ok(register);
        }
        if text.starts_with('%') {
            return self.register(text, slot);
        }
        let value = match self.symbols.get(text) {
            Some(address) if slot == Slot::Bits(Width::W64) => *address,
            Some(_) => return Err(format!("{text} is an address, of 64 bits")),
            None => match slot {
                Slot::Float(width) => float(text, width)?,
                _ => number(text)?,
            },
        };
        match slot {
            Slot::Predicate => self.constant_predicate(value != 0),
            Slot::Bits(Width::W64) | Slot::Float(Width::W64) => {
                let registers = &mut self.registers;
                intern(&mut self.wide_constants, value, || {
                    let register = new(&mut registers.wide)?;
                    registers.wide_constants.push((register, value));
                    Ok(register)
                })
            }
            Slot::Bits(width) | Slot::Float(width) => {
                let value = (value & (u64::MAX >> (64 - width.bits()))) as u32;
                let registers = &mut self.registers;
                intern(&mut self.constants, value, || {
                    let register = new(&mut registers.narrow)?;
                    registers.constants.push((register, value));
                    Ok(register)
                })
            }
        }
    }

    fn constant_predicate(&mut self, value: bool) -> Result<u16> {
        let registers = &mut self.registers;
        intern(&mut self.predicates, value, || {
            let register = new(&mut registers.predicates)?;
            registers.constant_predicates.push((register, value));
            Ok(register)
        })
    }
}

/// One more register.
fn new(count: &mut usize) -> Result<u16> {
    let register = u16::try_from(*count).map_err(|_| "too many registers".to_string())?;
    *count += 1;
    Ok(register)
}

/// The register of `value`, which is made if it is new.
fn intern<V: Copy + Eq + std::hash::Hash>(
    known: &mut HashMap<V, u16>,
    value: V,
    make: impl FnOnce() -> Result<u16>,
) -> Result<u16> {
    if let Some(register) = known.get(&value) {
        return Ok(*register);
    }
    let register = make()?;
    known.insert(value, register);
    Ok(register)
}

fn special(text: &str) -> Option<Special> {
    Some(match text {
        "%tid.x" => Special::Thread,
        "%ctaid.x" => Special::Block,
        "%ntid.x" => Special::BlockSize,
        "%nctaid.x" => Special::BlockCount,
        _ => return None,
    })
}

/// Returns the slot for an operand `text`: a float if `text` names a register of floats, and bits
/// otherwise.
fn bits_or_float(text: &str, width: Width) -> Slot {
    if text.starts_with("%f") {
        Slot::Float(width)
    } else {
        Slot::Bits(width)
    }
}

/// The bits of a float, which are written as such: `0f3F800000`, `0d3FF0000000000000`.
fn float(text: &str, width: Width) -> Result<u64> {
    let (prefix, digits) = if width == Width::W64 {
        ("0d", 16)
    } else {
        ("0f", 8)
    };
    let hex = text.strip_prefix(prefix).filter(|hex| hex.len() == digits);
    hex.and_then(|hex| u64::from_str_radix(hex, 16).ok())
        .ok_or_else(|| format!("{text} is no float of {} bits", width.bits()))
}

/// An integer, as 64 bits.
fn number(text: &str) -> Result<u64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    match value {
        Ok(value) if negative => Ok(value.wrapping_neg()),
        Ok(value) => Ok(value),
        Err(_) => Err(format!(
            "{text} is no number, and no name that is known here"
        )),
    }
}

/// `low, high` of `{low, high}`.
fn pair(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_prefix('{')?.strip_suffix('}')?;
    let (low, high) = inner.split_once(',')?;
    Some((low.trim(), high.trim()))
}

/// The operands of a list. Commas in braces do not divide.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    if !text[begin..].trim().is_empty() {
        parts.push(text[begin..].trim());
    }
    parts
}
