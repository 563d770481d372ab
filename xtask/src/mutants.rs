//! Changes the PTX of the kernels, one instruction at a time, and demands that a test fails.
//!
//! First without each barrier, then with changes of chance, of instructions that the tests execute. A change that no test notices is either no
//! change of what the kernel does, or a gap in the tests: the list is for people to read.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use zarrs_cuda_emulator::Module;

use crate::{Result, cargo, target};

const MODULES: &str = "kernels/ptx";

/// How long the tests of a mutant may take. They take some seconds without a change.
const PATIENCE: Duration = Duration::from_mins(2);

/// A changed line.
struct Mutant {
    module: String,
    /// From 1.
    line: usize,
    /// The line, or nothing.
    text: String,
}

impl Mutant {
    /// Returns the module's `text`, changed.
    fn apply(&self, text: &str) -> String {
        let mut lines: Vec<&str> = text.lines().collect();
        lines[self.line - 1] = &self.text;
        lines.join("\n")
    }
}

/// Numbers of chance, from a seed: the linear congruential generator of Knuth's MMIX.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end.max(1)
    }
}

/// `[--count N] [--seed N] [MODULE...]`: try each barrier, and `count` changes of chance.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let (mut count, mut seed, mut modules) = (500, 1, Vec::new());
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().and_then(|number| number.parse().ok());
        match *argument {
            "--count" => count = number().ok_or("--count takes a number")?,
            "--seed" => seed = number().ok_or("--seed takes a number")?,
            module => modules.push(module.to_string()),
        }
    }
    if modules.is_empty() {
        let files = fs::read_dir(MODULES).map_err(|error| format!("{MODULES}: {error}"))?;
        for file in files {
            let path = file.map_err(|error| format!("{MODULES}: {error}"))?.path();
            modules.extend(path.file_stem().map(|n| n.to_string_lossy().into_owned()));
        }
        modules.sort();
    }
    let tests = tests()?;
    let texts: Vec<String> = modules.iter().map(|m| text(m)).collect::<Result<_>>()?;
    let executed = coverage(&tests, &modules, &texts)?;
    // Others may build the tests again meanwhile.
    let copy = target().join("mutants/tests");
    fs::copy(&tests, &copy).map_err(|error| format!("{}: {error}", copy.display()))?;
    let tests = copy;

    let mut mutants = Vec::new();
    for (module, text) in modules.iter().zip(&texts) {
        for (line, _) in barriers(text) {
            mutants.push(Mutant {
                module: module.clone(),
                line,
                text: String::new(),
            });
        }
    }
    let barriers = mutants.len();
    let mut chance = Chance(seed as u64);
    let mut tried = BTreeSet::new();
    let mut draws = 0;
    while mutants.len() < barriers + count {
        draws += 1;
        if draws > 1000 * (count + 1) {
            println!("there are no {count} mutants: these are all that were found");
            break;
        }
        // Modules with more instructions have more mutants.
        let lines = texts.iter().map(|text| text.lines().count());
        let mut at = chance.below(lines.clone().sum());
        let found = lines.enumerate().find(|(_, lines)| {
            let is_here = at < *lines;
            at = at.wrapping_sub(if is_here { 0 } else { *lines });
            is_here
        });
        let Some((number, _)) = found else { continue };
        // What is not executed is in the list above, and no change of it can be noticed.
        if !executed.contains(&(number, at + 1)) {
            continue;
        }
        let Some(changed) = changed(&texts[number], at, &mut chance) else {
            continue;
        };
        if tried.insert((number, at, changed.clone())) {
            let mutant = Mutant {
                module: modules[number].clone(),
                line: at + 1,
                text: changed,
            };
            // The emulator would refuse the others, and no test had noticed anything.
            if Module::parse(&mutant.apply(&texts[number])).is_ok() {
                mutants.push(mutant);
            }
        }
    }
    let mut survivors = Vec::new();
    for (number, mutant) in mutants.iter().enumerate() {
        let text = &texts[modules
            .iter()
            .position(|m| *m == mutant.module)
            .unwrap_or(0)];
        let before = text.lines().nth(mutant.line - 1).unwrap_or_default().trim();
        if !is_caught(&tests, mutant, text)? {
            let survivor = format!(
                "{}.ptx:{}: {before} -> {}",
                mutant.module, mutant.line, mutant.text
            );
            println!("survived: {survivor}");
            survivors.push(survivor);
        }
        if number + 1 == barriers {
            println!("{barriers} barriers left out, {} survived", survivors.len());
        }
        if (number + 1).is_multiple_of(50) {
            println!("{} of {} mutants", number + 1, mutants.len());
        }
    }
    println!(
        "{} of {} mutants were caught (seed {seed})",
        mutants.len() - survivors.len(),
        mutants.len()
    );
    Ok(())
}

