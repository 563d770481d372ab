//! Looks for GPUs in a process of its own, with a limit: a driver may hang or crash when it is initialised.

use std::io::Read as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use zarrs_cuda_convert::Failure;

use crate::common::Common;
use crate::variables::LOOKS;

/// The report of the process that has looked.
pub(super) struct Report(Value);

/// Returns whether another process of `doctor` has begun this one to look for GPUs.
pub(super) fn is_begun() -> bool {
    std::env::var_os(LOOKS).is_some()
}

/// Begins a process that looks for GPUs, and returns its report. If the process fails, or takes longer than
/// `limit`, the report says so.
pub(super) fn look(common: &Common, limit: Duration) -> Report {
    Report(reported(common, limit).unwrap_or_else(|why| {
        json!({
            "lines": [format!("devices: unknown: {why}")],
            "members": {
                "machine": {
                    "memory": null, "devices": [], "no_devices": why, "driver": {
                        "cuda": null, "kernel_module": null, "library": null,
                    },
                    "nvcomp": { "problem": "it was not looked for, since looking for GPUs failed" },
                },
                "not_used": null,
                "use": { "is_well": false, "text": why },
                "chains": [],
                "estimates": [],
            },
        })
    }))
}

fn reported(common: &Common, limit: Duration) -> Result<Value, String> {
    const WHO: &str = "a process that looked for GPUs";
    let mut command = Command::new(common.program.first().ok_or("the program has no name")?);
    command
        .args(common.program.iter().skip(1))
        .arg("doctor")
        .args(common.words())
        .env(LOOKS, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|error| format!("{WHO} did not begin: {error}"))?;
    let begun = Instant::now();
    let (sender, receiver) = mpsc::channel();
    let stdout = child.stdout.take();
    thread::spawn(move || {
        let mut text = Vec::new();
        let read = stdout.map(|mut stdout| stdout.read_to_end(&mut text));
        // The receiver may have stopped waiting.
        let _ = sender.send(read.is_some_and(|read| read.is_ok()).then_some(text));
    });
    let text = receiver.recv_timeout(limit).ok();
    let status = match &text {
        // The process may hang after the end of its output, too.
        Some(_) => ended(&mut child, limit.saturating_sub(begun.elapsed())),
        None => Ok(None),
    };
    let Some(status) = status.map_err(|error| format!("{WHO} is lost: {error}"))? else {
        // The process may be inside the driver's kernel module, and a kill ends the process only when the driver
        // returns. So the end is not waited for.
        let _ = child.kill();
        let _ = child.try_wait();
        return Err(format!(
            "{WHO} did not end in {} s: the NVIDIA driver hangs. See whether `nvidia-smi` hangs, too, and restart the machine, or give a longer --limit",
            limit.as_secs()
        ));
    };
    let text = text.flatten();
    let report = text.and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    report
        .filter(|report| status.success() && report["members"].is_object())
        .ok_or_else(|| {
            format!(
                "{WHO} ended {}: the NVIDIA driver, or a library that it loads, is broken. See what `nvidia-smi` says",
                ending(status)
            )
        })
}

/// Waits at most `limit` for the end of `child`; returns `None` if the process still runs.
fn ended(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    const PAUSE: Duration = Duration::from_millis(10);
    let begun = Instant::now();
    loop {
        let status = child.try_wait()?;
        if status.is_some() || begun.elapsed() >= limit {
            return Ok(status);
        }
        thread::sleep(PAUSE);
    }
}

/// Returns how a process ended, in words: by which signal, or with which exit code.
fn ending(status: ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        let name = match signal {
            4 => " (SIGILL)",
            6 => " (SIGABRT)",
            8 => " (SIGFPE)",
            9 => " (SIGKILL)",
            11 => " (SIGSEGV)",
            15 => " (SIGTERM)",
            _ => "",
        };
        return format!("by the signal {signal}{name}");
    }
    match status.code() {
        Some(code) => format!("with the exit code {code} and without a report"),
        None => "without a report".to_string(),
    }
}

impl Report {
    pub(super) fn lines(&self) -> Vec<String> {
        let lines = self.0["lines"].as_array().into_iter().flatten();
        lines
            .filter_map(Value::as_str)
            .map(str::to_string)
            .collect()
    }

    /// Returns the members for the JSON object of `doctor`.
    pub(super) fn members(&self) -> impl Iterator<Item = (&str, Value)> {
        let members = self.0["members"].as_object().into_iter().flatten();
        members.map(|(name, value)| (name.as_str(), value.clone()))
    }

    /// Returns the failure if settings ask for GPUs that cannot be used.
    pub(super) fn failure(&self) -> Option<Failure> {
        let verdict = &self.0["members"]["use"];
        let is_well = verdict["is_well"].as_bool().unwrap_or(false);
        (!is_well).then(|| Failure::failed(verdict["text"].as_str().unwrap_or_default()))
    }
}
