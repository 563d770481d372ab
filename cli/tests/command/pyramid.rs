//! `zarrs-cuda pyramid`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::storage::SparseShardStore;
use zarrs_cuda::writer::{Axis, MultiscaleWriter, Reduction};
use zarrs_cuda_testing::{Rng, effort};

use crate::arrays::{chain, open, sharded, store, unsharded, values};
use crate::program::{files, interrupt, json, program, said, said_with_code, shell};

/// The shapes of level 0.
#[derive(Clone, Debug)]
struct Shapes {
    array: [u64; 3],
    shard: [u64; 3],
    subchunk: [u64; 3],
}

const SMALL: Shapes = Shapes {
    array: [13, 21, 30],
    shard: [4, 16, 16],
    subchunk: [2, 8, 8],
};

/// Elements of which many are equal to their neighbours.
fn elements(shapes: &Shapes) -> Vec<u16> {
    let mut rng = Rng(7);
    let count = shapes.array.iter().product::<u64>();
    (0..count)
        .map(|_| {
            let value = if rng.one_in(3) {
                rng.next()
            } else {
                rng.below(3)
            };
            value as u16
        })
        .collect()
}

/// Writes level 0 of an image, by zarrs.
fn level_0(image: &Path, shapes: &Shapes) -> Array<FilesystemStore> {
    let array = described(image, shapes);
    array.store_metadata().unwrap();
    array
        .store_array_subset(&array.subset_all(), elements(shapes))
        .unwrap();
    array
}

fn described(image: &Path, shapes: &Shapes) -> Array<FilesystemStore> {
    let [array, shard, subchunk] =
        [shapes.array, shapes.shard, shapes.subchunk].map(|shape| shape.to_vec());
    ArrayBuilder::new(array, shard, data_type::uint16(), 0_u16)
        .subchunk_shape(subchunk)
        .dimension_names(Some(["z", "y", "x"]))
        .build(store(image), "/0")
        .unwrap()
}

