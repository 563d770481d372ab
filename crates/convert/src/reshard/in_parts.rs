//! Makes one part of an output, while other processes make the others.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Map, json};
use zarrs::array::codec::ShardingIndexLocation;
use zarrs_cuda::storage::Unfinished;

use super::copy::{self, Existing, InParts, Target};
use super::target::{Before, MARKER};
use super::{Layout, Prepared, Readable, Reshard};
use crate::evidence::{self, hash};
use crate::failure::Failure;
use crate::grid::number_of;
use crate::open::{self, is_of_run};
use crate::reencode::{PartReport, PartState, Shared, must_be_few};
use crate::shared_run::{
    self, Division, Joined, Marked, Output, Part, PartStart, PlannedNode, SharedRun, Wanted,
};
use crate::stored;
use crate::watcher::{Step, Unit, Watcher};
use crate::words::counted;

/// The whole run, as each of its processes plans it.
struct Whole<'a> {
    settings: &'a Reshard,
    prepared: Prepared<'a>,
    wanted: Wanted,
}

/// Plans the parts, or makes one of them.
pub(super) fn run(
    settings: &Reshard,
    shared: Shared,
    watcher: &dyn Watcher,
) -> Result<PartReport, Failure> {
    let (parts, part) = (shared.parts(), shared.part());
    must_be_few(parts)?;
    match settings.layout {
        Some(Layout::Shards(_)) => {}
        Some(Layout::Chunks) => {
            return Err(Failure::usage(
                "chunks without shards are not made in parts: the mark of a part counts shards",
            )
            .with_remedy("leave out --part, or give --shard"));
        }
        None => {
            return Err(Failure::usage(
                "what is OUT to be? With --part, give --shard A,B,… for shards of this shape in elements",
            ));
        }
    }
    let whole = Whole::of(settings, Readable::of(settings)?, parts)?;
    if watcher.is_stopping() {
        return Err(Failure::interrupted("stopped before anything was written"));
    }
    let joined = SharedRun::join(&settings.output, &whole.wanted, part.is_none(), &whole)?;
    match (joined, part) {
        (Joined::Done, part) => Ok(whole.report(part, PartState::WasComplete)),
        (Joined::Run(_), None) => Ok(whole.report(None, PartState::Prepared)),
        (Joined::Run(run), Some(part)) => {
            let made = run.unless_complete(whole.make(&run, part, watcher))?;
            Ok(made.unwrap_or_else(|| whole.report(Some(part), PartState::WasComplete)))
        }
    }
}

impl<'a> Whole<'a> {
    fn of(
        settings: &'a Reshard,
        readable: Readable<'a>,
        parts: NonZeroU64,
    ) -> Result<Self, Failure> {
        let document = json!(readable.document).to_string();
        let prepared = Prepared::new(settings, readable, &Before::Empty)?;
        let shard = prepared.goal.object.clone();
        let index = settings.index.map(|index| match index {
            ShardingIndexLocation::Start => "start",
            ShardingIndexLocation::End => "end",
        });
        let arguments = [
            ("--shard", json!(shard)),
            ("--index", json!(index)),
            ("--chunk-keys", json!(settings.chunk_keys)),
        ];
        let arguments = arguments.map(|(name, value)| (name.to_owned(), value));
        let wanted = Wanted {
            command: "reshard",
            arguments: Map::from_iter(arguments),
            backend: "none".to_owned(),
            input: evidence::name(&settings.input),
            input_metadata: hash([document.as_bytes()]),
            parts,
            nodes: vec![PlannedNode {
                path: String::new(),
                metadata: prepared.metadata.clone(),
            }],
            chunks: vec![Some(prepared.stored.len() as u64)],
            left_out: Vec::new(),
            made_apart: None,
        };
        Ok(Self {
            settings,
            prepared,
            wanted,
        })
    }

