//! Makes files that appear at once under their names: each is written beside its name, and renamed.
//!
//! ```text
//! create NAME.OWNER-NUMBER.tmp, which fails if it exists      no process writes the file of another process
//! write the bytes
//! sync the bytes                                               as `Durable` asks
//! rename to NAME                                               readers see the old file or the new one
//! sync the names above                                         as `Durable` asks
//! ```
//!
//! A file that must replace no other is linked to NAME instead, which fails if the name is taken.
//!
//! The name of the temporary says which process writes it. The temporary is deleted if its process gives up,
//! and stays if the process is killed. [`Unfinished`] tells leftovers apart from files that are being
//! written.

use std::collections::hash_map::RandomState;
use std::fs::{self, File, OpenOptions};
use std::hash::BuildHasher;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::durable::sync_names_beside;
use super::owner::{Life, Owner};
use zarrs_cuda_engine::process::per_process::PerProcess;

/// The suffix of all temporaries, also of those of other programs.
const SUFFIX: &str = ".tmp";

/// The part of a replaced file that outlasts a power failure.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let root = folder.path();
/// use zarrs_cuda::storage::{Durable, replace};
///
/// // A file that can be made again need not outlast a power failure.
/// replace(&root.join("index.cache"), b"made again", Durable::No)?;
/// // Neither these bytes nor the names `c`, `c/0` and `c/0/0` may be lost.
/// replace(&root.join("c/0/0"), b"a shard", Durable::Below(root))?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durable<'a> {
    /// Nothing is synced. After a power failure the name may be missing, or have any bytes.
    No,
    /// The bytes are synced before the rename. After a power failure the name has the old bytes or the new ones.
    Bytes,
    /// The bytes are synced before the rename, and the names of the file and of new directories below this
    /// directory after it. After a power failure the name has the new bytes.
    Below(&'a Path),
}

/// A new file that does not have its name yet. The file is deleted unless it is renamed.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("c/0/0");
/// use std::io::Write;
/// use zarrs_cuda::storage::{Durable, NewFile};
///
/// let new = NewFile::beside(&path)?;
/// new.file().write_all(b"first")?;
/// assert!(new.create_at(&path, Durable::Bytes)?); // of several processes, one gets `true`
///
/// let mut new = NewFile::beside(&path)?;
/// new.file_mut().write_all(b"second")?;
/// assert_eq!(std::fs::read(&path)?, b"first"); // until the rename
/// new.rename_to(&path, Durable::Bytes)?;
/// assert_eq!(std::fs::read(&path)?, b"second");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct NewFile {
    file: File,
    /// The path of the temporary; empty once it was renamed.
    temporary: PathBuf,
    /// The deepest directory above the file that existed before, if directories were made.
    above_new: Option<PathBuf>,
}

impl NewFile {
    /// Makes a new, empty file beside `path`. Makes the missing directories above it.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn beside(path: &Path) -> io::Result<Self> {
        static NEXT: PerProcess<AtomicU64> = PerProcess::new(|| {
            // The first number is less than half of the maximum, so the count never overflows.
            AtomicU64::new(RandomState::new().hash_one(std::process::id()) >> 1)
        });
        let number = NEXT.get().fetch_add(1, Ordering::Relaxed);
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}-{number}{SUFFIX}", Owner::this()));
        let temporary = PathBuf::from(name);
        let create = || {
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true);
            options.create_new(true).open(&temporary)
        };
        let mut above_new = None;
        let file = match create() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                above_new = make_directories(path)?;
                create()?
            }
            created => created?,
        };
        Ok(Self {
            file,
            temporary,
            above_new,
        })
    }

    /// Says that the directories of the file below `there` are new: their names are synced with the name of the
    /// file.
    pub(super) fn set_new_below(&mut self, there: &Path) {
        let is_above = |known: &PathBuf| known.starts_with(there);
        if self.above_new.as_ref().is_none_or(is_above) {
            self.above_new = Some(there.to_path_buf());
        }
    }

    /// Returns the file, which can be read and written.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the file, for functions that need a mutable reference.
    pub fn file_mut(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives the file the name `path`, beside which it was made. It replaces a file that has this name.
    ///
    /// # Errors
    /// The error of the file system. After an error before or in the rename, `path` is as it was.
    pub fn rename_to(mut self, path: &Path, durable: Durable<'_>) -> io::Result<()> {
        if durable != Durable::No {
            self.file.sync_all()?;
        }
        fs::rename(&self.temporary, path)?;
        // The temporary has its final name, so `drop` has nothing to delete.
        self.temporary = PathBuf::new();
        self.sync_names(path, durable)
    }

    /// Gives the file the name `path`, beside which it was made, unless something has this name. Returns whether the
    /// file has it now. Of several processes that call this, one gets `true`.
    ///
    /// The file gets the name by a hard link or, on file systems without such links, by a rename that fails if the
    /// name is taken.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the file system has neither; the errors of the file system. `path` is then as it
    /// was, unless the error is of syncing names.
    pub fn create_at(mut self, path: &Path, durable: Durable<'_>) -> io::Result<bool> {
        if durable != Durable::No {
            self.file.sync_all()?;
        }
        match fs::hard_link(&self.temporary, path) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(false),
            // Linux says `PermissionDenied` for a file system without links.
            Err(error) if has_no_links(&error) => {
                if !rename_unless_taken(&self.temporary, path)? {
                    return Ok(false);
                }
                self.temporary = PathBuf::new();
            }
            Err(error) => return Err(error),
        }
        self.sync_names(path, durable)?;
        Ok(true)
    }

    /// Syncs the names of the file `path` and of new directories above it, as `durable` asks.
    fn sync_names(&self, path: &Path, durable: Durable<'_>) -> io::Result<()> {
        let Durable::Below(root) = durable else {
            return Ok(());
        };
        sync_names_beside(path)?;
        match &self.above_new {
            Some(there) => {
                let new = path.ancestors().skip(1);
                let mut new = new.take_while(|new| *new != there && *new != root);
                new.try_for_each(sync_names_beside)
            }
            None => Ok(()),
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.temporary.as_os_str().is_empty() {
            let _ = fs::remove_file(&self.temporary); // the caller reports the error of the write
        }
    }
}

