//! Compares the dependencies within and between the packages with the picture in
//! `docs/architecture.md`.
//!
//! Paths that start with `crate`, `super`, `self` or the name of a package, or with a module that a file declares or
//! imports, are followed to the file that defines the named item, through re-exports. Each file
//! belongs to a room. The table of rooms in `docs/architecture.md` says which rooms a room may use.

mod paths;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::{Result, sources};

/// The file with the table.
const PICTURE: &str = "docs/architecture.md";
/// The heading above the table.
const HEADING: &str = "## Rooms";

/// For each file: the files that it uses.
pub(crate) type Arrows = BTreeMap<String, BTreeSet<String>>;

/// A room: its name, its files and folders, and the rooms that it may use.
#[derive(Debug)]
struct Room {
    name: String,
    places: Vec<String>,
    uses: Vec<String>,
}

impl Room {
    /// The length of the longest place of this room that contains `file`, in bytes; `None` if no
    /// place does.
    fn has(&self, file: &str) -> Option<usize> {
        let names = |place: &&String| match place.strip_suffix('/') {
            Some(_) => file.starts_with(place.as_str()),
            None => file == place.as_str(),
        };
        self.places.iter().filter(names).map(String::len).max()
    }
}

/// The problems.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    /// Files outside of every room.
    homeless: BTreeSet<String>,
    /// The using file, its room, the used room, and the used file.
    arrows: BTreeSet<(String, String, String, String)>,
    circles: BTreeSet<Vec<String>>,
}

/// Checks that nothing is outside of the picture.
pub(crate) fn check() -> Result<()> {
    let wrong = complaints(&look()?);
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("\n"))
    }
}

fn look() -> Result<Found> {
    let text = fs::read_to_string(PICTURE).map_err(|e| format!("{PICTURE}: {e}"))?;
    let arrows = paths::arrows(&sources::all()?);
    Ok(judge(&rooms(&text)?, &arrows))
}

/// Parses the table of rooms below the heading.
fn rooms(text: &str) -> Result<Vec<Room>> {
    let missing = || format!("{PICTURE} has no table of rooms below \"{HEADING}\"");
    let (_, section) = text.split_once(HEADING).ok_or_else(missing)?;
    let names = |cell: &str| -> Vec<String> {
        let names = cell.split('`').skip(1).step_by(2);
        names.map(str::to_owned).collect()
    };
    let rows = section.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
    let rooms: Vec<Room> = rows
        .filter_map(|row| {
            let mut cells = row.trim_matches('|').split('|');
            Some(Room {
                name: names(cells.next()?).pop()?,
                places: names(cells.next()?),
                uses: names(cells.next()?),
            })
        })
        .collect();
    if rooms.is_empty() {
        return Err(missing());
    }
    for room in &rooms {
        for used in &room.uses {
            if !rooms.iter().any(|room| room.name == *used) {
                return Err(format!(
                    "{PICTURE}: {} uses {used}, which is no room",
                    room.name
                ));
            }
        }
    }
    Ok(rooms)
}

fn judge(rooms: &[Room], arrows: &Arrows) -> Found {
    let mut found = Found::default();
    // A file belongs to the room with the longest matching place.
    let room_of = |file: &str| {
        let places = rooms
            .iter()
            .filter_map(|room| Some((room.has(file)?, room)));
        places.max_by_key(|(len, _)| *len).map(|(_, room)| room)
    };
    for (file, used) in arrows {
        let Some(room) = room_of(file) else {
            found.homeless.insert(file.clone());
            continue;
        };
        for other in used {
            let Some(of) = room_of(other) else { continue };
            if of.name != room.name && !room.uses.contains(&of.name) {
                let names = (
                    file.clone(),
                    room.name.clone(),
                    of.name.clone(),
                    other.clone(),
                );
                found.arrows.insert(names);
            }
        }
    }
    found.circles = circles(arrows);
    found
}

/// Whether `file` is a part of the module whose own file is `module`.
fn is_part(file: &str, module: &str) -> bool {
    let folder = module.strip_suffix("mod.rs").map(str::to_owned);
    let folder = folder.or_else(|| Some(format!("{}/", module.strip_suffix(".rs")?)));
    let root = module.strip_suffix("lib.rs");
    let root = root.or_else(|| module.strip_suffix("main.rs"));
    if let Some(root) = root {
        return file.starts_with(root);
    }
    folder.is_some_and(|folder| file.starts_with(&folder))
}

/// Groups of files that all reach each other. The use of a module by its own part is ignored.
fn circles(arrows: &Arrows) -> BTreeSet<Vec<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = arrows
        .keys()
        .map(|from| {
            let mut reached = BTreeSet::new();
            let mut left = vec![from.as_str()];
            while let Some(file) = left.pop() {
                for used in arrows.get(file).into_iter().flatten() {
                    if !is_part(file, used) && reached.insert(used.as_str()) {
                        left.push(used);
                    }
                }
            }
            (from.as_str(), reached)
        })
        .collect();
    let reaches = |a: &str, b: &str| reached.get(a).is_some_and(|reached| reached.contains(b));
    arrows
        .keys()
        .filter(|file| reaches(file, file))
        .map(|file| {
            let others = arrows.keys();
            others
                .filter(|other| reaches(file, other) && reaches(other, file))
                .cloned()
                .collect()
        })
        .collect()
}

/// The problems, for people.
fn complaints(found: &Found) -> Vec<String> {
    let mut wrong = Vec::new();
    for file in &found.homeless {
        wrong.push(format!("no room of {PICTURE} has {file}"));
    }
    for (file, room, used, of) in &found.arrows {
        wrong.push(format!(
            "{file} uses {of}: {PICTURE} has no arrow from {room} to {used}"
        ));
    }
    for circle in &found.circles {
        wrong.push(format!(
            "these files use each other in a circle: {}",
            circle.join(", ")
        ));
    }
    wrong
}

#[cfg(test)]
mod tests;