    fn report(&self, part: Option<Part>, state: PartState) -> PartReport {
        PartReport {
            part,
            parts: self.wanted.parts,
            input: self.wanted.input.clone(),
            output: self.settings.output.clone(),
            arrays: 1,
            bytes: 0,
            time: Duration::ZERO,
            state,
            left_out: Vec::new(),
            notes: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Makes the shards of `part`, and marks it. Completes the run if this was the last part.
    fn make(
        &self,
        run: &SharedRun,
        part: Part,
        watcher: &dyn Watcher,
    ) -> Result<PartReport, Failure> {
        let Prepared {
            plan,
            goal,
            pieces,
            threads,
            ..
        } = &self.prepared;
        let clock = Instant::now();
        let (start, end) = run.plan().bounds(part);
        let position = |start: PartStart| u64::try_from(start.shard).unwrap_or(u64::MAX);
        let target = Target {
            root: self.settings.output.directory()?,
            keys: &goal.keys,
            format: self.prepared.of_output.as_ref(),
            within: position(start)..end.map_or(u64::MAX, position),
            existing: Existing::Shared(InParts {
                run,
                part,
                is_torn: AtomicBool::new(false),
            }),
        };
        let step = Step::begin(
            watcher,
            "resharding",
            Unit::Things("parts"),
            pieces.len() as u64,
        );
        let objects = self.prepared.objects();
        let copied = copy::copy(plan, pieces, &objects, &target, *threads, watcher);
        drop(step);
        let copied = copied.map_err(|error| match &target.existing {
            Existing::Shared(InParts { is_torn, .. }) if is_torn.load(Ordering::Relaxed) => {
                Failure::not_well(error).with_remedy("delete the shard, and do this part again")
            }
            _ => Failure::failed(error),
        })?;
        if watcher.is_stopping() {
            return Err(Failure::interrupted(format!(
                "{} shards were written, and part {part} of {} is not complete",
                copied.written, self.settings.output
            )));
        }
        let store = open::output(&self.settings.output)?.store;
        let made = shared_run::found(&store, run.plan())?;
        let made = made.get(&part.number()).copied().unwrap_or_default();
        let Marked { missing, notes } = run.mark(part, made)?;
        Ok(PartReport {
            bytes: copied.bytes,
            time: clock.elapsed(),
            notes,
            ..self.report(Some(part), PartState::after(missing))
        })
    }
}

impl Output for Whole<'_> {
    fn must_be_free(&self) -> Result<(), Failure> {
        let output = self.settings.output.directory()?;
        if !output.exists() {
            return Ok(());
        }
        let mut others = 0_u64;
        let listed = stored::files(output, |key, _| {
            let name = key.rsplit('/').next().unwrap_or_default();
            let is_left = is_of_run(&key) || Unfinished::of(name).is_some();
            others += u64::from(!is_left);
        });
        let doing = format!("use {}", output.display());
        listed.map_err(Failure::to(&doing))?;
        if others == 0 {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "{} in {} already",
            counted(others, "file"),
            output.display()
        ))
        .with_remedy("name another OUT, or delete OUT as a whole"))
    }

    fn must_not_be_claimed(&self) -> Result<(), Failure> {
        let output = self.settings.output.directory()?;
        if !output.join(MARKER).exists() {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "another run, without parts, has begun to write {}",
            output.display()
        ))
        .with_remedy("wait until that run has ended, or name another OUT"))
    }

    fn division(&self) -> Result<Division, Failure> {
        let Prepared { plan, pieces, .. } = &self.prepared;
        let shards = pieces.iter().flat_map(|piece| plan.objects(piece));
        let shards = shards.map(|shard| number_of(&shard, &plan.output.grid));
        let mut shards: Vec<u64> = shards.collect();
        shards.sort_unstable();
        let shards = shards.into_iter().map(|shard| {
            let start = PartStart {
                array: 0,
                shard: u128::from(shard),
            };
            (start, 1)
        });
        Ok(Division::of(shards, self.wanted.parts))
    }
}
