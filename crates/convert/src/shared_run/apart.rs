//! Outputs beside something that readers see already, such as the levels of an image: they are made apart, in a
//! directory beside the plan, and move to their places when all parts are made.

use std::fs;
use std::io::{self, ErrorKind};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::plan::{MadeApart, Wanted};
use super::{Division, Joined, Made, Marked, Output, Part, SharedRun, key, must_not_be_begun};
use crate::consolidated;
use crate::evidence::{self, hash};
use crate::failure::Failure;
use crate::open::{Place, RUN};

const GROUP: &str = "zarr.json";

/// The facts about a run whose output is made apart.
pub struct RunApart<'a> {
    /// The group in which the output will be.
    pub group: &'a Path,
    /// The command, such as `pyramid`.
    pub command: &'static str,
    /// The arguments that affect the output, by the names of their options.
    pub arguments: Map<String, Value>,
    /// The setting of the engine.
    pub backend: String,
    /// The array that is read, as the name of a directory in the group.
    pub input: &'a str,
    /// The number of stored chunks of the input; `None` if they cannot be listed.
    pub chunks: Option<u64>,
    /// The directories of the output, relative to the group, in the order in which readers may see them.
    pub paths: Vec<String>,
}

/// The state of a run whose output is made apart.
pub enum Apart {
    /// The part is to be made.
    Begun(PartApart),
    /// The part was made before. These parts, which count from 1, are missing.
    WasMade(Vec<u64>),
    /// The parts are planned.
    Planned,
    /// The run is complete, perhaps since now: lines for people.
    WasComplete(Vec<String>),
}

/// A part that is to be made.
pub struct PartApart {
    run: Box<SharedRun>,
    part: Part,
    directory: PathBuf,
}

impl RunApart<'_> {
    /// Plans the parts, or joins the run for one `part`.
    ///
    /// # Errors
    /// The directory has another run, or directories that the run would make; the errors of the file system.
    pub fn join(&self, parts: NonZeroU64, part: Option<Part>) -> Result<Apart, Failure> {
        let place = Place::Directory(self.group.to_path_buf());
        let input = self.group.join(self.input);
        let group = match fs::read_to_string(self.group.join(GROUP)) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            read => Some(read.map_err(Failure::to(format_args!("read {GROUP} of {place}")))?),
        };
        let wanted = Wanted {
            command: self.command,
            arguments: self.arguments.clone(),
            backend: self.backend.clone(),
            input: evidence::name(&Place::Directory(input.clone())),
            input_metadata: hash_of_metadata(&input.join(GROUP))?,
            parts,
            nodes: Vec::new(),
            chunks: vec![self.chunks],
            left_out: Vec::new(),
            made_apart: Some(MadeApart {
                paths: self.paths.clone(),
                input: self.input.to_owned(),
                group,
            }),
        };
        let run = match SharedRun::join(&place, &wanted, part.is_none(), self)? {
            Joined::Done => return Ok(Apart::WasComplete(Vec::new())),
            Joined::Run(run) => run,
        };
        let Some(part) = part else {
            return Ok(Apart::Planned);
        };
        if run.mark_of(part.number())?.is_some() {
            // The process that made the last part may have been killed before it completed the run.
            let Marked { missing, notes } = run.finish()?;
            if missing.is_empty() {
                return Ok(Apart::WasComplete(notes));
            }
            return Ok(Apart::WasMade(
                missing.iter().map(|part| part + 1).collect(),
            ));
        }
        let directory = directory_of(self.group, &run.name);
        let doing = format!("make {}", directory.display());
        begin(&directory, self.input).map_err(Failure::to(&doing))?;
        let apart = run.plan.made_apart.as_ref();
        if let Some(text) = apart.and_then(|apart| apart.group.clone()) {
            // Another part may have made it, and its levels may be described in it already.
            let key = key(&format!("{}/{GROUP}", name_of_made(&run.name)));
            let created = key.and_then(|key| run.creating.create(&key, text.into()));
            created.map_err(Failure::to(&doing))?;
        }
        Ok(Apart::Begun(PartApart {
            run,
            part,
            directory,
        }))
    }
}

impl Output for RunApart<'_> {
    fn must_be_free(&self) -> Result<(), Failure> {
        for path in &self.paths {
            let directory = self.group.join(path);
            let is_empty = match fs::read_dir(&directory) {
                Ok(mut entries) => entries.next().is_none(),
                Err(error) => error.kind() == ErrorKind::NotFound,
            };
            if !is_empty {
                return Err(Failure::failed(format!(
                    "{} is there already, and parts replace nothing",
                    directory.display()
                ))
                .with_remedy("leave out --part, which keeps what is whole; or delete it first"));
            }
        }
        Ok(())
    }

    fn must_not_be_claimed(&self) -> Result<(), Failure> {
        self.must_be_free()
    }

    fn division(&self) -> Result<Division, Failure> {
        Ok(Division::default()) // parts are no ranges of shards
    }
}

