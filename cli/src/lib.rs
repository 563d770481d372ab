//! `zarrs-cuda`: one command for people who look after sharded Zarr arrays.
//!
//! [`run`] is the command: the program `zarrs-cuda` calls it, and so does `python -m zarrs_cuda`.
//!
//! Each subcommand is a module with its arguments (`Args`) and a function `run`, which returns an
//! `Outcome` or a `Failure`. `docs/cli.md` has an example of each.

#![allow(
    clippy::format_push_string,
    reason = "text for people, where an allocation costs nothing"
)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test's way to fail"))]

/// Prints a line to standard error, and ignores errors. (`eprintln` would panic.)
macro_rules! tell {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

mod arguments;
mod bench;
mod checks;
mod chosen;
mod common;
mod compact;
mod consolidate;
mod demo;
mod doctor;
mod exit;
mod explain;
mod failure;
mod heap;
mod inspect;
mod outcome;
mod plan;
mod progress;
mod pyramid;
mod recover;
mod reencode;
mod replacing;
mod reports;
mod reshard;
mod shapes;
mod shell;
mod status;
mod stdout;
mod stop;
mod stream;
mod variables;
mod verify;
mod watcher;
mod work;

use std::ffi::OsString;
use std::io::Write as _;

use clap::{Parser, Subcommand};
use zarrs_cuda_convert::Failure;

pub use crate::variables::unknown as unknown_variables;

use crate::common::Common;
use crate::exit::Exit;
use crate::outcome::Outcome;

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    failed
  2    wrong usage
  3    done, but what was looked at is damaged, or differs
  130  interrupted";

/// Makes, inspects, verifies and repairs sharded Zarr arrays.
#[derive(Parser)]
#[command(name = "zarrs-cuda", version, after_help = EXIT_CODES, max_term_width = 100)]
struct CommandLine {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    Demo(demo::Args),
    Reencode(reencode::Args),
    Reshard(reshard::Args),
    Inspect(inspect::Args),
    Explain(explain::Args),
    Verify(verify::Args),
    Recover(recover::Args),
    Compact(compact::Args),
    Consolidate(consolidate::Args),
    Stream(stream::Args),
    Pyramid(pyramid::Args),
    Plan(plan::Args),
    Status(status::Args),
    Doctor(doctor::Args),
    Bench(bench::Args),
    #[command(hide = true)]
    Completions(shell::CompletionsArgs),
    #[command(hide = true)]
    Man(shell::ManArgs),
}

impl Task {
    fn run(&self, common: &Common) -> Result<Outcome, Failure> {
        match self {
            Self::Demo(args) => demo::run(args, common),
            Self::Reencode(args) => reencode::run(args, common),
            Self::Reshard(args) => reshard::run(args, common),
            Self::Inspect(args) => inspect::run(args, common),
            Self::Explain(args) => explain::run(args, common),
            Self::Verify(args) => verify::run(args, common),
            Self::Recover(args) => recover::run(args, common),
            Self::Compact(args) => compact::run(args, common),
            Self::Consolidate(args) => consolidate::run(args, common),
            Self::Stream(args) => stream::run(args, common),
            Self::Pyramid(args) => pyramid::run(args, common),
            Self::Plan(args) => plan::run(args, common),
            Self::Status(args) => status::run(args),
            Self::Doctor(args) => doctor::run(args, common),
            Self::Bench(args) => bench::run(args, common),
            Self::Completions(args) => shell::completions(args),
            Self::Man(args) => shell::man(args),
        }
    }
}

/// Runs the command with the arguments behind its name, and returns the exit code: 0 done, 1 failed, 2 wrong usage,
/// 3 damage, differences or an output that is not complete found, 130 interrupted.
///
/// The command is the last thing that a process does. It handles Ctrl-C and SIGTERM from now on, and may end the
/// process. It adds codecs to those of zarrs, and registers the library's codec itself: a
/// [`Registration`](zarrs_cuda::Registration) of the process makes subcommands fail.
///
/// `doctor` begins the program of this process again, with arguments, to look for GPUs. A program that does more than
/// run the command, or that needs arguments before those of the command, calls [`run_as`].
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let program = std::env::current_exe().map(OsString::from);
    run_as(program.into_iter().collect(), arguments)
}

/// Runs the command like [`run`]. `program` is the words with which a process of the command begins: a file, and
/// arguments that precede those of the command. `doctor` begins such a process. The process only has to run `doctor`,
/// and print nothing else on standard output.
pub fn run_as(program: Vec<OsString>, arguments: impl IntoIterator<Item = OsString>) -> u8 {
    heap::fit_addresses();
    zarrs_cuda_convert::extensions::register();
    let words = std::iter::once("zarrs-cuda".into()).chain(arguments);
    let CommandLine { mut common, task } = match CommandLine::try_parse_from(words) {
        Ok(line) => line,
        Err(error) => {
            // The text is help, the version, or a wrong argument. It is no error if the reader of the output
            // has gone.
            let _ = error.print();
            let _ = std::io::stdout().flush();
            return u8::try_from(error.exit_code()).unwrap_or(Exit::Usage.code());
        }
    };
    common.program = program;
    let outcome = common.prepare().and_then(|()| task.run(&common));
    match outcome {
        Ok(outcome) => outcome.print(common.json),
        Err(failure) => failure::print(&failure, common.json),
    }
}