fn pyramid(image: &Path, options: &[&str]) -> Command {
    let mut command = program();
    command.arg("pyramid").arg(image).args(options);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Makes the levels, and checks the exit code.
fn made(image: &Path, options: &[&str], code: i32) -> String {
    said_with_code(&pyramid(image, options).output().unwrap(), code)
}

/// The directory of the plan of a run in parts.
const RUN: &str = ".zarrs-cuda-run";

/// All files but those of level 0 and of the plan, by their path in the image.
fn contents(image: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = files(image).into_iter().filter_map(|path| {
        let within = path.strip_prefix(image).unwrap();
        let is_level = !within.starts_with("0") && !within.starts_with(RUN);
        is_level.then(|| (within.to_path_buf(), fs::read(&path).unwrap()))
    });
    let without_times = files.map(|(path, content)| {
        let is_description = path == Path::new("zarr.json");
        let content = if is_description {
            without_times(&content)
        } else {
            content
        };
        (path, content)
    });
    without_times.collect()
}

/// The metadata of an image without the fingerprint of level 0, which has the times of its files.
fn without_times(content: &[u8]) -> Vec<u8> {
    let mut metadata: Value = serde_json::from_slice(content).unwrap();
    let image = metadata.pointer_mut("/attributes/ome/multiscales/0/metadata");
    if let Some(image) = image.and_then(Value::as_object_mut) {
        image.remove("made_from");
    }
    metadata.to_string().into_bytes()
}

/// The files of the levels below level 0, without the description of the image, which says whether there
/// are parts.
fn levels(image: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut contents = contents(image);
    contents.retain(|path, _| path != Path::new("zarr.json"));
    contents
}

fn temporaries(image: &Path) -> Vec<PathBuf> {
    let mut files = files(image);
    files.retain(|path| path.extension().is_some_and(|extension| extension == "tmp"));
    files
}

fn shape(array: &Path) -> Vec<u64> {
    open(array).shape().to_vec()
}

/// The level below `above`, by the definitions.
fn below(above: &[u16], shape: &[u64], factors: [u64; 3], how: &str) -> (Vec<u16>, Vec<u64>) {
    let small: Vec<u64> = shape
        .iter()
        .zip(factors)
        .map(|(e, f)| e.div_ceil(f))
        .collect();
    let mut made = Vec::new();
    for z in 0..small[0] {
        for y in 0..small[1] {
            for x in 0..small[2] {
                let mut window: Vec<u64> = Vec::new();
                let along =
                    |d: usize, at: u64| at * factors[d]..shape[d].min((at + 1) * factors[d]);
                for c in along(0, z) {
                    for b in along(1, y) {
                        for a in along(2, x) {
                            let at = (c * shape[1] + b) * shape[2] + a;
                            window.push(above[at as usize].into());
                        }
                    }
                }
                made.push(reduced(&window, how) as u16);
            }
        }
    }
    (made, small)
}

fn reduced(window: &[u64], how: &str) -> u64 {
    let half_to_even = |sum: u64, count: u64| {
        let (whole, rest) = (sum / count, sum % count);
        match (2 * rest).cmp(&count) {
            std::cmp::Ordering::Less => whole,
            std::cmp::Ordering::Equal => whole + whole % 2,
            std::cmp::Ordering::Greater => whole + 1,
        }
    };
    let mut sorted = window.to_vec();
    sorted.sort_unstable();
    let middle = window.len() / 2;
    let often = |value: u64| window.iter().filter(|other| **other == value).count();
    match how {
        "mean" => half_to_even(window.iter().sum(), window.len() as u64),
        "minimum" => sorted[0],
        "maximum" => sorted[sorted.len() - 1],
        "median" if window.len() % 2 == 1 => sorted[middle],
        "median" => half_to_even(sorted[middle - 1] + sorted[middle], 2),
        "mode" => {
            let most = window.iter().map(|value| often(*value)).max().unwrap();
            *window.iter().find(|value| often(**value) == most).unwrap()
        }
        "decimate" => window[0],
        _ => panic!("{how}"),
    }
}

const ALL: [&str; 6] = ["mean", "minimum", "maximum", "median", "mode", "decimate"];

/// Odd extents, extents of one, and windows that do not fill.
#[test]
fn levels_are_what_they_are_defined_to_be() {
    for seed in effort::seeds(12) {
        let mut rng = Rng(seed);
        let subchunk = [1, 2, 4].map(|_| 1 + rng.below(5));
        let shapes = Shapes {
            array: [1, 2, 3].map(|_| 1 + rng.below(24)),
            shard: subchunk.map(|extent| extent * (1 + rng.below(3))),
            subchunk,
        };
        let factors = [1, 2, 3].map(|_| 1 + rng.below(2));
        let how = ALL[seed as usize % ALL.len()];
        let folder = TempDir::new().unwrap();
        let image = folder.path();
        level_0(image, &shapes);
        let axes: Vec<_> = std::iter::zip(["z", "y", "x"], factors)
            .map(|(name, factor)| format!("--axis={name},factor={factor}"))
            .collect();
        let mut options: Vec<&str> = axes.iter().map(String::as_str).collect();
        options.extend(["--levels", "4", "--reduction", how]);
        let part = rng.one_in(2);
        if part {
            options.push("--part");
            for one in ["1/2", "2/2"] {
                made(image, &[&options[..], &[one]].concat(), 0);
            }
        } else {
            made(image, &options, 0);
        }
        let (mut above, mut extents) = (elements(&shapes), shapes.array.to_vec());
        for level in 1..4 {
            (above, extents) = below(&above, &extents, factors, how);
            let array = image.join(level.to_string());
            let about = format!("seed {seed}: level {level} of {shapes:?} by {factors:?} {how}");
            assert_eq!(shape(&array), extents, "{about}");
            assert_eq!(values(&array), above, "{about}");
        }
    }
}

/// The files of one pass and of a stored level 0 are the same, byte for byte.
#[test]
fn as_the_writer_makes_them() {
    for (how, reduction) in [("mean", Reduction::Mean), ("mode", Reduction::Mode)] {
        for factor in [1, 2] {
            let folder = TempDir::new().unwrap();
            let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
            level_0(&one, &SMALL);
            let z = format!("z,factor={factor},unit=micrometer,scale=2");
            let options = ["--axis", &z, "--reduction", how, "--name", "cells"];
            made(&one, &options, 0);

            let empty = Shapes {
                array: [0, SMALL.array[1], SMALL.array[2]],
                ..SMALL
            };
            let array = described(&other, &empty);
            let z = Axis::space("z").with_factor(factor);
            let mut writer = MultiscaleWriter::builder(&array)
                .with_atomic_rename(array.storage())
                .with_axes([
                    z.with_unit("micrometer").with_scale(2.0),
                    Axis::space("y"),
                    Axis::space("x"),
                ])
                .with_reduction(reduction)
                .with_name("cells")
                .build()
                .unwrap();
            writer.append(&elements(&SMALL)).unwrap();
            writer.finish().unwrap();
            assert!(contents(&one).len() > 5);
            assert_eq!(contents(&one), contents(&other), "{how}, {factor}");
            assert_eq!(values(&one.join("0")), values(&other.join("0")));
        }
    }
}

/// Killed at any moment and run again until one run ends: the same files as at once. Until then the
/// shape of a level covers nothing that is not there.
#[test]
fn a_killed_run_goes_on() {
    let mut rng = Rng(effort::seed());
    let shapes = Shapes {
        array: [60, 40, 40],
        ..SMALL
    };
    let folder = TempDir::new().unwrap();
    let [once, killed] = ["once", "killed"].map(|name| folder.path().join(name));
    level_0(&once, &shapes);
    let limit = timed(|| made(&once, &[], 0));
    let right: Vec<_> = (1..4).map(|level| once.join(level.to_string())).collect();
    let right: Vec<_> = right.iter().filter(|path| path.is_dir()).collect();
    assert!(right.len() > 1);
    for _ in 0..effort::times(5) {
        level_0(&killed, &shapes);
        let mut kills = 0;
        while !is_done_or_killed(&[&mut pyramid(&killed, &[])], limit, &mut rng) {
            kills += 1;
            for path in &right {
                let level = killed.join(path.file_name().unwrap());
                if level.join("zarr.json").is_file() {
                    let found = values(&level);
                    assert_eq!(found, values(path)[..found.len()], "{}", level.display());
                }
            }
        }
        println!("{kills} kills");
        assert_eq!(contents(&killed), contents(&once));
        // The last windows are made again, and are the same.
        made(&killed, &[], 0);
        assert_eq!(contents(&killed), contents(&once));
        fs::remove_dir_all(&killed).unwrap();
    }
}

/// Several processes at once, all killed at any moment and run again.
#[test]
fn killed_parts_go_on() {
    let mut rng = Rng(effort::seed());
    let shapes = Shapes {
        array: [60, 40, 40],
        ..SMALL
    };
    let folder = TempDir::new().unwrap();
    let [once, parts] = ["once", "parts"].map(|name| folder.path().join(name));
    level_0(&once, &shapes);
    let limit = timed(|| made(&once, &[], 0));
    for round in 0..effort::times(5) {
        level_0(&parts, &shapes);
        let run = |part: &str| pyramid(&parts, &["--part", part]);
        let mut kills = 0;
        loop {
            let mut commands = ["1/3", "2/3", "3/3"].map(run);
            let [a, b, c] = &mut commands;
            if is_done_or_killed(&[a, b, c], limit, &mut rng) {
                break;
            }
            kills += 1;
            let is_begun = parts.join(RUN).join("plan.json").exists();
            if round == 1 && kills >= 2 && is_begun {
                // All of it by one process.
                let said = made(&parts, &[], 1);
                assert!(said.contains("holds an unfinished run in "), "{said}");
                fs::remove_dir_all(parts.join(RUN)).unwrap();
                made(&parts, &[], 0);
                assert_eq!(contents(&parts), contents(&once));
                break;
            }
        }
        println!("{kills} kills");
        assert_eq!(levels(&parts), levels(&once));
        assert_eq!(temporaries(&parts), Vec::<PathBuf>::new());
        fs::remove_dir_all(&parts).unwrap();
    }
}

/// How often runs are killed before they may end, at most.
const KILLS: u64 = 15;

/// Microseconds that `work` takes.
fn timed<T>(work: impl FnOnce() -> T) -> u64 {
    let begin = Instant::now();
    work();
    1 + begin.elapsed().as_micros() as u64
}

/// Runs `commands` at once, and kills all of them within `limit` microseconds. Returns whether all have
/// ended well before.
fn is_done_or_killed(commands: &[&mut Command], limit: u64, rng: &mut Rng) -> bool {
    let spawn = |command: &&mut Command| {
        let mut again = Command::new(command.get_program());
        again.args(command.get_args());
        again.stdout(Stdio::piped()).stderr(Stdio::piped());
        again.spawn().unwrap()
    };
    let mut children: Vec<_> = commands.iter().map(spawn).collect();
    if !rng.one_in(KILLS) {
        sleep(Duration::from_micros(rng.below(limit)));
        for child in &mut children {
            child.kill().unwrap();
        }
    }
    let ended = children.into_iter().map(|child| {
        let ended = child.wait_with_output().unwrap();
        let is_killed = ended.status.code().is_none();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.success() || is_killed, "{said}");
        !is_killed
    });
    let ended: Vec<_> = ended.collect();
    ended.iter().all(|ended| *ended)
}

