//! The program `device`: its arguments, and the file with its results.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{NAMED_SECTIONS, Run, SECTIONS, Sizes, of_process, probe};

/// Runs the benchmark of devices with the arguments of its command line, and writes the results to the file
/// `output`, anew after each section. Returns whether it succeeded.
pub fn program(arguments: &[String], output: &Path) -> bool {
    with_sizes(&Sizes::of_hardware(), arguments, output)
}

/// Does the same with other sizes.
pub(crate) fn with_sizes(sizes: &Sizes, arguments: &[String], output: &Path) -> bool {
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    // Test runners pass this argument. It also shows that this program can start.
    if has("--list") {
        println!("device: benchmark");
        return true;
    }
    if has("--probe") {
        let answer = probe();
        if let Err(reason) = &answer {
            eprintln!("the device does not answer: {reason}");
        }
        return answer.is_ok();
    }
    let sections: Vec<&str> = arguments
        .iter()
        .map(String::as_str)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let is_known = |section: &&&str| SECTIONS.contains(section) || NAMED_SECTIONS.contains(section);
    if let Some(section) = sections.iter().find(|section| !is_known(section)) {
        eprintln!("device has no section {section}, only {SECTIONS:?} and {NAMED_SECTIONS:?}");
        return false;
    }
    let run = Run {
        wants: &|section| match &sections[..] {
            [] => SECTIONS.contains(&section),
            sections => sections.contains(&section),
        },
        say: &|line| println!("{line}"),
        save: &|document| {
            if let Err(error) = write(output, document) {
                eprintln!("device cannot write its results so far: {error}");
            }
        },
    };
    let document = match of_process(sizes, &run) {
        Ok(document) => document,
        Err(reason) if env::var("ZARRS_CUDA_REQUIRE_GPU").is_ok_and(|v| v == "1") => {
            eprintln!("device needs a GPU, and ZARRS_CUDA_REQUIRE_GPU is 1: {reason}");
            return false;
        }
        Err(reason) => {
            println!("device is skipped: {reason}");
            return true;
        }
    };
    if let Err(error) = write(output, &document) {
        eprintln!("device cannot write its results: {error}");
        return false;
    }
    println!("written to {}", output.display());
    document["errors"].as_array().is_some_and(Vec::is_empty)
}

fn write(path: &Path, document: &Value) -> Result<(), Box<dyn Error>> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // Renamed when it is complete: the benchmark may be ended at any time.
    let new = path.with_extension("json.new");
    fs::write(&new, serde_json::to_string_pretty(document)?)?;
    Ok(fs::rename(&new, path)?)
}
