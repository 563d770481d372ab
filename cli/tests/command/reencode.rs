//! `zarrs-cuda reencode` and `demo`.

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;
use zarrs::array::codec::GzipCodec;
use zarrs::array::{Array, ArrayBuilder, ArrayBytes, ArraySubset, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs_codec::{BytesToBytesCodecTraits, CodecOptions};

#[cfg(unix)]
use crate::program::send;
use crate::program::{files, json, program, said, said_with_code};

type DiskArray = Array<FilesystemStore>;

/// A directory for an input and an output.
struct Case {
    directory: TempDir,
}

impl Case {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("in")).unwrap();
        Self { directory }
    }

    fn input(&self) -> PathBuf {
        self.directory.path().join("in")
    }

    fn output(&self) -> PathBuf {
        self.directory.path().join("out")
    }

    fn input_store(&self) -> Arc<FilesystemStore> {
        Arc::new(FilesystemStore::new(self.input()).unwrap())
    }

    /// A v3 array of `shape` with random bytes as elements.
    fn with_bytes(shape: &[u64], chunk: &[u64]) -> Self {
        let case = Self::new();
        let (shape, chunk) = (shape.to_vec(), chunk.to_vec());
        let array = ArrayBuilder::new(shape, chunk, data_type::uint8(), 0_u8)
            .build(case.input_store(), "/")
            .unwrap();
        array.store_metadata().unwrap();
        let mut state = 1_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        };
        let region = array.subset_all();
        let values: Vec<u8> = region.indices().iter().map(|_| next()).collect();
        array.store_array_subset(&region, &values).unwrap();
        case
    }

    fn run(&self, options: &str, code: i32) -> String {
        run(&self.input(), &self.output(), options, code)
    }

    /// Checks that both arrays have the same elements. Returns the output's metadata.
    fn check_equal(&self) -> Value {
        let (input, output) = (open(&self.input()), open(&self.output()));
        assert_eq!(input.shape(), output.shape());
        assert_eq!(input.fill_value(), output.fill_value());
        assert_eq!(input.attributes(), output.attributes());
        let all = input.subset_all();
        let values: ArrayBytes = input.retrieve_array_subset(&all).unwrap();
        assert!(values == output.retrieve_array_subset(&all).unwrap());
        assert_eq!(self.output_files("tmp"), 0);
        assert_eq!(self.output_files("incomplete"), 0);
        json_of(&self.output().join("zarr.json"))
    }

    /// The number of files with this `extension` in the output.
    fn output_files(&self, extension: &str) -> usize {
        files(&self.output())
            .iter()
            .filter(|file| file.extension().is_some_and(|found| found == extension))
            .count()
    }

    fn output_shards(&self) -> usize {
        let chunks = self.output().join("c");
        let is_shard = |file: &&PathBuf| file.extension().is_none();
        files(&chunks).iter().filter(is_shard).count()
    }
}

fn command(input: &Path, output: &Path, options: &str) -> Command {
    let mut command = program();
    command.arg("reencode").args([input, output]);
    command.args(options.split_whitespace());
    command
}

/// Runs the subcommand, and checks the exit code. Returns its output, stdout first.
fn run(input: &Path, output: &Path, options: &str, code: i32) -> String {
    let ended = command(input, output, options).output().unwrap();
    said_with_code(&ended, code)
}

