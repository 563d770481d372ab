//! How long the steps of a trace take on a machine: a model, not a measurement.
//!
//! - A thread of the host does its steps one after the other. Its own work takes a processor, and so
//!   does each call of the driver. Work of threads that make no calls is divided among the processors.
//! - Each direction of the bus has a queue, and so has the device for kernels and libraries.
//! - A kernel takes as long as memory needs for its bytes, or the multiprocessors for its
//!   instructions, whichever is longer.
//! - A compressor's rate grows with its chunks until every multiprocessor has one.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::figures::{CALL, LAUNCH, Machine};
use crate::Result;

/// What the steps took.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// In seconds.
    pub(super) time: f64,
    /// How long each queue was busy, and the sum of the host's work.
    pub(super) busy: BTreeMap<&'static str, f64>,
    /// What each kernel and function took, added up.
    pub(super) kernels: BTreeMap<String, f64>,
    /// What has atomic instructions, or no published figure: its time is a lower bound.
    pub(super) not_predicted: BTreeSet<String>,
}

/// When the parts of the machine are free.
struct State {
    threads: BTreeMap<u64, f64>,
    processors: Vec<f64>,
    streams: BTreeMap<u64, f64>,
    events: BTreeMap<u64, f64>,
    queues: BTreeMap<&'static str, f64>,
    outcome: Outcome,
}

impl State {
    /// The thread works for so long, on a processor.
    fn work(&mut self, thread: u64, time: f64) -> f64 {
        let now = self.threads.get(&thread).copied().unwrap_or(0.0);
        // The one that is free last of those that are free now, or the one that is free first.
        let free = |a: &&mut f64, b: &&mut f64| a.total_cmp(b);
        let ready = self.processors.iter_mut().filter(|free| **free <= now);
        let mut end = now + time;
        if let Some(processor) = ready.max_by(free) {
            *processor = end;
        } else if let Some(processor) = self.processors.iter_mut().min_by(free) {
            end = *processor + time;
            *processor = end;
        }
        self.threads.insert(thread, end);
        *self.outcome.busy.entry("host").or_default() += time;
        end
    }

    /// An operation of a stream, which was enqueued at `now`, takes its turn in a queue.
    fn enqueue(&mut self, stream: u64, queue: &'static str, now: f64, time: f64) {
        let free = self.queues.entry(queue).or_default();
        let stream = self.streams.entry(stream).or_default();
        let end = now.max(*free).max(*stream) + time;
        (*free, *stream) = (end, end);
        *self.outcome.busy.entry(queue).or_default() += time;
    }
}

/// Replays `steps` on `machine`, whose host has so many processors.
pub(super) fn replay(steps: &[Value], machine: &Machine, processors: u32) -> Result<Outcome> {
    let mut state = State {
        threads: BTreeMap::new(),
        processors: vec![0.0; processors.max(1) as usize],
        streams: BTreeMap::new(),
        events: BTreeMap::new(),
        queues: BTreeMap::new(),
        outcome: Outcome::default(),
    };
    let callers: BTreeSet<_> = steps.iter().map(|step| step["thread"].as_u64()).collect();
    for step in steps {
        let number = |name: &str| {
            let number = step[name].as_f64();
            number.ok_or_else(|| format!("a step without {name}: {step}"))
        };
        let id = |name: &str| {
            let id = step[name].as_u64();
            id.ok_or_else(|| format!("a step without {name}: {step}"))
        };
        let thread = id("thread")?;
        // With several callers, the others' time is theirs.
        let others = if callers.len() > 1 {
            0.0
        } else {
            number("others_ns")? / f64::from(processors.saturating_sub(1).max(1))
        };
        let now = state.work(thread, (number("own_ns")? + others) * 1e-9 + CALL);
        let name = step["name"].as_str().unwrap_or_default();
        match step["operation"].as_str().unwrap_or_default() {
            "copy" | "copy_rows" => {
                let bytes = number("bytes")?;
                let (queue, time) = match step["direction"].as_str() {
                    Some("up") => ("up", bytes / machine.bus),
                    Some("down") => ("down", bytes / machine.bus),
                    _ => ("compute", 2.0 * bytes / machine.memory),
                };
                state.enqueue(id("stream")?, queue, now, LAUNCH + time);
            }
            "fill" => {
                let time = number("bytes")? / machine.memory;
                state.enqueue(id("stream")?, "compute", now, LAUNCH + time);
            }
            "kernel" => {
                let took = &step["took"];
                let of = |name: &str| took[name].as_f64().unwrap_or(f64::NAN);
                let time = kernel(machine, of("bytes"), of("instructions"));
                if time.is_nan() {
                    return Err(format!("a kernel that did not run at once: {step}"));
                }
                if of("atomics") > 0.0 {
                    state.outcome.not_predicted.insert(name.to_string());
                }
                *state.outcome.kernels.entry(name.to_string()).or_default() += time;
                state.enqueue(id("stream")?, "compute", now, LAUNCH + time);
            }
            "library" => {
                let rate = match name {
                    "nvCOMP compresses zstd" => machine.zstd,
                    "nvCOMP compresses lz4" => machine.lz4,
                    _ => {
                        state.outcome.not_predicted.insert(name.to_string());
                        f64::INFINITY
                    }
                };
                let full = (number("chunks")? / machine.chunks).min(1.0);
                let time = number("read")? / (rate * full);
                *state.outcome.kernels.entry(name.to_string()).or_default() += time;
                state.enqueue(id("stream")?, "compute", now, LAUNCH + time);
            }
            "record" => {
                let at = state.streams.get(&id("stream")?).copied().unwrap_or(0.0);
                state.events.insert(id("event")?, at.max(now));
            }
            "wait" => {
                let at = state.events.get(&id("event")?).copied().unwrap_or(0.0);
                let stream = state.streams.entry(id("stream")?).or_default();
                *stream = stream.max(at);
            }
            operation @ ("synchronize" | "synchronize_stream") => {
                let at = if operation == "synchronize" {
                    state.events.get(&id("event")?)
                } else {
                    state.streams.get(&id("stream")?)
                };
                let at = at.copied().unwrap_or(0.0);
                state.threads.insert(thread, now.max(at));
            }
            other => return Err(format!("a step that is not known here: {other}: {step}")),
        }
    }
    let ends = state.threads.values().chain(state.streams.values());
    state.outcome.time = ends.fold(0.0, |last: f64, end| last.max(*end));
    Ok(state.outcome)
}

