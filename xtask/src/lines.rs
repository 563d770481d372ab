//! Counts the lines of code of the packages.
//!
//! A line counts if it is neither blank nor a comment, and users compile it. Lines behind
//! `cfg(test)` or a feature for this repository's own programs are counted separately.

use std::collections::BTreeMap;
use std::path::Path;

use crate::{Result, sources};

/// Prints the lines of each folder, and of all: for users, and for this repository.
pub(crate) fn print() -> Result<()> {
    let mut folders = BTreeMap::new();
    let mut all = [0, 0];
    for source in sources::all()? {
        let folder = source.file.parent().unwrap_or(Path::new("src"));
        let lines = [source.library.len(), source.apart];
        let counted: &mut [usize; 2] = folders.entry(folder.to_path_buf()).or_default();
        for (sums, lines) in std::iter::zip(counted.iter_mut().zip(&mut all), lines) {
            *sums.0 += lines;
            *sums.1 += lines;
        }
    }
    println!("{:>8} {:>8}", "shipped", "apart");
    for (folder, [library, apart]) in &folders {
        println!("{library:>8} {apart:>8}  {}", folder.display());
    }
    println!("{:>8} {:>8}  all", all[0], all[1]);
    Ok(())
}