fn open(path: &Path) -> DiskArray {
    Array::open(Arc::new(FilesystemStore::new(path).unwrap()), "/").unwrap()
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn v2_in_fortran_order() {
    let case = Case::new();
    let write = |name: &str, value: Value| {
        fs::write(case.input().join(name), value.to_string()).unwrap();
    };
    write(
        ".zarray",
        json!({
            "zarr_format": 2, "shape": [5, 7], "chunks": [3, 4], "dtype": ">i2", "order": "F",
            "fill_value": -1, "filters": null, "compressor": { "id": "gzip", "level": 1 },
        }),
    );
    let attributes = json!({ "_ARRAY_DIMENSIONS": ["y", "x"], "unit": "mm" });
    write(".zattrs", attributes);

    // Element (y, x) is 10 y + x. All chunks except the last are written without zarrs.
    let gzip = GzipCodec::new(1).unwrap();
    for (name, y0, x0) in [("0.0", 0, 0), ("0.1", 0, 4), ("1.0", 3, 0)] {
        let columns = (x0..x0 + 4).flat_map(|x| (y0..y0 + 3).map(move |y| 10 * y + x));
        let chunk: Vec<u8> = columns.flat_map(i16::to_be_bytes).collect();
        let chunk = gzip.encode(Cow::Owned(chunk), &CodecOptions::default());
        fs::write(case.input().join(name), chunk.unwrap()).unwrap();
    }

    let said = case.run("--shard 4,4 --subchunk 2,2 --codec crc32c --verify", 0);
    assert!(said.contains("verified"), "{said}");
    let metadata = json_of(&case.output().join("zarr.json"));
    assert_eq!(metadata["zarr_format"], 3);
    assert_eq!(metadata["data_type"], "int16");
    assert_eq!(metadata["fill_value"], -1);
    assert_eq!(metadata["dimension_names"], json!(["y", "x"]));
    // For xarray the fill value says which elements are missing; `_ARRAY_DIMENSIONS` is of v2 alone.
    assert_eq!(
        metadata["attributes"],
        json!({ "unit": "mm", "_FillValue": -1 })
    );

    let output = open(&case.output());
    let values: Vec<i16> = output.retrieve_array_subset(&output.subset_all()).unwrap();
    let expected =
        (0..5).flat_map(|y| (0..7).map(move |x| if y >= 3 && x >= 4 { -1 } else { 10 * y + x }));
    assert_eq!(values, expected.collect::<Vec<i16>>());
}

#[test]
fn every_codec() {
    let case = Case::with_bytes(&[20, 33, 17], &[7, 11, 17]);
    let shapes = "--shard 16,32,16 --subchunk 8,8,8 --overwrite";
    let sharding = |options: &str| {
        case.run(&format!("{shapes} {options}"), 0);
        case.check_equal()["codecs"][0]["configuration"].take()
    };
    for (codec, name, key, value) in [
        ("crc32c", "crc32c", "", Value::Null),
        ("zstd:-2", "zstd", "level", json!(-2)),
        ("gzip:9", "gzip", "level", json!(9)),
        ("blosc-lz4:5:shuffle", "blosc", "cname", json!("lz4")),
        ("blosc-zstd:1:noshuffle", "blosc", "clevel", json!(1)),
        (
            "blosc-zlib:1:bitshuffle",
            "blosc",
            "shuffle",
            json!("bitshuffle"),
        ),
    ] {
        let codecs = sharding(&format!("--codec {codec}"))["codecs"].take();
        assert_eq!(codecs.as_array().unwrap().len(), 2, "{codecs}");
        assert_eq!(codecs[1]["name"], name);
        assert_eq!(codecs[1]["configuration"][key], value, "{codecs}");
    }
    let configuration = sharding("--codec none --index start --explain");
    assert_eq!(configuration["codecs"].as_array().unwrap().len(), 1);
    assert_eq!(configuration["index_location"], "start");
    assert_eq!(configuration["chunk_shape"], json!([8, 8, 8]));

    for codec in [
        "lz4",
        "zstd",
        "zstd:23",
        "gzip:x",
        "blosc-lzma:1:shuffle",
        "blosc-lz4:1:s",
    ] {
        let said = case.run(&format!("{shapes} --codec {codec}"), 2);
        assert!(said.contains("--codec"), "{said}");
        case.check_equal(); // the existing array is unchanged
    }
}

#[test]
fn shapes_are_chosen() {
    let case = Case::with_bytes(&[100, 130, 70], &[9, 130, 70]);
    for options in [
        "",
        "--shard 50,97,64",
        "--subchunk 5,5,5",
        "--shard 200,200,200",
        "--shard 20,26,70",
    ] {
        case.run(&format!("{options} --overwrite --verify --codec none"), 0);
        case.check_equal();
    }
    for (options, complaint) in [
        ("--shard 64,64", "has 2 dimensions"),
        ("--shard 100,10,10 --subchunk 64,2,2", "make it 64 or 128"),
        ("--shard 10,10,10 --subchunk 64,2,2", "make it 64\n"),
        ("--shard 100000,100000,100000", "a smaller --shard"),
        (
            "--shard 4294967296,4294967296,4294967296",
            "a smaller --shard",
        ),
    ] {
        let code = if complaint == "a smaller --shard" {
            1
        } else {
            2
        };
        let said = case.run(&format!("{options} --overwrite"), code);
        assert!(said.contains(complaint), "{said}");
    }
    for options in [
        "--shard 0,1,1",
        "--shard 1,,1",
        "--index middle",
        "--no-such",
    ] {
        case.run(options, 2);
    }
}

#[test]
fn no_dimensions_and_no_elements() {
    for shape in [vec![], vec![0], vec![4, 0]] {
        let case = Case::new();
        let chunk = vec![3; shape.len()];
        let array = ArrayBuilder::new(shape.clone(), chunk, data_type::float64(), 0.5)
            .build(case.input_store(), "/")
            .unwrap();
        array.store_metadata().unwrap();
        if shape.is_empty() {
            array.store_chunk(&[], &[7.25]).unwrap();
        }
        case.run("--verify --explain", 0);
        case.check_equal();
    }
}

#[test]
fn strings() {
    let case = Case::new();
    let builder = ArrayBuilder::new(vec![5, 6], vec![2, 3], data_type::string(), "none");
    let array = builder.build(case.input_store(), "/").unwrap();
    array.store_metadata().unwrap();
    let values: Vec<String> = (0..24).map(|i| "äb".repeat(i % 5)).collect();
    let region = ArraySubset::new_with_ranges(&[1..5, 0..6]);
    array.store_array_subset(&region, values).unwrap();

    for options in ["", "--shard 4,4 --subchunk 2,2 --codec none --explain"] {
        case.run(&format!("{options} --overwrite --verify"), 0);
        assert_eq!(case.check_equal()["data_type"], "string");
    }
    let said = case.run("--codec blosc-lz4:1:shuffle --overwrite", 1);
    assert!(said.contains("noshuffle"), "{said}");
}

/// NaNs, only one of which is the fill value, and zeros of both signs.
#[test]
fn every_bit_of_floats() {
    const FILL: u32 = 0x7fc0_0001;
    let case = Case::new();
    let array = ArrayBuilder::new(
        vec![8, 8],
        vec![8, 2],
        data_type::float32(),
        f32::from_bits(FILL),
    )
    .build(case.input_store(), "/")
    .unwrap();
    array.store_metadata().unwrap();
    let corner = [0x7fc0_0000, FILL, 0x8000_0000, 0].map(f32::from_bits);
    let region = ArraySubset::new_with_ranges(&[0..2, 0..2]);
    array.store_array_subset(&region, &corner).unwrap();

    case.run("--shard 4,4 --subchunk 2,2 --codec none --verify", 0);
    assert_eq!(case.check_equal()["fill_value"], "0x7fc00001");
    assert_eq!(case.output_shards(), 1, "the other three are empty");
}

#[test]
fn sharded_input() {
    let case = Case::with_bytes(&[60, 60], &[60, 60]);
    case.run("--shard 30,30 --subchunk 10,10", 0);
    let again = case.directory.path().join("again");
    let options = "--shard 24,24 --subchunk 12,12 --verify";
    run(&case.output(), &again, options, 0);
    let [first, second] = [case.input(), again].map(|path| {
        let array = open(&path);
        let values: Vec<u8> = array.retrieve_array_subset(&array.subset_all()).unwrap();
        values
    });
    assert!(first == second);
}

#[test]
fn what_is_there_is_not_lost() {
    let case = Case::with_bytes(&[9, 9], &[4, 4]);
    let note = case.output().join("note.txt");
    fs::create_dir(case.output()).unwrap();
    fs::write(&note, "mine").unwrap();
    for options in ["", "--overwrite", "--resume"] {
        let said = case.run(options, 1);
        assert!(said.contains("not a Zarr array"), "{said}");
    }
    fs::remove_file(&note).unwrap();
    case.run("", 0);
    let said = case.run("", 1);
    assert!(said.contains("--overwrite"), "{said}");

    // An array with a file of the user's.
    let note = case.output().join("c/0/note.txt");
    fs::write(&note, "mine").unwrap();
    let said = case.run("--overwrite", 1);
    assert!(said.contains("note.txt"), "{said}");
    fs::remove_file(&note).unwrap();
    case.check_equal();

    // A group whose arrays have the names of chunks.
    let group = json!({ "zarr_format": 3, "node_type": "group" });
    fs::rename(case.output(), case.directory.path().join("0")).unwrap();
    fs::create_dir(case.output()).unwrap();
    fs::rename(case.directory.path().join("0"), case.output().join("0")).unwrap();
    fs::write(case.output().join("zarr.json"), group.to_string()).unwrap();
    case.run("--overwrite", 1);
    let other = case.directory.path().join("other");
    let said = run(&case.output(), &other, "", 1);
    assert!(said.contains("there are arrays in it"), "{said}");

    for path in [case.input(), case.input().join("out")] {
        let said = run(&case.input(), &path, "--overwrite", 2);
        assert!(said.contains("must lie apart"), "{said}");
    }
    assert!(
        open(&case.input())
            .retrieve_chunk::<Vec<u8>>(&[0, 0])
            .is_ok()
    );
}

#[test]
fn friendly_refusals() {
    let case = Case::with_bytes(&[4], &[4]);
    let complaint = case.run("--backend cuda", 1);
    assert!(
        complaint.contains("CUDA backend cannot be used"),
        "{complaint}"
    );
    assert!(!case.output().exists());
    case.run("--help", 0);
    case.run("one-too-many", 2);
    let empty = Case::new();
    let complaint = empty.run("", 1);
    assert!(complaint.contains("cannot open"), "{complaint}");
}

#[test]
fn unreadable_input() {
    let case = Case::with_bytes(&[40, 40], &[10, 10]);
    let chunk = case.input().join("c/3/3");
    let encoded = fs::read(&chunk).unwrap();
    fs::write(&chunk, &encoded[..20]).unwrap();
    let options = "--shard 10,10 --subchunk 5,5";
    let said = case.run(options, 1);
    assert!(
        said.contains("30..40") && said.contains("--resume"),
        "{said}"
    );
    assert!(!case.output().join("zarr.json").exists());

    // What a program of another version may be writing.
    fs::create_dir_all(case.output().join("c/3")).unwrap();
    let other = case.output().join("c/3/3.tmp");
    fs::write(&other, "half").unwrap();
    fs::write(&chunk, encoded).unwrap();
    let said = case.run(options, 1);
    assert!(said.contains("--resume"), "{said}");
    let said = case.run("--resume --shard 10,10 --subchunk 2,2", 1);
    assert!(said.contains("another command"), "{said}");

    // A complete shard with other elements.
    let [first, second] = ["c/0/0", "c/0/1"].map(|shard| case.output().join(shard));
    let right = fs::read(&first).unwrap();
    fs::copy(second, &first).unwrap();
    let said = case.run(&format!("{options} --resume --verify"), 3);
    assert!(
        said.contains("0..10") && said.contains("are not what"),
        "{said}"
    );
    assert!(!case.output().join("zarr.json").exists());

    fs::write(&first, right).unwrap();
    let said = case.run(&format!("{options} --resume --verify"), 0);
    assert!(
        said.contains("1 temporary file") && said.contains("c/3/3.tmp"),
        "{said}"
    );
    fs::remove_file(other).unwrap();
    case.check_equal();
}

#[test]
fn demonstration() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let said = said(&[&"demo", &folder.path()], 0);
        assert!(said.contains("verified"), "{said}");
    }
    let object = json(&[&"demo", &folder.path()], 0);
    assert_eq!(object["reencode"]["verified"], true);
}

