//! Locks of files among threads and processes, a double of tensorstore, and kills. `tests/interop/locks.rs` has
//! tensorstore itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Stdio};

use tempfile::TempDir;
use zarrs_cuda_testing::{Rng, effort, processes};
use zarrs_storage::{StoreKey, StorePrefix};

use super::super::files::Files;
use super::*;

const LONG: Duration = Duration::from_mins(1);
const SHORT: Duration = Duration::from_millis(30);

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Counters in a file, which are all 0 if there is no file.
fn counters(path: &Path) -> [u64; 4] {
    match fs::read(path) {
        Ok(bytes) => {
            assert_eq!(bytes.len(), 32);
            let mut counters = bytes.chunks(8).map(|bytes| {
                let bytes: [u8; 8] = bytes.try_into().unwrap();
                u64::from_le_bytes(bytes)
            });
            [(); 4].map(|()| counters.next().unwrap())
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NotFound);
            [0; 4]
        }
    }
}

fn bytes(counters: [u64; 4]) -> Vec<u8> {
    counters.iter().flat_map(|n| n.to_le_bytes()).collect()
}

/// Increments counter number `number`, in place or by a new file. Returns the time of the file.
fn increment(path: &Path, number: usize, in_place: bool) -> SystemTime {
    let mut lock = LockFile::take(path, LONG).unwrap();
    let mut all = counters(path);
    all[number] += 1;
    if in_place && path.exists() {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        (&file).write_all(&bytes(all)).unwrap();
        lock.wrote_in_place().unwrap();
    } else {
        let new = NewFile::beside(path).unwrap();
        new.file().write_all(&bytes(all)).unwrap();
        lock.replace(new, Durable::No).unwrap();
    }
    fs::metadata(path).unwrap().modified().unwrap()
}

/// Increments a counter as tensorstore does: it writes to the lock file without truncating it, and renames it.
fn increment_as_tensorstore(path: &Path, number: usize) {
    let lock = PathBuf::from(format!("{}{LOCK_SUFFIX}", path.display()));
    let open = || {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        options.open(&lock).unwrap()
    };
    let mut file = open();
    loop {
        while !locks::lock(&file).unwrap() {
            thread::yield_now();
        }
        let again = open();
        if is_at(&file, &lock) {
            break;
        }
        file = again;
    }
    let mut all = counters(path);
    all[number] += 1;
    file.write_all(&bytes(all)).unwrap();
    fs::rename(&lock, path).unwrap();
}

#[test]
fn keys_of_lock_files() {
    for key in ["c/0/1.__lock", "0.__lock", "zarr.json_1f.__lock", ".__lock"] {
        assert!(LockFile::is_key(key), "{key}");
    }
    for key in ["c/0/1", "lock", "c.__lock/0", "c/0/1.__lock.tmp"] {
        assert!(!LockFile::is_key(key), "{key}");
    }
}

#[test]
fn listings_leave_out_lock_files() {
    let folder = TempDir::new().unwrap();
    for name in ["c.__lock/0", "c/0/1", "c/0/1.__lock", "zarr.json.__lock"] {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    let files = Files::new(folder.path().to_path_buf());
    let prefix = |prefix: &str| StorePrefix::new(prefix).unwrap();
    let listed = files.list_prefix(&StorePrefix::root()).unwrap();
    let listed: Vec<_> = listed.iter().map(StoreKey::as_str).collect();
    assert_eq!(listed, ["c.__lock/0", "c/0/1"]);
    assert_eq!(files.list_dir(&prefix("c/0/")).unwrap().keys().len(), 1);
    let root = files.list_dir(&StorePrefix::root()).unwrap();
    assert_eq!((root.keys().len(), root.prefixes().len()), (0, 2));
}

#[test]
fn threads_and_a_double_of_tensorstore_lose_nothing() {
    const EACH: u64 = 250;
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("c/0");
    fs::create_dir(folder.path().join("c")).unwrap();
    let mut rng = Rng(effort::seed());
    thread::scope(|scope| {
        for number in 0..4 {
            let mut rng = Rng(rng.next());
            let path = &path;
            scope.spawn(move || {
                for _ in 0..EACH {
                    if number == 3 {
                        increment_as_tensorstore(path, number);
                    } else {
                        increment(path, number, rng.one_in(2));
                    }
                }
            });
        }
    });
    assert_eq!(counters(&path), [EACH; 4]);
    assert_eq!(names(&folder.path().join("c")), ["0"], "a lock file stayed");
    // One writer: each write has a later time, faster than the clock of the file system.
    let times = (0..200).map(|number| increment(&path, 0, number % 3 > 0));
    let times: Vec<_> = times.collect();
    assert!(times.is_sorted_by(|a, b| a < b), "{times:?}");
}

#[test]
fn times_are_later_also_when_the_clock_was_set_back() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("0");
    increment(&path, 0, false);
    let ahead = SystemTime::now() + Duration::from_secs(1000);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_modified(ahead).unwrap();
    let replaced = increment(&path, 0, false);
    assert!(replaced > ahead);
    assert!(increment(&path, 0, true) > replaced);
}

