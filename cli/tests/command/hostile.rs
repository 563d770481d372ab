//! Servers that answer with something else than the bytes that were asked for: never values, and never damage.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tempfile::TempDir;

use crate::arrays::{chain, sharded, values};
use crate::program::{program, said_with_code};

/// What is wrong with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Page,
    /// A page that is not said to be one.
    PageOfNoType,
    Gzip,
    NoLength,
    Chunked,
    Cut,
    /// Only the first answer of each file is cut.
    CutOnce,
    Forbidden,
    /// The whole file, to a request for a part.
    NoParts,
    OtherPart,
    /// Other bytes under the numbers of those that were asked for.
    ShortPart,
}

/// The requests that are answered wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Metadata,
    Shard,
    Part,
}

/// A server of the files in a directory, under any first part of a path.
struct Hostile {
    address: SocketAddr,
    answered_wrongly: Arc<AtomicUsize>,
}

impl Hostile {
    fn of(directory: &Path, fault: Fault, of: Of, has_versions: bool) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let directory: Arc<Path> = directory.into();
        let wrong = Arc::new(AtomicUsize::new(0));
        let answered_wrongly = wrong.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (directory, wrong) = (directory.clone(), wrong.clone());
                thread::spawn(move || {
                    let answering = Answering {
                        directory: &directory,
                        fault,
                        of,
                        has_versions,
                        wrong: &wrong,
                    };
                    // A client that hangs up is no error.
                    let _ = answering.answer(stream.unwrap());
                });
            }
        });
        Self {
            address,
            answered_wrongly,
        }
    }

    /// The program, and the place of the array: as files of HTTP, or as objects of S3.
    fn command(&self, is_s3: bool) -> (Command, String) {
        let mut command = program();
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
            command.env_remove(name);
        }
        command
            .env("AWS_ENDPOINT_URL", format!("http://{}", self.address))
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_SKIP_SIGNATURE", "true")
            .env("NO_PROXY", "127.0.0.1");
        let place = if is_s3 {
            "s3://arrays".to_string()
        } else {
            format!("http://{}/arrays", self.address)
        };
        (command, place)
    }
}

struct Answering<'a> {
    directory: &'a Path,
    fault: Fault,
    of: Of,
    has_versions: bool,
    wrong: &'a AtomicUsize,
}

struct Request {
    is_head: bool,
    key: String,
    range: Option<(usize, usize)>,
}

impl Request {
    fn read(stream: &mut TcpStream, file_len: impl Fn(&str) -> usize) -> Option<Self> {
        let mut head = Vec::new();
        let mut part = [0; 1024];
        while !head.windows(4).any(|end| end == b"\r\n\r\n") {
            match stream.read(&mut part) {
                Ok(len @ 1..) => head.extend_from_slice(&part[..len]),
                _ => return None,
            }
        }
        let head = String::from_utf8(head).unwrap();
        let mut words = head.split(' ');
        let (method, path) = (words.next()?, words.next()?);
        let key = path.trim_start_matches("/arrays/").to_string();
        let range = head.lines().find_map(|line| {
            let line = line.to_ascii_lowercase();
            let range = line.strip_prefix("range: bytes=")?.trim().to_string();
            let (first, last) = range.split_once('-')?;
            let len = file_len(&key);
            Some(match (first.parse().ok(), last.parse::<usize>().ok()) {
                (Some(first), Some(last)) => (first, len.min(last + 1)),
                (Some(first), None) => (first, len),
                (None, last) => (len.saturating_sub(last?), len),
            })
        });
        Some(Self {
            is_head: method == "HEAD",
            key,
            range,
        })
    }
}

