//! The statements of a module.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::instruction::{Instruction, Op};
use super::kernel::{CONSTANT, GAP, Kernel, Module, PARAMETER, Registers, SHARED, Variable};
use super::operand::{Declared, Operands};

type Result<T> = std::result::Result<T, String>;

/// A line, with its number from 1.
#[derive(Clone, Copy)]
struct Line<'a> {
    number: u32,
    text: &'a str,
}

impl Line<'_> {
    fn error<T>(self, reason: &str) -> Result<T> {
        Err(format!("line {}: {reason}: `{}`", self.number, self.text))
    }
}

/// The variables of a module that kernels read.
#[derive(Default)]
struct Constants {
    variables: Vec<Variable>,
    bytes: Vec<u8>,
}

pub(super) fn parse(text: &str) -> Result<Module> {
    let mut lines = (1..).zip(text.lines()).filter_map(|(number, line)| {
        let text = line.split("//").next().unwrap_or_default().trim();
        (!text.is_empty()).then_some(Line { number, text })
    });
    let mut constants = Constants::default();
    let mut kernels = Vec::new();
    while let Some(line) = lines.next() {
        match line.text.split_whitespace().next().unwrap_or_default() {
            // Variables of `.global` are constants of the sources. An instruction that names one is refused.
            ".version" | ".target" | ".address_size" | ".global" => {}
            ".const" => constant(line, &mut constants)?,
            ".visible" => kernels.push(kernel(line, &mut lines, &constants)?),
            _ => return line.error("no statement of a module that is known here"),
        }
    }
    Ok(Module { kernels })
}

/// Bytes of variables in one space, the gaps included: more than any device has.
const MOST: usize = 1 << 20;

/// Add a variable of `len` bytes after `variables`. Its address is a multiple of `align`, and of no
/// larger power of 2, so that kernels find what the text promises and no more.
fn place(
    line: Line<'_>,
    variables: &mut Vec<Variable>,
    (name, align, len): (&str, usize, usize),
) -> Result<()> {
    let end = Kernel::extent(variables);
    if len > MOST - end.min(MOST) {
        return line.error("more bytes than any device has for such variables");
    }
    variables.push(Variable {
        name: name.to_owned(),
        offset: (end + GAP).next_multiple_of(2 * GAP) + align,
        len,
    });
    Ok(())
}

/// The name, the alignment and the length of `.align 4 .b8 name[8]`.
fn bytes_of<'a>(line: Line<'a>, declaration: &'a str) -> Result<(&'a str, usize, usize)> {
    let mut words = declaration.split_whitespace();
    let (Some(".align"), Some(align), Some(".b8"), Some(variable), None) = (
        words.next(),
        words.next(),
        words.next(),
        words.next(),
        words.next(),
    ) else {
        return line.error("not a variable of bytes");
    };
    let array = variable
        .strip_suffix(']')
        .and_then(|array| array.split_once('['));
    let Some((name, len)) = array else {
        return line.error("not an array");
    };
    match (align.parse::<usize>(), len.parse::<usize>()) {
        (Ok(align), Ok(len)) if GAP.is_multiple_of(align) => Ok((name, align, len)),
        _ => line.error("a length or an alignment that is not known here"),
    }
}

fn constant(line: Line<'_>, constants: &mut Constants) -> Result<()> {
    let declaration = line.text.strip_prefix(".const").unwrap_or_default();
    let Some((variable, values)) = declaration.split_once('=') else {
        return line.error("a constant without a value");
    };
    let (name, align, len) = bytes_of(line, variable)?;
    let values = values.trim().trim_start_matches('{');
    let values = values
        .trim_end_matches(';')
        .trim_end()
        .trim_end_matches('}');
    let values: std::result::Result<Vec<u8>, _> =
        values.split(',').map(|byte| byte.trim().parse()).collect();
    let Ok(mut values) = values else {
        return line.error("a value that is no byte");
    };
    if values.len() > len {
        return line.error("more values than bytes");
    }
    values.resize(len, 0);
    place(line, &mut constants.variables, (name, align, len))?;
    let offset = Kernel::extent(&constants.variables) - len;
    constants.bytes.resize(offset, 0);
    constants.bytes.extend(values);
    Ok(())
}

