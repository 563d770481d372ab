//! The writing processes.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;

use zarrs::array::Array;
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::storage::SparseShardStore;

use crate::array::{SUBCHUNKS, elements, indices, open, subset};
use crate::{Result, Stop, failed};

pub(crate) const PROCESSES: u64 = 8;

/// The store that a process writes through.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Ordinary,
    Sparse,
}

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::Ordinary => "ordinary",
            Self::Sparse => "sparse",
        }
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        let way = [Self::Ordinary, Self::Sparse].into_iter();
        way.into_iter()
            .find(|way| way.name() == name)
            .ok_or_else(|| format!("there is no way `{name}` to write"))
    }
}

pub(crate) fn sparse(path: &Path) -> Result<SparseShardStore<FilesystemStore>> {
    let store = Arc::new(FilesystemStore::new(path).map_err(failed("open the array"))?);
    SparseShardStore::on_filesystem(store, "/").map_err(failed("open the array"))
}

/// Runs one of the writing processes. For each line of input it writes its next subchunk, and
/// prints a line that says whether it succeeded.
pub(crate) fn write(process: u64, way: Way, path: &Path) -> Result<()> {
    type Store = Box<dyn FnMut(u64) -> std::result::Result<(), String>>;
    let mut store: Store = match way {
        Way::Ordinary => {
            let array = open(path)?;
            Box::new(move |subchunk| {
                array
                    .store_array_subset(&subset(subchunk), elements(subchunk))
                    .map_err(|error| error.to_string())
            })
        }
        Way::Sparse => {
            let array =
                Array::open(Arc::new(sparse(path)?), "/").map_err(failed("open the array"))?;
            Box::new(move |subchunk| {
                array
                    .store_chunk(&indices(subchunk), elements(subchunk))
                    .map_err(|error| error.to_string())
            })
        }
    };
    let mut lines = io::stdin().lines();
    let mut subchunks = (process..SUBCHUNKS).step_by(usize::try_from(PROCESSES).unwrap_or(1));
    loop {
        let told = match lines.next() {
            None => return Ok(()),
            Some(line) => line.map_err(failed("hear when to write"))?,
        };
        debug_assert_eq!(told, "");
        let answer = match subchunks.next().map(&mut store) {
            None => "end",
            Some(Ok(())) => "written",
            Some(Err(_)) => "refused",
        };
        println!("{answer}");
    }
}

/// A writing process.
struct Writer {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// The writing processes.
pub(crate) struct Writers {
    writers: Vec<Writer>,
    refused: u64,
}

impl Writers {
    pub(crate) fn start(way: Way, path: &Path) -> Result<Self> {
        let program = std::env::current_exe().map_err(failed("find this program"))?;
        let start = |number: u64| -> Result<Writer> {
            let mut process = Command::new(&program)
                .args(["--writer", &number.to_string(), way.name()])
                .arg(path)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(failed("start a process"))?;
            let pipes = process.stdin.take().zip(process.stdout.take());
            let (input, output) =
                pipes.ok_or_else(|| Stop::Failed("a process has no pipes".to_string()))?;
            Ok(Writer {
                process,
                input,
                output: BufReader::new(output),
            })
        };
        let writers = (0..PROCESSES).map(start).collect::<Result<_>>()?;
        Ok(Self {
            writers,
            refused: 0,
        })
    }

    /// Lets each process write one subchunk, all at the same time. Returns whether there were any
    /// left.
    pub(crate) fn round(&mut self) -> Result<bool> {
        for writer in &mut self.writers {
            writer
                .input
                .write_all(b"\n")
                .map_err(failed("tell a process to write"))?;
        }
        let mut is_written = false;
        for writer in &mut self.writers {
            let mut answer = String::new();
            writer
                .output
                .read_line(&mut answer)
                .map_err(failed("hear of a process"))?;
            match answer.trim_end() {
                "written" => is_written = true,
                "refused" => {
                    is_written = true;
                    self.refused += 1;
                }
                "end" => {}
                _ => return Err(Stop::Failed("a process that writes has died".to_string())),
            }
        }
        Ok(is_written)
    }

    /// Waits for the processes. Returns the number of failed writes.
    pub(crate) fn finish(self) -> Result<u64> {
        for writer in self.writers {
            let Writer {
                mut process, input, ..
            } = writer;
            drop(input);
            let status = process.wait().map_err(failed("wait for a process"))?;
            if !status.success() {
                return Err(Stop::Failed(format!("a process that writes: {status}")));
            }
        }
        Ok(self.refused)
    }
}
