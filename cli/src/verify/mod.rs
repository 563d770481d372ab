//! `zarrs-cuda verify`: finds damaged shards and subchunks, or differences from another array.

mod against;
mod covered;
mod damage;
mod recursive;
mod unchecked;

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::chunks::Chunks;
use zarrs_cuda_convert::grid::Grid;
use zarrs_cuda_convert::open::{self, Opened, Place};
use zarrs_cuda_convert::words::{bytes_text, counted};

use self::against::Other;
use self::damage::ShardDamage;
use crate::checks::Checks;
use crate::chosen::{self, Chosen, OTHER_DAMAGE, ShardArgs};
use crate::common::Common;
use crate::consolidate;
use crate::outcome::Outcome;
use crate::work::on_each;

/// Find damaged shards and subchunks, or compare two arrays or groups bit for bit
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    shards: ShardArgs,
    /// Compare every element with this array, too, bit for bit
    #[arg(long, value_name = "OTHER")]
    against: Option<Place>,
    /// Verify every array of a group, and of the groups in it
    #[arg(long)]
    recursive: bool,
}

/// The damage of a shard, and its differences from the other array.
struct Found {
    damage: Option<ShardDamage>,
    differences: Vec<against::Difference>,
}

/// The counts of all shards that were verified. Threads share it.
#[derive(Default)]
struct Seen {
    /// The number of shards whose state is known: whole, damaged or not stored.
    decided: AtomicU64,
    stored: AtomicU64,
    /// The number of bytes of all stored shards.
    size: AtomicU64,
    subchunks: AtomicU64,
}

pub(crate) fn run(args: &Args, common: &Common) -> Result<Outcome, Failure> {
    if args.recursive {
        return recursive::run(args, common);
    }
    verify(args, common)
}

/// Verifies one array.
fn verify(args: &Args, common: &Common) -> Result<Outcome, Failure> {
    let _registration = zarrs_cuda::register(common.options())?;
    let mut opened = open::array(&args.shards.array)?;
    // Verify the shards that can be read, even if chunks lie where no reader looks for them.
    let (chunks, uncounted) = match Chunks::of(&mut opened) {
        Ok(chunks) => (Some(chunks), None),
        Err(failure) => (None, Some(failure)),
    };
    let shards = open::shards(&opened)?;
    let mut other = args.against.as_ref().map(open::array).transpose()?;
    let of_other = other.as_mut().map(Chunks::of).transpose()?;
    if let Some(other) = &other
        && let Some(difference) = against::of_metadata(&opened, other)
    {
        return Ok(Outcome::new(
            format!("{} and {} differ: {difference}", opened.place, other.place),
            json!({ "array": opened.place.to_string(), "against": other.place.to_string(),
                "equal": false, "difference": difference }),
        )
        .not_well());
    }
    if let Some(chunks) = &chunks {
        common.say(chunks);
    }
    if let (Some(other), Some(chunks)) = (&other, &of_other) {
        common.say(format!("of {}: {chunks}", other.place));
    }
    let grid = Grid::of(&opened.array)?;
    let (mut chosen, unwritten) = match &other {
        Some(other) => {
            let chunks = [chunks.as_ref(), of_other.as_ref()];
            covered::chosen(&args.shards, &opened, other, chunks, &grid)?
        }
        None => (args.shards.chosen(&opened, &grid)?, 0),
    };
    let seen = Seen::default();
    let checks = Checks::new(&opened, &shards, common)?;
    let other = other.map(|other| Other::new(&opened, other, of_other, checks.budget(), common));
    let other = other.transpose()?;
    let mut done = on_each(
        ["verifying", "nothing was changed"],
        &grid,
        &chosen,
        common.threads(), // each thread waits for its memory
        |shard| look_at(&opened, &checks, other.as_ref(), shard, &seen),
    )?;
    done.failures.extend(chosen.take_failures());
    if let Some(uncounted) = uncounted {
        let text = uncounted.to_string();
        let is_told = |failure: &Failure| text.contains(&failure.to_string());
        if !done.failures.iter().any(is_told) {
            done.failures.push(uncounted);
        }
    }
    let all = All {
        chosen,
        seen,
        unwritten,
        found: done.results,
        waiting: consolidate::pending(&opened),
    };
    // The report says that a store cannot be listed: this is no failure.
    if let Err(failure) = &all.waiting
        && opened.has_no_listing().is_none()
    {
        done.failures.push(failure.clone());
    }
    let outcome = report(args, common, &opened, all)
        .with("chunks", json!(chunks.map(|chunks| chunks.counts())));
    Ok(args.shards.named_in(outcome).with_errors(done.failures))
}

/// Verifies one shard. Returns its damage and differences; `None` if there are none. Fails if the shard
/// cannot be read or decoded for another reason than wrong bytes.
fn look_at(
    opened: &Opened,
    checks: &Checks<'_>,
    other: Option<&Other>,
    shard: &[u64],
    seen: &Seen,
) -> Result<Option<Found>, Failure> {
    let mut found = Found {
        damage: None,
        differences: Vec::new(),
    };
    if let Some(verification) = checks.verify(shard)?? {
        let inspection = &verification.inspection;
        let subchunks = inspection.num_stored() as u64;
        seen.stored.fetch_add(1, Ordering::Relaxed);
        seen.size.fetch_add(inspection.size, Ordering::Relaxed);
        seen.subchunks.fetch_add(subchunks, Ordering::Relaxed);
        found.damage = ShardDamage::of(&verification);
    }
    if let Some(other) = other {
        let _taken = checks
            .budget()
            .take("compare shards", other.bytes(opened.shard_bytes()))?;
        found.differences = against::differences(opened, other, shard)?;
    }
    seen.decided.fetch_add(1, Ordering::Relaxed);
    let is_well = found.damage.is_none() && found.differences.is_empty();
    Ok((!is_well).then_some(found))
}

