//! Reports results: a line of text for each at once, and one document at the end.

use std::fmt::Write as _;
use std::fs;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::failure::Result;
use super::samples::{Ratio, Samples};
use super::{Sizes, cores};
use zarrs_cuda_engine::cuda::driver::DeviceInfo;

/// One result.
pub(crate) struct Row {
    name: String,
    rate: f64,
    values: Map<String, Value>,
    /// Ratios: the name of the reference, the ratio, and its goal.
    ratios: Vec<(String, Ratio, Option<f64>)>,
    verified: bool,
}

impl Row {
    /// A row whose `samples` each moved `bytes`.
    pub(crate) fn new(name: impl Into<String>, samples: &Samples, bytes: usize) -> Self {
        let name = name.into();
        let mut values = Map::new();
        values.insert("name".into(), json!(name));
        values.insert("bytes".into(), json!(bytes));
        values.insert("seconds".into(), samples.seconds());
        values.insert("gb_per_s".into(), samples.rates(bytes));
        Self {
            name,
            rate: samples.rate(bytes),
            values,
            ratios: Vec::new(),
            verified: true,
        }
    }

    pub(crate) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.values.insert(key.into(), value.into());
        self
    }

    /// Adds a ratio to `what`. The goal is the least median ratio.
    pub(crate) fn ratio(mut self, what: &str, ratio: Ratio, goal: Option<f64>) -> Self {
        self.ratios.push((what.to_string(), ratio, goal));
        self
    }

    /// Marks the result as unchecked.
    pub(crate) fn unverified(mut self) -> Self {
        self.verified = false;
        self
    }
}

/// All results.
pub(crate) struct Report<'s> {
    say: &'s dyn Fn(&str),
    document: Map<String, Value>,
    section: String,
    goals: Vec<Value>,
    errors: Vec<Value>,
    begin: Instant,
}

impl<'s> Report<'s> {
    pub(crate) fn new(device: &DeviceInfo, sizes: &Sizes, say: &'s dyn Fn(&str)) -> Self {
        let mut document = Map::new();
        let driver = driver_version();
        let (major, minor) = device.compute_capability;
        document.insert("benchmark".into(), json!("device"));
        document.insert("version".into(), json!(env!("CARGO_PKG_VERSION")));
        document.insert("date".into(), json!(today()));
        document.insert(
            "gpu".into(),
            json!({
                "name": device.name,
                "compute_capability": format!("{major}.{minor}"),
                "memory": device.total_memory,
                "multiprocessors": device.multiprocessors,
                "driver": driver,
            }),
        );
        let host = json!({ "processor": processor(), "cores": cores().get() });
        document.insert("host".into(), host);
        document.insert(
            "sizes".into(),
            json!({
                "box": [sizes.edge, sizes.edge, sizes.edge],
                "subchunk": [sizes.subchunk, sizes.subchunk, sizes.subchunk],
                "data_type": "uint16",
                "box_bytes": sizes.box_len(),
                "bus_copy_bytes": sizes.copy,
                "rounds": sizes.rounds,
                "warm_up_seconds": sizes.warm_up.as_secs_f64(),
                "distinct_bytes": sizes.distinct,
                "slab": sizes.tuning.slab,
                "ring": sizes.tuning.ring,
                "batch": sizes.tuning.batch,
                "compressed_batch": sizes.tuning.compressed_batch,
                "batches": sizes.tuning.batches,
                "small_part": sizes.tuning.small_part,
            }),
        );
        say(&format!(
            "{}, compute capability {major}.{minor}, driver {}, {} cores",
            device.name,
            driver.as_deref().unwrap_or("of unknown version"),
            cores()
        ));
        Self {
            say,
            document,
            section: String::new(),
            goals: Vec::new(),
            errors: Vec::new(),
            begin: Instant::now(),
        }
    }

    /// Starts the section `name`. The following rows belong to it.
    pub(crate) fn section(&mut self, name: &str, title: &str) {
        if self.section == name {
            return;
        }
        self.section = name.to_string();
        self.document
            .entry(name)
            .or_insert_with(|| json!({ "about": title, "rows": [] }));
        self.say(&format!("\n{name}: {title}"));
    }