impl Answering<'_> {
    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let file = |key: &str| fs::read(self.directory.join(key)).ok();
        let len = |key: &str| file(key).map_or(0, |bytes| bytes.len());
        let Some(request) = Request::read(&mut stream, len) else {
            return Ok(());
        };
        let Some(bytes) = file(&request.key) else {
            return stream.write_all(
                b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            );
        };
        let is_metadata = request.key == "zarr.json";
        let is_meant = match self.of {
            Of::Metadata => is_metadata,
            Of::Shard => !is_metadata && request.range.is_none() && !request.is_head,
            Of::Part => !is_metadata && request.range.is_some(),
        };
        let fault = (is_meant && !request.is_head).then_some(self.fault);
        let fault = fault.filter(|fault| {
            let before = self.wrong.fetch_add(1, Ordering::Relaxed);
            *fault != Fault::CutOnce || before == 0
        });
        let (first, end) = request.range.unwrap_or((0, bytes.len()));
        let mut status = match request.range {
            Some(_) => "206 Partial Content",
            None => "200 OK",
        };
        let mut content_range = format!("bytes {first}-{}/{}", end - 1, bytes.len());
        let mut body = bytes[first..end].to_vec();
        let mut headers = String::new();
        let mut has_length = true;
        let page = || b"<!DOCTYPE html>\n<html><body>Please log in</body></html>".to_vec();
        match fault {
            Some(Fault::Page | Fault::PageOfNoType) => {
                status = "200 OK";
                body = page();
                if fault == Some(Fault::Page) {
                    headers += "Content-Type: text/html; charset=utf-8\r\n";
                }
            }
            Some(Fault::Gzip) => headers += "Content-Encoding: gzip\r\n",
            Some(Fault::NoLength | Fault::Chunked) => has_length = false,
            Some(Fault::Forbidden) => {
                status = "403 Forbidden";
                body = Vec::new();
            }
            Some(Fault::NoParts) => {
                status = "200 OK";
                body.clone_from(&bytes);
            }
            Some(Fault::OtherPart) => {
                content_range = format!("bytes 0-{}/{}", end - first - 1, bytes.len());
                body = bytes[..end - first].to_vec();
                if first == 0 {
                    content_range = format!("bytes 1-{end}/{}", bytes.len() + 1);
                }
            }
            Some(Fault::ShortPart) => body.truncate(body.len() / 2),
            Some(Fault::Cut | Fault::CutOnce) | None => {}
        }
        if status.starts_with("206") {
            headers += &format!("Content-Range: {content_range}\r\n");
        }
        if self.has_versions {
            headers += "ETag: \"1\"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n";
        }
        if has_length {
            headers += &format!("Content-Length: {}\r\n", body.len());
        }
        if fault == Some(Fault::Chunked) {
            headers += "Transfer-Encoding: chunked\r\n";
            let mut chunked = format!("{:x}\r\n", body.len()).into_bytes();
            chunked.extend_from_slice(&body);
            chunked.extend_from_slice(b"\r\n0\r\n\r\n");
            body = chunked;
        }
        if matches!(fault, Some(Fault::Cut | Fault::CutOnce)) {
            body.truncate(body.len() / 2);
        }
        let head = format!("HTTP/1.1 {status}\r\n{headers}Connection: close\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        if !request.is_head {
            stream.write_all(&body)?;
        }
        stream.flush()
    }
}

/// An array of which zarrs reads parts, and the name of a place for another array.
fn array() -> (TempDir, TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    sharded(folder.path(), &chain(&[]));
    let output = TempDir::new().unwrap();
    let path = output.path().join("output");
    (folder, output, path)
}

/// The subcommands that send such requests.
fn lines(of: Of) -> &'static [&'static str] {
    match of {
        Of::Metadata | Of::Shard => &["verify IN", "reencode IN OUT --shard 16,16 --subchunk 8,8"],
        Of::Part => &[
            "compact IN --dry-run",
            "reencode IN OUT --shard 8,8 --subchunk 4,4",
        ],
    }
}