/// The results for all shards.
struct All {
    chosen: Chosen,
    seen: Seen,
    /// The number of shards that are stored in neither array, but differ in the fill value.
    unwritten: u128,
    found: Vec<(Vec<u64>, Found)>,
    /// The number of shards beside which subchunks wait in frames, or the reason why it is not known.
    waiting: Result<usize, Failure>,
}

fn waiting_text(waiting: &Result<usize, Failure>) -> String {
    match waiting {
        Err(failure) => format!("\nwhether subchunks wait beside shards is not known: {failure}"),
        Ok(0) => String::new(),
        Ok(waiting) => format!(
            "\n{} with subchunks beside, which were not looked at: `zarrs-cuda consolidate` packs them",
            counted(*waiting, "shard")
        ),
    }
}

fn damage_text(shards: u64, subchunks: usize) -> String {
    match (shards, subchunks) {
        (0, _) => "no damage found".to_string(),
        (shards, 0) => format!("damage in {}", counted(shards, "shard")),
        (shards, subchunks) => format!(
            "damage in {}, of {}",
            counted(shards, "shard"),
            counted(subchunks, "subchunk")
        ),
    }
}

fn report(args: &Args, common: &Common, opened: &Opened, all: All) -> Outcome {
    let All {
        chosen,
        seen,
        unwritten,
        found,
        waiting,
    } = all;
    let undecided = chosen
        .len()
        .saturating_sub(u128::from(seen.decided.into_inner()));
    let looked_at = chosen.looked_at().saturating_sub(undecided);
    let mut lines = Vec::new();
    // Make only the lines or the JSON, because each takes gigabytes for a million damaged shards.
    let mut damaged: Vec<Value> = Vec::new();
    let mut different: Vec<Value> = Vec::new();
    let (mut bad, mut differ, mut bad_subchunks) = (0_u64, unwritten, 0);
    let [stored, size, subchunks] =
        [seen.stored, seen.size, seen.subchunks].map(AtomicU64::into_inner);
    for (shard, found) in &found {
        if let Some(damage) = &found.damage {
            bad_subchunks += damage.subchunks.len();
            bad += 1;
            if common.json {
                damaged.push(damage.json(shard));
            } else {
                lines.push(damage.text(shard));
            }
        }
        if !found.differences.is_empty() {
            differ += 1;
            if common.json {
                different.push(against::json(shard, &found.differences));
            } else {
                lines.push(against::text(shard, &found.differences));
            }
        }
    }
    let mut summary = format!(
        "{}, {stored} stored in {}, {}: ",
        counted(looked_at, "shard"),
        bytes_text(size),
        counted(subchunks, "subchunk")
    );
    summary += &damage_text(bad, bad_subchunks);
    if let Some(other) = &args.against {
        let some_are = args.shards.some_are();
        summary += &match differ {
            0 if undecided > 0 => String::new(),
            0 => format!("\n{some_are}equal to {other}, bit for bit"),
            differ => format!("\nunlike {other} in {}", counted(differ, "shard")),
        };
        if unwritten > 0 {
            summary += &format!(
                "\nof these {unwritten} are stored in neither, and the fill values differ"
            );
        }
    }
    let is_unchecked = serde_json::to_value(opened.array.metadata())
        .is_ok_and(|metadata| unchecked::is_unchecked(&metadata));
    if is_unchecked && bad == 0 && subchunks > 0 && args.against.is_none() {
        summary += "\nits subchunks have no checksum, so changed bits may decode to other elements: --against compares \
                    all elements with another array";
    }
    if let Some(outside) = chosen.outside_text() {
        summary += &format!("\n{outside}");
    }
    if undecided > 0 {
        summary += &format!(
            "\n{} could not be read: nothing is known of what is in there",
            counted(undecided, "more shard")
        );
    }
    summary += &waiting_text(&waiting);
    if bad > 0 {
        summary += &format!("\nhelp: `zarrs-cuda recover` repairs torn updates. {OTHER_DAMAGE}");
    }
    lines.push(summary);
    let json = json!({
        "array": opened.place.to_string(),
        "shards": chosen::json_number(looked_at),
        "undecided": chosen::json_number(undecided),
        "stored": stored,
        "outside_of_grid": chosen.outside(),
        "stored_bytes": size,
        "has_checksums": !is_unchecked,
        "subchunks": subchunks,
        "damaged": damaged,
        "against": args.against.as_ref().map(ToString::to_string),
        "different": different,
        "different_fill_value": chosen::json_number(unwritten),
        "shards_to_consolidate": waiting.ok(),
    });
    let outcome = Outcome::new(lines.join("\n"), json);
    if bad > 0 || differ > 0 {
        outcome.not_well()
    } else {
        outcome
    }
}
