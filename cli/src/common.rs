//! The options of every subcommand.

use std::ffi::OsString;

use clap::{Args, ValueEnum};
use zarrs::config::global_config_mut;
use zarrs_cuda::Options;
use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::budget::Budget;

use crate::arguments::{Count, Gpus, Size};
use crate::stop;

/// Options that every subcommand has.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options of every subcommand")]
pub(crate) struct Common {
    /// Print one JSON object instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Threads that compute [default: as many as there are processors]
    #[arg(long, global = true, value_name = "N")]
    pub(crate) threads: Option<Count>,
    /// Memory for buffers, as 512MiB or 4GiB [default: a quarter of this machine's]
    #[arg(long, global = true, value_name = "SIZE")]
    pub(crate) memory: Option<Size>,
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "WHERE",
        help = "Where shards are encoded and decoded [default: on the processor, unless --devices or ZARRS_CUDA_DEVICES names a GPU]"
    )]
    pub(crate) backend: Option<Backend>,
    /// The GPUs to use, by number, as 0 or 0,1; or all
    #[arg(long, global = true, value_name = "N,..")]
    pub(crate) devices: Option<Gpus>,
    /// The words with which a process of this command begins.
    #[arg(skip)]
    pub(crate) program: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Backend {
    /// On a GPU where one helps
    Auto,
    /// On the processor
    Host,
    /// On a GPU, or fail
    Cuda,
}

/// Returns `options` with at most `bytes` of the host's memory, page-locked or not.
fn within(options: Options, bytes: usize) -> Options {
    let options = options.with_host_memory(bytes);
    if options.most_pinned_memory() > bytes {
        options.with_pinned_memory(bytes)
    } else {
        options
    }
}

impl Common {
    /// Applies the options that concern the whole process. Call it before anything uses rayon or zarrs.
    pub(crate) fn prepare(&self) -> Result<(), Failure> {
        stop::listen()?;
        if let Some(threads) = self.threads {
            rayon::ThreadPoolBuilder::new()
                .num_threads(threads.get())
                .build_global()
                .map_err(Failure::to(format_args!("start {threads} threads")))?;
            global_config_mut().set_codec_concurrent_target(threads.get());
        }
        Ok(())
    }

    /// Returns the words that give another process of this command the same options.
    pub(crate) fn words(&self) -> Vec<String> {
        let backend = self.backend.and_then(|backend| backend.to_possible_value());
        let words = [
            ("--threads", self.threads.map(|threads| threads.to_string())),
            (
                "--memory",
                self.memory.map(|memory| memory.bytes().to_string()),
            ),
            (
                "--backend",
                backend.map(|value| value.get_name().to_string()),
            ),
            ("--devices", self.devices.as_ref().map(Gpus::to_string)),
        ];
        let given = words
            .into_iter()
            .filter_map(|(name, value)| Some(format!("{name}={}", value?)));
        given.collect()
    }

    /// Returns the library's options.
    pub(crate) fn options(&self) -> Options {
        let mut options = match self.backend {
            None => Options::default(),
            Some(Backend::Auto) => Options::default()
                .with_backend(zarrs_cuda::Backend::Auto)
                .with_consent("--backend"),
            Some(Backend::Host) => Options::default().with_backend(zarrs_cuda::Backend::Host),
            Some(Backend::Cuda) => Options::default().with_backend(zarrs_cuda::Backend::Cuda),
        };
        options = match &self.devices {
            None => options,
            Some(Gpus::All) => options.with_all_devices().with_consent("--devices"),
            Some(Gpus::Numbers(numbers)) => options
                .with_devices(numbers.clone())
                .with_consent("--devices"),
        };
        match self.memory {
            Some(memory) => within(options, memory.bytes()),
            None => options,
        }
    }

    /// Returns the library's options, without the `other` bytes of the budget that other buffers take.
    pub(crate) fn options_beside(&self, other: u64) -> Options {
        let other = usize::try_from(other).unwrap_or(usize::MAX);
        within(self.options(), self.memory().saturating_sub(other))
    }

    /// Returns the number of bytes that buffers may take.
    pub(crate) fn memory(&self) -> usize {
        self.options().host_memory()
    }

    /// Returns the budget for buffers.
    pub(crate) fn budget(&self) -> Budget {
        Budget::new(self.memory() as u64)
    }

    /// Returns the number of threads that compute.
    pub(crate) fn threads(&self) -> usize {
        self.threads
            .map_or_else(rayon::current_num_threads, Count::get)
    }

    /// Prints a line for people before the outcome. With `--json`, prints nothing.
    pub(crate) fn say(&self, line: impl std::fmt::Display) {
        if !self.json {
            crate::stdout::print(&format!("{line}\n"));
        }
    }

    /// Returns whether text on standard output may have colours: only on a terminal, and unless `NO_COLOR` is
    /// set.
    pub(crate) fn has_colours(&self) -> bool {
        let is_refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        !self.json && !is_refused && console::Term::stdout().features().colors_supported()
    }

    /// Returns the width of standard output in columns: the terminal's, the variable `COLUMNS`, or 80.
    #[allow(clippy::unused_self, reason = "callers ask the common options")]
    pub(crate) fn columns(&self) -> usize {
        let columns = std::env::var("COLUMNS")
            .ok()
            .and_then(|columns| columns.parse().ok());
        let terminal = console::Term::stdout().size_checked();
        terminal
            .map(|(_, columns)| usize::from(columns))
            .or(columns)
            .unwrap_or(80)
            .max(20)
    }
}
