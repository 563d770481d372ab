//! Writes parts of a file in place.
//!
//! A full disk must not leave a shard half written. So room for all bytes is reserved before the first byte
//! is written. If a write fails nevertheless, the file gets its old length back. A file that does not exist
//! appears with all of its parts at once.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

use bytes::Bytes;

use super::durable::sync_names_beside;
use super::file_turns::{hold, hold_new};
use super::replace::{Durable, NewFile};

/// Writes `values`, each at its offset in bytes, to the file at `path`. Makes a missing file and its
/// directories. With `synced_below`, the bytes are on the disk when the call returns, and so are the names
/// below that directory that lead to the file. A file with other names (hard links) is copied first, so that
/// its other names keep their bytes.
///
/// In a turn of a partial encoder, the file is held until the turn ends.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("c/0/0");
/// use zarrs_cuda::storage::in_place;
///
/// // The bytes between the parts are zeros.
/// in_place::write(&path, &[(0, "head".into()), (6, "tail".into())], Some(folder.path()))?;
/// in_place::write(&path, &[(0, "HE".into())], Some(folder.path()))?;
/// assert_eq!(std::fs::read(&path)?, b"HEad\0\0tail");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The error of the file system, or [`ErrorKind::ResourceBusy`] if another process holds the file. If the
/// disk has no room, nothing was written, except on file systems that copy what is overwritten. After each
/// error the file has its old length. Bytes within the old length may be old or new.
pub fn write(path: &Path, values: &[(u64, Bytes)], synced_below: Option<&Path>) -> io::Result<()> {
    let durable = synced_below.map_or(Durable::No, Durable::Below);
    let sync = synced_below.is_some();
    hold(path)?;
    let mut options = OpenOptions::new();
    let file = match options.read(true).write(true).open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            create(path, values, durable)?;
            return synced_below.map_or(Ok(()), |root| sync_directories(path, root));
        }
        opened => opened?,
    };
    let file = if has_other_names(&file.metadata()?) {
        copy_of(path, durable)?
    } else {
        file
    };
    let len = file.metadata()?.len();
    let written = reserve(&file, values).and_then(|()| write_all(&file, values, sync));
    if written.is_err() {
        // Room that was reserved behind the end is given back, too. The first error is the one that is
        // reported.
        let _ = file.set_len(len);
    }
    written
}

fn create(path: &Path, values: &[(u64, Bytes)], durable: Durable<'_>) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok() {
        // If `path` is a link that leads to nothing, this makes the file to which it leads.
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        let sync = durable != Durable::No;
        return reserve(&file, values).and_then(|()| write_all(&file, values, sync));
    }
    let new = NewFile::beside(path)?;
    reserve(new.file(), values)?;
    write_all(new.file(), values, false)?;
    hold_new(path, new.file())?;
    if fs::symlink_metadata(path).is_ok() {
        let what = format!(
            "{} was created by another process at the same time. Nothing of it was written: try again",
            path.display()
        );
        return Err(io::Error::new(ErrorKind::ResourceBusy, what));
    }
    new.rename_to(path, durable)
}

/// Replaces the file at `path` by a copy that has no other names, and returns the copy.
fn copy_of(path: &Path, durable: Durable<'_>) -> io::Result<File> {
    // The copy replaces the file, not a symbolic link that leads to it.
    let real = fs::canonicalize(path)?;
    let mut from = File::open(&real)?;
    let copy = NewFile::beside(&real)?;
    copy.file()
        .set_permissions(from.metadata()?.permissions())?;
    io::copy(&mut from, &mut copy.file())?;
    hold_new(path, copy.file())?;
    let file = copy.file().try_clone()?;
    copy.rename_to(&real, durable)?;
    Ok(file)
}

/// Reserves room on the disk for `values`, without making the file longer.
#[cfg(target_os = "linux")]
fn reserve(file: &File, values: &[(u64, Bytes)]) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    for (offset, value) in values {
        if value.is_empty() {
            continue;
        }
        loop {
            let reserved = fallocate(file, FallocateFlags::KEEP_SIZE, *offset, value.len() as u64);
            match reserved {
                Err(Errno::INTR) => {}
                Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::IO)) => {
                    return Err(error.into());
                }
                // Other errors say that the file system cannot reserve room.
                _ => break,
            }
        }
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn reserve(_file: &File, _values: &[(u64, Bytes)]) -> io::Result<()> {
    Ok(())
}

fn write_all(file: &File, values: &[(u64, Bytes)], sync: bool) -> io::Result<()> {
    for (offset, value) in values {
        write_all_at(file, value, *offset)?;
    }
    if sync { file.sync_all() } else { Ok(()) }
}