/// Returns whether `error` says that a file system has no hard links, or does not let this process make one.
fn has_no_links(error: &io::Error) -> bool {
    let kinds = [
        ErrorKind::InvalidInput,
        ErrorKind::PermissionDenied,
        ErrorKind::Unsupported,
        ErrorKind::TooManyLinks,
    ];
    kinds.contains(&error.kind())
}

/// Renames `from` to `to`, unless something has this name. Returns whether it did.
#[cfg(target_os = "linux")]
fn rename_unless_taken(from: &Path, to: &Path) -> io::Result<bool> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Err(no_creation()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn rename_unless_taken(_from: &Path, _to: &Path) -> io::Result<bool> {
    Err(no_creation())
}

fn no_creation() -> io::Error {
    let reason =
        "the file system has neither hard links nor renames that fail if the name is taken";
    io::Error::new(ErrorKind::Unsupported, reason)
}

/// Makes the missing directories above `path`. Returns the deepest directory that existed before.
pub(super) fn make_directories(path: &Path) -> io::Result<Option<PathBuf>> {
    let directory = path.parent().unwrap_or(Path::new(""));
    let mut above = directory.ancestors();
    let there = above.find(|above| above.as_os_str().is_empty() || above.is_dir());
    let there = there.map(Path::to_path_buf);
    fs::create_dir_all(directory)?;
    Ok(there)
}

/// Replaces the file `path` by a file with `bytes`: see [`NewFile`].
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("c/0/0");
/// use zarrs_cuda::storage::{Durable, replace};
///
/// replace(&path, b"old", Durable::Bytes)?;
/// replace(&path, b"new", Durable::Bytes)?; // a reader sees the old file or the new one
/// assert_eq!(std::fs::read(&path)?, b"new");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The error of the file system.
pub fn replace(path: &Path, bytes: &[u8], durable: Durable<'_>) -> io::Result<()> {
    let new = NewFile::beside(path)?;
    new.file().write_all(bytes)?;
    new.rename_to(path, durable)
}

/// The name of a temporary, which is being written or was left by a killed process.
///
/// ```
/// use zarrs_cuda::storage::Unfinished;
///
/// // In a listing of a directory: what is left of killed writers?
/// for name in ["zarr.json", "0.tmp"] {
///     match Unfinished::of(name) {
///         None => println!("{name} is complete"),
///         Some(file) if file.is_left() => println!("{name} may be deleted"),
///         Some(file) => println!("{} is perhaps being written", file.name),
///     }
/// }
/// # let file = Unfinished::of("0.tmp").ok_or("no temporary")?;
/// # assert!(file.name == "0" && file.owner.is_none() && !file.is_left());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished<'a> {
    /// The name that the file was to have.
    pub name: &'a str,
    /// The process that writes the file; `None` if the file is not a temporary of [`NewFile`].
    pub owner: Option<Owner>,
}

impl<'a> Unfinished<'a> {
    /// Reads a file name without directories; `None` if it does not end in `.tmp`.
    #[must_use]
    pub fn of(name: &'a str) -> Option<Self> {
        let name = name.strip_suffix(SUFFIX)?;
        let owned = name.rsplit_once('.').and_then(|(name, writer)| {
            let (owner, number) = writer.rsplit_once('-')?;
            number.parse::<u64>().ok()?;
            Some((name, owner.parse().ok()?))
        });
        let (name, owner) = owned.map_or((name, None), |(name, owner)| (name, Some(owner)));
        Some(Self { name, owner })
    }

