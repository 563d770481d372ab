//! The places that are searched for the library, and the libraries that are refused.

use super::*;
use std::{collections::BTreeMap, ffi::OsString, fs, path::PathBuf};
use tempfile::TempDir;

/// Returns a search with only these environment variables.
fn search(option: Option<&Path>, variables: &[(&str, &Path)]) -> Search {
    let variables: BTreeMap<_, _> = variables.iter().copied().collect();
    let mut search = Search::with(option, |name| {
        variables.get(name).map(|value| OsString::from(*value))
    });
    // Otherwise the loader may find a library of this machine.
    search.names.clear();
    search
}

/// Copies a library to the package folder `folder`, as version `major`.
fn install(library: StandIn, folder: &Path, major: u32) -> PathBuf {
    let folder = folder.join("nvidia/libnvcomp/lib64");
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join(format!("libnvcomp.so.{major}"));
    // An existing file may be loaded, and then it must not change.
    assert!(!file.exists());
    fs::copy(library.path(), &file).unwrap();
    file
}

fn refused(search: &Search) -> String {
    search.load().unwrap_err()
}

#[test]
fn the_loader_is_asked_for_known_versions() {
    let search = Search::with(None, |_| None);
    assert_eq!(search.named, None);
    let names = ["libnvcomp.so.6", "libnvcomp.so.5"].map(PathBuf::from);
    assert_eq!(search.names, names);
    assert!(search.packages.is_empty());
}

#[test]
fn versions_are_told_apart() {
    for (library, version) in [(StandIn::Six, "6.0.0"), (StandIn::Five, "5.3.0")] {
        let nvcomp = search(Some(&library.path()), &[]).load().unwrap();
        assert_eq!(nvcomp.version().to_string(), version);
        assert_eq!(nvcomp.path(), library.path());
        for format in FORMATS {
            nvcomp.compressor(format).unwrap();
            nvcomp.decompressor(format).unwrap();
        }
    }
}

#[test]
fn unknown_versions_are_refused() {
    for (library, version) in [(StandIn::Four, "4.2.0"), (StandIn::Seven, "7.0.0")] {
        let path = library.path();
        assert_eq!(
            refused(&search(Some(&path), &[])),
            format!(
                "nvCOMP, which the options named: {} is nvCOMP {version}, whose functions are not \
                 known; 5 and 6 are",
                path.display()
            )
        );
    }
}

#[test]
fn what_is_named_and_cannot_be_loaded_is_an_error() {
    let folder = TempDir::new().unwrap();
    let good = folder.path().join("packages");
    install(StandIn::Six, &good, 6);
    let packages = ("PYTHONPATH", good.as_path());

    let absent = folder.path().join("absent.so");
    let text = folder.path().join("text.so");
    fs::write(&text, "not a library").unwrap();
    let other = StandIn::NoProperties.path();
    let expected = |path: &Path, reason: &str| format!("{}{reason}", path.display());
    for (path, reason) in [
        (&absent, expected(&absent, ": ")),
        (&text, expected(&text, ": ")),
        (
            &other,
            expected(&other, " is not nvCOMP: it has no nvcompGetProperties"),
        ),
    ] {
        let message = refused(&search(Some(path), &[packages]));
        let named = format!("nvCOMP, which the options named: {reason}");
        assert!(message.starts_with(&named), "{message}");
        let message = refused(&search(None, &[packages, (VARIABLE, path)]));
        let named = format!("nvCOMP, which ZARRS_CUDA_NVCOMP named: {reason}");
        assert!(message.starts_with(&named), "{message}");
    }
    let message = refused(&search(Some(&absent), &[]));
    assert!(message.contains("No such file"), "{message}");
    assert_eq!(message.matches("absent.so").count(), 1, "{message}");
}

#[test]
fn a_folder_in_place_of_the_file_is_named_with_the_file_in_it() {
    let folder = TempDir::new().unwrap();
    let message = refused(&search(Some(folder.path()), &[]));
    let named = format!(
        "nvCOMP, which the options named: {} is a folder: name the file of the library",
        folder.path().display()
    );
    assert_eq!(message, named);
    let file = install(StandIn::Six, folder.path(), 6);
    let message = refused(&search(None, &[(VARIABLE, folder.path())]));
    assert!(
        message.contains("which ZARRS_CUDA_NVCOMP named"),
        "{message}"
    );
    assert!(
        message.ends_with(&format!("such as {}", file.display())),
        "{message}"
    );
}

