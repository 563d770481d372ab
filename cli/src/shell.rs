//! `zarrs-cuda completions` and `zarrs-cuda man`, for packagers.

use std::path::PathBuf;

use clap::CommandFactory;
use clap_complete::Shell;
use serde_json::json;
use zarrs_cuda_convert::Failure;

use crate::CommandLine;
use crate::outcome::Outcome;

/// Print completions for a shell
#[derive(clap::Args, Debug)]
pub(crate) struct CompletionsArgs {
    shell: Shell,
}

/// Write a manual page for each subcommand into a folder
#[derive(clap::Args, Debug)]
pub(crate) struct ManArgs {
    folder: PathBuf,
}

#[allow(clippy::unnecessary_wraps, reason = "as every subcommand")]
pub(crate) fn completions(args: &CompletionsArgs) -> Result<Outcome, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(
        args.shell,
        &mut CommandLine::command(),
        "zarrs-cuda",
        &mut script,
    );
    let script = String::from_utf8_lossy(&script).into_owned();
    Ok(Outcome::new(
        script.trim_end(),
        json!({ "completions": script }),
    ))
}

pub(crate) fn man(args: &ManArgs) -> Result<Outcome, Failure> {
    let doing = format!("write manual pages to {}", args.folder.display());
    std::fs::create_dir_all(&args.folder).map_err(Failure::to(&doing))?;
    clap_mangen::generate_to(CommandLine::command(), &args.folder).map_err(Failure::to(&doing))?;
    let text = format!("manual pages are in {}", args.folder.display());
    Ok(Outcome::new(text, json!({ "folder": args.folder })))
}