    /// Adds a remark about the section to the document.
    pub(crate) fn note(&mut self, key: &str, value: impl Into<Value>) {
        if let Some(section) = self.document.get_mut(&self.section) {
            section[key] = value.into();
        }
    }

    pub(crate) fn row(&mut self, row: Row) {
        self.row_if(true, row);
    }

    /// Keeps a row, and prints it if `shown`.
    pub(crate) fn row_if(&mut self, shown: bool, row: Row) {
        let mut line = format!("  {:44} {:9.2} GB/s", row.name, row.rate);
        let mut ratios = Map::new();
        for (what, ratio, goal) in &row.ratios {
            let Ratio { median, best } = ratio;
            let _ = write!(line, "   {median:5.2} of {what} ({best:.2} at best)");
            let mut value = json!({ "value": median, "best": best });
            if let Some(goal) = goal {
                let met = median >= goal;
                let _ = write!(
                    line,
                    " (goal {goal}: {})",
                    if met { "met" } else { "missed" }
                );
                value["goal"] = json!(goal);
                value["met"] = json!(met);
                self.goals.push(json!({
                    "name": format!("{}: {} / {what}", self.section, row.name),
                    "value": median,
                    "best": best,
                    "goal": goal,
                    "met": met,
                }));
            }
            ratios.insert(what.clone(), value);
        }
        let mut values = row.values;
        values.insert("ratios".into(), Value::Object(ratios));
        values.insert("verified".into(), json!(row.verified));
        if shown {
            self.say(&line);
        }
        if let Some(rows) = self
            .document
            .get_mut(&self.section)
            .and_then(|section| section["rows"].as_array_mut())
        {
            rows.push(Value::Object(values));
        }
    }

    pub(crate) fn say(&self, line: &str) {
        (self.say)(line);
    }

    /// Records why `what` was not measured, if it failed.
    pub(crate) fn failed(&mut self, what: &str, result: Result<()>) {
        if let Err(failure) = result {
            self.say(&format!("  FAILED: {what}: {failure:?}"));
            let error = json!({ "what": what, "reason": failure.0 });
            self.errors.push(error);
        }
    }

    /// All results until now.
    pub(crate) fn so_far(&self) -> Value {
        let mut document = self.document.clone();
        let seconds = self.begin.elapsed().as_secs();
        document.insert("seconds".into(), json!(seconds));
        document.insert("goals".into(), json!(self.goals));
        document.insert("errors".into(), json!(self.errors));
        Value::Object(document)
    }

    pub(crate) fn finish(self) -> Value {
        let count = |met: bool| self.goals.iter().filter(|goal| goal["met"] == met).count();
        let seconds = self.begin.elapsed().as_secs();
        self.say(&format!(
            "\n{} goals met, {} missed, {} failures, in {seconds} s",
            count(true),
            count(false),
            self.errors.len()
        ));
        self.so_far()
    }
}

/// The version of NVIDIA's kernel module, on Linux.
fn driver_version() -> Option<String> {
    let text = fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    version_in(&text)
}

/// The first word that consists of numbers and dots.
fn version_in(text: &str) -> Option<String> {
    text.split_whitespace()
        .find(|word| {
            let parts: Vec<&str> = word.split('.').collect();
            let is_number =
                |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            parts.len() > 1 && parts.iter().all(is_number)
        })
        .map(str::to_string)
}

fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

fn today() -> Option<String> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(date_of(since.as_secs() / 86_400))
}

/// The Gregorian date this many days after 1970-01-01.
fn date_of(days: u64) -> String {
    // Counts from 0000-03-01, so that a leap day is the last day of its year.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + later)
}

#[cfg(test)]
#[allow(
    unused_imports,
    reason = "the benchmark itself has no harness, and leaves out its tests"
)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        for (days, date) in [
            (0, "1970-01-01"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_453, "2025-12-31"),
            (47_541, "2100-03-01"),
        ] {
            assert_eq!(date_of(days), date);
        }
    }

    #[test]
    fn a_driver_tells_its_version_among_other_things() {
        let text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\nGCC version:  gcc version 11.4.0";
        assert_eq!(version_in(text).as_deref(), Some("550.54.15"));
        assert_eq!(version_in("NVRM version: 1 .5 x.y"), None);
    }
}