/// Seconds of a kernel that moves so many bytes of device memory.
pub(super) fn kernel(machine: &Machine, bytes: f64, instructions: f64) -> f64 {
    (bytes / machine.memory).max(instructions / machine.instructions)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test that panics has failed
mod tests {
    use serde_json::json;

    use super::*;

    /// A byte a second, everywhere.
    const SLOW: Machine = Machine {
        name: "slow",
        memory: 1.0,
        bus: 1.0,
        instructions: 1.0,
        zstd: 1.0,
        lz4: 2.0,
        chunks: 4.0,
    };

    /// In whole seconds: calls and launches take some microseconds.
    fn time(steps: &[Value], processors: u32) -> String {
        let steps: Vec<Value> = steps
            .iter()
            .map(|step| {
                let mut step = step.clone();
                for (member, value) in [("thread", 0), ("own_ns", 0), ("others_ns", 0)] {
                    if step[member].is_null() {
                        step[member] = value.into();
                    }
                }
                step
            })
            .collect();
        let time = replay(&steps, &SLOW, processors).unwrap().time;
        format!("{time:.2}")
    }

    fn copy(direction: &str, stream: u64, bytes: u64) -> Value {
        json!({ "operation": "copy", "direction": direction, "stream": stream, "bytes": bytes })
    }

    #[test]
    fn queues() {
        // A stream does one thing after the other; streams share a direction, and not two.
        assert_eq!(time(&[copy("up", 1, 2), copy("down", 1, 3)], 1), "5.00");
        assert_eq!(time(&[copy("up", 1, 2), copy("up", 2, 3)], 1), "5.00");
        assert_eq!(time(&[copy("up", 1, 2), copy("down", 2, 3)], 1), "3.00");
        // Within the device each byte is read and written.
        assert_eq!(time(&[copy("within", 1, 2)], 1), "4.00");
        // Rows count as their bytes.
        let mut rows = copy("within", 1, 2);
        (rows["operation"], rows["rows"]) = ("copy_rows".into(), 2.into());
        assert_eq!(time(&[rows.clone()], 1), "4.00");
        rows["direction"] = "down".into();
        assert_eq!(time(&[rows], 1), "2.00");
    }

    #[test]
    fn events() {
        let record = json!({ "operation": "record", "stream": 1, "event": 7 });
        let wait = json!({ "operation": "wait", "stream": 2, "event": 7 });
        let synchronize = json!({ "operation": "synchronize", "event": 7 });
        let down = copy("down", 2, 3);
        let begin = [copy("up", 1, 2), record];
        let after = |step: Value| [&begin[..], &[step, down.clone()]].concat();
        assert_eq!(time(&after(wait), 1), "5.00");
        assert_eq!(time(&after(synchronize), 1), "5.00");
    }

    #[test]
    fn processors() {
        let work = |thread: u64| {
            let mut step = copy("up", 1, 0);
            step["thread"] = thread.into();
            step["own_ns"] = 2_000_000_000_u64.into();
            step
        };
        assert_eq!(time(&[work(0), work(1)], 1), "4.00");
        assert_eq!(time(&[work(0), work(1)], 2), "2.00");
        assert_eq!(time(&[work(0), work(0)], 2), "4.00");
        // Helpers share the processors that the caller leaves.
        let mut helped = work(0);
        helped["others_ns"] = 3_000_000_000_u64.into();
        assert_eq!(time(&[helped.clone()], 1), "5.00");
        assert_eq!(time(&[helped], 4), "3.00");
    }

    #[test]
    fn kernels_and_compressors() {
        let kernel = |bytes: u64, instructions: u64| {
            json!({ "operation": "kernel", "name": "k", "stream": 1,
                "took": { "bytes": bytes, "instructions": instructions, "atomics": 1 } })
        };
        assert_eq!(time(&[kernel(5, 2)], 1), "5.00");
        assert_eq!(time(&[kernel(1, 2)], 1), "2.00");
        let compress = |name: &str, chunks: u64| json!({ "operation": "library", "name": name, "stream": 1, "chunks": chunks, "read": 8 });
        assert_eq!(time(&[compress("nvCOMP compresses zstd", 4)], 1), "8.00");
        assert_eq!(time(&[compress("nvCOMP compresses zstd", 1)], 1), "32.00");
        assert_eq!(time(&[compress("nvCOMP compresses lz4", 9)], 1), "4.00");
        assert!(replay(&[json!({ "operation": "kernel" })], &SLOW, 1).is_err());
    }
}