impl PartApart {
    /// Returns the directory in which the output is made. It has the input under its name, and the metadata of the
    /// group.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Marks the part, whose files are written. Completes the run if all parts are marked. Returns the parts that are
    /// missing, which count from 1, and lines for people.
    pub fn mark(&self) -> Result<(Vec<u64>, Vec<String>), Failure> {
        let Marked { missing, notes } = self.run.mark(self.part, Made::default())?;
        Ok((missing.iter().map(|part| part + 1).collect(), notes))
    }
}

/// Returns a hash of the metadata of the input, without the names of dimensions: the first part gives level 0 the names of
/// the image's axes.
fn hash_of_metadata(path: &Path) -> Result<u64, Failure> {
    let doing = format!("read {}", path.display());
    let text = fs::read(path).map_err(Failure::to(&doing))?;
    let mut metadata: Value = serde_json::from_slice(&text).map_err(Failure::to(&doing))?;
    if let Some(members) = metadata.as_object_mut() {
        members.shift_remove("dimension_names");
    }
    Ok(hash([metadata.to_string().as_bytes()]))
}

/// Returns the directory for the output of the run whose plan has this name.
fn directory_of(group: &Path, plan: &str) -> PathBuf {
    group.join(RUN).join(name_of_made(plan))
}

fn name_of_made(plan: &str) -> String {
    format!("made-{plan}")
}

/// Makes `directory`, with a link to the input.
fn begin(directory: &Path, input: &str) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    link(&Path::new("../..").join(input), &directory.join(input))
}

fn link(to: &Path, at: &Path) -> io::Result<()> {
    #[cfg(unix)]
    let linked = std::os::unix::fs::symlink(to, at);
    #[cfg(windows)]
    let linked = std::os::windows::fs::symlink_dir(to, at);
    match linked {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}

impl MadeApart {
    /// Returns the paths of the arrays whose metadata the run writes.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.input).chain(self.paths.iter().map(String::as_str))
    }

    /// Checks that everything that moved is still there.
    pub(super) fn must_be_shown(&self, place: &Place) -> Result<(), Failure> {
        let root = place.directory()?;
        let gone = self.paths.iter().find(|path| !root.join(path).exists());
        let Some(gone) = gone else {
            return Ok(());
        };
        Err(Failure::failed(format!(
            "{place} was completed in parts, as {RUN}/done.json in it says, and {gone} is gone"
        ))
        .with_remedy(format!("delete {RUN} in {place}, and begin again")))
    }

    /// Moves everything to its place. Each step may have been done before, by a process that was killed.
    pub(super) fn publish(&self, place: &Place, plan: &str) -> Result<(), Failure> {
        let root = place.directory()?;
        let made = directory_of(root, plan);
        self.must_be_as_planned(root, &made)?;
        for path in self.paths.iter().map(String::as_str).chain([GROUP]) {
            let (from, to) = (made.join(path), root.join(path));
            let moved = match to.parent() {
                Some(parent) => fs::create_dir_all(parent),
                None => Ok(()),
            };
            let moved = moved.and_then(|()| fs::rename(&from, &to));
            match moved {
                Err(error) if error.kind() == ErrorKind::NotFound && to.exists() => {}
                moved => moved.map_err(Failure::to(format_args!(
                    "move {} to {}",
                    from.display(),
                    to.display()
                )))?,
            }
        }
        let names = [std::slice::from_ref(&self.input), &self.paths[..]].concat();
        consolidated::renew(root, &names).map_err(Failure::failed)?;
        Ok(())
    }

    /// Checks that the metadata of the group are those of the plan, or the new ones.
    fn must_be_as_planned(&self, root: &Path, made: &Path) -> Result<(), Failure> {
        let read = |directory: &Path| match fs::read_to_string(directory.join(GROUP)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        };
        let doing = format!("read {GROUP} of {}", root.display());
        let now = read(root).map_err(Failure::to(&doing))?;
        let new = read(made).map_err(Failure::to(&doing))?;
        if new.is_none() || now == self.group || now == new {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "the metadata of {} were changed while its parts were made",
            root.display()
        ))
        .with_remedy(format!(
            "make them what they were, and run `zarrs-cuda status {} --finish`; or delete {RUN} in it, and begin again",
            root.display()
        )))
    }

    /// Deletes what is left of the output of the run whose plan has this name.
    pub(super) fn tidy(place: &Place, plan: &str) -> io::Result<()> {
        let Place::Directory(root) = place else {
            return Ok(());
        };
        match fs::remove_dir_all(directory_of(root, plan)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Returns whether a run in parts makes an output at `group`.
pub fn is_in_parts(group: &Path) -> bool {
    group.join(RUN).join("plan.json").exists()
}

/// Checks that no run in parts makes the output at `group`, and forgets a run that is complete: this run, without
/// parts, changes what that one has made.
pub fn must_not_be_in_parts(group: &Path) -> Result<(), Failure> {
    let run = group.join(RUN);
    if is_in_parts(group) {
        must_not_be_begun(&Place::Directory(group.to_path_buf()))?;
    }
    match fs::remove_file(run.join("done.json")) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Failure::to(format_args!(
            "delete {RUN}/done.json of {}",
            group.display()
        ))(error)),
        _ => {
            let _ = fs::remove_dir(run); // it may have other files
            Ok(())
        }
    }
}