/// The kernel whose first line is `first`.
fn kernel<'a>(
    first: Line<'a>,
    lines: &mut impl Iterator<Item = Line<'a>>,
    constants: &Constants,
) -> Result<Kernel> {
    let name = first
        .text
        .strip_prefix(".visible .entry")
        .and_then(|rest| rest.trim().strip_suffix('('));
    let Some(name) = name else {
        return first.error("not the beginning of a kernel with parameters");
    };
    let mut next = || match lines.next() {
        Some(line) => Ok(line),
        None => first.error("a kernel without an end"),
    };
    let mut parameters = Vec::new();
    loop {
        let line = next()?;
        if line.text == ")" {
            break;
        }
        parameter(line, &mut parameters)?;
    }
    let mut threads = None;
    loop {
        let line = next()?;
        match line.text.split_once(' ') {
            Some((".maxntid", size)) => {
                threads = size.strip_suffix(", 1, 1").and_then(|x| x.parse().ok());
            }
            Some((".minnctapersm", _)) => {}
            None if line.text == "{" => break,
            _ => return line.error("no statement of a kernel that is known here"),
        }
    }
    let Some(threads) =
        threads.filter(|threads: &u32| (1..=1024).contains(threads) && threads.is_multiple_of(32))
    else {
        return first.error("a kernel without a size of its blocks, in whole warps");
    };

    let mut shared = Vec::new();
    let mut registers = HashMap::new();
    let mut labels = HashMap::new();
    let mut statements = Vec::new();
    loop {
        let line = next()?;
        let Some(statement) = line.text.strip_suffix(';') else {
            match line.text.strip_suffix(':') {
                Some(label) => {
                    labels.insert(label, statements.len());
                    continue;
                }
                None if line.text == "}" => break,
                None => return line.error("no statement that is known here"),
            }
        };
        match statement.split_once(char::is_whitespace) {
            Some((".reg", declaration)) => {
                let (kind, count) = registers_of(line, declaration)?;
                registers.insert(kind, count);
            }
            Some((".shared", declaration)) => {
                place(line, &mut shared, bytes_of(line, declaration)?)?;
            }
            Some((".pragma", _)) => {}
            _ => statements.push((line, statement)),
        }
    }

    labels.retain(|_, at| *at < statements.len());
    let mut symbols = HashMap::new();
    for (variables, base) in [
        (&parameters, PARAMETER),
        (&shared, SHARED),
        (&constants.variables, CONSTANT),
    ] {
        for variable in variables {
            symbols.insert(variable.name.as_str(), base + variable.offset as u64);
        }
    }
    let count = |kind| registers.get(kind).copied().unwrap_or(0);
    let mut operands = Operands::new(
        symbols,
        labels,
        Declared {
            predicates: count("%p"),
            half: count("%rs"),
            narrow: count("%r"),
            wide: count("%rd"),
            floats: count("%f"),
            wide_floats: count("%fd"),
        },
    );
    let mut instructions = Vec::with_capacity(statements.len());
    let mut texts = Vec::with_capacity(statements.len());
    for (line, statement) in statements {
        match operands.instruction(statement, line.number) {
            Ok(instruction) => instructions.push(instruction),
            Err(reason) => return line.error(&reason),
        }
        texts.push(statement.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    let ends =
        |last: &Instruction| last.guard.is_none() && matches!(last.op, Op::Return | Op::Branch);
    if !instructions.last().is_some_and(ends) {
        return first.error("a kernel whose last instruction is no `ret` or `bra`");
    }
    let registers: Registers = operands.into_registers();
    static KERNELS: AtomicU64 = AtomicU64::new(0);
    Ok(Kernel {
        id: KERNELS.fetch_add(1, Ordering::Relaxed),
        name: name.trim().to_owned(),
        threads,
        parameters,
        shared,
        constants: constants.variables.clone(),
        constant_bytes: constants.bytes.clone(),
        registers,
        instructions,
        lines: texts,
    })
}

/// `.param .u64 name` or `.param .align 8 .b8 name[680]`, but for the last with a comma.
fn parameter(line: Line<'_>, parameters: &mut Vec<Variable>) -> Result<()> {
    let text = line.text.trim_end_matches(',');
    let Some(declaration) = text.strip_prefix(".param ") else {
        return line.error("not a parameter");
    };
    if declaration.starts_with(".align") {
        return place(line, parameters, bytes_of(line, declaration)?);
    }
    let len = match declaration.split_once(' ') {
        Some((".u32", name)) => Some((name, 4)),
        Some((".u64", name)) => Some((name, 8)),
        _ => None,
    };
    match len {
        Some((name, len)) => place(line, parameters, (name, len, len)),
        None => line.error("not a parameter of 4 or 8 bytes"),
    }
}

/// The most registers of one kind. PTX declares many more than the hardware gives a thread.
const MOST_REGISTERS: usize = 1 << 14;

/// The prefix and the count of `.b32 %r<985>`.
fn registers_of<'a>(line: Line<'a>, declaration: &'a str) -> Result<(&'a str, usize)> {
    let mut words = declaration.split_whitespace();
    let (kind, names) = (words.next(), words.next().unwrap_or_default());
    let Some((prefix, count)) = names.strip_suffix('>').and_then(|n| n.split_once('<')) else {
        return line.error("not a declaration of registers");
    };
    let is_known = matches!(
        (kind, prefix),
        (Some(".pred"), "%p")
            | (Some(".b16"), "%rs")
            | (Some(".b32"), "%r")
            | (Some(".b64"), "%rd")
            | (Some(".f32"), "%f")
            | (Some(".f64"), "%fd")
    );
    match count.parse() {
        Ok(count) if is_known && count <= MOST_REGISTERS => Ok((prefix, count)),
        _ => line.error("registers that are not known here"),
    }
}
