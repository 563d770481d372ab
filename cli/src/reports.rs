//! Writes reports of `zarrs-cuda reencode` as text for people and as JSON.

use std::num::NonZeroU64;

use serde_json::{Value, json};
use zarrs_cuda_convert::words::{bytes_text, counted, is_or_are};
use zarrs_cuda_convert::{ArrayReport, DryRun, GroupReport, PartReport, PartState, Work};

use crate::explain;

/// Returns the text of an array's report, for people.
pub(crate) fn array_text(report: &ArrayReport) -> String {
    let Some(copied) = &report.copied else {
        return match report.made_again {
            0 => "done before".to_string(),
            shards => format!("done before, but for {}", counted(shards, "shard")),
        };
    };
    let now = copied.stored_bytes_now.unwrap_or_default();
    let seconds = copied.time.as_secs_f64();
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "rounded for people"
    )]
    let (rate, ratio) = (
        (copied.bytes_decoded as f64 / seconds.max(1e-9)) as u64,
        |size: u64| size as f64 / now as f64,
    );
    let values = match copied.values_bytes {
        None | Some(0) => String::new(),
        Some(size) => format!("{} of values ({:.2}:1), ", bytes_text(size), ratio(size)),
    };
    let before = match copied.stored_bytes_before {
        Some(bytes) => format!("{} before and ", bytes_text(bytes)),
        None => String::new(),
    };
    let summary = format!(
        "{values}stored in {before}{} now\n{seconds:.2} s, {}/s",
        bytes_text(now),
        bytes_text(rate),
    );
    [&[summary], &copied.notes[..]].concat().join("\n")
}

pub(crate) fn array_json(report: &ArrayReport) -> Value {
    let [input, output] = [&report.input, &report.output].map(ToString::to_string);
    let Some(copied) = &report.copied else {
        return json!({ "input": input, "output": output, "shards_made_again": report.made_again });
    };
    json!({
        "input": input,
        "output": output,
        "shape": copied.shape,
        "shard": copied.shard,
        "subchunk": copied.subchunk,
        "codec": copied.codec.to_string(),
        "chunks": copied.chunks,
        "explanation": copied.explanation.as_ref().map(explain::json_of),
        "verified": copied.verified,
        "copied": {
            "bytes_decoded": copied.bytes_decoded,
            "seconds": copied.time.as_secs_f64(),
            "values_bytes": copied.values_bytes,
            "stored_bytes_before": copied.stored_bytes_before,
            "stored_bytes_now": copied.stored_bytes_now,
        },
        "notes": copied.notes,
        "repaired_metadata": copied.repaired_metadata,
    })
}

pub(crate) fn group_text(report: &GroupReport) -> String {
    let failed = report.failures.len();
    let Some(written) = &report.written else {
        return format!(
            "nothing was written: {failed} of {} arrays and groups in {} cannot be re-encoded. --keep-going \
             does the others",
            report.members, report.input
        );
    };
    let (arrays, groups) = (written.arrays.len(), written.groups);
    let mut lines = vec![format!(
        "{arrays} arrays and {groups} groups in {}",
        report.output
    )];
    lines.extend(written.notes.iter().cloned());
    if failed > 0 {
        lines.push(format!(
            "{failed} are missing: when the cause is gone, --resume adds them"
        ));
    }
    lines.join("\n")
}

pub(crate) fn group_json(report: &GroupReport) -> Value {
    let [input, output] = [&report.input, &report.output].map(ToString::to_string);
    let Some(written) = &report.written else {
        return json!({ "input": input, "output": output, "arrays": [] });
    };
    json!({
        "input": input, "output": output, "groups": written.groups,
        "arrays": written.arrays.iter().map(array_json).collect::<Vec<_>>(),
        "repaired_metadata": written.repaired_metadata, "left_out": written.left_out,
    })
}

/// Returns the text of the report of a part, for people.
pub(crate) fn part_text(report: &PartReport) -> String {
    [&[part_state(report)], &report.notes[..]]
        .concat()
        .join("\n")
}

fn part_state(report: &PartReport) -> String {
    let (parts, input, output) = (report.parts, &report.input, &report.output);
    let part = report
        .part
        .map_or_else(|| "the plan".to_owned(), |part| format!("part {part}"));
    let seconds = report.time.as_secs_f64();
    let made = format!(
        "{part} of {output} is made: {}, {seconds:.2} s",
        bytes_text(report.bytes)
    );
    let without = without(&report.left_out);
    match &report.state {
        PartState::Prepared => {
            format!(
                "{output} is planned in {parts} parts{without}: make each with --part I/{parts}"
            )
        }
        PartState::Made { missing } => {
            format!("{made}\n{}", missing_text(parts, missing))
        }
        PartState::Completed => {
            format!("{made}\nall {parts} parts are made: {output} can be read{without}")
        }
        PartState::WasComplete => {
            format!(
                "{output} is complete already{without}: all {parts} parts are made, and nothing was changed"
            )
        }
        PartState::Mended {
            shards: 0,
            is_decoded: true,
        } => format!(
            "{output} is complete already{without}: no shard is missing, and each subchunk decodes"
        ),
        PartState::Mended { shards: 0, .. } => format!(
            "{output} is complete already{without}: no shard is missing, and each index is whole. --verify decodes the \
             subchunks, too"
        ),
        PartState::Mended { shards, .. } => format!(
            "{} of {output} {} made again{without}: missing or damaged",
            counted(*shards, "shard"),
            is_or_are(*shards)
        ),
        PartState::Refused => format!(
            "nothing was written: {} of the arrays and groups in {input} cannot be re-encoded. --keep-going does \
             the others, in all parts",
            report.failures.len()
        ),
    }
}