const EACH: [(Fault, &[Of], &str); 10] = [
    (
        Fault::Page,
        &[Of::Metadata, Of::Shard, Of::Part],
        "web page",
    ),
    (Fault::PageOfNoType, &[Of::Metadata, Of::Shard], "web page"),
    (
        Fault::Gzip,
        &[Of::Metadata, Of::Shard, Of::Part],
        "Content-Encoding: gzip",
    ),
    (
        Fault::NoLength,
        &[Of::Metadata, Of::Shard, Of::Part],
        "no Content-Length",
    ),
    (
        Fault::Chunked,
        &[Of::Metadata, Of::Shard, Of::Part],
        "no Content-Length",
    ),
    (Fault::Cut, &[Of::Metadata, Of::Shard, Of::Part], "cut off"),
    (
        Fault::Forbidden,
        &[Of::Metadata, Of::Shard, Of::Part],
        "403",
    ),
    (Fault::NoParts, &[Of::Part], "does not send parts"),
    (Fault::OtherPart, &[Of::Part], "was asked for"),
    (Fault::ShortPart, &[Of::Part], "says that they are"),
];

#[test]
fn what_is_no_file_is_neither_values_nor_damage() {
    // One thread for each fault: cut bodies are asked for again, which takes a while.
    let tried: Vec<_> = EACH
        .into_iter()
        .flat_map(|(fault, requests, wanted)| {
            let kinds = requests.iter().flat_map(|of| [(of, false), (of, true)]);
            kinds.map(move |(of, is_s3)| thread::spawn(move || fails(fault, *of, is_s3, wanted)))
        })
        .collect();
    let failed: Vec<_> = tried
        .into_iter()
        .filter_map(|tried| tried.join().err())
        .collect();
    assert!(failed.is_empty(), "{} of them", failed.len());
}

fn fails(fault: Fault, of: Of, is_s3: bool, wanted: &str) {
    let (folder, _output, path) = array();
    let server = Hostile::of(folder.path(), fault, of, is_s3);
    for line in lines(of) {
        let what = format!("{fault:?} of {of:?}, S3: {is_s3}, {line}");
        let before = server.answered_wrongly.load(Ordering::Relaxed);
        let (mut command, place) = server.command(is_s3);
        let words = line.split(' ').map(|word| match word {
            "IN" => place.clone(),
            "OUT" => path.display().to_string(),
            word => word.to_string(),
        });
        let output = command.args(words).output().unwrap();
        let text = said_with_code(&output, 1);
        assert!(
            server.answered_wrongly.load(Ordering::Relaxed) > before,
            "{what} sent no such request: {text}"
        );
        assert!(text.contains(wanted), "{what}: {text}");
        assert!(text.contains("\nhelp: "), "{what}: {text}");
        for word in [
            "damage in",
            "written again",
            "index is invalid",
            "no damage",
        ] {
            let is_partly_well = word == "no damage" && text.contains("could not be read");
            assert!(is_partly_well || !text.contains(word), "{what}: {text}");
        }
        assert!(!path.join("zarr.json").exists(), "{what}: {text}");
    }
}

#[test]
fn a_body_that_was_cut_is_asked_for_again() {
    for of in [Of::Metadata, Of::Shard, Of::Part] {
        for is_s3 in [false, true] {
            let (folder, _output, path) = array();
            let server = Hostile::of(folder.path(), Fault::CutOnce, of, is_s3);
            let (mut command, place) = server.command(is_s3);
            let line = lines(of)[1]
                .replace("IN", &place)
                .replace("OUT", &path.display().to_string());
            let output = command.args(line.split(' ')).output().unwrap();
            said_with_code(&output, 0);
            let answered = server.answered_wrongly.load(Ordering::Relaxed);
            assert!(answered >= 2, "{of:?} was asked for {answered} times");
            assert_eq!(values(&path), values(folder.path()));
        }
    }
}

#[test]
fn trouble_of_a_server_is_told() {
    for (status, wanted) in [
        ("503 Service Unavailable", "trouble of its own"),
        ("429 Too Many Requests", "fewer requests"),
        ("400 Bad Request", "look whether the address is right"),
    ] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let url = format!("http://{}/a", listener.local_addr().unwrap());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                Request::read(&mut stream, |_| 0);
                let answer =
                    format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        let output = program().args(["verify", &url]).output().unwrap();
        let text = said_with_code(&output, 1);
        assert!(text.contains(status) && text.contains(wanted), "{text}");
    }
}