fn text(module: &str) -> Result<String> {
    let file = Path::new(MODULES).join(module).with_extension("ptx");
    fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))
}

/// The program with the tests of the library.
fn tests() -> Result<PathBuf> {
    let mut command = cargo();
    command
        .args([
            "test",
            "--package",
            "zarrs_cuda_engine",
            "--lib",
            "--no-run",
        ])
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit());
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", output.status));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let executable = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find_map(|message| Some(message.get("executable")?.as_str()?.into()));
    executable.ok_or_else(|| format!("{command:?} built no program"))
}

/// The tests of a module's kernels.
fn filter(module: &str) -> String {
    // The two directions are tested together.
    let module = if module == "unscatter" {
        "scatter"
    } else {
        module
    };
    format!("cuda::kernels::{module}::")
}

/// Prints which instructions the tests of the kernels execute. Returns them: the number of the module,
/// and the line.
fn coverage(
    tests: &Path,
    modules: &[String],
    texts: &[String],
) -> Result<BTreeSet<(usize, usize)>> {
    let folder = target().join("mutants");
    // An earlier run that was stopped left a mutant there.
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let file = folder.join("executed");
    let mut command = Command::new(tests);
    command.arg("cuda::kernels::");
    command.env("ZARRS_CUDA_TEST_EXECUTED", &file);
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("the tests of the kernels fail: {command:?}"));
    }
    let executed = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let executed: BTreeSet<&str> = executed.lines().collect();
    let (mut all, mut run) = (0, BTreeSet::new());
    println!("instructions that the tests of the kernels execute:");
    for (number, (name, text)) in modules.iter().zip(texts).enumerate() {
        let module = Module::parse(text).map_err(|error| format!("{name}.ptx: {error}"))?;
        for kernel in module.kernels() {
            let instructions = kernel.instructions();
            let count = instructions.len();
            let (done, missing): (Vec<_>, Vec<_>) = instructions
                .partition(|(line, _)| executed.contains(&*format!("{} {line}", kernel.name())));
            all += count;
            run.extend(done.iter().map(|(line, _)| (number, *line as usize)));
            println!(
                "{:24} {:5} of {count:5}",
                kernel.name(),
                count - missing.len()
            );
            for (line, text) in missing.iter().take(5) {
                println!("    {name}.ptx:{line}: {text}");
            }
        }
    }
    println!(
        "{} of {all}: {} in 1000",
        run.len(),
        1000 * run.len() / all.max(1)
    );
    Ok(run)
}

/// The lines of barriers, from 1.
fn barriers(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_barrier = |line: &str| {
        let line = line.trim_start();
        line.starts_with("bar.sync") || line.starts_with("bar.warp.sync")
    };
    (1..)
        .zip(text.lines())
        .filter(move |(_, line)| is_barrier(line))
}