/// Chunks without metadata are no level that a killed run has begun: its metadata come first.
#[test]
fn chunks_without_metadata_are_not_replaced() {
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("image");
    level_0(&image, &SMALL);
    let chunk = image.join("1/c/0/0/0");
    fs::create_dir_all(chunk.parent().unwrap()).unwrap();
    fs::write(&chunk, "somebody's").unwrap();
    for options in [&[][..], &["--part", "1/1"]] {
        let said = made(&image, options, 1);
        assert!(said.contains("it has other files, such as c,"), "{said}");
        assert_eq!(fs::read(&chunk).unwrap(), b"somebody's");
        assert!(!image.join("1/zarr.json").exists());
    }
}

/// Levels of another program are not mixed with new ones. Labels have no mean.
#[test]
fn levels_of_another_program_are_not_continued() {
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("image");
    level_0(&image, &SMALL);
    made(&image, &[], 0);
    let before = levels(&image);
    let metadata = image.join("zarr.json");
    let described = fs::read_to_string(&metadata).unwrap();
    let mut foreign: serde_json::Value = serde_json::from_str(&described).unwrap();
    let multiscale = &mut foreign["attributes"]["ome"]["multiscales"][0];
    multiscale.as_object_mut().unwrap().remove("type");
    multiscale.as_object_mut().unwrap().remove("metadata");
    fs::write(&metadata, foreign.to_string()).unwrap();
    for options in [&[][..], &["--part", "1/1"], &["--dry-run"]] {
        let said = made(&image, options, 1);
        assert!(said.contains("were made by another program"), "{said}");
    }
    assert_eq!(levels(&image), before);
    foreign["attributes"]["ome"]["image-label"] = serde_json::json!({});
    fs::write(&metadata, foreign.to_string()).unwrap();
    made(&image, &["--start", "0"], 0);
    let now = fs::read_to_string(&metadata).unwrap();
    let now: serde_json::Value = serde_json::from_str(&now).unwrap();
    assert_eq!(now["attributes"]["ome"]["multiscales"][0]["type"], "mode");
}

