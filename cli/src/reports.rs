//! Writes reports of `zarrs-cuda reencode` as text for people and as JSON.

use serde_json::{Value, json};
use zarrs_cuda_convert::words::bytes_text;
use zarrs_cuda_convert::{ArrayReport, GroupReport};

use crate::explain;

/// Returns the text of an array's report, for people.
pub(crate) fn array_text(report: &ArrayReport) -> String {
    let Some(copied) = &report.copied else {
        return "done before".to_string();
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
        return json!({ "input": input, "output": output });
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