/// Groups of both versions, with attributes, arrays in groups, and arrays of other dimensions.
#[test]
fn hierarchies() {
    for version in [2, 3] {
        let case = Case::new();
        let write = |path: &str, value: Value| {
            let file = case.input().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, value.to_string()).unwrap();
        };
        let attributes = |name: &str| json!({ "name": name });
        for group in ["", "a/", "a/deep/"] {
            if version == 2 {
                write(&format!("{group}.zgroup"), json!({ "zarr_format": 2 }));
                write(&format!("{group}.zattrs"), attributes(group));
            } else {
                let metadata = json!({
                    "zarr_format": 3, "node_type": "group", "attributes": attributes(group),
                });
                write(&format!("{group}zarr.json"), metadata);
            }
        }
        for (path, shape) in [
            ("x", vec![30]),
            ("a/plane", vec![20, 30]),
            ("a/deep/plane", vec![9, 9]),
        ] {
            let chunk = vec![8; shape.len()];
            let array = ArrayBuilder::new(shape, chunk, data_type::uint8(), 0_u8)
                .build(case.input_store(), &format!("/{path}"))
                .unwrap();
            array.store_metadata().unwrap();
            let all = array.subset_all();
            let values: Vec<u8> = (0..all.num_elements()).map(|i| i as u8).collect();
            array.store_array_subset(&all, &values).unwrap();
        }
        let options = "--shard 8,8 --subchunk 4,4 --codec none --verify";
        let said = case.run(options, 1);
        assert!(said.contains("is a Zarr group, not an array"), "{said}");
        let options = format!("{options} --recursive");
        let said = case.run(&options, 0);
        assert!(said.contains("3 arrays and 3 groups"), "{said}");
        for path in ["x", "a/plane", "a/deep/plane"] {
            let [input, output] = [case.input(), case.output()].map(|root| open(&root.join(path)));
            let all = input.subset_all();
            let values: ArrayBytes = input.retrieve_array_subset(&all).unwrap();
            assert!(values == output.retrieve_array_subset(&all).unwrap());
            let shard = output.chunk_shape(&vec![0; all.dimensionality()]).unwrap();
            if all.dimensionality() == 2 {
                assert!(shard.iter().all(|extent| extent.get() == 8), "{shard:?}");
            }
        }
        for group in ["", "a/", "a/deep/"] {
            let metadata = json_of(&case.output().join(group).join("zarr.json"));
            assert_eq!(metadata["node_type"], "group");
            assert_eq!(metadata["attributes"], attributes(group));
        }
        assert_eq!(case.output_files("incomplete"), 0);

        // Again, over it, and with something that the input does not have.
        let said = case.run(&options, 1);
        assert!(said.contains("--overwrite"), "{said}");
        case.run(&format!("{options} --overwrite"), 0);
        fs::rename(case.input().join("x"), case.directory.path().join("x")).unwrap();
        let said = case.run(&format!("{options} --overwrite"), 1);
        assert!(said.contains("this run has nothing for it"), "{said}");
        fs::rename(case.directory.path().join("x"), case.input().join("x")).unwrap();

        // Stopped in the middle, because the last array cannot be read.
        let root = case.output();
        let chunk = files(&case.input().join("x"))
            .into_iter()
            .find(|file| {
                !file
                    .file_name()
                    .is_some_and(|name| name.to_string_lossy().contains('z'))
            })
            .unwrap();
        let whole = fs::read(&chunk).unwrap();
        fs::write(&chunk, "").unwrap();
        case.run(&format!("{options} --overwrite"), 1);
        fs::write(&chunk, whole).unwrap();
        assert!(!root.join("zarr.json").exists());
        let said = case.run(&options, 1);
        assert!(said.contains("--resume"), "{said}");
        let said = case.run(&format!("{options} --resume"), 0);
        assert_eq!(said.matches("done before").count(), 2, "{said}");
        assert_eq!(
            json_of(&root.join("a/deep/zarr.json"))["attributes"],
            attributes("a/deep/")
        );
    }
    let array = Case::with_bytes(&[4], &[4]);
    let said = array.run("--recursive", 2);
    assert!(said.contains("leave out --recursive"), "{said}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_whole_shards() {
    for signal in ["-INT", "-TERM"] {
        stopped_leaves_whole_shards(signal);
    }
}

