//! Measures elapsed time and CPU time. Other work on the machine disturbs CPU time less.

use std::fs;
use std::time::Instant;

/// The time that an operation took.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Elapsed time, in seconds.
    pub seconds: f64,
    /// The CPU time of all threads of this process, in user and kernel mode. Only Linux reports it,
    /// in steps of 10 ms.
    pub cpu_seconds: Option<f64>,
}

/// A clock that starts when it is created.
pub struct Clock {
    start: Instant,
    cpu_start: Option<f64>,
}

impl Clock {
    /// Starts a clock.
    pub fn start() -> Self {
        Self {
            cpu_start: cpu_seconds(),
            start: Instant::now(),
        }
    }

    /// The time since the start.
    pub fn stop(&self) -> Cost {
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
    // The fields follow the program's name, which may contain any character. User and system time
    // are the fields 14 and 15 of the line, always in hundredths of a second.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
    Some((ticks(14)? + ticks(15)?) / 100.0)
}