/// What processes leave that die while they replace metadata.
#[test]
fn temporaries_of_metadata_are_erased() {
    let folder = TempDir::new().unwrap();
    let [once, torn] = ["once", "torn"].map(|name| folder.path().join(name));
    level_0(&once, &SMALL);
    made(&once, &[], 0);
    level_0(&torn, &SMALL);
    fs::create_dir(torn.join("1")).unwrap();
    let of_the_only_process = ["", "1/"].map(|of| format!("{of}zarr.json.tmp"));
    let of_a_part = ["", "0/", "1/"].map(|of| format!("{of}zarr.json.part0.tmp"));
    for left in of_the_only_process.iter().chain(&of_a_part) {
        fs::write(torn.join(left), "{").unwrap();
    }
    made(&torn, &[], 0);
    assert_eq!(levels(&torn), levels(&once));
    assert_eq!(temporaries(&torn), Vec::<PathBuf>::new());
}

/// The directory in which the parts of a run make levels.
fn made_apart(image: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(image.join(RUN)).ok()?;
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.into_iter().find(|path| path.is_dir())
}

/// No reader sees a level before all parts are made, and then all of them at once.
#[test]
fn levels_of_parts_appear_when_all_are_made() {
    let folder = TempDir::new().unwrap();
    let [once, parts] = ["once", "parts"].map(|name| folder.path().join(name));
    for image in [&once, &parts] {
        level_0(image, &SMALL);
        let group = r#"{"zarr_format":3,"node_type":"group","attributes":{"mine":1},"consolidated_metadata":{"kind":"inline","must_understand":false,"metadata":{}}}"#;
        fs::write(image.join("zarr.json"), group).unwrap();
    }
    made(&once, &[], 0);
    let before = fs::read(parts.join("zarr.json")).unwrap();
    let run = |part: &str, code: i32| made(&parts, &["--part", part], code);
    let said = run("2/2", 0);
    assert!(said.contains("1 of 2 parts is missing: 1"), "{said}");
    let said = run("2/2", 0);
    assert!(said.contains("was made before"), "{said}");
    assert_eq!(fs::read(parts.join("zarr.json")).unwrap(), before);
    assert!(!parts.join("1").exists());
    let status = program().arg("status").arg(&parts).output().unwrap();
    let status = said_with_code(&status, 3);
    assert!(status.contains("1 part is missing: 1"), "{status}");
    assert!(
        status.contains("as a whole, when no process makes it") && !status.contains("stay"),
        "{status}"
    );
    // Another run, and other metadata of the group, are refused by name.
    let said = made(&parts, &["--part", "1/2", "--reduction", "maximum"], 1);
    assert!(said.contains("--reduction is mean there"), "{said}");
    let said = run("1/3", 1);
    assert!(said.contains("number of parts is 2"), "{said}");
    // It has no --overwrite.
    assert!(
        said.contains("delete .zarrs-cuda-run beside the levels") && !said.contains("--overwrite"),
        "{said}"
    );
    let said = made(
        &parts,
        &["--part", "1/2", "--axis", "y,scale=2.5,factor=2"],
        1,
    );
    assert!(said.contains("and y,scale=2.5,factor=2 here"), "{said}");
    let said = made(&parts, &["--part", "1/2", "--levels", "2"], 1);
    assert!(
        said.contains("--levels is ") && said.contains("there, and 2 here"),
        "{said}"
    );
    let mine = String::from_utf8_lossy(&before).replace("\"mine\":1", "\"mine\":2");
    fs::write(parts.join("zarr.json"), mine).unwrap();
    let said = run("1/2", 1);
    assert!(said.contains("were changed while its parts"), "{said}");
    assert!(!parts.join("1").exists());
    fs::write(parts.join("zarr.json"), &before).unwrap();
    let status = ["status", "--finish"];
    let done = program().args(status).arg(&parts).output().unwrap();
    said_with_code(&done, 0);
    assert_eq!(levels(&parts), levels(&once));
    let described = |image: &Path| -> serde_json::Value {
        let text = fs::read_to_string(image.join("zarr.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let (parts_of, once_of) = (described(&parts), described(&once));
    assert_eq!(parts_of["attributes"]["mine"], 1);
    assert_eq!(
        parts_of["consolidated_metadata"],
        once_of["consolidated_metadata"]
    );
    assert!(parts_of["consolidated_metadata"]["metadata"]["1"].is_object());
    assert_eq!(made_apart(&parts), None);
    let said = run("1/2", 0);
    assert!(said.contains("complete already"), "{said}");
    // Levels that are gone are no complete run, and a run by one process forgets that there were parts.
    fs::rename(parts.join("2"), folder.path().join("2")).unwrap();
    let said = run("1/2", 1);
    assert!(said.contains("2 is gone"), "{said}");
    fs::rename(folder.path().join("2"), parts.join("2")).unwrap();
    made(&parts, &["--start", "0"], 0);
    assert!(!parts.join(RUN).exists());
    let said = run("1/2", 1);
    assert!(said.contains("is there already"), "{said}");
}

/// The command that the status names makes a part again.
#[test]
#[cfg(unix)]
fn the_status_of_parts_names_the_command() {
    let folder = TempDir::new().unwrap();
    let [once, parts] = ["once", "parts"].map(|name| folder.path().join(name));
    let options = [
        "--axis=z,factor=1",
        "--axis=y,scale=0.5",
        "--name",
        "my image",
    ];
    for image in [&once, &parts] {
        level_0(image, &SMALL);
    }
    made(&once, &options, 0);
    made(
        &parts,
        &[&options[..], &["--reduction=mean", "--part", "2/2"]].concat(),
        0,
    );
    let said = made(&parts, &options, 1);
    assert!(
        said.contains("holds an unfinished run in 2 parts: 1 part is made\n")
            && said.contains("; or delete .zarrs-cuda-run in "),
        "{said}"
    );
    let status = program().arg("status").arg(&parts).output().unwrap();
    let said = said_with_code(&status, 3);
    let line = said.lines().last().unwrap();
    assert!(
        line.starts_with("zarrs-cuda pyramid /") && line.ends_with(" --part 1/2"),
        "{line}"
    );
    let said = shell(folder.path(), line, 0);
    assert!(said.contains("the levels can be read"), "{said}");
    assert_eq!(levels(&parts), levels(&once));
}

/// The first part gives level 0 the names of the axes, and the others go on.
#[test]
fn parts_of_a_level_0_without_names() {
    let folder = TempDir::new().unwrap();
    let [once, parts] = ["once", "parts"].map(|name| folder.path().join(name));
    for image in [&once, &parts] {
        level_0(image, &SMALL);
        let path = image.join("0/zarr.json");
        let text = fs::read_to_string(&path).unwrap();
        let mut metadata: serde_json::Value = serde_json::from_str(&text).unwrap();
        metadata.as_object_mut().unwrap().remove("dimension_names");
        fs::write(&path, metadata.to_string()).unwrap();
    }
    let axes = ["--axis=t", "--axis=y", "--axis=x,unit=micrometer"];
    made(&once, &axes, 0);
    for part in ["2/2", "1/2", "1/2"] {
        made(&parts, &[&axes[..], &["--part", part]].concat(), 0);
    }
    assert_eq!(levels(&parts), levels(&once));
    let names = open(&parts.join("0"));
    let names = names.dimension_names().clone().unwrap();
    assert_eq!(names, ["t", "y", "x"].map(|name| Some(name.into())));
}

/// A process that was killed between any two moves leaves what another one completes.
#[test]
fn moves_that_were_interrupted() {
    let folder = TempDir::new().unwrap();
    let once = folder.path().join("once");
    level_0(&once, &SMALL);
    made(&once, &["--part", "1/1"], 0);
    for moved in 0..=3 {
        let parts = folder.path().join(moved.to_string());
        level_0(&parts, &SMALL);
        made(&parts, &["--part", "2/2"], 0);
        // The group is another one when the last part ends, so that nothing is moved.
        let before = fs::read(parts.join("zarr.json")).ok();
        let other = r#"{"zarr_format":3,"node_type":"group","attributes":{"other":1}}"#;
        fs::write(parts.join("zarr.json"), other).unwrap();
        let said = made(&parts, &["--part", "1/2"], 1);
        assert!(said.contains("were changed while its parts"), "{said}");
        match before {
            Some(before) => fs::write(parts.join("zarr.json"), before).unwrap(),
            None => fs::remove_file(parts.join("zarr.json")).unwrap(),
        }
        let made_apart = made_apart(&parts).unwrap();
        for name in ["1", "2", "zarr.json"].iter().take(moved) {
            fs::rename(made_apart.join(name), parts.join(name)).unwrap();
        }
        let said = made(&parts, &["--part", "1/2"], 0);
        assert!(said.contains("complete already"), "{said}");
        assert_eq!(levels(&parts), levels(&once), "{moved}");
    }
}

#[test]
#[cfg(unix)]
fn ctrl_c_keeps_what_is_whole() {
    let shapes = Shapes {
        array: [400, 16, 16],
        shard: [1, 16, 16],
        subchunk: [1, 8, 8],
    };
    // Buffers of few slices, so that the rest waits for the store.
    let slow = [
        "--axis",
        "z,factor=1",
        "--threads",
        "1",
        "--memory",
        "32KiB",
    ];
    for part in [&[][..], &["--part", "1/1"]] {
        let folder = TempDir::new().unwrap();
        let [once, stopped] = ["once", "stopped"].map(|name| folder.path().join(name));
        level_0(&once, &shapes);
        made(&once, &["--axis", "z,factor=1"], 0);
        let options = [&slow[..], part].concat();
        let said = (0..5).find_map(|_| {
            let _ = fs::remove_dir_all(&stopped);
            level_0(&stopped, &shapes);
            let mut child = pyramid(&stopped, &options).spawn().unwrap();
            let stored = || {
                let level = match made_apart(&stopped) {
                    Some(made) => made.join("1/c"),
                    None => stopped.join("1/c"),
                };
                files(&level).len()
            };
            while stored() < 3 && child.try_wait().unwrap().is_none() {
                sleep(Duration::from_micros(200));
            }
            if child.try_wait().unwrap().is_none() {
                interrupt(&child);
            }
            let ended = child.wait_with_output().unwrap();
            (!ended.status.success()).then(|| said_with_code(&ended, 130))
        });
        let said = said.expect("it was too fast five times");
        assert!(said.contains("run the same command again"), "{said}");
        assert!(said.contains("are not complete"), "{said}");
        if !options.contains(&"--part") {
            let found = values(&stopped.join("1"));
            assert!(!found.is_empty() && found.len() < 400 * 64);
            assert_eq!(found, values(&once.join("1"))[..found.len()]);
        }
        made(&stopped, &options, 0);
        assert_eq!(levels(&stopped), levels(&once));
    }
}

/// Level 0 has grown, or has other elements.
#[test]
fn level_0_has_changed() {
    let folder = TempDir::new().unwrap();
    let [once, grown] = ["once", "grown"].map(|name| folder.path().join(name));
    level_0(&once, &SMALL);
    made(&once, &[], 0);
    let short = Shapes {
        array: [9, SMALL.array[1], SMALL.array[2]],
        ..SMALL
    };
    level_0(&grown, &short);
    made(&grown, &[], 0);
    level_0(&grown, &SMALL);
    made(&grown, &[], 0);
    assert_eq!(contents(&grown), contents(&once));
    // Parts replace nothing, and without them everything is made once more.
    let said = made(&grown, &["--part", "1/1"], 1);
    assert!(said.contains("is there already"), "{said}");
    for level in ["1", "2"] {
        fs::remove_dir_all(grown.join(level)).unwrap();
    }
    made(&grown, &["--part", "1/1"], 0);
    assert_eq!(values(&grown.join("1")), values(&once.join("1")));
    made(&grown, &[], 0);
    assert_eq!(contents(&grown), contents(&once));

    let array = open(&once.join("0"));
    array
        .store_array_subset(&array.subset_all(), vec![5_u16; 13 * 21 * 30])
        .unwrap();
    // From the border of a shard of level 1 on, which has 4 slices.
    made(&once, &["--start", "10"], 0);
    let level_1 = values(&once.join("1"));
    let slice = 11 * 15;
    assert_eq!(level_1[..4 * slice], values(&grown.join("1"))[..4 * slice]);
    assert!(level_1[4 * slice..].iter().all(|value| *value == 5));
    made(&once, &["--start", "0"], 0);
    assert!(values(&once.join("1")).iter().all(|value| *value == 5));
}

/// Levels that are there are not mixed with others.
#[test]
fn other_levels_are_there() {
    let folder = TempDir::new().unwrap();
    let image = folder.path();
    level_0(image, &SMALL);
    made(image, &["--reduction", "maximum", "--levels", "2"], 0);
    let before = contents(image);
    // The image says how its levels were made, and how many there are.
    made(image, &[], 0);
    assert_eq!(contents(image), before);
    for options in [&["--reduction", "mean"][..], &["--axis", "z,factor=1"]] {
        let said = made(image, options, 1);
        assert!(said.contains("--start 0"), "{said}");
        assert_eq!(contents(image), before);
    }
    made(image, &["--reduction", "mean", "--start", "0"], 0);
    let (right, _) = below(&elements(&SMALL), &SMALL.array, [2; 3], "mean");
    assert_eq!(values(&image.join("1")), right);
    // More levels, and another name.
    made(image, &["--levels", "3", "--name", "new"], 0);
    let group: Value = serde_json::from_slice(&fs::read(image.join("zarr.json")).unwrap()).unwrap();
    let multiscale = &group["attributes"]["ome"]["multiscales"][0];
    assert_eq!(multiscale["name"], "new");
    assert_eq!(multiscale["datasets"].as_array().unwrap().len(), 3);
    // Another program's array in the place of a level.
    fs::remove_dir_all(image.join("1")).unwrap();
    unsharded(&image.join("1"));
    let said = made(image, &[], 1);
    assert!(said.contains("/1 is there"), "{said}");
}

/// What the metadata of an image say is kept.
#[test]
fn metadata_of_the_image() {
    let scale = |scale: Value| json!([{ "type": "scale", "scale": scale }]);
    let multiscales = |paths: &[&str]| {
        let datasets = paths.iter().map(|path| {
            json!({ "path": path, "coordinateTransformations": scale(json!([5, 0.5, 0.25])) })
        });
        json!([{
            "name": "cells",
            "axes": [
                { "name": "z", "type": "space", "unit": "micrometer" },
                { "name": "y", "type": "space", "unit": "micrometer" },
                { "name": "x", "type": "space", "unit": "micrometer" },
            ],
            "datasets": datasets.collect::<Value>(),
        }])
    };
    let group = |attributes: Value| {
        json!({ "zarr_format": 3, "node_type": "group", "attributes": attributes }).to_string()
    };
    let omero = json!({ "channels": [{
        "color": "FF0000", "window": { "min": 0, "max": 1, "start": 0, "end": 1 },
    }] });
    let new =
        json!({ "ome": { "version": "0.5", "multiscales": multiscales(&["0"]), "omero": omero } });
    let old = json!({ "multiscales": multiscales(&["0"]), "omero": omero, "mine": 1 });
    for attributes in [new, old] {
        let folder = TempDir::new().unwrap();
        let image = folder.path();
        level_0(image, &SMALL);
        fs::write(image.join("zarr.json"), group(attributes.clone())).unwrap();
        made(image, &["--axis", "x,scale=0.75", "--levels", "2"], 0);
        let written = fs::read(image.join("zarr.json")).unwrap();
        let written: Value = serde_json::from_slice(&written).unwrap();
        let ome = &written["attributes"]["ome"];
        let multiscale = &ome["multiscales"][0];
        assert_eq!(multiscale["name"], "cells");
        assert_eq!(multiscale["axes"][0]["unit"], "micrometer");
        assert_eq!(ome["omero"]["channels"], omero["channels"]);
        assert_eq!(written["attributes"]["mine"], attributes["mine"]);
        let place = |level: usize, number: usize, name: &str| {
            multiscale["datasets"][level]["coordinateTransformations"][number][name].clone()
        };
        assert_eq!(place(0, 0, "scale"), json!([5.0, 0.5, 0.75]));
        assert_eq!(place(1, 0, "scale"), json!([10.0, 1.0, 1.5]));
        assert_eq!(place(1, 1, "translation"), json!([2.5, 0.25, 0.375]));
    }
    for (paths, wrong) in [
        (&["9"][..], "there is no such array"),
        (&["0", "half"], "name a level half"),
        (&["full/image"], "in a group of its own"),
    ] {
        let folder = TempDir::new().unwrap();
        let image = folder.path();
        level_0(image, &SMALL);
        let attributes = json!({ "ome": { "version": "0.5", "multiscales": multiscales(paths) } });
        fs::write(image.join("zarr.json"), group(attributes)).unwrap();
        let said = made(image, &[], 1);
        assert!(said.contains(wrong), "{said}");
        assert_eq!(contents(image).len(), 1);
    }
    // Not level 0.
    let folder = TempDir::new().unwrap();
    level_0(folder.path(), &SMALL);
    made(folder.path(), &[], 0);
    let said = made(&folder.path().join("1"), &[], 1);
    assert!(said.contains("is not level 0"), "{said}");
}

#[test]
fn the_array_of_a_group() {
    let folder = TempDir::new().unwrap();
    let group = folder.path();
    level_0(group, &SMALL);
    fs::rename(group.join("0"), group.join("s0")).unwrap();
    let said = made(group, &[], 1);
    assert!(said.contains("is not a Zarr group"), "{said}");
    assert!(said.contains("IMAGE/0"), "{said}");
    let metadata = json!({ "zarr_format": 3, "node_type": "group", "attributes": {} });
    fs::write(group.join("zarr.json"), metadata.to_string()).unwrap();
    // The only one.
    made(group, &["--levels", "2"], 0);
    assert_eq!(shape(&group.join("s1")), [7, 11, 15]);
    fs::write(group.join("zarr.json"), metadata.to_string()).unwrap();
    let said = made(group, &[], 1);
    assert!(said.contains("has 2 arrays"), "{said}");
    // Nothing says any more that it is a level.
    let said = made(&group.join("s0"), &["--levels", "2"], 1);
    assert!(
        said.contains("/s1 is there") && said.contains("does not name it"),
        "{said}"
    );
    fs::remove_dir_all(group.join("s1")).unwrap();
    made(&group.join("s0"), &["--levels", "2"], 0);
    // The image says which.
    made(group, &[], 0);
}

#[test]
fn a_report_as_json() {
    let folder = TempDir::new().unwrap();
    let image = folder.path();
    level_0(image, &SMALL);
    let run = |options: &[&str]| {
        let mut words: Vec<&dyn AsRef<OsStr>> = vec![&"pyramid", &image];
        words.extend(options.iter().map(|word| word as &dyn AsRef<_>));
        json(&words, 0)
    };
    let dry = run(&["--dry-run"]);
    assert_eq!(dry["levels"][1]["shape"], json!([7, 11, 15]));
    assert_eq!(dry["levels"][1]["shard"], json!([4, 16, 16]));
    assert_eq!(dry["levels"][1]["subchunk"], json!([2, 8, 8]));
    assert_eq!(dry["axes"][0], json!({ "name": "z", "factor": 2 }));
    assert!(dry["memory"].as_u64().unwrap() > 13 * 21 * 30);
    assert!(contents(image).is_empty(), "--dry-run wrote something");
    let done = run(&[]);
    assert_eq!(done["levels"], dry["levels"]);
    let made = done["made"]["levels"].as_array().unwrap();
    assert_eq!(made.len() + 1, done["levels"].as_array().unwrap().len());
    assert_eq!(made[0]["slices"], 7);
    assert_eq!(made[0]["raw_bytes"], 7 * 11 * 15 * 2);
    assert_eq!(done["reduction"], "mean");
    let again = run(&[]);
    // Behind the last border of a shard, once more.
    assert_eq!(again["made"]["levels"][0]["first_slice"], 4);
    assert_eq!(again["levels"][1]["slices_before"], 7);
    level_0(image, &SMALL);
    for level in ["1", "2"] {
        fs::remove_dir_all(image.join(level)).unwrap();
    }
    let part = run(&["--part", "1/2"]);
    assert_eq!(
        (&part["state"], &part["missing"]),
        (&json!("made"), &json!([2]))
    );
    assert_eq!(run(&["--part", "1/2"])["state"], "was_made");
    assert_eq!(
        (&part["part"], &part["made"]["blocks"]),
        (&json!("1/2"), &json!(1))
    );
}

#[test]
fn arrays_without_levels() {
    let folder = TempDir::new().unwrap();
    let root = folder.path();
    let image = |name: &str| root.join(name);
    unsharded(&image("plain/0"));
    let said = made(&image("plain"), &["--axis", "y", "--axis", "x"], 1);
    assert!(
        said.contains("zarrs-cuda reencode") && said.contains("reshard"),
        "{said}"
    );
    assert_eq!(files(&image("plain")).len(), files(&image("plain/0")).len());

    let old = json!({
        "zarr_format": 2, "shape": [4, 4], "chunks": [2, 2], "dtype": "<u2", "compressor": null,
        "fill_value": 0, "order": "C", "filters": null,
    });
    fs::create_dir_all(image("old/0")).unwrap();
    fs::write(image("old/0/.zarray"), old.to_string()).unwrap();
    for path in [image("old"), image("old/0")] {
        let said = made(&path, &[], 1);
        assert!(
            said.contains("Zarr v2") && said.contains("zarrs-cuda reencode"),
            "{said}"
        );
    }

    // Subchunks that wait in frames.
    sharded(&image("framed/0"), &chain(&[]));
    let sparse = SparseShardStore::open(store(&image("framed/0")), "/").unwrap();
    let sparse = Array::open(Arc::new(sparse), "/").unwrap();
    sparse.store_chunk(&[0, 0], vec![1_u16; 64]).unwrap();
    let axes = ["--axis", "y", "--axis", "x"];
    let said = made(&image("framed"), &axes, 1);
    assert!(said.contains("zarrs-cuda consolidate"), "{said}");
    assert!(!image("framed/1").exists());
    said_ok(&["consolidate"], &image("framed/0"));
    made(&image("framed"), &axes, 0);

    // No array, no name of an axis, no type of elements that can be reduced.
    for name in ["none", "empty", "file"] {
        match name {
            "empty" => fs::create_dir(image(name)).unwrap(),
            "file" => fs::write(image(name), "text").unwrap(),
            _ => {}
        }
        let said = made(&image(name), &[], 1);
        assert!(said.starts_with("error: cannot open"), "{said}");
        assert!(said.contains("\nhelp: "), "{said}");
    }
    sharded(&image("unnamed/0"), &chain(&[]));
    let said = made(&image("unnamed"), &["--axis", "y"], 2);
    assert!(said.contains("2 axes"), "{said}");
    let object = json(&[&"pyramid", &image("unnamed")], 2);
    assert_eq!(object["exit_code"], 2);
    let mut strings = ArrayBuilder::new(vec![4], vec![4], data_type::string(), "");
    strings.dimension_names(Some(["x"])).subchunk_shape(vec![2]);
    let strings = strings.build(store(&image("strings")), "/0").unwrap();
    strings.store_metadata().unwrap();
    made(&image("strings"), &["--levels", "2"], 1);
    assert!(!image("strings/1").exists());
}

fn said_ok(words: &[&str], path: &Path) {
    let mut command = program();
    command.args(words).arg(path);
    said_with_code(&command.output().unwrap(), 0);
}

#[test]
fn wrong_usage() {
    let folder = TempDir::new().unwrap();
    let image = folder.path();
    level_0(image, &SMALL);
    for options in [
        &["--levels", "0"][..],
        &["--reduction", "sum"],
        &["--axis", "q"],
        &["--axis", "z", "--axis", "z"],
        &["--axis", "z,factor=3"],
        &["--axis", "z,scale=0"],
        &["--axis", ""],
        &["--part", "3/2"],
        &["--part", "1/2", "--start", "0"],
        &["--start", "-1"],
    ] {
        let said = made(image, options, 2);
        assert!(said.starts_with("error: "), "{options:?}: {said}");
    }
    for (options, wrong) in [
        (&["--levels", "65"][..], "64"),
        (&["--start", "14"], "13"),
        (&["--memory", "1KiB"], "--memory"),
        (&["--axis", "y,type=time"], "OME-Zarr"),
    ] {
        let said = made(image, options, 1);
        assert!(said.contains(wrong), "{options:?}: {said}");
    }
    assert!(contents(image).is_empty());
    let said = said(&[&"pyramid", &"https://example.com/image"], 1);
    assert!(said.contains("not a directory"), "{said}");
}