/// Returns the words for the arrays and groups that are left out.
pub(crate) fn without(left_out: &[String]) -> String {
    match left_out {
        [] => String::new(),
        left_out => format!(", without {}", left_out.join(", ")),
    }
}

/// Returns the sentence on the parts that are missing.
pub(crate) fn missing_text(parts: NonZeroU64, missing: &[u64]) -> String {
    format!(
        "{} of {parts} parts {} missing: {}",
        missing.len(),
        is_or_are(missing.len() as u64),
        numbers(missing)
    )
}

/// Returns `numbers` with commas between them, as schedulers take them.
pub(crate) fn numbers(numbers: &[u64]) -> String {
    let numbers = numbers.iter().map(ToString::to_string);
    numbers.collect::<Vec<_>>().join(",")
}

pub(crate) fn part_json(report: &PartReport) -> Value {
    let (state, missing) = match &report.state {
        PartState::Prepared => ("prepared", None),
        PartState::Made { missing } => ("made", Some(missing)),
        PartState::Completed => ("completed", None),
        PartState::WasComplete => ("was_complete", None),
        PartState::Mended { .. } => ("mended", None),
        PartState::Refused => ("refused", None),
    };
    json!({
        "input": report.input,
        "output": report.output.to_string(),
        "part": report.part.map(|part| part.to_string()),
        "parts": report.parts,
        "arrays": report.arrays,
        "state": state,
        "missing": missing,
        "shards_made_again": match report.state {
            PartState::Mended { shards, .. } => Some(shards),
            _ => None,
        },
        "bytes": report.bytes,
        "seconds": report.time.as_secs_f64(),
        "left_out": report.left_out,
        "notes": report.notes,
    })
}

/// Returns the text of the work of a run, for people.
pub(crate) fn dry_run_text(report: &DryRun) -> String {
    let mut lines = Vec::new();
    for array in &report.arrays {
        lines.push(format!(
            "{}: {} {:?}, shards {:?}, subchunks {:?}",
            array.input, array.data_type, array.shape, array.shard, array.subchunk
        ));
        let kept = if report.resumes {
            format!(", {} kept", counted(array.kept, "shard"))
        } else {
            String::new()
        };
        lines.push(format!("  {}{kept}", work_text(&array.work, array.memory)));
    }
    if report.parts.len() > 1 || report.parts.iter().any(|part| part.part.of().get() > 1) {
        for part in &report.parts {
            let work = work_text(&part.work, part.memory);
            lines.push(format!("part {}: {work}", part.part));
        }
    }
    let output = &report.output;
    let arrays = counted(report.arrays.len() as u64, "array");
    let without = without(&report.left_out);
    lines.push(if report.is_refused {
        format!(
            "nothing was written, and nothing would be: {} of the arrays and groups in {} cannot be re-encoded. \
             --keep-going would write {arrays} to {output}{without}",
            report.failures.len(),
            report.input
        )
    } else if report.is_complete {
        format!("nothing was written, and nothing would be: {output} is complete already{without}")
    } else if report.resumes {
        let made: u64 = report.arrays.iter().map(|array| array.work.shards).sum();
        let kept: u64 = report.arrays.iter().map(|array| array.kept).sum();
        format!(
            "nothing was written: {} of {arrays} would be made in {output}, and {kept} kept{without}",
            counted(made, "shard")
        )
    } else {
        format!("nothing was written: {arrays} would be written to {output}{without}")
    });
    lines.join("\n")
}

fn work_text(work: &Work, memory: u64) -> String {
    format!(
        "{} of {} decoded, {} of objects of IN, up to {} of memory",
        counted(work.shards, "shard"),
        bytes_text(work.bytes),
        counted(work.reads, "read"),
        bytes_text(memory)
    )
}

pub(crate) fn dry_run_json(report: &DryRun) -> Value {
    let work = |work: &Work, memory: u64| {
        json!({
            "shards": work.shards, "bytes_decoded": work.bytes, "reads": work.reads, "memory": memory,
        })
    };
    let arrays = report.arrays.iter().map(|array| {
        json!({
            "input": array.input.to_string(),
            "shape": array.shape,
            "data_type": array.data_type,
            "shard": array.shard,
            "subchunk": array.subchunk,
            "work": work(&array.work, array.memory),
            "shards_kept": report.resumes.then_some(array.kept),
        })
    });
    let parts = report.parts.iter().map(
        |part| json!({ "part": part.part.to_string(), "work": work(&part.work, part.memory) }),
    );
    json!({
        "dry_run": true,
        "is_complete": report.is_complete,
        "input": report.input.to_string(),
        "output": report.output.to_string(),
        "arrays": arrays.collect::<Vec<_>>(),
        "parts": parts.collect::<Vec<_>>(),
        "left_out": report.left_out,
    })
}
