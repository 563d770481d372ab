//! Makes the levels.
//!
//! Metadata are replaced by renaming a temporary. A process that dies there leaves the temporary, and the
//! library then waits for its owner. So the metadata change only while a lock of this command is held,
//! and who has the lock erases temporaries first. The system gives the lock back when a process dies.

use std::fs::{self, File};
use std::io;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use zarrs_cuda::reader::Cancel;
use zarrs_cuda::writer::{WriterError, WriterReport};

use super::image::Image;
use super::plan::{Level, Plan};
use super::{Args, Builder};
use crate::arguments::Part;
use crate::failure::Failure;
use crate::progress::{Progress, Unit, bytes_text, counted};
use crate::stop;

/// Why levels are not complete.
pub(super) enum Stopped {
    Failed(Failure),
    Writer(WriterError),
}

impl From<WriterError> for Stopped {
    fn from(error: WriterError) -> Self {
        Self::Writer(error)
    }
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// What was made.
pub(super) struct Made {
    /// For each level that was gone on with, from the first slice that is new.
    reports: Vec<WriterReport>,
    /// Blocks of slices whose shards were not all there.
    blocks: u64,
    part: Option<Part>,
    bytes: u64,
    time: Duration,
}

pub(super) fn make(
    args: &Args,
    image: &Image,
    builder: Builder,
    plan: &Plan,
) -> Result<Made, Stopped> {
    let begin = Instant::now();
    let counter = Arc::new(Counter::new(plan, args));
    let builder = {
        let counter = counter.clone();
        builder.with_progress_callback(move |level, progress| {
            counter.count(level, progress.appended_bytes);
        })
    };
    let lock = lock(args, image)?;
    for level in [""]
        .into_iter()
        .chain(plan.below().iter().map(|level| level.name.as_str()))
    {
        tidy(&image.directory.join(level))?;
    }
    let (reports, blocks) = cancellable(|cancel| {
        if let Some(part) = args.part {
            check_parts(args, image, plan)?;
            // No block has this number, so that only the metadata are stored.
            builder.write_part_of_lower_levels(u64::MAX - 1, NonZeroU64::MAX, cancel)?;
            drop(lock);
            let blocks = builder.write_part_of_lower_levels(part.index(), part.of(), cancel)?;
            return Ok::<_, Stopped>((Vec::new(), blocks));
        }
        let reports = builder.write_lower_levels(cancel)?;
        let keeps = args.start != Some(0) && plan.below().iter().any(|level| level.stored > 0);
        if !reports.is_empty() && !keeps {
            return Ok((reports, 0));
        }
        // What was there may be of parts: they give the levels their shapes before their shards.
        let blocks = builder.write_part_of_lower_levels(0, NonZeroU64::MIN, cancel)?;
        Ok((reports, blocks))
    })?;
    counter.bar.finish();
    Ok(Made {
        reports,
        blocks,
        part: args.part,
        bytes: counter.bytes(),
        time: begin.elapsed(),
    })
}

/// Whether `level` may be made in parts: it is new, or all of it was begun by parts.
///
/// Parts know by their names which shards are there. A level that another run began, or that is shorter
/// than it becomes, may have shards that are not whole or were to be replaced.
fn check_parts(args: &Args, image: &Image, plan: &Plan) -> Result<(), Stopped> {
    let is_new = |level: &Level| {
        let files = fs::read_dir(image.directory.join(&level.name))
            .into_iter()
            .flatten();
        level.stored == 0
            && files
                .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                .all(|name| name.starts_with("zarr.json"))
    };
    // Another part may have begun since the levels were planned: then all have their final lengths.
    let now = |level: &Level| {
        let metadata = fs::read(image.directory.join(&level.name).join("zarr.json"));
        let metadata: Value =
            serde_json::from_slice(&metadata.unwrap_or_default()).unwrap_or_default();
        metadata["shape"][0].as_u64()
    };
    let differs = plan
        .below()
        .iter()
        .find(|level| now(level) != Some(level.shape[0]) && !is_new(level));
    match differs {
        None => Ok(()),
        Some(level) => Err(Stopped::Failed(
            Failure::failed(format!(
                "cannot make levels of {} in parts: another run began them, and level {} has {} of its {} slices",
                args.image, level.name, level.stored, level.shape[0]
            ))
            .with_remedy(format!(
                "go on without --part, or erase the levels below level 0, such as {}",
                image.directory.join(&level.name).display()
            )),
        )),
    }
}

/// How long another process may hold the lock. A part holds it while it stores metadata.
const PATIENCE: Duration = Duration::from_secs(10);

/// A lock on the metadata of level 0, which this command only reads. Another process of this command
/// waits for it. Without effect where files cannot be locked.
fn lock(args: &Args, image: &Image) -> Result<Option<File>, Failure> {
    let path = image.directory.join(&image.name).join("zarr.json");
    // To write: some network file systems lock nothing else.
    let file = File::options().read(true).write(true).open(&path);
    let Ok(file) = file.or_else(|_| File::open(&path)) else {
        return Ok(None);
    };
    let end = Instant::now() + PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(fs::TryLockError::Error(_)) => return Ok(None),
            Err(fs::TryLockError::WouldBlock) if stop::is_asked() || Instant::now() > end => {
                return Err(Failure::failed(format!(
                    "another `zarrs-cuda pyramid` makes the levels of {}",
                    args.image
                ))
                .with_remedy("wait until it ends; several at once need --part, each another one"));
            }
            Err(fs::TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Erases the temporary of metadata that a killed process left in `directory`.
fn tidy(directory: &Path) -> Result<(), Failure> {
    let temporary = directory.join("zarr.json.tmp");
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Failure::failed(format!(
            "cannot erase {}, which a killed process left: {error}",
            temporary.display()
        ))),
        _ => Ok(()),
    }
}

/// Does `work`, which Ctrl-C cancels.
fn cancellable<T>(work: impl FnOnce(&Cancel) -> T) -> T {
    /// Ends the thread that listens, also after a panic.
    struct Ended<'a>(&'a AtomicBool);

