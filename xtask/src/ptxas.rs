//! Runs ptxas, which assembles PTX to machine code, and reports the resources of kernels.

use crate::{Result, output};
use std::{path::Path, process::Command};

/// The resources of a kernel on an architecture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resources {
    /// Registers per thread.
    pub(crate) registers: u32,
    /// Shared memory per block, in bytes.
    pub(crate) shared: u32,
    /// Local memory per thread, in bytes: the stack frame, and spilled registers.
    pub(crate) local: u32,
}

/// Assembles `ptx` for `sm`. Returns the resources of each function.
pub(crate) fn resources(ptxas: &Path, ptx: &Path, sm: u32) -> Result<Vec<(String, Resources)>> {
    assemble(ptxas, ptx, sm, Path::new("/dev/null"))
}

/// As [`resources`], and writes the machine code to `to`.
pub(crate) fn assemble(
    ptxas: &Path,
    ptx: &Path,
    sm: u32,
    to: &Path,
) -> Result<Vec<(String, Resources)>> {
    let mut command = Command::new(ptxas);
    command
        .args(["--verbose", "--gpu-name", &format!("sm_{sm}")])
        .arg("--output-file")
        .arg(to)
        .arg(ptx);
    parse(&output(&mut command)?).map_err(|line| format!("{command:?} says what is new: {line}"))
}

/// Parses the report. For each function ptxas prints its name, and then two lines with numbers and
/// their units.
fn parse(report: &str) -> std::result::Result<Vec<(String, Resources)>, String> {
    let mut functions: Vec<(String, Resources)> = Vec::new();
    for line in report.lines() {
        if line.starts_with("ptxas warning") {
            return Err(line.to_owned());
        }
        let text = line.trim_start_matches("ptxas info    : ").trim();
        if let Some(name) = text.strip_prefix("Function properties for ") {
            functions.push((name.to_owned(), Resources::default()));
            continue;
        }
        let Some((_, resources)) = functions.last_mut() else {
            continue;
        };
        for (number, unit) in text.split(", ").filter_map(|part| {
            let part = part.strip_prefix("Used ").unwrap_or(part);
            part.split_once(' ')
        }) {
            let counted = match unit {
                "registers" => &mut resources.registers,
                "bytes smem" => &mut resources.shared,
                "bytes stack frame" | "bytes spill stores" | "bytes spill loads" => {
                    &mut resources.local
                }
                _ => continue,
            };
            *counted += number.parse::<u32>().map_err(|_| line.to_owned())?;
        }
    }
    // If the wording of the report changes, that must not look like a report without spills.
    match functions.iter().find(|(_, r)| r.registers == 0) {
        Some((name, _)) => Err(format!("nothing about the registers of {name}")),
        None => Ok(functions),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "\
ptxas info    : 0 bytes gmem, 16 bytes cmem[3]
ptxas info    : Compiling entry function 'one' for 'sm_70'
ptxas info    : Function properties for one
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 1 barriers, 1024 bytes smem, 440 bytes cmem[0]
ptxas info    : Compile time = 3.292 ms
ptxas info    : Compiling entry function 'two' for 'sm_70'
ptxas info    : Function properties for two
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers
";

    #[test]
    fn the_report_is_understood() {
        let one = Resources {
            registers: 30,
            shared: 1024,
            local: 0,
        };
        let two = Resources {
            registers: 255,
            shared: 0,
            local: 28,
        };
        let expected = vec![("one".into(), one), ("two".into(), two)];
        assert_eq!(parse(REPORT), Ok(expected));
    }

    #[test]
    fn a_warning_is_an_error() {
        let warning = "ptxas warning : Value of threads per SM is out of range\n";
        let report = format!("{warning}{REPORT}");
        assert_eq!(parse(&report), Err(warning.trim_end().into()));
    }

    #[test]
    fn an_unknown_report_is_an_error() {
        assert!(parse(&REPORT.replace("registers", "regs")).is_err());
    }
}
