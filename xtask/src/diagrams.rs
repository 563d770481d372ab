//! Draws the pictures of the documentation, `docs/images/*.svg`.
//!
//! A picture is a function that returns a [`Drawing`]. `cargo xtask diagrams` writes all of them, and
//! `cargo xtask diagrams --check` fails if a file is not what comes out.
//!
//! Pages of the guide are rustdoc, too, which has no files but its own. So a picture of such a page is written
//! a second time, to `src/guide/pictures/NAME.txt`: a definition of the label `picture NAME`, with the picture
//! in its address.

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
use crate::svg::in_address;
use drawing::Drawing;

/// The folder of the pictures.
const FOLDER: &str = "docs/images";

/// The folder of the pictures for rustdoc, and the names of these pictures.
const RUSTDOC: &str = "src/guide/pictures";
const IN_RUSTDOC: [&str; 4] = ["shard", "update", "epochs", "frames"];

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
    /// The files of the picture, and their content.
    files: Vec<(PathBuf, String)>,
    /// Complaints about words that do not fit.
    misfits: Vec<String>,
}

/// Draws all pictures.
fn drawn() -> impl Iterator<Item = Drawn> {
    PICTURES.into_iter().map(|(name, draw)| {
        let drawing = draw();
        let svg = drawing.to_svg();
        let file = Path::new(FOLDER).join(name).with_extension("svg");
        let misfits = drawing.misfits();
        let complain = |misfit: &String| format!("{}: {misfit}", file.display());
        let misfits = misfits.iter().map(complain).collect();
        let mut files = Vec::new();
        if IN_RUSTDOC.contains(&name) {
            let definition = format!("[picture {name}]: {}\n", in_address(&svg));
            let rustdoc = Path::new(RUSTDOC).join(name).with_extension("txt");
            files.push((rustdoc, definition));
        }
        files.push((file, svg));
        Drawn { files, misfits }
    })
}

/// Writes all pictures.
///
/// # Errors
/// Words of a picture do not fit. The pictures are written nevertheless, to be looked at.
pub(crate) fn write() -> Result<()> {
    for folder in [FOLDER, RUSTDOC] {
        fs::create_dir_all(folder).map_err(|e| format!("{folder}: {e}"))?;
    }
    let mut misfits = Vec::new();
    for drawn in drawn() {
        for (file, content) in &drawn.files {
            fs::write(file, content).map_err(|e| format!("{}: {e}", file.display()))?;
            println!("{}", file.display());
        }
        misfits.extend(drawn.misfits);
    }
    if misfits.is_empty() {
        return Ok(());
    }
    Err(misfits.join("\n"))
}

/// Compares the files with the pictures that the code draws.
///
/// # Errors
/// A file is missing or different, or words of a picture do not fit.
pub(crate) fn check() -> Result<()> {
    let mut wrong = Vec::new();
    for drawn in drawn() {
        for (file, content) in &drawn.files {
            let (stored, file) = (fs::read_to_string(file), file.display());
            match stored {
                Ok(stored) if stored == *content => {}
                Ok(_) => wrong.push(format!("{file}: not what the code draws")),
                Err(error) => wrong.push(format!("{file}: {error}")),
            }
        }
        wrong.extend(drawn.misfits);
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