    impl Drop for Ended<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    let (cancel, has_ended) = (Cancel::new(), AtomicBool::new(false));
    thread::scope(|scope| {
        let _ended = Ended(&has_ended);
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                if stop::is_asked() {
                    cancel.cancel();
                }
                thread::sleep(Duration::from_millis(10));
            }
        });
        work(&cancel)
    })
}

/// Counts the bytes of the levels.
struct Counter {
    bar: Progress,
    /// For each level: of all writers, and of the one that writes now.
    bytes: Mutex<Vec<(u64, u64)>>,
}

impl Counter {
    fn new(plan: &Plan, args: &Args) -> Self {
        let bytes = plan.below().iter().map(|level| {
            let kept = match args.start {
                None if args.part.is_none() => level.whole(),
                _ => 0,
            };
            level
                .slice()
                .saturating_mul(level.shape[0].saturating_sub(kept))
        });
        let all = bytes.fold(0, u64::saturating_add);
        let parts = args.part.map_or(1, |part| part.of().get());
        Self {
            bar: Progress::new("writing", Unit::Bytes, all / parts),
            bytes: Mutex::new(vec![(0, 0); plan.levels.len()]),
        }
    }

    /// A writer of `level` has taken so many bytes.
    fn count(&self, level: usize, now: u64) {
        let mut levels = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((all, before)) = levels.get_mut(level) else {
            return;
        };
        // Each block of slices has writers of its own, which begin at 0.
        let new = now.checked_sub(*before).unwrap_or(now);
        (*all, *before) = (*all + new, now);
        self.bar.add(new);
    }

    fn bytes(&self) -> u64 {
        let levels = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        levels.iter().map(|(all, _)| all).sum()
    }
}

impl Made {
    pub(super) fn text(&self) -> String {
        let seconds = self.time.as_secs_f64();
        let (shards, stored) = self
            .reports
            .iter()
            .fold((0, 0), |(shards, stored), report| {
                (shards + report.shards, stored + report.stored_bytes)
            });
        let mut parts = Vec::new();
        if !self.reports.is_empty() {
            parts.push(format!(
                "{} written: {}, {} in {}",
                counted(self.reports.len(), "level"),
                counted(shards, "shard"),
                bytes_text(self.reports.iter().map(|report| report.raw_bytes).sum()),
                bytes_text(stored)
            ));
        }
        match (self.part, self.blocks) {
            (Some(part), blocks) => parts.push(format!(
                "part {part}: {} of slices written",
                counted(blocks, "block")
            )),
            (None, 0) if self.reports.is_empty() => {
                return "all levels are there".to_string();
            }
            (None, 0) => {}
            (None, blocks) => parts.push(format!(
                "{} of slices written, whose shards were not all there",
                counted(blocks, "block")
            )),
        }
        format!("{}, in {seconds:.2} s", parts.join("; "))
    }

    pub(super) fn json(&self) -> Value {
        let levels = self.reports.iter().map(|report| {
            json!({
                "first_slice": report.first_slice,
                "slices": report.finished_slices,
                "shards": report.shards,
                "shards_empty": report.shards_empty,
                "raw_bytes": report.raw_bytes,
                "stored_bytes": report.stored_bytes,
                "engine": report.engine,
            })
        });
        json!({
            "levels": levels.collect::<Value>(),
            "blocks": self.blocks,
            "bytes": self.bytes,
            "seconds": self.time.as_secs_f64(),
        })
    }
}
