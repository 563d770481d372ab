//! Draws the pictures of the documentation, `docs/images/*.svg`.
//!
//! A picture is a function that returns a [`Drawing`]. `cargo xtask diagrams` writes all of them, and
//! `cargo xtask diagrams --check` fails if a file is not what comes out.

mod doors;
mod drawing;
mod epochs;
mod frames;
mod lane;
mod shard;
mod update;

use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;
use drawing::Drawing;

/// The folder of the pictures.
const FOLDER: &str = "docs/images";

/// A function that draws one picture.
type Draw = fn() -> Drawing;

/// The pictures, by the names of their files.
const PICTURES: [(&str, Draw); 6] = [
    ("doors", doors::draw),
    ("shard", shard::draw),
    ("update", update::draw),
    ("epochs", epochs::draw),
    ("frames", frames::draw),
    ("lane", lane::draw),
];

/// A picture that was drawn.
struct Drawn {
    file: PathBuf,
    svg: String,
    misfits: Vec<String>,
}

/// Draws all pictures.
fn drawn() -> impl Iterator<Item = Drawn> {
    PICTURES.into_iter().map(|(name, draw)| {
        let drawing = draw();
        Drawn {
            file: Path::new(FOLDER).join(name).with_extension("svg"),
            svg: drawing.to_svg(),
            misfits: drawing.misfits(),
        }
    })
}

/// Writes all pictures.
///
/// # Errors
/// Words of a picture do not fit. The pictures are written nevertheless, to be looked at.
pub(crate) fn write() -> Result<()> {
    fs::create_dir_all(FOLDER).map_err(|e| format!("{FOLDER}: {e}"))?;
    let mut misfits = Vec::new();
    for drawn in drawn() {
        let file = drawn.file.display();
        fs::write(&drawn.file, drawn.svg).map_err(|e| format!("{file}: {e}"))?;
        println!("{file}");
        misfits.extend(
            drawn
                .misfits
                .iter()
                .map(|misfit| format!("{file}: {misfit}")),
        );
    }
    if misfits.is_empty() {
        return Ok(());
    }
    Err(misfits.join("\n"))
}

/// Compares the files with the pictures that the code draws.
pub(crate) fn check() -> Result<()> {
    let mut wrong = Vec::new();
    for drawn in drawn() {
        let file = drawn.file.display();
        match fs::read_to_string(&drawn.file) {
            Ok(stored) if stored == drawn.svg => {}
            Ok(_) => wrong.push(format!("{file}: not what the code draws")),
            Err(error) => wrong.push(format!("{file}: {error}")),
        }
        wrong.extend(
            drawn
                .misfits
                .iter()
                .map(|misfit| format!("{file}: {misfit}")),
        );
    }
    if wrong.is_empty() {
        println!("{} pictures are what the code draws", PICTURES.len());
        return Ok(());
    }
    wrong.push("`cargo xtask diagrams` draws the pictures again".into());
    Err(wrong.join("\n"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_files_are_what_the_code_draws() {
        std::env::set_current_dir(crate::root()).expect("the repository");
        super::check().expect("the same pictures, in which all words fit");
    }
}
