//! `zarrs-cuda inspect`: shows the contents of the shards of an array, and where they lie.
//!
//! | file | what it does |
//! |---|---|
//! | `sharded.rs` | opens an array, also one whose subchunks cannot be decoded |
//! | `survey.rs`, `look.rs` | list the sizes of all shards, and read the indices of some |
//! | `facts.rs` | collects the facts in the metadata |
//! | `terminal.rs` | shows the survey and the facts on a terminal |
//! | `page.rs`, `page.html`, `page.css`, `page.js` | show the survey and the facts in one HTML file |

mod facts;
mod look;
mod page;
mod sharded;
mod survey;
mod terminal;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use serde_json::{Value, json};
use zarrs_cuda::maintenance::{Inspection, RecoveryOutcome};

use crate::arguments::ShardIndices;
use crate::common::Common;
use crate::outcome::{Outcome, write_page};
use crate::stop;
use facts::Facts;
use look::State;
use sharded::Sharded;
use survey::{MOST_READ, Survey};
use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::grid::indices_of;
use zarrs_cuda_convert::open::{self, Place};

/// Show what is in the shards of an array, and where
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The directory of a sharded array
    array: Place,
    /// The indices of a shard in the grid of shards, as 0,1,0 or 0/1/0
    shard: Option<ShardIndices>,
    /// Write one HTML file about all shards, which needs no network
    #[arg(long, value_name = "FILE", conflicts_with = "shard")]
    html: Option<PathBuf>,
    /// Read the index of every shard, not of 2,000 at most
    #[arg(long, conflicts_with = "shard")]
    all: bool,
    /// The two axes of the map in the terminal: down and across, by number
    #[arg(long, value_name = "DOWN,ACROSS", conflicts_with = "shard")]
    axes: Option<String>,
    /// Do not list the subchunks of SHARD
    #[arg(long, requires = "shard")]
    summary: bool,
}

pub(crate) fn run(args: &Args, common: &Common) -> Result<Outcome, Failure> {
    let sharded = Sharded::open(&args.array)?;
    let opened = &sharded.opened;
    if let Some(ShardIndices(shard)) = &args.shard {
        return one(args, &sharded, shard);
    }
    opened.place.must_be_listed(
        "inspect all shards of",
        "name one shard by its indices, as 0,1,0: that needs no listing",
    )?;
    let rank = opened.array.dimensionality();
    let axes = args
        .axes
        .as_deref()
        .map(|axes| parse_axes(axes, rank))
        .transpose()?;
    if let Some(file) = &args.html {
        open::must_be_local(file, "--html writes a file")?;
    }
    let _guard = stop::wait_for_me();
    let mut facts = Facts::of(&sharded);
    let most = if args.all { usize::MAX } else { MOST_READ };
    let survey = Survey::of(&sharded, most)?;
    facts.notes.extend(survey.notes.iter().cloned());
    let json = survey_json(&facts, &survey);
    let text = match &args.html {
        Some(file) => {
            let page = page::html(&name(&args.array), &facts, &survey);
            write_page(file, &page)?;
            format!("wrote {}: open it in a browser", file.display())
        }
        None => terminal::survey(
            &facts,
            &survey,
            axes,
            common.columns(),
            common.has_colours(),
        ),
    };
    let outcome = Outcome::new(text, json);
    let states = survey.states();
    let bad = states[State::Torn as usize] + states[State::Damaged as usize];
    Ok(if bad > 0 { outcome.not_well() } else { outcome })
}

/// Returns the last part of the array's place, for titles.
fn name(place: &Place) -> String {
    let text = place.to_string();
    let absolute = match place {
        Place::Directory(path) => path.canonicalize().ok(),
        Place::Url(_) => None,
    };
    let text = absolute.map_or(text, |path| path.display().to_string());
    let last = text.trim_end_matches('/').rsplit('/').next();
    last.filter(|last| !last.is_empty())
        .unwrap_or("array")
        .to_string()
}

