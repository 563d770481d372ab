//! Arrays of S3 and HTTP servers, which the feature `remote` opens.

#[cfg(not(feature = "remote"))]
mod without {
    use tempfile::TempDir;

    use crate::arrays::{chain, sharded};
    use crate::program::said;

    #[test]
    fn the_feature_is_named() {
        let folder = TempDir::new().unwrap();
        sharded(folder.path(), &chain(&[]));
        for url in ["s3://bucket/array", "https://host/array"] {
            let text = said(&[&"inspect", &url], 1);
            assert!(
                text.starts_with(&format!("error: cannot open {url}: it is not a directory")),
                "{text}"
            );
            assert!(text.contains("--features remote"), "{text}");
        }
        for arguments in [
            &[
                &"reencode" as &dyn AsRef<_>,
                &folder.path(),
                &"s3://bucket/array",
            ][..],
            &[&"stream", &"s3://bucket/array", &"/dev/null"],
        ] {
            let text = said(arguments, 1);
            assert!(text.contains("--features remote"), "{text}");
        }
    }

    #[test]
    fn credentials_of_an_address_are_not_printed() {
        let text = said(&[&"inspect", &"https://user:word@host/array?sign=it"], 1);
        assert!(text.contains("https://***@host/array:"), "{text}");
        assert!(!text.contains("word") && !text.contains("sign"), "{text}");
    }
}

