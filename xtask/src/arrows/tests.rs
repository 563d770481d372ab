//! Tests that the arrows match the picture, and that deviations are detected.

#![allow(clippy::unwrap_used)] // a test that panics has failed

use std::env;
use std::path::PathBuf;

use super::*;
use crate::sources::Source;

/// The arrows of made-up modules, given by their paths and texts.
fn made_up(files: &[(&str, &str)]) -> Arrows {
    let sources: Vec<Source> = files
        .iter()
        .map(|(module, text)| Source {
            file: PathBuf::from(format!("{module}.rs")),
            module: std::iter::once("package")
                .chain(module.split('/').filter(|m| *m != "lib"))
                .map(str::to_owned)
                .collect(),
            library: text.lines().map(str::to_owned).collect(),
            numbers: (1..=text.lines().count()).collect(),
            apart: 0,
        })
        .collect();
    paths::arrows(&sources)
}

fn used<'a>(arrows: &'a Arrows, file: &str) -> Vec<&'a str> {
    arrows[file].iter().map(String::as_str).collect()
}

#[test]
fn the_library_has_the_arrows_of_the_picture() {
    env::set_current_dir(crate::root()).unwrap();
    let found = look().unwrap();
    let wrong = complaints(&found);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn paths_are_followed_to_what_they_name() {
    let arrows = made_up(&[
        ("lib", "mod a;\nmod b;\nmod c;\npub use b::B;"),
        (
            "a",
            "mod inner;\npub(crate) use inner::{Thing, Other as Renamed};\nstruct OfA;",
        ),
        (
            "a/inner",
            "pub(crate) struct Thing;\npub(crate) enum Other {}\nfn f(_: super::OfA) {}",
        ),
        ("b", "use crate::a::{Renamed, Thing};\npub struct B;"),
        (
            "c",
            "use super::a;\nuse std::fmt;\nfn f() -> a::Thing { crate::B; fmt::Error }",
        ),
    ]);
    assert_eq!(used(&arrows, "lib.rs"), ["b.rs"]);
    assert_eq!(used(&arrows, "a.rs"), ["a/inner.rs"]);
    assert_eq!(used(&arrows, "a/inner.rs"), ["a.rs"]);
    assert_eq!(used(&arrows, "b.rs"), ["a/inner.rs"]);
    assert_eq!(used(&arrows, "c.rs"), ["a.rs", "a/inner.rs", "b.rs"]);
    // A part may use its module.
    assert_eq!(circles(&arrows), BTreeSet::new());
    assert!(is_part("a/b/c.rs", "a/mod.rs") && is_part("a/b/c.rs", "a/b.rs"));
    assert!(!is_part("a/b.rs", "a/c.rs") && !is_part("ab/c.rs", "a.rs"));
}

#[test]
fn what_is_no_path_is_none() {
    let arrows = made_up(&[
        ("lib", "mod a;\nmod b;"),
        ("a", "pub struct A;"),
        (
            "b",
            "// crate::a::A\nconst S: &str = \"crate::a::A\";\nconst C: char = '\"';\nmod inner {\n    fn f<'a>() {}\n    const R: &str = r#\"crate::a::A\"#;\n}",
        ),
    ]);
    assert_eq!(used(&arrows, "b.rs"), [""; 0]);
}

#[test]
fn an_arrow_outside_of_the_picture_is_found() {
    let picture = "## Rooms\n\n| room | where | uses |\n|---|---|---|\n\
        | `top` | `lib.rs`, `a.rs`, `a/` | `low`, `base` |\n| `low` | `b.rs`, `b/` | `base` |\n| `base` | `c.rs` | |\n";
    let rooms = rooms(picture).unwrap();
    let files = |c: &str| {
        made_up(&[
            ("lib", "mod a;\nmod b;\nmod c;"),
            ("a", "mod inner;"),
            ("b", "mod inner;"),
            ("a/inner", "use crate::b::inner::B;\npub struct A;"),
            ("b/inner", "use crate::c::C;\npub struct B;"),
            ("c", c),
        ])
    };
    let good = judge(&rooms, &files("pub struct C;"));
    assert_eq!(good, Found::default());
    let arrows = files("pub struct C;\nfn f(_: crate::a::inner::A) {}");
    let found = judge(&rooms, &arrows);
    let arrow = ["c.rs", "base", "top", "a/inner.rs"].map(str::to_owned);
    assert_eq!(found.arrows, BTreeSet::from([arrow.into()]));
    assert_eq!(found.circles.len(), 1);
    let mut arrows = arrows;
    arrows.insert("new/mod.rs".to_owned(), BTreeSet::new());
    let found = judge(&rooms, &arrows);
    assert!(found.homeless.contains("new/mod.rs"));
    assert!(!complaints(&found).is_empty());
}
