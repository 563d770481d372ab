//! Re-encodes any Zarr v2 or v3 array on disk into a sharded v3 array.
//!
//! ```text
//! cargo run --release --example reencode -- [IN OUT] [OPTIONS]
//! ```
//!
//! Without arguments it re-encodes the small scan of a head in `examples/data` into
//! `target/reencode`, and verifies the result. `--help` lists the options.
//!
//! The array is read and written shard by shard, so it may be larger than memory: at most two
//! shards are held decoded at a time, one of them also encoded, and one chunk of the input for each
//! thread. (One shard is read while the other is written; a shard at the edge of the array is held
//! twice.) Every value, the data type, the fill value, the attributes and the dimension names are
//! carried over bit for bit.
//!
//! An output never looks more complete than it is. A shard is written to a temporary file and then
//! renamed. `zarr.json`, without which no reader opens the array, comes last: until then it is called
//! `zarr.json.incomplete`. `--resume` continues an interrupted run.

mod arrays;
mod codec;
mod copy;
mod directory;
mod job;
mod progress;
mod shapes;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use zarrs_cuda::Options;

use crate::arrays::{describe, open};
use crate::copy::{copy, verify};
use crate::directory::{prepare, publish, remove_temporaries};
use crate::job::{Job, USAGE};
use crate::shapes::Shapes;

/// The reasons for a missing or incomplete output.
enum Stop {
    Usage(String),
    Failed(String),
    Different(String),
    Interrupted(String),
}

impl From<String> for Stop {
    fn from(message: String) -> Self {
        Self::Failed(message)
    }
}

fn main() -> ExitCode {
    let (message, code) = match run() {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Stop::Usage(message)) => (
            format!("error: {message}\n\nTry --help for the options."),
            2,
        ),
        Err(Stop::Failed(message) | Stop::Different(message)) => (format!("error: {message}"), 1),
        Err(Stop::Interrupted(message)) => (format!("interrupted: {message}"), 130),
    };
    eprintln!("{message}");
    ExitCode::from(code)
}

fn run() -> Result<(), Stop> {
    let Some(job) = Job::from_arguments()? else {
        println!("{USAGE}");
        return Ok(());
    };
    stop_on_ctrl_c()?;

    // From here on, all sharded arrays use our codec, also a sharded input.
    let options = Options::default().with_backend(job.backend);
    let registration = zarrs_cuda::register(options).map_err(|error| error.to_string())?;

    let input = open(&job.input)?;
    let shapes = Shapes::choose(&job, &input)?;
    let output = describe(&job, &input, &shapes)?;
    println!("{} -> {}", job.input.display(), job.output.display());
    println!("{shapes}, {}", job.codec);
    if let Some(note) = shapes.reading_twice() {
        println!("{note}");
    }
    if job.explain {
        match zarrs_cuda::explain(&output) {
            Ok(explanation) => println!("{explanation}"),
            Err(error) => println!("nothing to explain: {error}"),
        }
    }

    prepare(&job, &output)?;
    let outcome = copy(&job, &shapes, &input, &output).and_then(|copied| {
        drop(registration);
        if job.verify {
            verify(&job, &shapes, &output)?;
        }
        publish(&job)?;
        Ok(copied)
    });
    let tidied = remove_temporaries(&job.output);
    let copied = outcome.map_err(|stop| stop.with_the_way_on(&job))?;
    tidied?;
    println!("{}", copied.summary(&job, &input, &output)?);
    Ok(())
}

static STOP: AtomicBool = AtomicBool::new(false);

fn stop_on_ctrl_c() -> Result<(), String> {
    ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        eprintln!("\nstopping after the shard at hand (Ctrl-C again: at once)");
    })
    .map_err(|error| format!("cannot listen for Ctrl-C: {error}"))
}

fn is_stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}

impl Stop {
    fn with_the_way_on(self, job: &Job) -> Self {
        let add = |message: String| {
            format!(
                "{message}\n{} is incomplete, and no Zarr reader opens it. Run the same command \
                 with --resume to go on, or with --overwrite to start again.",
                job.output.display()
            )
        };
        match self {
            Self::Failed(message) => Self::Failed(add(message)),
            Self::Interrupted(message) => Self::Interrupted(add(message)),
            other => other,
        }
    }
}
