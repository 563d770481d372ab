//! Arrays with a vast grid, of which next to nothing is stored: work follows what is stored.
#![cfg(unix)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use zarrs::array::{Array, ArrayMetadata, ArraySubset};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::storage::SparseShardStore;
use zarrs_cuda_object_store_tests::Server;

use crate::arrays::{in_order, store};
use crate::program::{interrupt, program, said_with_code};

/// Longer than any of these runs may take.
const LIMIT: Duration = Duration::from_mins(1);
/// KiB of address space: the program and its threads, but no list of a grid.
const SPACE: u64 = 1 << 20;

/// The program in little address space. Nothing of the environment's settings of S3 is left.
fn bounded(endpoint: Option<&Server>, words: &[&str]) -> Command {
    let program = program();
    let mut command = Command::new("sh");
    command.arg("-c");
    command.arg(format!("ulimit -v {SPACE} && exec \"$0\" \"$@\""));
    command.arg(program.get_program()).args(words);
    command.args(["--threads", "2"]);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        command.env_remove(name);
    }
    if let Some(server) = endpoint {
        command.env("AWS_ENDPOINT_URL", format!("http://{}", server.address()));
    }
    command
        .env("NO_COLOR", "1")
        .env("COLUMNS", "80")
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_SKIP_SIGNATURE", "true")
        .env("NO_PROXY", "127.0.0.1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// The output of a command that ends in time.
fn in_time(mut command: Command, what: &str) -> Output {
    let mut child = command.spawn().unwrap();
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("{what} did not end within {LIMIT:?}");
        }
        sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// A vast array, by a file or by an address.
struct Vast {
    place: String,
    path: PathBuf,
    server: Option<Server>,
    _folder: TempDir,
}

impl Vast {
    fn said(&self, line: &str, code: i32) -> String {
        let line = line.replace("ARRAY", &self.place);
        let words: Vec<_> = line.split(' ').collect();
        let output = in_time(bounded(self.server.as_ref(), &words), &line);
        said_with_code(&output, code)
    }

    fn json(&self, line: &str, code: i32) -> Value {
        let line = line.replace("ARRAY", &self.place) + " --json";
        let words: Vec<_> = line.split(' ').collect();
        let output = in_time(bounded(self.server.as_ref(), &words), &line);
        said_with_code(&output, code);
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// An array of shards of 4 along each axis, in subchunks of 2, with `counts` shards along each axis.
fn array(path: &Path, counts: &[u64], keys: &Value, fill_value: u8) -> Array<FilesystemStore> {
    let shape: Vec<u64> = counts.iter().map(|count| count * 4).collect();
    let of = |extent: u64| vec![extent; counts.len()];
    let metadata = json!({
        "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint8",
        "fill_value": fill_value, "chunk_key_encoding": keys,
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": of(4) } },
        "codecs": [{ "name": "sharding_indexed", "configuration": {
            "chunk_shape": of(2), "index_location": "end",
            "codecs": [{ "name": "bytes" }, { "name": "crc32c" }],
            "index_codecs": [
                { "name": "bytes", "configuration": { "endian": "little" } }, { "name": "crc32c" },
            ],
        } }],
    });
    let metadata: ArrayMetadata = serde_json::from_value(metadata).unwrap();
    let array = Array::new_with_metadata(store(path), "/", metadata).unwrap();
    array.store_metadata().unwrap();
    array
}

fn default_keys() -> Value {
    json!({ "name": "default" })
}

/// Vast arrays of each kind, on files and on a server of objects.
fn each(test: impl Fn(&Vast, &Array<FilesystemStore>, &[u64])) {
    let separated = |name: &str, separator: &str| json!({ "name": name, "configuration": { "separator": separator } });
    let arrays: [(&[u64], Value); 4] = [
        (&[1 << 40], default_keys()),
        (&[1 << 20, 1 << 20], separated("default", ".")),
        (&[1 << 40, 1 << 40], separated("v2", "/")),
        (&[1 << 20, 1 << 20], separated("v2", ".")),
    ];
    for (counts, keys) in arrays {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("array");
        let vast = Vast {
            place: path.display().to_string(),
            path,
            server: None,
            _folder: folder,
        };
        test(&vast, &array(&vast.path, counts, &keys, 0), counts);
    }
    if cfg!(feature = "remote") {
        let server = Server::start();
        let path = server.bucket().join("array");
        let vast = Vast {
            place: "s3://arrays/array".to_string(),
            path,
            server: Some(server),
            _folder: TempDir::new().unwrap(),
        };
        let counts = [1 << 40];
        test(
            &vast,
            &array(&vast.path, &counts, &default_keys(), 0),
            &counts,
        );
    } else {
        eprintln!("vast arrays on S3 were not tried: the feature remote is off");
    }
}

/// The shards that the tests store: the first, one in the middle and the last.
fn stored(counts: &[u64]) -> [Vec<u64>; 3] {
    let at = |part: fn(u64) -> u64| counts.iter().map(|&count| part(count)).collect();
    [at(|_| 0), at(|count| count / 2), at(|count| count - 1)]
}

fn fill(array: &Array<FilesystemStore>, shard: &[u64], value: u8) {
    let elements = 4_usize.pow(u32::try_from(shard.len()).unwrap());
    in_order(|| array.store_chunk(shard, vec![value; elements])).unwrap();
}

/// The shard in a part of the grid.
fn position(shard: &[u64], counts: &[u64]) -> u128 {
    shard
        .iter()
        .zip(counts)
        .fold(0, |position, (&index, &count)| {
            position * u128::from(count) + u128::from(index)
        })
}

#[test]
fn shards_are_verified_by_a_listing() {
    each(|vast, array, counts| {
        let text = vast.said("verify ARRAY", 0);
        let volume: u128 = counts.iter().map(|&count| u128::from(count)).product();
        assert!(
            text.contains(&format!("{volume} shards, 0 stored")),
            "{text}"
        );
        let shards = stored(counts);
        for shard in &shards {
            fill(array, shard, 5);
        }
        let text = vast.said("verify ARRAY", 0);
        assert!(
            text.contains(&format!("{volume} shards, 3 stored")),
            "{text}"
        );
        let found = vast.json("verify ARRAY --part 1/1000000", 0);
        let of_part = shards
            .iter()
            .filter(|shard| position(shard, counts).is_multiple_of(1_000_000));
        assert_eq!(found["stored"], of_part.count(), "{found}");
        assert_eq!(found["outside_of_grid"], 0);
        // All parts are all shards.
        let parts = (1..=3).map(|part| vast.json(&format!("verify ARRAY --part {part}/3"), 0));
        let parts: u64 = parts.map(|found| found["stored"].as_u64().unwrap()).sum();
        assert_eq!(parts, 3);

        let last = array.chunk_key(&shards[2]);
        let file = vast.path.join(last.as_str());
        let mut bytes = fs::read(&file).unwrap();
        bytes[0] ^= 1;
        fs::write(&file, bytes).unwrap();
        let found = vast.json("verify ARRAY", 3);
        assert_eq!(found["damaged"][0]["shard"], json!(shards[2]), "{found}");
    });
}

#[test]
fn two_vast_arrays_are_compared_where_one_of_them_is_stored() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let counts = [1 << 20, 1 << 20];
    let one = array(&path("one"), &counts, &default_keys(), 0);
    let other = array(&path("other"), &counts, &default_keys(), 0);
    fill(&one, &[7, 9], 5);
    let said = |other: &str, code: i32| {
        let [one, other] = [path("one"), path(other)].map(|path| path.display().to_string());
        let line = format!("verify {one} --against {other}");
        let words: Vec<_> = line.split(' ').collect();
        said_with_code(&in_time(bounded(None, &words), &line), code)
    };
    let text = said("other", 3);
    assert!(text.contains("shard 7,9: 4 subchunks not equal"), "{text}");
    fill(&other, &[7, 9], 5);
    assert!(said("other", 0).contains("bit for bit"));
    // It is stored in the other one alone.
    fill(&other, &[1 << 19, 3], 6);
    let text = said("other", 3);
    assert!(text.contains("shard 524288,3: 4 subchunks"), "{text}");
    assert!(text.contains("in 1 shard"), "{text}");

    // Shards that are stored in neither differ by the fill values.
    let filled = array(&path("filled"), &counts, &default_keys(), 1);
    fill(&filled, &[7, 9], 5);
    let text = said("filled", 3);
    let rest = (1_u64 << 40) - 1;
    assert!(text.contains(&format!("in {rest} shards")), "{text}");
    assert!(text.contains("stored in neither"), "{text}");
}

#[test]
fn shards_are_recovered_by_a_listing() {
    each(|vast, array, counts| {
        let shards = stored(counts);
        fill(array, &shards[0], 5);
        // A shard that was being created: the beginning of its record.
        let file = vast.path.join(array.chunk_key(&shards[1]).as_str());
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, b"no shard").unwrap();
        let text = vast.said("recover ARRAY --dry-run", 3);
        assert!(text.contains("2 stored: 1 intact"), "{text}");
        let found = vast.json("recover ARRAY", 3);
        assert_eq!(found["not_intact"][0]["shard"], json!(shards[1]), "{found}");
        let number = position(&shards[1], counts) % 1_000_000 + 1;
        let text = vast.said(&format!("recover ARRAY --part {number}/1000000"), 3);
        assert!(text.contains("1 damaged otherwise"), "{text}");
    });
}

#[test]
fn shards_are_compacted_by_a_listing() {
    each(|vast, array, counts| {
        let shards = stored(counts);
        for shard in &shards {
            fill(array, shard, 5);
        }
        // Bytes before the index, which it does not know.
        let file = vast.path.join(array.chunk_key(&shards[1]).as_str());
        let bytes = fs::read(&file).unwrap();
        let index = (1 << counts.len()) * 16 + 4;
        let (data, index) = bytes.split_at(bytes.len() - index);
        let large = [data, &[7; 1000], index].concat();
        fs::write(&file, &large).unwrap();
        let dry = vast.json("compact ARRAY --dry-run", 0);
        assert_eq!(fs::read(&file).unwrap(), large);
        let text = vast.said("compact ARRAY", 0);
        assert!(text.contains("1 of 3 stored shards compacted"), "{text}");
        assert!(text.contains("1000 bytes were dropped"), "{text}");
        assert_eq!(dry["compacted"][0]["unknown"], 1000, "{dry}");
        assert_eq!(dry["compacted"][0]["after"], bytes.len(), "{dry}");
        assert_eq!(fs::read(&file).unwrap(), bytes);
    });
}

#[test]
fn frames_are_consolidated_by_a_listing() {
    each(|vast, array, counts| {
        let sparse = Arc::new(SparseShardStore::open(array.storage(), "/").unwrap());
        let subchunks = Array::open(sparse, "/").unwrap();
        let [first, _, last] = stored(counts);
        for shard in [&first, &last] {
            let subchunk: Vec<u64> = shard.iter().map(|index| index * 2 + 1).collect();
            let elements = vec![9_u8; 1 << counts.len()];
            subchunks.store_chunk(&subchunk, elements).unwrap();
        }
        let waiting = vast.json("consolidate ARRAY --dry-run", 0);
        assert_eq!(waiting["pending"], json!([first, last]));
        let text = vast.said("consolidate ARRAY --part 1/1000000", 0);
        assert!(text.starts_with("1 shard, 1 subchunk"), "{text}");
        let text = vast.said("verify ARRAY", 0);
        assert!(text.contains("1 shard with subchunks beside"), "{text}");
        let text = vast.said("consolidate ARRAY", 0);
        assert!(text.starts_with("1 shard, 1 subchunk"), "{text}");
        let text = vast.said("verify ARRAY", 0);
        assert!(text.contains("2 stored"), "{text}");
    });
}

#[test]
fn vast_grids_are_inspected() {
    each(|vast, array, counts| {
        let [_, middle, last] = stored(counts);
        fill(array, &middle, 5);
        fill(array, &last, 5);
        if counts
            .iter()
            .map(|&count| u128::from(count))
            .product::<u128>()
            > 1 << 64
        {
            let text = vast.said("inspect ARRAY", 1);
            assert!(text.contains("more of them than can be numbered"), "{text}");
            return;
        }
        let text = vast.said("inspect ARRAY", 0);
        assert!(text.contains("2 of 1,099,511,627,776 shards"), "{text}");
        vast.said("explain ARRAY", 0);
        let page = TempDir::new().unwrap();
        let page = page.path().join("page.html");
        vast.said(&format!("inspect ARRAY --html {}", page.display()), 0);
        assert!(fs::metadata(&page).unwrap().len() < 1 << 20);
    });
}

#[test]
fn vast_arrays_are_reencoded_by_a_listing() {
    each(|vast, array, counts| {
        let [first, middle, last] = stored(counts);
        for (shard, value) in [(&first, 3), (&middle, 5), (&last, 7)] {
            fill(array, shard, value);
        }
        let folder = TempDir::new().unwrap();
        let output = folder.path().join("out");
        let shapes = |extent: u64| vec![extent.to_string(); counts.len()].join(",");
        let line = format!(
            "reencode ARRAY {} --shard {} --subchunk {} --verify",
            output.display(),
            shapes(8),
            shapes(4)
        );
        let text = vast.said(&line, 0);
        assert!(text.contains("verified: equal, bit for bit"), "{text}");
        let out = Array::open(store(&output), "/").unwrap();
        let elements = 4_usize.pow(u32::try_from(counts.len()).unwrap());
        for (shard, value) in [(&first, 3_u8), (&middle, 5), (&last, 7)] {
            let region = array.chunk_subset(shard).unwrap();
            let found: Vec<u8> = out.retrieve_array_subset(&region).unwrap();
            assert_eq!(found, vec![value; elements]);
        }
    });
}

#[test]
fn shards_outside_of_the_grid_are_counted_and_left() {
    each(|vast, array, counts| {
        let [first, _, last] = stored(counts);
        fill(array, &first, 5);
        // A larger array had this shard.
        let mut outside = last.clone();
        outside[0] += 1;
        let inside = vast.path.join(array.chunk_key(&first).as_str());
        let file = vast.path.join(array.chunk_key(&outside).as_str());
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::copy(&inside, &file).unwrap();
        let large = [&[1; 5000][..], &fs::read(&inside).unwrap()].concat();
        fs::write(&file, &large).unwrap();
        let is_u64 = counts
            .iter()
            .map(|&count| u128::from(count))
            .product::<u128>()
            < 1 << 64;
        let lines = [
            "verify ARRAY",
            "recover ARRAY",
            "compact ARRAY",
            "inspect ARRAY",
        ];
        for line in &lines[..if is_u64 { 4 } else { 3 }] {
            // Lines may be wrapped.
            let text = vast.said(line, 0).replace("\n           ", " ");
            let said = "1 stored shard lies outside of the grid, left by a larger array";
            assert!(text.contains(said), "{line}: {text}");
            assert_eq!(vast.json(line, 0)["outside_of_grid"], 1, "{line}");
        }
        assert_eq!(fs::read(&file).unwrap(), large);
    });
}

#[test]
fn without_a_listing_shards_are_counted_and_asked_for_one_by_one() {
    if !cfg!(feature = "remote") {
        eprintln!("nothing was asked for over HTTP: the feature remote is off");
        return;
    }
    let server = Server::start();
    let of = |name: &str, count: u64| {
        let path = server.bucket().join(name);
        let array = array(&path, &[count], &default_keys(), 0);
        fill(&array, &[2], 5);
        format!("http://{}/arrays/{name}", server.address())
    };
    let small = of("small", 7);
    let command = bounded(Some(&server), &["verify", &small, "--part", "1/2"]);
    let text = said_with_code(&in_time(command, "verify"), 0);
    assert!(
        text.contains("4 shards to ask for, one by one: HTTP has no listing"),
        "{text}"
    );
    assert!(text.contains("4 shards, 1 stored"), "{text}");

    let vast = of("vast", 1 << 40);
    let child = bounded(Some(&server), &["verify", &vast]).spawn().unwrap();
    sleep(Duration::from_secs(3));
    interrupt(&child);
    let text = said_with_code(&child.wait_with_output().unwrap(), 130);
    assert!(
        text.contains("1,099,511,627,776 shards to ask for"),
        "{text}"
    );
    assert!(text.contains("of 1099511627776 shards"), "{text}");
}

#[test]
fn a_shard_with_several_names_is_recovered_into_a_new_file() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("array");
    let array = array(&path, &[4], &default_keys(), 0);
    fill(&array, &[0], 5);
    let file = path.join("c/0");
    let before = fs::read(&file).unwrap();
    // An update that did not come to its end, by the codec of this crate.
    let torn = torn(&path, &file);
    let copy = folder.path().join("copy");
    fs::hard_link(&file, &copy).unwrap();
    let place = path.display().to_string();
    let command = bounded(None, &["recover", &place]);
    let text = said_with_code(&in_time(command, "recover"), 0);
    assert!(
        text.contains("a torn update was undone; it is a new file"),
        "{text}"
    );
    assert!(text.contains("2 names (hard links)"), "{text}");
    assert_eq!(
        fs::read(&copy).unwrap(),
        torn,
        "the other name was written to"
    );
    let array = crate::arrays::open(&path);
    assert_eq!(array.retrieve_chunk::<Vec<u8>>(&[0]).unwrap(), [5; 4]);
    assert!(fs::read(&file).unwrap().starts_with(&before));
    assert!(!path.join("c/0.tmp").exists());

    // A file of one name is repaired where it is.
    fs::remove_file(&copy).unwrap();
    fs::write(&file, &torn).unwrap();
    let inode = |file: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(file).unwrap());
    let number = inode(&file);
    let command = bounded(None, &["recover", &place]);
    let text = said_with_code(&in_time(command, "recover"), 0);
    assert!(!text.contains("new file"), "{text}");
    assert_eq!(inode(&file), number);
}