/// Whether the tests of its kernels fail, or do not end.
fn is_caught(tests: &Path, mutant: &Mutant, text: &str) -> Result<bool> {
    let folder = target().join("mutants");
    let file = folder.join(&mutant.module).with_extension("ptx");
    fs::write(&file, mutant.apply(text)).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut command = Command::new(tests);
    command
        .arg(filter(&mutant.module))
        .env("ZARRS_CUDA_TEST_PTX", &folder)
        .env("PROPTEST_MAX_SHRINK_ITERS", "0")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command
        .spawn()
        .map_err(|error| format!("{command:?}: {error}"))?;
    let begin = Instant::now();
    let caught = loop {
        let status = child
            .try_wait()
            .map_err(|error| format!("{command:?}: {error}"))?;
        match status {
            Some(status) => break !status.success(),
            None if begin.elapsed() > PATIENCE => {
                let _ = child.kill();
                let _ = child.wait();
                break true;
            }
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    fs::remove_file(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(caught)
}

/// Opcodes, and others that take the same operands.
const OTHERS: [(&str, &str); 26] = [
    ("add.s32", "sub.s32"),
    ("sub.s32", "add.s32"),
    ("add.s64", "sub.s64"),
    ("sub.s64", "add.s64"),
    ("and.b32", "or.b32"),
    // Not `xor`: addresses and tables are put together of bits that are clear.
    ("or.b32", "and.b32"),
    ("xor.b32", "and.b32"),
    ("and.b64", "or.b64"),
    ("or.b64", "and.b64"),
    ("and.pred", "or.pred"),
    ("or.pred", "and.pred"),
    ("shl.b32", "shr.u32"),
    ("shr.u32", "shl.b32"),
    ("shl.b64", "shr.u64"),
    ("shr.u64", "shl.b64"),
    ("min.u32", "max.u32"),
    ("max.u32", "min.u32"),
    ("min.u64", "max.u64"),
    ("mul.lo.s32", "add.s32"),
    ("mul.hi.u32", "mul.lo.s32"),
    ("setp.eq.s32", "setp.ne.s32"),
    ("setp.ne.s32", "setp.eq.s32"),
    ("setp.lt.u32", "setp.le.u32"),
    ("setp.ge.u32", "setp.gt.u32"),
    ("setp.lt.u64", "setp.le.u64"),
    ("setp.ge.u64", "setp.gt.u64"),
];

/// Line `at` of `text`, changed by chance. `None` if it is no instruction, or did not change.
fn changed(text: &str, at: usize, chance: &mut Chance) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let line = lines.get(at)?.trim();
    let is_instruction = line.ends_with(';')
        && line.starts_with(|c: char| c.is_ascii_lowercase() || c == '@')
        && line != "ret;";
    if !is_instruction {
        return None;
    }
    let new = match chance.below(5) {
        0 => {
            let (opcode, rest) = line.split_once(char::is_whitespace)?;
            let (_, other) = OTHERS.iter().find(|(from, _)| *from == opcode)?;
            format!("{other} {rest}")
        }
        1 => match line.strip_prefix("@!") {
            Some(rest) => format!("@{rest}"),
            None => format!("@!{}", line.strip_prefix('@')?),
        },
        2 => next_number(line)?,
        3 => {
            let is_plain = ["st.", "atom.", "mov.", "add.", "sub."];
            let writes = is_plain.iter().any(|opcode| line.starts_with(opcode));
            // A store that is left out; or a result that stays what it was.
            writes.then(String::new)?
        }
        _ => other_register(&lines, at, chance)?,
    };
    (new != line).then_some(new)
}

/// `line` with its last number, one more; or with the offset of its address, 4 more.
fn next_number(line: &str) -> Option<String> {
    if let Some((base, rest)) = line.split_once('[')
        && let Some((address, after)) = rest.split_once(']')
    {
        let (register, offset) = address.split_once('+').unwrap_or((address, "0"));
        let offset: i64 = offset.parse().ok()?;
        return Some(format!("{base}[{register}+{}]{after}", offset + 4));
    }
    let body = line.strip_suffix(';')?;
    let (rest, number) = body.rsplit_once([',', ' ', '\t'])?;
    let number: i64 = number.trim().parse().ok()?;
    let separator = &body[rest.len()..=rest.len()];
    Some(format!("{rest}{separator} {};", number + 1))
}

/// `line` with its last register replaced by one of the same kind from a line before.
fn other_register(lines: &[&str], at: usize, chance: &mut Chance) -> Option<String> {
    let line = lines[at].trim();
    if line.starts_with("bra") || line.starts_with('@') {
        return None;
    }
    let (begin, register) = *registers(line).last()?;
    let kind = register.trim_end_matches(|c: char| c.is_ascii_digit());
    let nearby = &lines[at.saturating_sub(30)..at];
    let candidates: BTreeSet<&str> = nearby
        .iter()
        .flat_map(|line| registers(line))
        .map(|(_, other)| other)
        .filter(|other| {
            other.trim_end_matches(|c: char| c.is_ascii_digit()) == kind && *other != register
        })
        .collect();
    let other = candidates.iter().nth(chance.below(candidates.len()))?;
    let end = begin + register.len();
    Some(format!("{}{other}{}", &line[..begin], &line[end..]))
}

/// The numbered registers of a line, and where they are.
fn registers(line: &str) -> Vec<(usize, &str)> {
    line.match_indices('%')
        .filter_map(|(at, _)| {
            let name = &line[at + 1..];
            let end = name
                .find(|c: char| !c.is_ascii_alphanumeric())
                .unwrap_or(name.len());
            let register = &line[at..=at + end];
            register
                .ends_with(|c: char| c.is_ascii_digit())
                .then_some((at, register))
        })
        .collect()
}
