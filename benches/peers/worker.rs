//! A peer: a Python process that writes arrays on request.

use std::path::Path;

use serde_json::{Value, json};
use zarrs_cuda_benches::Result;
use zarrs_cuda_benches::clock::Cost;
use zarrs_cuda_benches::python::Script;

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
pub(crate) struct Worker(Script);

impl Worker {
    /// Starts `script`, which reads the elements of the array from `data`.
    pub(crate) fn start(python: &Path, script: &str, data: &Path) -> Result<Self> {
        Ok(Self(Script::start(
            python,
            &format!("peers/{script}"),
            data,
        )?))
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
        let answer = self.0.ask(&json!({
            "metadata": metadata, "path": folder, "way": way.name(), "verify": verify,
        }))?;
        let seconds = answer["seconds"].as_f64();
        Ok(Cost {
            seconds: seconds.ok_or("a peer answered without a time")?,
            cpu_seconds: answer["cpu_seconds"].as_f64(),
        })
    }
}
