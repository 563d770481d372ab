//! Stores the results of benchmarks.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Writes `rows` to `target/bench/NAME`, and returns the path.
pub(crate) fn write(name: &str, rows: &[Value]) -> Result<PathBuf, Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../bench");
    fs::create_dir_all(&folder)?;
    let path = folder.canonicalize()?.join(name);
    fs::write(&path, serde_json::to_string_pretty(rows)?)?;
    Ok(path)
}