    /// Returns whether the process that wrote the file has certainly ended. Otherwise the file may still be
    /// needed.
    #[must_use]
    pub fn is_left(&self) -> bool {
        let owner = self.owner.as_ref();
        owner.is_some_and(|owner| owner.life() == Life::Ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn a_new_file_is_deleted_unless_it_is_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c/0/1");
        for durable in [Durable::No, Durable::Bytes, Durable::Below(folder.path())] {
            replace(&path, b"one", durable).unwrap();
            drop(NewFile::beside(&path).unwrap());
            let [first, second] = [(); 2].map(|()| NewFile::beside(&path).unwrap());
            assert_ne!(first.temporary, second.temporary);
            let name = first.temporary.file_name().unwrap().to_str().unwrap();
            let unfinished = Unfinished::of(name).unwrap();
            assert_eq!(unfinished.name, "1");
            assert_eq!(unfinished.owner.as_ref(), Some(Owner::this()));
            assert!(!unfinished.is_left(), "this process runs");
            drop(second);
            assert_eq!(fs::read(&path).unwrap(), b"one");
            first.rename_to(&path, durable).unwrap();
            assert_eq!(names(&folder.path().join("c/0")), ["1"]);
            assert_eq!(fs::read(&path).unwrap(), b"");
            fs::remove_dir_all(folder.path().join("c")).unwrap();
        }
    }

    /// Threads want one name: one of them gets it, by a link or by a rename, and its bytes stay.
    #[test]
    fn a_name_that_is_taken_stays() {
        let folder = tempfile::tempdir().unwrap();
        for durable in [Durable::No, Durable::Bytes, Durable::Below(folder.path())] {
            let path = folder.path().join("c/0/1");
            let create = |number: u8| {
                let new = NewFile::beside(&path).unwrap();
                new.file().write_all(&[number]).unwrap();
                new.create_at(&path, durable).unwrap().then_some(number)
            };
            let created = std::thread::scope(|scope| {
                let threads = [1, 2, 3, 4].map(|number| scope.spawn(move || create(number)));
                threads.map(|thread| thread.join().unwrap())
            });
            let winners: Vec<u8> = created.into_iter().flatten().collect();
            assert_eq!(winners.len(), 1);
            assert_eq!(fs::read(&path).unwrap(), winners);
            assert_eq!(names(&folder.path().join("c/0")), ["1"]);
            fs::remove_dir_all(folder.path().join("c")).unwrap();
        }
        // A directory and a link that leads nowhere take a name, too.
        fs::create_dir(folder.path().join("d")).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink("nowhere", folder.path().join("l")).unwrap();
        for name in [
            "d",
            #[cfg(unix)]
            "l",
        ] {
            let path = folder.path().join(name);
            let new = NewFile::beside(&path).unwrap();
            assert!(!new.create_at(&path, Durable::Bytes).unwrap());
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_rename_replaces_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other, to] = ["1", "2", "3"].map(|name| folder.path().join(name));
        fs::write(&one, "1").unwrap();
        fs::write(&other, "2").unwrap();
        assert!(rename_unless_taken(&one, &to).unwrap());
        assert!(!rename_unless_taken(&other, &to).unwrap());
        assert_eq!(fs::read(&to).unwrap(), b"1");
        assert_eq!(names(folder.path()), ["2", "3"]);
        rename_unless_taken(&one, &folder.path().join("4")).unwrap_err();
    }

    #[test]
    fn a_file_that_cannot_be_renamed_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("directory");
        fs::create_dir_all(path.join("full")).unwrap();
        let below = Durable::Below(folder.path());
        assert!(replace(&path, b"one", below).is_err());
        assert_eq!(names(folder.path()), ["directory"]);
        // A file is no directory.
        let file = folder.path().join("file");
        fs::write(&file, b"before").unwrap();
        assert!(replace(&file.join("0"), b"one", below).is_err());
        assert_eq!(fs::read(&file).unwrap(), b"before");
    }

    #[test]
    fn names_of_temporaries() {
        let owner = Owner::this();
        let of = |name| Unfinished::of(name).map(|found| (found.name, found.owner));
        assert_eq!(of("c.0.1.tmp"), Some(("c.0.1", None)));
        let owned = format!("c.0.1.{owner}-7.tmp");
        assert_eq!(of(&owned), Some(("c.0.1", Some(owner.clone()))));
        let other = format!("c.0.1.{owner}-x.tmp");
        assert_eq!(of(&other), Some((&other[..other.len() - 4], None)));
        assert_eq!(of("c.0.1"), None);
        // A process of another machine, and one that never was.
        let elsewhere = Unfinished::of("1.0000000000000001-2-3-4.tmp").unwrap();
        assert!(elsewhere.owner.is_some() && !elsewhere.is_left());
        assert!(!Unfinished::of("1.tmp").unwrap().is_left());
    }
}