#[test]
fn a_tilde_is_the_home() {
    let home = TempDir::new().unwrap();
    install(StandIn::Six, home.path(), 6);
    let below = Path::new("~/nvidia/libnvcomp/lib64/libnvcomp.so.6");
    let variables = [("HOME", home.path())];
    assert!(search(Some(below), &variables).load().is_ok());
    assert!(
        search(None, &[variables[0], (VARIABLE, below)])
            .load()
            .is_ok()
    );
}

#[test]
fn the_options_are_before_the_variable() {
    let (five, six) = (StandIn::Five.path(), StandIn::Six.path());
    let variables = [(VARIABLE, six.as_path())];
    let nvcomp = search(Some(&five), &variables).load().unwrap();
    assert_eq!(nvcomp.version().major, 5);
    let nvcomp = search(None, &variables).load().unwrap();
    assert_eq!(nvcomp.version().major, 6);
    // An empty variable counts as unset.
    assert_eq!(search(None, &[(VARIABLE, Path::new(""))]).named, None);
}

#[test]
fn the_loader_is_before_packages() {
    let folder = TempDir::new().unwrap();
    install(StandIn::Six, folder.path(), 6);
    let mut search = search(None, &[("PYTHONPATH", folder.path())]);
    search.names = vec!["libnvcomp-that-is-not-there.so.6".into()];
    assert_eq!(search.load().unwrap().version().major, 6);
    search.names.push(StandIn::Five.path());
    assert_eq!(search.load().unwrap().version().major, 5);
}

#[test]
fn packages_are_searched_in_order() {
    let folder = TempDir::new().unwrap();
    let python = |root: &str, version: &str| {
        folder
            .path()
            .join(root)
            .join("lib")
            .join(version)
            .join("site-packages")
    };
    let path: Vec<_> = ["first", "second"]
        .map(|name| folder.path().join(name))
        .into();
    let joined = std::env::join_paths(&path).unwrap();
    let venv = [python("venv", "python3.11"), python("venv", "python3.9")];
    let conda = python("conda", "python3.12");
    // The search ignores the folder of Python 2.
    fs::create_dir_all(python("conda", "python2.7")).unwrap();
    for folder in venv.iter().chain([&conda]) {
        fs::create_dir_all(folder).unwrap();
    }
    let search = || {
        search(
            None,
            &[
                ("PYTHONPATH", Path::new(&joined)),
                ("VIRTUAL_ENV", &folder.path().join("venv")),
                ("CONDA_PREFIX", &folder.path().join("conda")),
            ],
        )
    };
    let order: Vec<_> = path.iter().chain(&venv).chain([&conda]).cloned().collect();
    assert_eq!(search().packages, order);

    let message = refused(&search());
    for folder in &order {
        for major in [5, 6] {
            let file = format!("nvidia/libnvcomp/lib64/libnvcomp.so.{major}");
            let file = folder.join(file).display().to_string();
            assert!(message.contains(&file), "{message}");
        }
    }
    // The libraries are installed from the last place to the first. Each is found before the ones
    // that were installed earlier.
    for folder in order.iter().rev() {
        let file = install(StandIn::Five, folder, 5);
        assert_eq!(search().load().unwrap().path(), file);
        let file = install(StandIn::Six, folder, 6);
        assert_eq!(search().load().unwrap().path(), file);
    }
}

#[test]
fn what_cannot_be_used_is_passed_over() {
    let folder = TempDir::new().unwrap();
    let refused = install(StandIn::Seven, folder.path(), 6);
    let search = search(None, &[("PYTHONPATH", folder.path())]);
    let message = search.load().unwrap_err();
    let reason = format!("{} is nvCOMP 7.0.0, whose", refused.display());
    assert!(message.contains(&reason), "{message}");
    let file = install(StandIn::Five, folder.path(), 5);
    assert_eq!(search.load().unwrap().path(), file);
}

#[test]
fn nothing_is_found_where_nothing_is() {
    let mut search = search(None, &[]);
    search.names = vec!["libnvcomp-that-is-not-there.so.6".into()];
    let message = refused(&search);
    for part in [
        "nvCOMP was not found; the options or ZARRS_CUDA_NVCOMP can name its file. ",
        "libnvcomp-that-is-not-there.so.6: ",
        "PYTHONPATH, VIRTUAL_ENV and CONDA_PREFIX name no packages",
    ] {
        assert!(message.contains(part), "{message}");
    }
}
