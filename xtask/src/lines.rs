//! Counts the lines of code of the packages.
//!
//! A line counts if it is neither blank nor a comment, and users compile it. Lines behind
//! `cfg(test)` or a feature for this repository's own programs are counted separately. A file with more
//! lines than [`most`] is more than one idea.

use std::collections::BTreeMap;
use std::path::Path;

use crate::Result;
use crate::sources::{self, Source};

/// Returns the most lines that a file of users may have.
fn most(file: &Path) -> usize {
    if file.starts_with("cli") || file.starts_with("python") {
        600
    } else {
        500
    }
}

/// Returns a complaint about each file of `sources` that has too many lines.
fn too_long(sources: &[Source]) -> Vec<String> {
    let complaint = |source: &Source| {
        let (lines, most) = (source.library.len(), most(&source.file));
        let file = source.file.display();
        (lines > most).then(|| format!("{file}: {lines} of at most {most} lines"))
    };
    sources.iter().filter_map(complaint).collect()
}

/// Prints the lines of each folder, and of all: for users, and for this repository.
///
/// # Errors
/// A file has too many lines.
pub(crate) fn print() -> Result<()> {
    let mut folders = BTreeMap::new();
    let mut all = [0, 0];
    let sources = sources::all()?;
    for source in &sources {
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
    let long = too_long(&sources);
    if long.is_empty() {
        return Ok(());
    }
    Err(long.join("\n"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_file_is_too_long() {
        std::env::set_current_dir(crate::root()).expect("the repository");
        let sources = crate::sources::all().expect("sources");
        assert_eq!(super::too_long(&sources), Vec::<String>::new());
    }
}