#[test]
fn what_a_killed_tensorstore_left_is_emptied_and_deleted() {
    let folder = TempDir::new().unwrap();
    let (path, lock) = (folder.path().join("0"), folder.path().join("0.__lock"));
    fs::write(&lock, [7; 100]).unwrap();
    let taken = LockFile::take(&path, Duration::ZERO).unwrap();
    assert_eq!(fs::metadata(&lock).unwrap().len(), 0);
    // One that waits, in vain, leaves the lock file.
    assert!(LockFile::try_take(&path).unwrap().is_none());
    assert!(lock.exists());
    drop(taken);
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn a_deleted_lock_file_is_noticed() {
    let folder = TempDir::new().unwrap();
    let (path, lock) = (folder.path().join("0"), folder.path().join("0.__lock"));
    fs::write(&path, "before").unwrap();
    let mut one = LockFile::take(&path, SHORT).unwrap();
    one.check().unwrap();
    fs::remove_file(&lock).unwrap();
    assert_eq!(one.check().unwrap_err().kind(), ErrorKind::ResourceBusy);
    let other = LockFile::take(&path, SHORT).unwrap();
    let new = NewFile::beside(&path).unwrap();
    let error = one.replace(new, Durable::No).unwrap_err();
    assert!(
        error.to_string().contains("0.__lock was deleted"),
        "{error}"
    );
    drop(one);
    other.check().unwrap();
    drop(other);
    assert_eq!(names(folder.path()), ["0"]);
    assert_eq!(fs::read(&path).unwrap(), b"before");
}

#[test]
fn directories_are_made() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("a/c/0");
    for durable in [Durable::No, Durable::Bytes, Durable::Below(folder.path())] {
        let mut lock = LockFile::take(&path, SHORT).unwrap();
        assert_eq!(lock.above_new.as_deref(), Some(folder.path()));
        lock.replace(NewFile::beside(&path).unwrap(), durable)
            .unwrap();
        drop(lock);
        assert_eq!(names(&folder.path().join("a/c")), ["0"]);
        fs::remove_dir_all(folder.path().join("a")).unwrap();
    }
}

#[test]
fn other_things_in_the_place_of_a_lock_file_are_refused() {
    let folder = TempDir::new().unwrap();
    let lock = |name: &str| folder.path().join(format!("{name}{LOCK_SUFFIX}"));
    fs::create_dir(lock("directory")).unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    let mut names = vec!["directory", "file/0"];
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(folder.path().join("end"), lock("link")).unwrap();
        let pipe = std::process::Command::new("mkfifo")
            .arg(lock("pipe"))
            .status();
        assert!(pipe.unwrap().success());
        names.extend(["link", "pipe"]);
    }
    for name in names {
        let error = LockFile::take(&folder.path().join(name), LONG).unwrap_err();
        assert!(
            error.to_string().contains(&format!("{name}{LOCK_SUFFIX}")),
            "{error}"
        );
    }
    assert!(!folder.path().join("end").exists());
    assert!(lock("directory").exists());
}