#[cfg(unix)]
fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(not(unix))]
fn write_all_at(mut file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    use std::io::{Seek, SeekFrom, Write};
    file.seek(SeekFrom::Start(offset))?;
    file.write_all(bytes)
}

#[cfg(unix)]
fn has_other_names(metadata: &fs::Metadata) -> bool {
    std::os::unix::fs::MetadataExt::nlink(metadata) > 1
}

#[cfg(not(unix))]
fn has_other_names(_metadata: &fs::Metadata) -> bool {
    false
}

/// Syncs the names of the directories above `path` that lie below `root`. Any of them may be new, because
/// taking the lock of a partial write (its turn on the file) makes directories, too.
fn sync_directories(path: &Path, root: &Path) -> io::Result<()> {
    let above = path.ancestors().skip(1);
    let mut below_root = above.take_while(|above| above.starts_with(root) && *above != root);
    below_root.try_for_each(sync_names_beside)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    /// A file system of one MiB, if this process may make one.
    struct Small(tempfile::TempDir);

    impl Small {
        fn new() -> Option<Self> {
            let directory = tempfile::tempdir().unwrap();
            let mut mount = std::process::Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", "size=1m", "none"]);
            let mounted = mount.arg(directory.path()).output();
            if mounted.is_ok_and(|output| output.status.success()) {
                return Some(Self(directory));
            }
            let must = std::env::var_os("ZARRS_CUDA_TEST_MOUNT").is_some();
            assert!(!must, "no small file system can be mounted");
            println!("skipped: this process may not mount a small file system");
            None
        }
    }

    impl Drop for Small {
        fn drop(&mut self) {
            let mut unmount = std::process::Command::new("umount");
            let _ = unmount.arg(self.0.path()).status();
        }
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_full_disk_changes_nothing() {
        let Some(small) = Small::new() else { return };
        let path = small.0.path().join("shard");
        let before = vec![7; 600 << 10];
        write(&path, &[(0, before.clone().into())], Some(small.0.path())).unwrap();
        // The first of these would fit.
        let values = [
            (0, Bytes::from(vec![8; 100])),
            (600 << 10, Bytes::from(vec![9; 900 << 10])),
        ];
        for _ in 0..3 {
            let error = write(&path, &values, Some(small.0.path())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::StorageFull);
            assert!(fs::read(&path).unwrap() == before);
        }
        // Nothing that was reserved is kept.
        let less = [(600 << 10, Bytes::from(vec![9; 300 << 10]))];
        write(&path, &less, Some(small.0.path())).unwrap();
        let new = small.0.path().join("c/0/new");
        assert!(write(&new, &values, Some(small.0.path())).is_err());
        assert!(names(new.parent().unwrap()).is_empty(), "no shard appears");
    }

    /// A hole of a file takes room when it is written to.
    #[test]
    fn a_full_disk_fills_no_hole() {
        let Some(small) = Small::new() else { return };
        let path = small.0.path().join("shard");
        write(&path, &[(2 << 20, Bytes::from_static(b"index"))], None).unwrap();
        let before = fs::read(&path).unwrap();
        let values = [
            (64, vec![1; 512 << 10].into()),
            (1 << 20, vec![2; 768 << 10].into()),
        ];
        let error = write(&path, &values, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert!(fs::read(&path).unwrap() == before);
    }

    #[test]
    fn what_there_may_be() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        for sync in [None, Some(directory.path())] {
            write(&at("a/b"), &[(4, bytes("efgh")), (0, bytes("abcd"))], sync).unwrap();
            assert_eq!(fs::read(at("a/b")).unwrap(), b"abcdefgh");
            write(&at("a/b"), &[(2, bytes("CD"))], sync).unwrap();
            assert_eq!(fs::read(at("a/b")).unwrap(), b"abCDefgh");
            // Another name keeps its bytes, and a symbolic link stays one.
            fs::hard_link(at("a/b"), at("copy")).unwrap();
            std::os::unix::fs::symlink(at("a/b"), at("link")).unwrap();
            write(&at("link"), &[(0, bytes("XY"))], sync).unwrap();
            assert_eq!(fs::read(at("copy")).unwrap(), b"abCDefgh");
            assert_eq!(fs::read(at("a/b")).unwrap(), b"XYCDefgh");
            assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
            // A link that leads to nothing leads to the new file.
            fs::remove_file(at("a/b")).unwrap();
            write(&at("link"), &[(0, bytes("new"))], sync).unwrap();
            assert_eq!(fs::read(at("a/b")).unwrap(), b"new");
            assert!(write(&at("a"), &[(0, bytes("no"))], sync).is_err());
            assert_eq!(names(&at("a")), ["b"]);
            for name in ["a/b", "copy", "link"] {
                fs::remove_file(at(name)).unwrap();
            }
        }
    }
}
