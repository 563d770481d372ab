//! `zarrs-cuda verify`: which shards and subchunks are damaged, or differ from another array.

mod against;
mod damage;

use serde_json::{Value, json};

use self::against::Other;
use self::damage::ShardDamage;
use crate::checks::Checks;
use crate::common::Common;
use crate::consolidate;
use crate::failure::Failure;
use crate::open::{self, Opened, Place};
use crate::outcome::Outcome;
use crate::progress::{bytes_text, counted};
use crate::work::{Grid, ShardArgs, on_each};

/// Find damaged shards and subchunks, or compare two arrays bit for bit
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    shards: ShardArgs,
    /// Compare every element with this array, too, bit for bit
    #[arg(long, value_name = "OTHER")]
    against: Option<Place>,
}

/// What was found in a shard.
struct Found {
    stored: bool,
    size: u64,
    subchunks: usize,
    damage: Option<ShardDamage>,
    differences: Vec<against::Difference>,
}

pub(crate) fn run(args: &Args, common: &Common) -> Result<Outcome, Failure> {
    let _registration = zarrs_cuda::register(common.options())?;
    let opened = open::array(&args.shards.array)?;
    let shards = open::shards(&opened)?;
    let other = args.against.as_ref().map(open::array).transpose()?;
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
    let grid = Grid::of(&opened.array);
    let positions = args.shards.positions(&grid)?;
    let checks = Checks::new(&opened, &shards, common)?;
    let other = other.map(|other| Other::new(&opened, other, checks.budget(), common));
    let other = other.transpose()?;
    let done = on_each(
        ["verifying", "nothing was changed"],
        &grid,
        &positions,
        common.threads(), // each waits for its memory
        |shard| look_at(&opened, &checks, other.as_ref(), shard).map(Some),
    )?;
    Ok(report(args, common, &opened, &done.results, positions.len()).with_errors(done.failures))
}

/// Looks at one shard. What cannot be read is damage; it is no failure.
fn look_at(
    opened: &Opened,
    checks: &Checks<'_>,
    other: Option<&Other>,
    shard: &[u64],
) -> Result<Found, Failure> {
    let mut found = Found {
        stored: true,
        size: 0,
        subchunks: 0,
        damage: None,
        differences: Vec::new(),
    };
    match checks.verify(shard)? {
        Ok(None) => found.stored = false,
        Ok(Some(verification)) => {
            found.size = verification.inspection.size;
            found.subchunks = verification.inspection.num_stored();
            found.damage = ShardDamage::of(&verification);
        }
        Err(error) => found.damage = Some(ShardDamage::unreadable(&error)),
    }
    if let Some(other) = other {
        let _taken = checks
            .budget()
            .take("compare shards", other.bytes(opened.shard_bytes()))?;
        found.differences = against::differences(opened, other, shard)?;
    }
    Ok(found)
}

fn report(
    args: &Args,
    common: &Common,
    opened: &Opened,
    found: &[(Vec<u64>, Found)],
    looked_at: usize,
) -> Outcome {
    let mut lines = Vec::new();
    // Of a million damaged shards either takes gigabytes: only one is made.
    let mut damaged: Vec<Value> = Vec::new();
    let mut different: Vec<Value> = Vec::new();
    let (mut bad, mut differ) = (0_u64, 0_u64);
    let (mut stored, mut size, mut subchunks, mut bad_subchunks) = (0_u64, 0, 0, 0);
    for (shard, found) in found {
        stored += u64::from(found.stored);
        size += found.size;
        subchunks += found.subchunks;
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
    summary += &match (bad, bad_subchunks) {
        (0, _) => "no damage found".to_string(),
        (bad, 0) => format!("damage in {}", counted(bad, "shard")),
        (bad, subchunks) => format!(
            "damage in {}, of {}",
            counted(bad, "shard"),
            counted(subchunks, "subchunk")
        ),
    };
    if let Some(other) = &args.against {
        summary += &match differ {
            0 => format!("\nequal to {other}, bit for bit"),
            differ => format!("\nunlike {other} in {}", counted(differ, "shard")),
        };
    }
    let waiting = consolidate::pending(opened);
    if let Err(failure) = &waiting {
        summary += &format!("\nwhether subchunks wait beside shards is not known: {failure}");
    }
    if let Ok(waiting @ 1..) = waiting {
        summary += &format!(
            "\n{} with subchunks beside, which were not looked at: `zarrs-cuda consolidate` packs them",
            counted(waiting, "shard")
        );
    }
    if bad > 0 {
        summary += "\nhelp: `zarrs-cuda recover` repairs torn updates; other damage has to be written again";
    }
    lines.push(summary);
    let json = json!({
        "array": opened.place.to_string(),
        "shards": looked_at,
        "stored": stored,
        "stored_bytes": size,
        "subchunks": subchunks,
        "damaged": damaged,
        "against": args.against.as_ref().map(ToString::to_string),
        "different": different,
        "shards_to_consolidate": waiting.ok(),
    });
    let outcome = Outcome::new(lines.join("\n"), json);
    if bad + differ > 0 {
        outcome.not_well()
    } else {
        outcome
    }
}
