//! Looks for chunks of an array in the directory above it: a program with a wrong prefix may have put them
//! there.

use std::fs;

use zarrs_storage::StorePrefix;

use super::elsewhere::{Spelling, encodings};
use crate::open::{self, Opened, Place};
use crate::stored::Keys;

/// The number of directories that the search enters at each depth.
const WIDTH: usize = 4;

/// The names of the files and of the directories in one directory.
struct Listed {
    files: Vec<String>,
    directories: Vec<String>,
}

/// Returns a key in the directory above `place` that looks like a chunk of the array at `place`; `None` if
/// there is none, or if that directory cannot be listed: it is not a part of the array.
pub(super) fn chunk_like(place: &Place, opened: &Opened) -> Option<String> {
    let (above, own) = place.above()?;
    let grid = opened.array.chunk_grid_shape();
    let spellings = encodings(grid.len());
    let found = search(&above, &own, "", grid, &spellings)?;
    Some(above.join(&found).to_string())
}

fn search(
    above: &Place,
    own: &str,
    prefix: &str,
    grid: &[u64],
    spellings: &[Spelling],
) -> Option<String> {
    let listed = list(above, prefix)?;
    let is_node = |name: &String| ["zarr.json", ".zarray"].contains(&name.as_str());
    if !prefix.is_empty() && listed.files.iter().any(is_node) {
        return None; // the directory above is another array, or a group
    }
    let mut keys = listed.files.iter().map(|name| format!("{prefix}{name}"));
    let is_chunk = |key: &String| {
        let mut spellings = spellings.iter();
        spellings.any(|spelling| Keys::new(&spelling.encoding, grid).in_grid(key).is_some())
    };
    if let Some(key) = keys.find(is_chunk) {
        return Some(key);
    }
    let depth = prefix.matches('/').count();
    if depth > grid.len() {
        return None;
    }
    let may_lead = |name: &&String| {
        let is_index = name.bytes().all(|byte| byte.is_ascii_digit());
        let is_own = prefix.is_empty() && *name == own;
        !is_own && (is_index || (prefix.is_empty() && *name == "c"))
    };
    let mut directories: Vec<_> = listed.directories.iter().filter(may_lead).collect();
    directories.sort();
    let mut directories = directories.into_iter().take(WIDTH);
    directories.find_map(|name| search(above, own, &format!("{prefix}{name}/"), grid, spellings))
}

fn list(above: &Place, prefix: &str) -> Option<Listed> {
    let mut listed = Listed {
        files: Vec::new(),
        directories: Vec::new(),
    };
    if let Place::Directory(path) = above {
        for entry in fs::read_dir(path.join(prefix)).ok()? {
            let entry = entry.ok()?;
            let Ok(name) = entry.file_name().into_string() else {
                continue; // a name that is not UTF-8 is no key
            };
            match fs::metadata(entry.path()) {
                Ok(metadata) if metadata.is_dir() => listed.directories.push(name),
                Ok(_) => listed.files.push(name),
                Err(_) => {} // a link that leads nowhere
            }
        }
        return Some(listed);
    }
    let store = open::store(above).ok()?;
    let found = store.store.list_dir(&StorePrefix::new(prefix).ok()?).ok()?;
    let name = |path: &str| path.strip_prefix(prefix).unwrap_or(path).to_string();
    let keys = found.keys().iter().map(|key| name(key.as_str()));
    listed.files.extend(keys);
    let prefixes = found.prefixes().iter();
    let prefixes = prefixes.map(|found| name(found.as_str().trim_end_matches('/')));
    listed.directories.extend(prefixes);
    Some(listed)
}
