//! Checks that no public item of the library shows a type of the engine, whose interface has no promise.
//!
//! rustdoc describes the items in JSON: <https://doc.rust-lang.org/nightly/nightly-rustc/rustdoc_json_types/>.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use crate::{Result, cargo, run, target};

/// The library, and the beginning of the names of the packages that are behind it.
const LIBRARY: &str = "zarrs_cuda";

/// Checks the library with all features.
pub(crate) fn check() -> Result<()> {
    let mut document = cargo();
    document
        .args(["doc", "--quiet", "--package", LIBRARY, "--lib"])
        .args(["--no-deps", "--all-features"])
        .env("RUSTC_BOOTSTRAP", "1") // JSON is unstable
        .env("RUSTDOCFLAGS", "-Z unstable-options --output-format json");
    run(&mut document)?;
    let file = target().join(format!("doc/{LIBRARY}.json"));
    let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let described = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))?;
    let (items, shown) = found(&described)?;
    if shown.is_empty() {
        println!("none of {items} public items shows another package of this repository");
        return Ok(());
    }
    let lines = shown
        .iter()
        .map(|(item, name)| format!("{item} shows {name}"));
    Err(lines.collect::<Vec<_>>().join("\n"))
}

/// The number of items, and for each item that shows another package of this repository: its place, and the name
/// of the shown item.
fn found(described: &Value) -> Result<(usize, BTreeSet<(String, String)>)> {
    let object = |name: &str| {
        let member = described[name].as_object();
        member.ok_or_else(|| format!("rustdoc describes no {name}: is its format another one now?"))
    };
    let (packages, paths, items) = (
        object("external_crates")?,
        object("paths")?,
        object("index")?,
    );
    let is_behind = |id: &Value| {
        let path = &paths.get(&id.to_string())?;
        let package = packages.get(&path["crate_id"].to_string())?;
        let is_behind = package["name"].as_str()?.starts_with(LIBRARY);
        let names = path["path"].as_array().filter(|_| is_behind)?;
        let names: Vec<_> = names.iter().filter_map(Value::as_str).collect();
        Some(names.join("::"))
    };
    let mut shown = BTreeSet::new();
    for item in items.values() {
        let place = &item["span"];
        let place = format!(
            "{}:{}",
            place["filename"].as_str().unwrap_or("?"),
            place["begin"][0]
        );
        let mut left = vec![&item["inner"]];
        while let Some(value) = left.pop() {
            match value {
                Value::Object(members) => {
                    let name = members.get("id").and_then(is_behind);
                    shown.extend(name.map(|name| (place.clone(), name)));
                    left.extend(members.values());
                }
                Value::Array(elements) => left.extend(elements),
                _ => {}
            }
        }
    }
    Ok((items.len(), shown))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_type_of_the_engine_is_found_wherever_it_stands() {
        let described = |id: u32| {
            json!({
                "external_crates": { "1": { "name": "zarrs" }, "2": { "name": "zarrs_cuda_engine" } },
                "paths": {
                    "7": { "crate_id": 1, "path": ["zarrs", "Array"] },
                    "8": { "crate_id": 2, "path": ["zarrs_cuda_engine", "layout", "Grid"] },
                },
                "index": { "3": {
                    "span": { "filename": "src/a.rs", "begin": [5, 1] },
                    "inner": { "function": { "sig": { "inputs": [["a", { "borrowed_ref": {
                        "type": { "resolved_path": { "id": id, "path": "Grid" } },
                    } }]] } } },
                } },
            })
        };
        assert_eq!(found(&described(7)), Ok((1, BTreeSet::new())));
        let place = (
            "src/a.rs:5".to_owned(),
            "zarrs_cuda_engine::layout::Grid".to_owned(),
        );
        assert_eq!(found(&described(8)), Ok((1, BTreeSet::from([place]))));
        assert!(found(&json!({ "index": {} })).is_err());
    }
}
