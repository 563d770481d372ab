//! What something took: time, and time of processors, which a busy machine disturbs less.

use std::fs;
use std::time::Instant;

/// What something took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) seconds: f64,
    /// Of all threads of this process, in user and kernel mode; Linux says so, in steps of 10 ms.
    pub(crate) cpu_seconds: Option<f64>,
}

/// Runs from when it is made.
pub(crate) struct Clock {
    start: Instant,
    cpu_start: Option<f64>,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            cpu_start: cpu_seconds(),
            start: Instant::now(),
        }
    }

    pub(crate) fn stop(&self) -> Cost {
        let seconds = self.start.elapsed().as_secs_f64();
        Cost {
            seconds,
            cpu_seconds: cpu_seconds()
                .zip(self.cpu_start)
                .map(|(end, start)| end - start),
        }
    }
}

fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the name of the program, which may have anything in it. User and system time are fields
    // 14 and 15 of all, in hundredths of a second for every program.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
    Some((ticks(14)? + ticks(15)?) / 100.0)
}