/// The program as a user who is not the administrator, whom no directory is closed to.
fn as_a_user(folder: &Path, words: &[&str]) -> Output {
    let mut command = crate::program::as_a_user(folder);
    command.args(words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    in_time(command, "a user's command")
}

#[test]
fn a_directory_that_cannot_be_read_does_not_stop_the_others() {
    use std::os::unix::fs::PermissionsExt;
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("array");
    let array = array(&path, &[1 << 20, 1 << 20], &default_keys(), 0);
    for shard in [[3, 4], [5, 6], [7, 8]] {
        fill(&array, &shard, 5);
    }
    let closed = path.join("c/5");
    let set = |mode| fs::set_permissions(&closed, PermissionsExt::from_mode(mode)).unwrap();
    set(0o000);
    let place = path.display().to_string();
    for subcommand in ["verify", "recover", "compact"] {
        let words = [subcommand, &place, "--dry-run"];
        let words = &words[..if subcommand == "verify" { 2 } else { 3 }];
        let text = said_with_code(&as_a_user(folder.path(), words), 1);
        let said = format!("cannot list the directory {}", closed.display());
        assert!(text.contains(&said), "{text}");
        assert!(
            text.contains("help: see to it that this process may read it"),
            "{text}"
        );
        let stored = if subcommand == "compact" {
            "2 stored shards"
        } else {
            "2 stored"
        };
        assert!(text.contains(stored), "{text}");
    }
    let text = said_with_code(&as_a_user(folder.path(), &["inspect", &place]), 1);
    assert!(text.contains("cannot list the directory"), "{text}");
    set(0o755);
    said_with_code(&as_a_user(folder.path(), &["verify", &place]), 0);
}

/// Updates the shard at `file`, and cuts the update short. Returns what is stored then.
fn torn(path: &Path, file: &Path) -> Vec<u8> {
    use zarrs::array::{ArrayBuilder, CodecOptions, data_type};
    use zarrs_cuda::{CudaShardingCodecBuilder, Options, WriteStrategy};
    let options = Options::default().with_write_strategy(WriteStrategy::Append);
    let codec = CudaShardingCodecBuilder::new(vec![2.try_into().unwrap()], &data_type::uint8())
        .bytes_to_bytes_codecs(vec![Arc::new(zarrs::array::codec::Crc32cCodec::new())])
        .options(options)
        .build_arc()
        .unwrap();
    let array = ArrayBuilder::new(vec![16], vec![4], data_type::uint8(), 0_u8)
        .array_to_bytes_codec(codec)
        .build(store(path), "/")
        .unwrap();
    let partial = CodecOptions::default().with_experimental_partial_encoding(true);
    array
        .store_array_subset_opt(&[0..2], &[9_u8, 9], &partial)
        .unwrap();
    let after = fs::read(file).unwrap();
    let torn = &after[..after.len() - 5];
    fs::write(file, torn).unwrap();
    torn.to_vec()
}

/// A shard of the output has very many chunks of the input, of which one is stored.
#[test]
fn chunks_of_one_shard_are_followed() {
    let server = Server::start();
    let root = server.bucket().join("vast");
    let metadata = json!({
        "zarr_format": 3, "node_type": "array", "shape": [1_u64 << 62], "data_type": "uint8",
        "fill_value": 3, "chunk_key_encoding": { "name": "default" }, "codecs": ["bytes"],
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": [4] } },
    });
    let metadata: ArrayMetadata = serde_json::from_value(metadata).unwrap();
    let array = Array::new_with_metadata(store(&root), "/", metadata).unwrap();
    array.store_metadata().unwrap();
    array.store_chunk(&[70_000], vec![1_u8, 2, 3, 4]).unwrap();
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out");
    let shapes = "--shard 4194304 --subchunk 65536";
    let line = format!(
        "reencode s3://arrays/vast {} {shapes} --verify",
        out.display()
    );
    let before = server.requests().len();
    let words: Vec<_> = line.split(' ').collect();
    said_with_code(&in_time(bounded(Some(&server), &words), &line), 0);
    let line = format!("verify {} --against s3://arrays/vast", out.display());
    let words: Vec<_> = line.split(' ').collect();
    said_with_code(&in_time(bounded(Some(&server), &words), &line), 0);
    let requests = server.requests().len() - before;
    assert!(requests < 200, "{requests} requests for one chunk");
    let array = crate::arrays::open(&out);
    let region = ArraySubset::new_with_ranges(&[279_998..280_006]);
    let elements: Vec<u8> = array.retrieve_array_subset(&region).unwrap();
    assert_eq!(elements, [3, 3, 1, 2, 3, 4, 3, 3]);
}
