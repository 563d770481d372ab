//! Tries operations on the file system of a directory, and tells which ways to write are safe on it.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

#[cfg(target_os = "linux")]
/// The magic numbers of `statfs(2)`, from linux/magic.h and the sources of other file systems.
const KINDS: [(u64, &str, Kind); 21] = [
    (0xEF53, "ext4", Kind::Local),
    (0x5846_5342, "xfs", Kind::Local),
    (0x9123_683E, "btrfs", Kind::Local),
    (0x0102_1994, "tmpfs", Kind::Memory),
    (0x8584_58f6, "ramfs", Kind::Memory),
    (0x794c_7630, "overlayfs", Kind::Local),
    (0x2fc1_2fc1, "zfs", Kind::Local),
    (0xF2F5_2010, "f2fs", Kind::Local),
    (0xca45_1a4e, "bcachefs", Kind::Local),
    (0x4d44, "fat", Kind::Local),
    (0x2011_BAB0, "exfat", Kind::Local),
    (0x6969, "nfs", Kind::Shared),
    (0x0BD0_0BD0, "lustre", Kind::Shared),
    (0x6573_5546, "fuse", Kind::Shared),
    (0xFF53_4D42, "cifs", Kind::Shared),
    (0xFE53_4D42, "smb2", Kind::Shared),
    (0x00c3_6400, "ceph", Kind::Shared),
    (0x4750_4653, "gpfs", Kind::Shared),
    (0x0102_1997, "9p", Kind::Shared),
    (0x1983_0326, "beegfs", Kind::Shared),
    (0x5346_544e, "ntfs", Kind::Local),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
enum Kind {
    /// A file system of one machine.
    Local,
    /// A file system of one machine, whose files are gone after a power failure.
    Memory,
    /// A file system of several machines, or of a program.
    Shared,
    Unknown,
}

/// A way to write, and whether its promise holds on the file system.
struct Mode {
    name: &'static str,
    promise: &'static str,
}

/// The file system of a directory, and the results of trials on it.
pub(crate) struct FileSystem {
    path: PathBuf,
    name: String,
    kind: Kind,
    /// The trials. Each has a name, and its result in words or the reason why it failed.
    tried: Vec<(&'static str, Result<String, String>)>,
}

impl FileSystem {
    pub(crate) fn look_at(path: &Path) -> Self {
        let (name, kind) = kind_of(path);
        let mut tried = Vec::new();
        match Scratch::new(path) {
            Err(error) => tried.push(("write a file", Err(error.to_string()))),
            Ok(scratch) => {
                tried.push(("replace a file by renaming", in_words(renames(&scratch.0))));
                tried.push(("sync a file of 1 MiB", in_words(syncs(&scratch.0))));
                tried.push(("sync a directory", in_words(syncs_directory(&scratch.0))));
                tried.push(("leave holes in a file", in_words(is_sparse(&scratch.0))));
            }
        }
        Self {
            path: path.to_path_buf(),
            name,
            kind,
            tried,
        }
    }

    fn modes(&self) -> [Mode; 4] {
        let is_sound = self.tried.iter().all(|(name, tried)| {
            tried.is_ok() || *name == "leave holes in a file" || *name == "sync a directory"
        });
        let of = |local, memory| match self.kind {
            _ if !is_sound => "not promised: see what failed above",
            Kind::Local => local,
            Kind::Memory => memory,
            Kind::Shared => {
                "not promised: on a file system of several machines, or of a program, a file that \
                 was written may be seen late"
            }
            Kind::Unknown => "not known: this program does not know the file system",
        };
        [
            Mode {
                name: "whole shards, by one process (reencode, stream, compact)",
                promise: of(
                    "promised, also after a power failure",
                    "promised, until the machine stops",
                ),
            },
            Mode {
                name: "subchunks of the same shards, by many processes (SparseShardStore)",
                promise: of(
                    "promised, also after a power failure",
                    "promised, until the machine stops",
                ),
            },
            Mode {
                name: "parts of shards where they are, by one process",
                promise: of(
                    "promised as the reference page on updates says",
                    "promised, until the machine stops",
                ),
            },
            Mode {
                name: "parts of the same shards where they are, by several processes",
                promise: "not promised on any file system",
            },
        ]
    }

    pub(crate) fn json(&self) -> Value {
        let tried: Vec<_> = self
            .tried
            .iter()
            .map(|(name, tried)| match tried {
                Ok(took) => json!({ "tried": name, "took": took }),
                Err(problem) => json!({ "tried": name, "problem": problem }),
            })
            .collect();
        let modes: Vec<_> = self
            .modes()
            .iter()
            .map(|mode| json!({ "mode": mode.name, "promise": mode.promise }))
            .collect();
        json!({ "path": self.path, "name": self.name, "tried": tried, "modes": modes })
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file system of {}: {}", self.path.display(), self.name)?;
        for (name, tried) in &self.tried {
            match tried {
                Ok(took) => write!(f, "\n  {name}: {took}")?,
                Err(problem) => write!(f, "\n  {name}: failed: {problem}")?,
            }
        }
        for Mode { name, promise } in self.modes() {
            write!(f, "\n  {name}:\n    {promise}")?;
        }
        Ok(())
    }
}

/// Returns the name of the file system, and its kind.
#[cfg(not(target_os = "linux"))]
fn kind_of(_path: &Path) -> (String, Kind) {
    ("unknown".to_string(), Kind::Unknown)
}

/// Returns the name of the file system, and its kind.
#[cfg(target_os = "linux")]
fn kind_of(path: &Path) -> (String, Kind) {
    let magic = match rustix::fs::statfs(path) {
        #[allow(
            clippy::cast_sign_loss,
            clippy::unnecessary_cast,
            reason = "a number of 32 bits, whose type differs between machines"
        )]
        Ok(stat) => stat.f_type as u64 & 0xffff_ffff,
        Err(error) => return (format!("unknown: {error}"), Kind::Unknown),
    };
    let known = KINDS.iter().find(|(number, ..)| *number == magic);
    known.map_or_else(
        || (format!("unknown ({magic:#x})"), Kind::Unknown),
        |(_, name, kind)| ((*name).to_string(), *kind),
    )
}

