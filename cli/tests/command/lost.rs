//! Servers that refuse, or go away while a group is worked on: one error says it, and not one for each array.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;

use tempfile::TempDir;
use zarrs::group::GroupBuilder;
use zarrs_cuda_object_store_tests::Server;

use crate::arrays::{chain, sharded, store};
use crate::program::{files, program, said_with_code};

const REFUSED: &str = "HTTP/1.1 403 Forbidden\r\nContent-Length: 77\r\nConnection: close\r\n\r\n\
    <Error><Code>AccessDenied</Code><Message>Credentials ended.</Message></Error>";

/// Passes requests on to a server, until `key` is asked for the `times`th time. Refuses this request, and all that
/// follow. Returns the address.
fn until(server: SocketAddr, key: &'static str, times: u32) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut left = times;
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                request.push(byte[0]);
            }
            // These tests only read, so that no request has a body.
            let request = String::from_utf8(request).unwrap();
            let line = request.lines().next().unwrap_or_default();
            if line.contains(&format!("{key} ")) {
                left = left.saturating_sub(1);
            }
            let mut answer = REFUSED.as_bytes().to_vec();
            if left > 0 {
                let request = request.replacen("\r\n", "\r\nconnection: close\r\n", 1);
                let mut passed = TcpStream::connect(server).unwrap();
                passed.write_all(request.as_bytes()).unwrap();
                answer.clear();
                passed.read_to_end(&mut answer).unwrap();
            }
            // A client that hangs up is no error.
            let _ = stream.write_all(&answer);
        }
    });
    address
}

/// Runs a line of the command in `folder`, with a server of objects.
fn said(folder: &Path, server: SocketAddr, line: &str, code: i32) -> String {
    let mut command: Command = program();
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        command.env_remove(name);
    }
    command
        .env("AWS_ENDPOINT_URL", format!("http://{server}"))
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_SKIP_SIGNATURE", "true")
        .env("NO_PROXY", "127.0.0.1");
    command.args(line.split(' ')).current_dir(folder);
    said_with_code(&command.output().unwrap(), code)
}

/// Makes a group of three arrays.
fn group(path: &Path) {
    for at in ["/", "/deep"] {
        let group = GroupBuilder::new().build(store(path), at).unwrap();
        group.store_metadata().unwrap();
    }
    for array in ["a", "b", "deep/c"] {
        sharded(&path.join(array), &chain(&[]));
    }
}

fn one_error(said: &str, words: &str) {
    let errors = said.lines().filter(|line| line.starts_with("error"));
    assert_eq!(errors.count(), 1, "{said}");
    assert!(said.contains(words), "{words}: {said}");
}

#[test]
fn an_output_that_is_refused_is_said_once() {
    let folder = TempDir::new().unwrap();
    group(&folder.path().join("in"));
    let server = Server::start();
    let refuses = until(server.address(), "", 0);
    for more in [
        "",
        "--overwrite",
        "--resume",
        "--keep-going",
        "--dry-run",
        "--prepare 2",
        "--prepare 2 --overwrite",
        "--part 1/2",
        "--part 1/2 --keep-going",
        "--prepare 2 --dry-run",
    ] {
        for (out, words) in [
            ("s3://arrays/out", "cannot open s3://arrays/out: "),
            ("https://127.0.0.1/out", "can only be read"),
        ] {
            let line = format!("reencode in {out} --recursive {more}");
            let said = said(folder.path(), refuses, line.trim_end(), 1);
            one_error(&said, words);
        }
    }
    assert_eq!(files(&server.bucket()), Vec::<std::path::PathBuf>::new());
}

#[test]
fn an_input_that_is_lost_is_said_once() {
    let folder = TempDir::new().unwrap();
    let server = Server::start();
    group(&server.bucket().join("in"));
    // The first look at the array finds the members of the group, and the second one opens it.
    for (key, times) in [
        ("in/b/zarr.json", 1),
        ("in/a/zarr.json", 2),
        ("in/b/zarr.json", 2),
    ] {
        for more in ["", "--keep-going", "--dry-run", "--part 1/2", "--prepare 2"] {
            let refuses = until(server.address(), key, times);
            let line = format!("reencode s3://arrays/in out --recursive {more}");
            let said = said(folder.path(), refuses, line.trim_end(), 1);
            one_error(&said, "AccessDenied");
        }
        assert!(!folder.path().join("out").exists());
        let refuses = until(server.address(), key, times);
        let said = said(
            folder.path(),
            refuses,
            "verify s3://arrays/in --recursive",
            1,
        );
        one_error(&said, "AccessDenied");
        assert!(!said.contains("all are well"), "{said}");
    }
    // One array that cannot be read is no reason to stop.
    std::fs::write(server.bucket().join("in/a/zarr.json"), "{").unwrap();
    std::fs::write(server.bucket().join("in/deep/c/zarr.json"), "{").unwrap();
    let line = "reencode s3://arrays/in out --recursive";
    let text = said(folder.path(), server.address(), line, 1);
    assert_eq!(text.matches("error: ").count(), 2, "{text}");
    let line = format!("{line} --keep-going");
    said(folder.path(), server.address(), &line, 1);
    assert!(folder.path().join("out/b/zarr.json").exists());
}

/// A server that goes away while an array is copied ends a run that leaves out others.
#[test]
fn an_input_that_is_lost_while_it_is_copied() {
    let folder = TempDir::new().unwrap();
    let server = Server::start();
    group(&server.bucket().join("in"));
    // A chunk is read when the array is planned, and then when it is copied.
    let refuses = until(server.address(), "in/a/c/1/1", 1);
    let line = "reencode s3://arrays/in out --recursive --keep-going";
    let text = said(folder.path(), refuses, line, 1);
    one_error(&text, "AccessDenied");
    assert!(text.contains("--resume to go on"), "{text}");
    said(
        folder.path(),
        server.address(),
        &format!("{line} --resume"),
        0,
    );
    for array in ["a", "b", "deep/c"] {
        assert!(
            folder
                .path()
                .join("out")
                .join(array)
                .join("zarr.json")
                .exists()
        );
    }
}

/// A member that cannot be read is not left out by `verify`.
#[test]
fn a_member_that_cannot_be_read_is_no_well_one() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("in");
    group(&path);
    let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let text = said(folder.path(), nowhere, "verify in --recursive", 0);
    assert!(text.contains("3 arrays of in: all are well\n"), "{text}");
    std::fs::write(path.join("b/zarr.json"), "{").unwrap();
    let text = said(folder.path(), nowhere, "verify in --recursive", 1);
    one_error(&text, "in/b/zarr.json");
    assert!(
        text.contains("2 arrays of in: all are well that can be read"),
        "{text}"
    );
}
