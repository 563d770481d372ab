//! Reads standard input or a file in a thread, so that Ctrl-C is noticed even while a read waits for bytes.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use zarrs_cuda_convert::Failure;

/// The most bytes that are read at once.
const PIECE: usize = 4 << 20;
/// The number of pieces that may wait for the writer.
const PIECES: usize = 4;

/// The input of a stream of frames.
pub(super) struct Input {
    path: PathBuf,
    /// The number of bytes that are read at once.
    piece: usize,
    pieces: Receiver<io::Result<Vec<u8>>>,
    used: std::sync::mpsc::Sender<Vec<u8>>,
}

/// The answer of the input to a request for its next bytes.
pub(super) enum Received {
    Bytes(Vec<u8>),
    /// There are no bytes yet.
    Nothing,
    End,
}

impl Input {
    /// Opens the file `path`, or standard input for `-`. Pieces of the input take a small part of `memory`
    /// bytes.
    pub(super) fn open(path: &Path, memory: usize) -> Result<Self, Failure> {
        let piece = (memory / 64).clamp(1, PIECE);
        let from: Box<dyn Read + Send> = if path == Path::new("-") {
            Box::new(io::stdin())
        } else {
            let file = File::open(path);
            Box::new(file.map_err(|error| {
                Failure::failed(format!("cannot open {}: {error}", path.display()))
                    .with_remedy("name a file of raw frames, or - for standard input")
            })?)
        };
        let (sender, pieces) = sync_channel(PIECES);
        let (used, buffers) = channel();
        thread::Builder::new()
            .name("zarrs-cuda input".to_string())
            .spawn(move || read(from, piece, &sender, &buffers))
            .map_err(Failure::to("start a thread"))?;
        Ok(Self {
            path: path.to_path_buf(),
            piece,
            pieces,
            used,
        })
    }

    /// Returns the bytes that pieces take: the waiting ones, one that is read, and one that is appended.
    pub(super) fn memory(&self) -> u64 {
        (self.piece as u64).saturating_mul(PIECES as u64 + 2)
    }

    /// Returns the next bytes. Waits at most `limit` for them.
    pub(super) fn next(&mut self, limit: Duration) -> Result<Received, Failure> {
        match self.pieces.recv_timeout(limit) {
            Ok(Ok(bytes)) if bytes.is_empty() => Ok(Received::End),
            Ok(Ok(bytes)) => Ok(Received::Bytes(bytes)),
            Ok(Err(error)) => {
                let path = self.path.display();
                Err(Failure::failed(format!("cannot read {path}: {error}")))
            }
            Err(RecvTimeoutError::Timeout) => Ok(Received::Nothing),
            Err(RecvTimeoutError::Disconnected) => Ok(Received::End),
        }
    }

    /// Takes back a buffer, so that the thread fills it again.
    pub(super) fn give_back(&self, buffer: Vec<u8>) {
        let _ = self.used.send(buffer); // if the thread does not take it, the thread has ended
    }
}

/// Sends pieces until the input ends, and then an empty piece, or the error.
fn read(
    mut from: Box<dyn Read + Send>,
    piece: usize,
    to: &SyncSender<io::Result<Vec<u8>>>,
    buffers: &Receiver<Vec<u8>>,
) {
    loop {
        let mut buffer = buffers.try_recv().unwrap_or_default();
        buffer.resize(piece, 0);
        let piece = match from.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
            Ok(bytes) => {
                buffer.truncate(bytes);
                Ok(buffer)
            }
        };
        let is_last = piece.as_ref().map_or(true, Vec::is_empty);
        if to.send(piece).is_err() || is_last {
            return;
        }
    }
}