/// A folder for files, which is deleted when this value is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(path: &Path) -> io::Result<Self> {
        let folder = path.join(format!(".zarrs-cuda-doctor-{}", std::process::id()));
        fs::create_dir(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn in_words(tried: io::Result<String>) -> Result<String, String> {
    tried.map_err(|error| error.to_string())
}

fn time(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

/// Tries whether, after a rename, an open reader keeps the old file while the name leads to the new one.
fn renames(folder: &Path) -> io::Result<String> {
    let (name, temporary) = (folder.join("shard"), folder.join("shard.tmp"));
    fs::write(&name, "old")?;
    let mut reader = File::open(&name)?;
    fs::write(&temporary, "new")?;
    let start = Instant::now();
    fs::rename(&temporary, &name)?;
    let took = start.elapsed();
    let mut seen = String::new();
    reader.read_to_string(&mut seen)?;
    if seen != "old" || fs::read_to_string(&name)? != "new" || temporary.exists() {
        return Err(io::Error::other(
            "a reader saw neither the old nor the new file",
        ));
    }
    Ok(time(took))
}

fn syncs(folder: &Path) -> io::Result<String> {
    let mut file = File::create(folder.join("synced"))?;
    file.write_all(&vec![0x5a; 1 << 20])?;
    let start = Instant::now();
    file.sync_all()?;
    Ok(time(start.elapsed()))
}

fn syncs_directory(folder: &Path) -> io::Result<String> {
    let directory = File::open(folder)?;
    let start = Instant::now();
    directory.sync_all()?;
    Ok(time(start.elapsed()))
}

#[cfg(unix)]
fn is_sparse(folder: &Path) -> io::Result<String> {
    use std::os::unix::fs::MetadataExt;
    let file = File::create(folder.join("sparse"))?;
    file.set_len(64 << 20)?;
    file.sync_all()?;
    let blocks = file.metadata()?.blocks();
    if blocks * 512 > 1 << 20 {
        return Err(io::Error::other(format!(
            "64 MiB of nothing take {} bytes",
            blocks * 512
        )));
    }
    Ok("yes".to_string())
}

#[cfg(not(unix))]
fn is_sparse(_folder: &Path) -> io::Result<String> {
    Err(io::Error::other("not tried on this system"))
}