#[cfg(feature = "remote")]
mod with {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener};
    use std::path::PathBuf;
    use std::process::{Command, Stdio};
    use std::sync::Arc;
    use std::thread;
    use std::time::{Duration, Instant};

    use serde_json::{Value, json};
    use tempfile::TempDir;
    use zarrs::array::{Array, ArrayBuilder, data_type};
    use zarrs::group::GroupBuilder;
    use zarrs_cuda::storage::SparseShardStore;
    use zarrs_cuda_object_store_tests::Server;

    use crate::arrays::{chain, sharded, store, unsharded, update, values};
    use crate::program::{files, program, said_with_code};

    /// The program with a server of objects. Nothing of the environment's settings of S3 is left.
    fn with(endpoint: &str) -> Command {
        let mut command = program();
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
            command.env_remove(name);
        }
        command
            .env("AWS_ENDPOINT_URL", endpoint)
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_SKIP_SIGNATURE", "true")
            .env("NO_PROXY", "127.0.0.1");
        command
    }

    struct Bucket(Server);

    impl Bucket {
        fn new() -> Self {
            Self(Server::start())
        }

        /// The file of an object.
        fn file(&self, key: &str) -> PathBuf {
            self.0.bucket().join(key)
        }

        /// The same server as one of plain HTTP.
        fn http(&self, key: &str) -> String {
            format!("http://{}/arrays/{key}", self.0.address())
        }

        fn command(&self) -> Command {
            with(&format!("http://{}", self.0.address()))
        }

        fn said(&self, line: &str, code: i32) -> String {
            let output = self.command().args(line.split(' ')).output().unwrap();
            said_with_code(&output, code)
        }

        fn json(&self, line: &str, code: i32) -> Value {
            let words = line.split(' ').chain(["--json"]);
            let output = self.command().args(words).output().unwrap();
            said_with_code(&output, code);
            serde_json::from_slice(&output.stdout).unwrap()
        }
    }

    /// Answers every request alike, for as long as the test runs. Returns the address.
    fn always(answer: String) -> String {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = Vec::new();
                let mut part = [0; 1024];
                while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                    match stream.read(&mut part) {
                        Ok(len @ 1..) => request.extend_from_slice(&part[..len]),
                        _ => break,
                    }
                }
                // A client that hangs up is no error.
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        format!("http://{address}")
    }

    fn answer(status: &str, body: &str) -> String {
        format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    }

    #[test]
    fn a_reencoded_array_is_inspected_and_verified() {
        let bucket = Bucket::new();
        let folder = TempDir::new().unwrap();
        unsharded(folder.path());
        let local = folder.path().display();
        let line = format!("reencode {local} s3://arrays/a/b --shard 16,16 --subchunk 8,8");
        let text = bucket.said(&format!("{line} --codec crc32c --verify"), 0);
        assert!(text.contains("verified: equal"), "{text}");
        assert_eq!(values(&bucket.file("a/b")), values(folder.path()));
        assert!(!bucket.file("a/b/zarr.json.incomplete").exists());

        let found = bucket.json("inspect s3://arrays/a/b", 0);
        assert_eq!(
            (&found["stored"], &found["indices_read"]),
            (&json!(4), &json!(4))
        );
        let text = bucket.said("inspect s3://arrays/a/b/ 0,1 --summary", 0);
        assert!(text.starts_with("c/0/1\n"), "{text}");
        let text = bucket.said("explain s3://arrays/a/b", 0);
        assert!(text.contains("engine: host"), "{text}");
        let found = bucket.json(&format!("verify s3://arrays/a/b --against {local}"), 0);
        assert_eq!(found["shards_to_consolidate"], 0);

        // Back to files, and over HTTP.
        let back = TempDir::new().unwrap();
        let path = back.path().join("back");
        let from = bucket.http("a/b");
        bucket.said(
            &format!("reencode {from} {} --shard 32,32", path.display()),
            0,
        );
        assert_eq!(values(&path), values(folder.path()));
    }

    #[test]
    fn an_array_is_replaced_only_if_it_is_asked_for() {
        let bucket = Bucket::new();
        let folder = TempDir::new().unwrap();
        unsharded(folder.path());
        let line = format!(
            "reencode {} s3://arrays/a --subchunk 8,8",
            folder.path().display()
        );
        bucket.said(&format!("{line} --shard 8,8"), 0);
        assert_eq!(files(&bucket.file("a")).len(), 17);
        let text = bucket.said(&format!("{line} --shard 16,16"), 1);
        assert!(text.contains("s3://arrays/a holds a Zarr array"), "{text}");
        std::fs::write(bucket.file("a/notes"), "mine").unwrap();
        let text = bucket.said(&format!("{line} --shard 16,16 --overwrite"), 1);
        assert!(text.contains("notes is not a part of the array"), "{text}");
        assert_eq!(files(&bucket.file("a")).len(), 18, "nothing was deleted");
        std::fs::remove_file(bucket.file("a/notes")).unwrap();
        bucket.said(&format!("{line} --shard 16,16 --overwrite"), 0);
        assert_eq!(files(&bucket.file("a")).len(), 5, "the old shards are gone");
        assert_eq!(values(&bucket.file("a")), values(folder.path()));

        std::fs::create_dir(bucket.file("other")).unwrap();
        std::fs::write(bucket.file("other/file"), "mine").unwrap();
        let line = line.replace("s3://arrays/a", "s3://arrays/other");
        let text = bucket.said(&format!("{line} --overwrite"), 1);
        assert!(
            text.contains("is not empty, and not a Zarr array"),
            "{text}"
        );
        let text = bucket.said("reencode s3://arrays/a s3://arrays/a/b", 2);
        assert!(text.contains("must lie apart"), "{text}");
    }

    #[test]
    fn nothing_is_made_in_an_array() {
        let bucket = Bucket::new();
        let folder = TempDir::new().unwrap();
        unsharded(folder.path());
        let input = folder.path().display();
        sharded(&bucket.file("group/a"), &chain(&[]));
        let before = files(&bucket.file("group"));
        for line in [
            format!("reencode {input} s3://arrays/group/a/c/9/9"),
            format!("reencode {input} s3://arrays/group/a/b/"),
            "stream s3://arrays/group/a/b /dev/null --frame-shape 4,4 --dtype uint8".to_owned(),
        ] {
            let text = bucket.said(&line, 1);
            assert!(
                text.contains("lies in the array s3://arrays/group/a, which has chunks"),
                "{text}"
            );
        }
        assert_eq!(files(&bucket.file("group")), before);
        bucket.said(&format!("reencode {input} s3://arrays/group/b"), 0);
    }

    /// An object shorter than the index that is read from its end.
    #[test]
    fn shards_that_are_cut_short() {
        let bucket = Bucket::new();
        sharded(&bucket.file("a"), &chain(&[]));
        sharded(&bucket.file("whole"), &chain(&[]));
        std::fs::write(bucket.file("a/c/0/1"), b"0123456789").unwrap();
        let folder = TempDir::new().unwrap();
        for array in ["s3://arrays/a".to_owned(), bucket.http("a")] {
            let line = format!("verify {array} --against s3://arrays/whole");
            let text = bucket.said(&line, 3);
            assert!(!text.contains("panicked"), "{text}");
            let out = folder.path().join(format!("{}", array.len()));
            let line = format!("reencode {array} {} --shard 4,4", out.display());
            let text = bucket.said(&line, 1);
            assert!(!text.contains("panicked"), "{text}");
            assert!(text.contains("length 10"), "{text}");
        }
    }

    /// Names of nodes with each printable character of ASCII but the slash, and with others.
    fn names() -> Vec<String> {
        let ascii = (' '..='~').filter(|character| *character != '/');
        let mut names: Vec<_> = ascii.map(|character| format!("a{character}b")).collect();
        let others = [
            "õ", "日本", "😀", "%", "%25", "%C3%B5", "100%", "#", "[0]", "a b ",
        ];
        names.extend(others.map(str::to_string));
        names
    }

    /// The paths of the arrays below `root`, in order.
    fn arrays(root: &std::path::Path) -> Vec<PathBuf> {
        let mut arrays: Vec<_> = files(root)
            .into_iter()
            .filter(|file| file.ends_with("array/zarr.json"))
            .map(|file| file.strip_prefix(root).unwrap().to_path_buf())
            .collect();
        arrays.sort();
        arrays
    }

    #[test]
    fn names_keep_their_characters() {
        let bucket = Bucket::new();
        let folder = TempDir::new().unwrap();
        let root = folder.path().join("in");
        let group = r#"{"zarr_format": 3, "node_type": "group"}"#;
        for name in [String::new()].into_iter().chain(names()) {
            std::fs::create_dir_all(root.join(&name)).unwrap();
            std::fs::write(root.join(&name).join("zarr.json"), group).unwrap();
            if !name.is_empty() {
                let array = ArrayBuilder::new(vec![2], vec![2], data_type::uint16(), 0_u16);
                let array = array
                    .build(store(&root.join(&name).join("array")), "/")
                    .unwrap();
                array.store_metadata().unwrap();
                array.store_chunk(&[0], vec![7_u16, 8]).unwrap();
            }
        }
        let back = folder.path().join("back");
        bucket.said(
            &format!("reencode {} s3://arrays/all --recursive", root.display()),
            0,
        );
        bucket.said(
            &format!("reencode s3://arrays/all {} --recursive", back.display()),
            0,
        );
        let wanted = arrays(&root);
        assert_eq!(wanted.len(), names().len());
        for copy in [&bucket.file("all"), &back] {
            assert_eq!(arrays(copy), wanted);
            for name in names() {
                assert!(copy.join(&name).join("zarr.json").is_file(), "{name}");
                assert_eq!(values(&copy.join(&name).join("array")), [7, 8], "{name}");
            }
        }
        // An address of HTTP has these characters encoded.
        for name in ["a#b", "a%b", "a?b", "õ", "%25", "a b ", "a~b", "[0]"] {
            let encoded: Vec<_> = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
            let encoded = encoded.concat();
            let url = bucket.http(&format!("all/{encoded}/array"));
            let out = TempDir::new().unwrap();
            let out = out.path().join("out");
            bucket.said(&format!("reencode {url} {}", out.display()), 0);
            assert_eq!(values(&out), [7, 8], "{name}");
        }
    }

    /// An earlier version, and zarrs, stored a group under another name than its arrays.
    #[test]
    fn names_that_were_encoded_are_reported() {
        let bucket = Bucket::new();
        let folder = TempDir::new().unwrap();
        let group = r#"{"zarr_format": 3, "node_type": "group"}"#;
        for name in ["", "õ", "%C3%B5"] {
            std::fs::create_dir_all(bucket.file("all").join(name)).unwrap();
            std::fs::write(bucket.file("all").join(name).join("zarr.json"), group).unwrap();
        }
        unsharded(&bucket.file("all").join("õ/array"));
        let out = folder.path().join("out");
        let line = format!("reencode s3://arrays/all {} --recursive", out.display());
        let note = "%C3%B5 may be meant to be õ";
        let text = bucket.said(&line, 0);
        assert!(text.contains(note), "{text}");
        std::fs::remove_dir_all(&out).unwrap();
        // The array has the name, and the metadata of its group have the encoded one.
        std::fs::remove_file(bucket.file("all/õ/zarr.json")).unwrap();
        let text = bucket.said(&line, 1);
        assert!(
            text.contains("õ/array below it would be left out"),
            "{text}"
        );
        assert!(
            text.contains("help: move the objects of %C3%B5/ to õ/"),
            "{text}"
        );
        assert!(!out.exists(), "{text}");
        std::fs::remove_dir_all(bucket.file("all/õ")).unwrap();
        let text = bucket.said(&line, 0);
        assert!(text.contains(note), "{text}");
    }

    #[test]
    fn an_interrupted_run_goes_on() {
        let bucket = Bucket::new();
        let folder = TempDir::new().unwrap();
        unsharded(folder.path());
        let line = format!(
            "reencode {} s3://arrays/a --shard 16,16 --subchunk 8,8",
            folder.path().display()
        );
        // A chunk of the last shard cannot be read.
        let chunk = folder.path().join("c/3/3");
        let whole = std::fs::read(&chunk).unwrap();
        std::fs::write(&chunk, &whole[1..]).unwrap();
        bucket.said(&line, 1);
        std::fs::write(&chunk, whole).unwrap();
        let marker = bucket.file("a/zarr.json.incomplete");
        assert!(marker.exists() && !bucket.file("a/c/1/1").exists());
        std::fs::write(bucket.file("a/c/0/1"), "").unwrap();
        let before = std::fs::metadata(bucket.file("a/c/0/0"))
            .unwrap()
            .modified()
            .unwrap();
        let text = bucket.said("inspect s3://arrays/a", 1);
        assert!(text.contains("name an array"), "{text}");
        let text = bucket.said(&line, 1);
        assert!(text.contains("--resume"), "{text}");
        let other = format!("{line} --codec none --resume");
        let text = bucket.said(&other, 1);
        assert!(text.contains("of another command: --codec was"), "{text}");
        let elsewhere = TempDir::new().unwrap();
        unsharded(elsewhere.path());
        let other = line.replace(
            &*folder.path().to_string_lossy(),
            &elsewhere.path().to_string_lossy(),
        );
        let text = bucket.said(&format!("{other} --resume"), 1);
        assert!(text.contains("of another input"), "{text}");
        bucket.said(&format!("{line} --resume --verify"), 0);
        let after = std::fs::metadata(bucket.file("a/c/0/0"))
            .unwrap()
            .modified()
            .unwrap();
        assert_eq!(before, after, "it was written again");
        assert_eq!(values(&bucket.file("a")), values(folder.path()));
        assert!(!marker.exists());
    }

    /// Objects of the input that were stored since are told by their entity tags or times.
    #[test]
    fn an_input_that_changed() {
        let bucket = Bucket::new();
        let folder = TempDir::new().unwrap();
        unsharded(&bucket.file("in"));
        let out = folder.path().join("out");
        let line = format!(
            "reencode s3://arrays/in {} --shard 16,16 --subchunk 8,8",
            out.display()
        );
        let chunk = bucket.file("in/c/3/3");
        let whole = std::fs::read(&chunk).unwrap();
        std::fs::write(&chunk, &whole[1..]).unwrap();
        bucket.said(&line, 1);
        std::fs::write(&chunk, &whole).unwrap();
        // A chunk of a shard that is stored; its size stays.
        let elements = vec![5_u8; whole.len()];
        std::fs::write(bucket.file("in/c/0/0"), elements).unwrap();
        let text = bucket.said(&format!("{line} --resume"), 0);
        assert!(
            text.contains("2 chunks of s3://arrays/in changed"),
            "{text}"
        );
        assert_eq!(values(&out), values(&bucket.file("in")));
    }

    #[test]
    fn hierarchies() {
        let bucket = Bucket::new();
        let folder = TempDir::new().unwrap();
        for group in ["/", "/images"] {
            let group = GroupBuilder::new()
                .build(store(folder.path()), group)
                .unwrap();
            group.store_metadata().unwrap();
        }
        unsharded(&folder.path().join("images/one"));
        unsharded(&folder.path().join("two"));
        let shapes = "--recursive --shard 16,16 --subchunk 8,8";
        let local = folder.path().display();
        bucket.said(&format!("reencode {local} s3://arrays/all {shapes}"), 0);
        // From the store to the store, and back.
        bucket.said(
            &format!("reencode s3://arrays/all s3://arrays/again {shapes}"),
            0,
        );
        let back = TempDir::new().unwrap();
        let path = back.path().join("back");
        bucket.said(
            &format!("reencode s3://arrays/again {} {shapes}", path.display()),
            0,
        );
        for array in ["images/one", "two"] {
            let wanted = values(&folder.path().join(array));
            for root in [&bucket.file("all"), &bucket.file("again"), &path] {
                assert_eq!(values(&root.join(array)), wanted);
                assert!(
                    root.join("zarr.json").is_file() && root.join("images/zarr.json").is_file()
                );
                assert!(!root.join("zarr.json.incomplete").exists());
            }
        }
        let text = bucket.said(&format!("reencode {local} s3://arrays/all {shapes}"), 1);
        assert!(text.contains("holds a Zarr group"), "{text}");
        bucket.said(
            &format!("reencode {local} s3://arrays/all {shapes} --overwrite"),
            0,
        );
        unsharded(&bucket.file("all/mine"));
        let text = bucket.said(
            &format!("reencode {local} s3://arrays/all {shapes} --overwrite"),
            1,
        );
        assert!(
            text.contains("all/mine is in OUT, and this run has nothing for it"),
            "{text}"
        );
        let text = bucket.said("inspect s3://arrays/all", 1);
        assert!(text.contains("is a Zarr group, not an array"), "{text}");
        let group = bucket.http("all");
        let text = bucket.said(
            &format!("reencode {group} {}/new --recursive", path.display()),
            1,
        );
        assert!(
            text.contains("needs a listing, and HTTP has none"),
            "{text}"
        );
        assert!(text.contains("leave out --recursive"), "{text}");
    }

    #[test]
    fn frames_are_streamed_and_extended() {
        let bucket = Bucket::new();
        let elements: Vec<u16> = (0..7 * 40 * 24_u32).map(|n| (n % 60_001) as u16).collect();
        let bytes: Vec<u8> = elements.iter().flat_map(|n| n.to_ne_bytes()).collect();
        let shapes = "--frame-shape 40,24 --dtype uint16 --subchunk 2,8,8 --shard 4,24,16";
        for (frames, options) in [(3, shapes), (7, "--skip-stored")] {
            let mut child = bucket
                .command()
                .args(["stream", "s3://arrays/frames"])
                .args(options.split(' '))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let part = &bytes[..frames * 40 * 24 * 2];
            child.stdin.take().unwrap().write_all(part).unwrap();
            said_with_code(&child.wait_with_output().unwrap(), 0);
            assert_eq!(values(&bucket.file("frames")), elements[..frames * 40 * 24]);
        }
        assert!(
            files(&bucket.file("frames"))
                .iter()
                .all(|file| file.extension() != Some("tmp".as_ref()))
        );
        // A second process is refused.
        let stream = || {
            let mut command = bucket.command();
            command
                .args(["stream", "s3://arrays/frames"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            command.spawn().unwrap()
        };
        let mut first = stream();
        let lease = bucket.file("frames/.zarrs-cuda-writers/all");
        while !lease.exists() {
            assert!(first.try_wait().unwrap().is_none());
            thread::sleep(Duration::from_millis(5));
        }
        let text = said_with_code(&stream().wait_with_output().unwrap(), 1);
        let process = format!("process {}", first.id());
        assert!(
            text.contains("has the lease") && text.contains(&process),
            "{text}"
        );
        // So are those that change shards, and parts.
        for line in ["compact", "recover", "compact --part 1/2"] {
            let text = bucket.said(&format!("{line} s3://arrays/frames"), 1);
            assert!(
                text.contains("has the lease") && text.contains(&process),
                "{text}"
            );
        }
        let mut stdin = first.stdin.take().unwrap();
        stdin.write_all(&bytes[..40 * 24 * 2]).unwrap();
        drop(stdin);
        said_with_code(&first.wait_with_output().unwrap(), 0);
        assert!(!lease.exists());
        for line in ["compact --part 1/2", "recover"] {
            let json = bucket.json(&format!("{line} s3://arrays/frames"), 0);
            assert_eq!(json["lease"], true);
        }
        assert_eq!(values(&bucket.file("frames")).len(), 8 * 40 * 24);
    }

    #[test]
    fn shards_are_repaired_compacted_and_consolidated() {
        let bucket = Bucket::new();
        let path = bucket.file("a");
        sharded(&path, &chain(&[json!({ "name": "crc32c" })]));
        update(&path, 5);
        let before = values(&path);
        let text = bucket.said("compact s3://arrays/a --dry-run", 0);
        assert!(text.contains("1 of 4 stored shards to compact"), "{text}");
        let text = bucket.said("compact s3://arrays/a", 0);
        assert!(text.contains("1 of 4 stored shards compacted"), "{text}");
        assert_eq!(values(&path), before);
        let text = bucket.said("recover s3://arrays/a", 0);
        assert!(text.contains("4 intact"), "{text}");

        // An update that was torn.
        let file = path.join("c/0/0");
        update(&path, 1);
        let size = std::fs::metadata(&file).unwrap().len();
        update(&path, 2);
        let after = std::fs::read(&file).unwrap();
        assert!(after.len() as u64 > size + 50);
        std::fs::write(&file, &after[..after.len() - 40]).unwrap();
        let text = bucket.said("recover s3://arrays/a", 0);
        assert!(
            text.contains("shard 0,0: a torn update was undone"),
            "{text}"
        );
        assert!(text.contains("3 intact, 1 repaired"), "{text}");
        assert_eq!(values(&path)[512..], before[512..]);

        // Subchunks beside the shards.
        let frames = bucket.file("frames");
        let metadata = std::fs::read(path.join("zarr.json")).unwrap();
        std::fs::create_dir(&frames).unwrap();
        std::fs::write(frames.join("zarr.json"), metadata).unwrap();
        let sparse = SparseShardStore::on_filesystem(store(&frames), "/").unwrap();
        let array = Array::open(Arc::new(sparse), "/").unwrap();
        let elements: Vec<u16> = (0..32 * 32).collect();
        array
            .store_array_subset(&array.subset_all(), &elements)
            .unwrap();
        let found = bucket.json("verify s3://arrays/frames", 0);
        assert_eq!(found["shards_to_consolidate"], 4);
        let found = bucket.json("inspect s3://arrays/frames", 0);
        assert_eq!(found["waiting"].as_array().unwrap().len(), 4);
        let text = bucket.said("consolidate s3://arrays/frames --dry-run", 0);
        assert!(text.contains("4 shards to pack"), "{text}");
        let text = bucket.said("consolidate s3://arrays/frames", 0);
        assert!(text.contains("4 shards, 16 subchunks packed"), "{text}");
        assert_eq!(values(&frames), elements);
        assert_eq!(
            bucket.json("verify s3://arrays/frames", 0)["shards_to_consolidate"],
            0
        );

        // A changed byte is found.
        let mut shard = std::fs::read(path.join("c/1/1")).unwrap();
        shard[10] ^= 1;
        std::fs::write(path.join("c/1/1"), shard).unwrap();
        let found = bucket.json("verify s3://arrays/a", 3);
        assert_eq!(found["damaged"][0]["shard"], json!([1, 1]));
        let found = bucket.json(&format!("verify {}", bucket.http("a")), 3);
        assert_eq!(found["damaged"][0]["shard"], json!([1, 1]));
    }

    #[test]
    fn http_is_read_without_a_listing() {
        let bucket = Bucket::new();
        sharded(&bucket.file("a"), &chain(&[json!({ "name": "crc32c" })]));
        let url = bucket.http("a");
        let before = files(&bucket.file("a"));
        let found = bucket.json(&format!("verify {url} --against s3://arrays/a"), 0);
        assert_eq!(found["shards_to_consolidate"], Value::Null);
        let text = bucket.said(&format!("verify {url}"), 0);
        assert!(text.contains("is not known: HTTP has no listing"), "{text}");
        bucket.said(&format!("inspect {url} 1,1"), 0);
        bucket.said(&format!("explain {url}"), 0);
        bucket.said(&format!("recover {url} --dry-run"), 0);
        bucket.said(&format!("compact {url} --dry-run"), 0);
        for (subcommand, remedy) in [("inspect", "name one shard"), ("consolidate", "s3://")] {
            let text = bucket.said(&format!("{subcommand} {url}"), 1);
            assert!(
                text.contains("needs a listing, and HTTP has none"),
                "{text}"
            );
            assert!(text.contains("\nhelp: ") && text.contains(remedy), "{text}");
        }
        let new = bucket.http("new");
        for line in [
            format!("recover {url}"),
            format!("compact {url}"),
            format!("reencode s3://arrays/a {new}"),
            format!("stream {new} /dev/null --frame-shape 4,4 --dtype uint8"),
        ] {
            let text = bucket.said(&line, 1);
            assert!(
                text.contains("files of an HTTP server can only be read"),
                "{text}"
            );
            assert!(text.contains("\nhelp: "), "{text}");
        }
        assert_eq!(files(&bucket.file("a")), before);
        assert!(!bucket.file("new").exists());
        let asked = bucket.0.requests();
        bucket.said(&format!("verify {url}"), 0);
        let asked_now = bucket.0.requests();
        assert!(!asked.is_empty() && asked_now.iter().all(|kind| kind == "GET" || kind == "HEAD"));
    }

    #[test]
    fn places_that_must_be_directories() {
        let bucket = Bucket::new();
        sharded(&bucket.file("a"), &chain(&[]));
        for (line, code) in [
            ("reshard s3://arrays/a s3://arrays/b --chunks", 1),
            ("doctor s3://arrays/a", 2),
            ("bench s3://arrays/a", 2),
            ("demo s3://arrays/a", 2),
            ("stream s3://arrays/c s3://arrays/a", 2),
            ("inspect s3://arrays/a --html s3://arrays/a.html", 2),
        ] {
            let text = bucket.said(line, code);
            assert!(text.contains("s3://arrays/a"), "{line}: {text}");
            assert!(
                text.contains("is not a directory") || text.contains("is an address"),
                "{text}"
            );
        }
    }

    #[test]
    fn places_where_nothing_is() {
        let bucket = Bucket::new();
        for url in ["s3://arrays/none", "s3://arrays", &bucket.http("none")] {
            let text = bucket.said(&format!("verify {url}"), 1);
            assert!(
                text.starts_with(&format!("error: cannot open {url} as a Zarr array")),
                "{text}"
            );
            assert!(text.contains("\nhelp: name an array"), "{text}");
        }
        for line in [
            "inspect gs://bucket/a",
            "inspect s3://",
            "inspect https://host/a?b=c",
        ] {
            let text = bucket.said(line, 2);
            assert!(text.contains("\nhelp: ") && !text.contains("b=c"), "{text}");
        }
    }

    #[test]
    fn servers_that_refuse() {
        let error = |code: &str| {
            format!(
                "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>So.</Message></Error>"
            )
        };
        for (status, body, wanted, help) in [
            (
                "404 Not Found",
                error("NoSuchBucket"),
                "there is no bucket lost",
                "AWS_ENDPOINT_URL",
            ),
            (
                "403 Forbidden",
                error("AccessDenied"),
                "AccessDenied: So.",
                "AWS_ACCESS_KEY_ID",
            ),
            (
                "400 Bad Request",
                error("AuthorizationHeaderMalformed"),
                "Malformed: So.",
                "AWS_REGION",
            ),
        ] {
            let endpoint = always(answer(status, &body));
            let output = with(&endpoint)
                .args(["inspect", "s3://lost/a"])
                .output()
                .unwrap();
            let text = said_with_code(&output, 1);
            assert!(
                text.starts_with("error: cannot open s3://lost/a: "),
                "{text}"
            );
            assert!(text.contains(wanted) && text.contains(help), "{text}");
            assert!(!text.contains('<'), "{text}");
        }
        let url = always(answer("403 Forbidden", "<html>no</html>"));
        let output = with("http://127.0.0.1:1")
            .args(["inspect", &url])
            .output()
            .unwrap();
        let text = said_with_code(&output, 1);
        assert!(
            text.contains("everybody may read") && !text.contains('<'),
            "{text}"
        );
    }

    #[test]
    fn servers_that_send_no_parts() {
        let folder = TempDir::new().unwrap();
        sharded(folder.path(), &chain(&[]));
        let metadata = std::fs::read_to_string(folder.path().join("zarr.json")).unwrap();
        // Any file is its metadata, and too long to be read as a whole.
        let url = always(answer("200 OK", &(metadata + &" ".repeat(4 << 20))));
        let output = with("").args(["inspect", &url, "0,0"]).output().unwrap();
        let text = said_with_code(&output, 1);
        assert!(
            text.contains("the server does not send parts of files"),
            "{text}"
        );
    }

    #[test]
    fn servers_that_are_not_there() {
        // A port that nothing listens on.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        for url in ["s3://bucket/a", &format!("{endpoint}/a")] {
            let start = Instant::now();
            let output = with(&endpoint).args(["inspect", url]).output().unwrap();
            let text = said_with_code(&output, 1);
            assert!(
                text.starts_with(&format!("error: cannot open {url}: ")),
                "{text}"
            );
            assert!(text.to_lowercase().contains("connection refused"), "{text}");
            assert!(text.contains("\nhelp: "), "{text}");
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "{:?}",
                start.elapsed()
            );
        }
        let mut plain = with(&endpoint);
        plain.env_remove("AWS_ALLOW_HTTP");
        let text = said_with_code(
            &plain.args(["inspect", "s3://bucket/a"]).output().unwrap(),
            1,
        );
        assert!(text.contains("AWS_ALLOW_HTTP"), "{text}");
    }

    #[test]
    fn credentials_sign_and_are_never_printed() {
        const KEY: &str = "AKIDNEVERPRINTED";
        const SECRET: &str = "secret/never+printed";
        const TOKEN: &str = "session-token-never-printed";
        let server = Server::start_signed(KEY, SECRET);
        sharded(&server.bucket().join("a"), &chain(&[]));
        let endpoint = format!("http://{}", server.address());
        let mut texts = Vec::new();
        let mut run = |endpoint: &str, secret: &str, token: bool, line: &str, code: i32| {
            let mut command = with(endpoint);
            command
                .env_remove("AWS_SKIP_SIGNATURE")
                .env("AWS_ACCESS_KEY_ID", KEY)
                .env("AWS_SECRET_ACCESS_KEY", secret);
            if token {
                command.env("AWS_SESSION_TOKEN", TOKEN);
            }
            let output = command.args(line.split(' ')).output().unwrap();
            texts.push(said_with_code(&output, code));
        };
        run(&endpoint, SECRET, false, "inspect s3://arrays/a", 0);
        run(&endpoint, SECRET, false, "verify s3://arrays/a --json", 0);
        run(
            &endpoint,
            "another/secret",
            false,
            "inspect s3://arrays/a",
            1,
        );
        run(
            &endpoint,
            "another/secret",
            false,
            "inspect s3://arrays/a --json",
            1,
        );
        // A server that repeats whatever it got.
        let body = format!(
            "<Error><Code>InvalidToken</Code><Message>{TOKEN} of {KEY}</Message><Token-0>{TOKEN}</Token-0>\
             <StringToSign>{SECRET}</StringToSign></Error>"
        );
        let echo = always(answer("400 Bad Request", &body));
        run(&echo, SECRET, true, "inspect s3://arrays/a", 1);
        let echo = always(answer(
            "400 Bad Request",
            &format!("{KEY} {SECRET} {TOKEN}"),
        ));
        run(&echo, SECRET, true, "inspect s3://arrays/a", 1);
        let unsigned = with(&endpoint)
            .args(["inspect", "s3://arrays/a"])
            .output()
            .unwrap();
        texts.push(said_with_code(&unsigned, 1));
        for text in &texts {
            for secret in [KEY, SECRET, TOKEN, "another/secret"] {
                assert!(!text.contains(secret), "{text}");
            }
        }
        assert!(texts[4].contains("InvalidToken: … of …"), "{}", texts[4]);
        let url = "https://user:word@host/a";
        let output = with(&endpoint).args(["inspect", url]).output().unwrap();
        let text = said_with_code(&output, 2);
        assert!(
            text.contains("https://***@host/a") && !text.contains("user:"),
            "{text}"
        );
    }

    #[test]
    fn a_long_value_is_sent_in_parts() {
        let bucket = Bucket::new();
        let folder = TempDir::new().unwrap();
        // A shard of 66 MiB.
        let array = ArrayBuilder::new(
            vec![66, 1024, 1024],
            vec![1, 1024, 1024],
            data_type::uint8(),
            0_u8,
        )
        .build(store(folder.path()), "/")
        .unwrap();
        array.store_metadata().unwrap();
        for frame in 0..66_u64 {
            let elements: Vec<u8> = (0..1 << 20)
                .map(|n: u64| (n * n / 7 + frame) as u8 | 1)
                .collect();
            array.store_chunk(&[frame, 0, 0], &elements).unwrap();
        }
        let line = format!("reencode {} s3://arrays/long", folder.path().display());
        bucket.said(
            &format!("{line} --shard 66,1024,1024 --subchunk 6,1024,1024 --codec none"),
            0,
        );
        let asked = bucket.0.requests();
        let puts = asked.iter().filter(|kind| *kind == "PUT").count();
        assert!(puts >= 5 + 2, "{asked:?}");
        bucket.said(
            &format!(
                "verify s3://arrays/long --against {}",
                folder.path().display()
            ),
            0,
        );
    }
}
