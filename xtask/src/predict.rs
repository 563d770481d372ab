//! Predicts how long writers take on machines that are not here, from traces of the simulated device.
//!
//! A prediction is no measurement: it is for people who ask which part of the machine would be the
//! limit. No goal and no test is about one.

mod figures;
mod replay;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

use self::figures::{CHUCKY, GIB, MACHINES, SIMULATED, SIMULATED_CLOCK, SPREAD, THREADS};
use self::replay::{Outcome, replay};
use crate::{Result, cargo, run, target};

/// A trace of the tests: its name, the bytes that it is about, and its steps.
struct Trace {
    name: String,
    bytes: f64,
    steps: Vec<Value>,
}

/// Writes the traces, and prints what they take on each machine.
pub(crate) fn print() -> Result<()> {
    let folder = target().join("traces");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let mut tests = cargo();
    tests
        .args(["test", "--package", "zarrs_cuda", "--lib", "--quiet"])
        .args(["--", "cuda::tests::simulated::trace", "--test-threads=1"])
        .env("ZARRS_CUDA_TRACES", &folder)
        .env("ZARRS_CUDA_TEST_CHECKS", "0");
    run(&mut tests)?;
    let mut traces = BTreeMap::new();
    let files = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for file in files {
        let file = file.map_err(|error| format!("{}: {error}", folder.display()))?;
        let trace = read(&file.path())?;
        traces.insert(trace.name.clone(), trace);
    }

    println!(
        "Predictions by a model, from published figures that may be off by 30 %. Not measured."
    );
    for (name, trace) in traces.iter().filter(|(name, _)| *name != "kernels") {
        writer(name, trace)?;
    }
    if let Some(kernels) = traces.get("kernels") {
        compare(kernels, &traces)?;
    }
    Ok(())
}

fn read(file: &Path) -> Result<Trace> {
    let error = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let text = fs::read_to_string(file).map_err(|e| error(&e))?;
    let mut lines = text.lines().map(serde_json::from_str::<Value>);
    let first = lines.next().ok_or_else(|| error(&"an empty trace"))?;
    let first = first.map_err(|e| error(&e))?;
    let bytes = first["bytes"].as_f64();
    Ok(Trace {
        name: file
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into(),
        bytes: bytes.ok_or_else(|| error(&"the first line has no `bytes`"))?,
        steps: lines
            .collect::<std::result::Result<_, _>>()
            .map_err(|e| error(&e))?,
    })
}

/// Prints the rates of a writer on each machine, in GiB/s: the worst, the expected and the best.
fn writer(name: &str, trace: &Trace) -> Result<()> {
    println!("\n{name}, {:.0} MiB, GiB/s of the array", trace.bytes / MIB);
    println!(
        "{:14} {:>8} {:>22}   busiest",
        "", "threads", "low .. middle .. high"
    );
    let mut not_predicted = Vec::new();
    for machine in MACHINES {
        for threads in THREADS {
            let rates = [1.0 - SPREAD, 1.0, 1.0 + SPREAD].map(|factor| {
                // The host's own time was measured where the trace was made.
                let steps = scaled(&trace.steps, 1.0 / factor);
                replay(&steps, &machine.times(factor), threads)
            });
            let [low, middle, high] = rates;
            let (low, middle, high) = (low?, middle?, high?);
            let rate = |outcome: &Outcome| trace.bytes / outcome.time / GIB;
            println!(
                "{:14} {threads:8} {:6.1} .. {:5.1} .. {:5.1}   {}",
                machine.name,
                rate(&low),
                rate(&middle),
                rate(&high),
                busiest(&middle)
            );
            not_predicted.extend(middle.not_predicted);
        }
    }
    not_predicted.sort();
    not_predicted.dedup();
    let callers: BTreeSet<_> = trace
        .steps
        .iter()
        .map(|step| step["thread"].as_u64())
        .collect();
    println!(
        "threads of the host that call the driver: {}",
        callers.len()
    );
    if !not_predicted.is_empty() {
        println!(
            "not predicted, and counted as if without atomics: {}",
            not_predicted.join(", ")
        );
    }
    Ok(())
}

/// The steps, with the host's own time this many times as long.
fn scaled(steps: &[Value], factor: f64) -> Vec<Value> {
    let scale = |step: &Value| {
        let mut step = step.clone();
        for member in ["own_ns", "others_ns"] {
            let time = step[member].as_f64().unwrap_or(0.0);
            step[member] = (time * factor).into();
        }
        step
    };
    steps.iter().map(scale).collect()
}

/// The part of the machine that is busy longest, and for which share of the time.
fn busiest(outcome: &Outcome) -> String {
    let most = outcome.busy.iter().max_by(|a, b| a.1.total_cmp(b.1));
    most.map_or(String::new(), |(part, time)| {
        format!("{part} {:.0} %", 100.0 * time / outcome.time)
    })
}

/// Prints the model beside what others published.
fn compare(kernels: &Trace, traces: &BTreeMap<String, Trace>) -> Result<()> {
    println!("\nthe model and published figures");
    let [v100, rtx, _] = MACHINES;
    let say = |what: &str, model: f64, published: f64, unit: &str, is_bound: bool| {
        let ratio = model / published;
        let holds = if is_bound {
            ratio >= 1.0 - SPREAD
        } else {
            (ratio - 1.0).abs() <= SPREAD
        };
        let verdict = if holds { "holds" } else { "does not hold" };
        let bound = if is_bound { "≥ " } else { "" };
        println!(
            "{what}: {model:.0} {unit}, published {bound}{published:.0}: × {ratio:.2}, {verdict}"
        );
    };
    let alone = replay(&kernels.steps, &v100, 1)?;
    for (kernel, cycles) in SIMULATED {
        let time = taken(&alone, kernel)?;
        say(
            &format!("{kernel}, 2 MiB, on GPGPU-Sim's V100"),
            time * SIMULATED_CLOCK,
            cycles,
            "cycles",
            false,
        );
    }
    for (stage, kernel, trace, rate) in CHUCKY {
        let trace = traces
            .get(trace)
            .ok_or_else(|| format!("there is no trace {trace}"))?;
        let model = trace.bytes / taken(&replay(&trace.steps, &rtx, 8)?, kernel)?;
        let is_bound = !kernel.starts_with("nvCOMP");
        say(
            &format!("{stage} on {}", rtx.name),
            model / GIB,
            rate / GIB,
            "GiB/s",
            is_bound,
        );
    }
    println!(
        "The model knows no latency: short kernels take longer. Batches of these writers have 128 \
         subchunks, fewer than the device has multiprocessors."
    );
    Ok(())
}

/// What all runs of a kernel took, in seconds.
fn taken(outcome: &Outcome, kernel: &str) -> Result<f64> {
    let time = outcome.kernels.get(kernel).copied();
    time.ok_or_else(|| format!("the trace has no {kernel}"))
}

const MIB: f64 = 1_048_576.0;