/// The task of another process: the file, the number of its counter, and how often it increments the counter. It
/// takes the lock and keeps it for 0 times.
const TASK: &str = "ZARRS_CUDA_TEST_LOCK_FILES";

#[test]
#[ignore = "a process of another test"]
fn counting_process() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    let mut task = task.splitn(3, ' ');
    let [number, times] = [(); 2].map(|()| task.next().unwrap().parse::<usize>().unwrap());
    let path = Path::new(task.next().unwrap());
    if times == 0 {
        let _lock = LockFile::take(path, LONG).unwrap();
        println!("\nheld");
        thread::sleep(LONG);
    }
    for time in 0..times {
        increment(path, number, time % 3 == 0);
        println!("\ncounted");
    }
}

fn begin(path: &Path, number: usize, times: usize) -> (Child, BufReader<ChildStdout>) {
    let mut child = processes::again(module_path!(), "counting_process", true)
        .env(TASK, format!("{number} {times} {}", path.display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap());
    (child, said)
}

fn wait_for(said: &mut impl BufRead, word: &str) {
    let mut line = String::new();
    while line.trim_end() != word {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "the process ended");
    }
}

#[test]
fn a_killed_process_has_no_lock() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("c/0");
    let (mut child, mut said) = begin(&path, 0, 0);
    wait_for(&mut said, "held");
    assert!(LockFile::try_take(&path).unwrap().is_none());
    let error = LockFile::take(&path, SHORT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    assert!(error.to_string().contains("c/0.__lock"), "{error}");
    assert_eq!(names(&folder.path().join("c")), ["0.__lock"]);
    child.kill().unwrap();
    child.wait().unwrap();
    drop(LockFile::take(&path, LONG).unwrap());
    assert_eq!(names(&folder.path().join("c")), [""; 0]);
}

/// The first two of four processes never end by themselves.
#[test]
fn processes_that_are_killed_lose_nothing_of_others() {
    const TIMES: usize = 300;
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("c/0");
    let mut rng = Rng(effort::seed());
    let mut children = [(0, usize::MAX), (1, usize::MAX), (2, TIMES), (3, TIMES)]
        .map(|(number, times)| begin(&path, number, times));
    let mut said = [0; 4];
    for (said, (child, output)) in said.iter_mut().zip(&mut children).take(2) {
        *said = 10 + rng.below(50);
        for _ in 0..*said {
            wait_for(output, "counted");
        }
        thread::sleep(Duration::from_micros(rng.below(2000)));
        child.kill().unwrap();
    }
    for (said, (child, output)) in said.iter_mut().zip(&mut children) {
        let mut rest = String::new();
        output.read_to_string(&mut rest).unwrap();
        *said += rest.lines().filter(|line| *line == "counted").count() as u64;
        child.wait().unwrap();
    }
    let found = counters(&path);
    assert_eq!(said[2..], [TIMES as u64; 2]);
    assert_eq!(found[2..], said[2..]);
    // A process may be killed between an increment and its word.
    for (found, said) in found.iter().zip(said).take(2) {
        assert!((said..=said + 1).contains(found), "{found} of {said}");
    }
    drop(LockFile::take(&path, LONG).unwrap());
    let left = names(&folder.path().join("c"));
    let is_temporary = |name: &String| super::super::replace::Unfinished::of(name).is_some();
    assert!(
        left.iter().all(|name| name == "0" || is_temporary(name)),
        "{left:?}"
    );
}

/// A forked child has the same open file, and does not unlock it.
#[test]
#[allow(unsafe_code, reason = "fork")]
fn a_forked_child_unlocks_nothing() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("0");
    let lock = LockFile::take(&path, SHORT).unwrap();
    // SAFETY: the child calls nothing that needs other threads, and ends without returning.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_held = lock.check().is_ok();
        drop(lock);
        // SAFETY: it ends this process.
        unsafe { libc::_exit(i32::from(is_held)) }
    }
    let mut status = 0;
    // SAFETY: the child is ours, and `status` is there.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    lock.check().unwrap();
    assert!(LockFile::try_take(&path).unwrap().is_none());
    drop(lock);
    assert!(LockFile::try_take(&path).unwrap().is_some());
}
