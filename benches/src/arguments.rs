//! The command lines of benchmarks.

use std::path::PathBuf;

/// The arguments: flags, which begin with `--`, and filters.
#[derive(Clone, Debug)]
pub struct Arguments {
    flags: Vec<String>,
    filters: Vec<String>,
}

impl Arguments {
    /// The arguments of this process.
    pub fn of_process() -> Self {
        let (flags, filters) = std::env::args()
            .skip(1)
            .partition(|argument| argument.starts_with("--"));
        Self { flags, filters }
    }

    /// Whether `flag` is given.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|given| given == flag)
    }

    /// The value of the flag that begins with `name`, like `--in=`.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.flags.iter().find_map(|flag| flag.strip_prefix(name))
    }

    /// Whether the run is only a test of the benchmark.
    pub fn quick(&self) -> bool {
        self.has("--quick")
    }

    /// The folder for files, which is `default` unless `--in=` names another.
    pub fn folder(&self, default: &str) -> PathBuf {
        self.value("--in=").unwrap_or(default).into()
    }

    /// Whether a filter is a part of `name`, or there is no filter.
    pub fn wants(&self, name: &str) -> bool {
        self.wants_by(|filter| name.contains(filter))
    }

    /// Whether a filter `matches`, or there is no filter.
    pub fn wants_by(&self, mut matches: impl FnMut(&str) -> bool) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| matches(filter))
    }
}