fn parse_axes(text: &str, rank: usize) -> Result<[usize; 2], Failure> {
    let wrong = || {
        Failure::usage(format!(
            "--axes {text} is not two different axes of {rank}: give two numbers below {rank}, as 0,1"
        ))
    };
    let axes: Option<Vec<usize>> = text
        .split(',')
        .map(|axis| axis.trim().parse().ok())
        .collect();
    let [down, across] = axes.ok_or_else(wrong)?[..] else {
        return Err(wrong());
    };
    let is_valid = down != across && down < rank && across < rank;
    is_valid.then_some([down, across]).ok_or_else(wrong)
}

fn one(args: &Args, sharded: &Sharded, shard: &[u64]) -> Result<Outcome, Failure> {
    facts::must_be_a_shard(sharded, shard)?;
    let key = sharded.opened.array.chunk_key(shard);
    let Some(found) = sharded.inspect(shard)? else {
        let text = format!("{key}: not stored, so every element has the fill value");
        return Ok(Outcome::new(
            text,
            json!({ "key": key.as_str(), "shard": shard, "stored": false }),
        ));
    };
    let text = terminal::shard(key.as_str(), &found, args.summary);
    let outcome = Outcome::new(text, shard_json(key.as_str(), shard, &found));
    let is_well = found.index_problem.is_none()
        && matches!(
            found.recovery,
            RecoveryOutcome::Intact | RecoveryOutcome::Absent
        );
    Ok(if is_well { outcome } else { outcome.not_well() })
}

fn shard_json(key: &str, shard: &[u64], found: &Inspection) -> Value {
    let subchunks = found.subchunks.iter().map(|subchunk| {
        subchunk.map(|subchunk| {
            let problem = subchunk.problem.map(|problem| problem.to_string());
            json!({ "offset": subchunk.offset, "size": subchunk.size, "problem": problem })
        })
    });
    let records = found.records.iter().map(|record| {
        json!({
            "offset": record.offset,
            "old_end": record.old_end,
            "new_end": record.new_end,
            "pending": record.is_pending,
        })
    });
    json!({
        "key": key,
        "shard": shard,
        "stored": true,
        "size": found.size,
        "index": found.index.as_ref().map(|index| [index.start, index.end]),
        "index_problem": found.index_problem,
        "grid": found.grid,
        "live": found.live,
        "unused": found.unused(),
        "recovery": found.recovery.to_string(),
        "records": records.collect::<Vec<_>>(),
        "subchunks": subchunks.collect::<Vec<_>>(),
    })
}

fn survey_json(facts: &Facts, survey: &Survey) -> Value {
    let states = State::ALL.into_iter().zip(survey.states());
    let states: serde_json::Map<String, Value> = states
        .map(|(state, count)| (state.name().replace(' ', "_"), count.into()))
        .collect();
    let problems = survey.looks.iter().filter_map(|(number, look)| {
        let problem = look.problem.as_ref()?;
        let shard = indices_of(*number, &survey.grid);
        Some(json!({ "shard": shard, "state": look.state.name(), "problem": problem }))
    });
    json!({
        "shape": facts.shape,
        "data_type": facts.data_type,
        "shard": facts.shard,
        "stored_shard": facts.stored_shard,
        "subchunk": facts.subchunk,
        "subchunks": facts.counts(),
        "notes": facts.notes,
        "codecs": facts.chain,
        "index": facts.index,
        "grid": survey.grid,
        "stored": survey.stored.len(),
        "outside_of_grid": survey.outside,
        "bytes": survey.bytes(),
        "indices_read": survey.looks.len(),
        "states": states,
        "waiting": survey.framed.iter().map(|&number| indices_of(number, &survey.grid)).collect::<Vec<_>>(),
        "problems": problems.collect::<Vec<_>>(),
    })
}
