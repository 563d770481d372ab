//! A peer: a Python process that writes arrays on request.

use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::Result;
use crate::clock::Cost;
use crate::environment::{clean, scripts};

/// How a peer writes the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// One write for each layer of shards along the first axis, in order.
    Epochs,
    /// One write of the whole array.
    Whole,
}

impl Way {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Epochs => "epochs",
            Self::Whole => "whole",
        }
    }
}

/// A process that runs one of the scripts beside this file. `peer.py` documents the messages.
pub(crate) struct Worker {
    name: &'static str,
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts `script`, which reads the elements of the array from `data`.
    pub(crate) fn start(
        name: &'static str,
        python: &Path,
        script: &str,
        data: &Path,
    ) -> Result<Self> {
        let mut command = clean(python);
        command.arg(scripts().join(script)).arg(data);
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {command:?}: {error}"))?;
        let (requests, answers) = (process.stdin.take(), process.stdout.take());
        let (Some(requests), Some(answers)) = (requests, answers) else {
            return Err(format!("{command:?} has no pipes").into());
        };
        Ok(Self {
            name,
            process,
            requests,
            answers: BufReader::new(answers),
        })
    }

    /// Writes an array with this `metadata` to `folder`, or to memory, and returns the cost. With
    /// `verify` the peer reads the array afterwards, and a difference is an error.
    pub(crate) fn write(
        &mut self,
        metadata: &Value,
        folder: Option<&Path>,
        way: Way,
        verify: bool,
    ) -> Result<Cost> {
        let request = json!({
            "metadata": metadata, "path": folder, "way": way.name(), "verify": verify,
        });
        writeln!(self.requests, "{request}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        if answer.is_empty() {
            return Err(format!("{} ended: {}", self.name, self.process.wait()?).into());
        }
        let answer: Value = serde_json::from_str(&answer)?;
        match answer["seconds"].as_f64() {
            Some(seconds) => Ok(Cost {
                seconds,
                cpu_seconds: answer["cpu_seconds"].as_f64(),
            }),
            None => Err(format!("{}: {}", self.name, answer["error"]).into()),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The process has no data to lose. It may already have ended.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
