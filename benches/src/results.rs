//! Stores the results of benchmarks.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::Result;

/// Writes `rows` to `target/bench/NAME`, and returns the path. `tmp` is `target/tmp`, which Cargo tells
/// to benchmarks alone.
pub fn write(tmp: &str, name: &str, rows: &[Value]) -> Result<PathBuf> {
    let folder = Path::new(tmp).join("../bench");
    fs::create_dir_all(&folder)?;
    let path = folder.canonicalize()?.join(name);
    fs::write(&path, serde_json::to_string_pretty(rows)?)?;
    Ok(path)
}