#[cfg(unix)]
fn stopped_leaves_whole_shards(signal: &str) {
    use std::process::Stdio;
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    const SHARDS: usize = 64;
    let case = Case::with_bytes(&[32, 32, 4096], &[32, 32, 512]);
    let options = "--shard 32,32,64 --subchunk 32,32,32 --codec zstd:19";
    let mut command = command(&case.input(), &case.output(), options);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let start = Instant::now();
    while case.output_shards() < 3 {
        assert!(start.elapsed() < Duration::from_mins(1), "nothing happens");
        sleep(Duration::from_millis(1));
    }
    send(signal, &child);
    let said = said_with_code(&child.wait_with_output().unwrap(), 130);

    let shards = case.output_shards();
    assert!((3..SHARDS).contains(&shards), "{said}");
    assert!(
        said.contains(&format!("after {shards} of {SHARDS} shards")),
        "{said}"
    );
    assert_eq!(case.output_files("tmp"), 0);
    let store = Arc::new(FilesystemStore::new(case.output()).unwrap());
    assert!(
        Array::open(store.clone(), "/").is_err(),
        "it looks complete"
    );

    // Every stored shard is complete.
    let metadata = fs::read(case.output().join("zarr.json.incomplete")).unwrap();
    let metadata = serde_json::from_slice(&metadata).unwrap();
    let output = Array::new_with_metadata(store, "/", metadata).unwrap();
    let input = open(&case.input());
    let mut whole = 0;
    for x in 0..SHARDS as u64 {
        if let Some(shard) = output
            .retrieve_chunk_if_exists::<Vec<u8>>(&[0, 0, x])
            .unwrap()
        {
            let region = output.chunk_subset(&[0, 0, x]).unwrap();
            assert!(shard == input.retrieve_array_subset::<Vec<u8>>(&region).unwrap());
            whole += 1;
        }
    }
    assert_eq!(whole, shards);

    case.run(&format!("{options} --resume"), 0);
    case.check_equal();
}
